"""Labeling sessions, in which each action is committed to a result next to the store before it is acknowledged.

The result, kind ``labels``, contains the arrays that ``labelkit label`` writes (``labels``, ``labeled``,
``class_names``, ``label_rounds``) and those needed to resume the session. Every action is a round; ``params`` lists who
did what and when, and the steps that undo it. As for every result, each write replaces the whole file.
"""

import threading
import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelkit.commands.common.label_files import LABELS_KIND
from labelkit.errors import Mismatch, StoreError
from labelkit.store.embeddings import EmbeddingStore
from labelkit.store.results import Result, results_folder, write_result
from labelkit.studio.label.actions import (
    EditStep,
    InvalidStepError,
    LabelingState,
    find_changed_rows_and_groups,
    parse_steps,
    parse_stored_step,
)

STAGE = "label"
#: Number of most recent actions whose undo steps are stored in the file.
KEPT_BACK = 200


class EditConflictError(Exception):
    """Raised for an action on images or groups that another page has changed since this page was last updated.

    Args:
        theirs: the conflicting actions, as dicts with ``round``, ``by``, ``kind``.
        rows: rows of the store that both actions change.
        groups: groups that both actions change.
    """

    def __init__(self, theirs: list[dict[str, Any]], rows: list[int], groups: list[int]) -> None:
        super().__init__("changed by someone else")
        self.theirs, self.rows, self.groups = theirs, rows, groups


@dataclass(frozen=True)
class CommittedAction:
    """Committed labeling action, with the steps that undo it.

    Attributes:
        round: number of the action.
        kind: kind of user action, such as ``merge``.
        by: name of the user.
        client: id of the page.
        when: Unix time in seconds.
        steps: the steps that were applied.
        back: the steps that undo them.
        undoes: number of the action that this one undoes; 0 = none.
    """

    round: int
    kind: str
    by: str
    client: str
    when: int
    steps: tuple[EditStep, ...]
    back: tuple[EditStep, ...]
    undoes: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return the action as JSON for the pages, without its undo steps."""
        told = {**vars(self), "steps": [step.to_json() for step in self.steps]}
        del told["back"]
        return told


class LabelingSession:
    """Thread-safe session in which one or more people label the images of a store.

    Args:
        store: the store.
        name: name of the result.
        work: the current labeling state.
        rounds: (n,) int64 round in which each label was added, -1 = none.
        params: parameters of the result, in addition to those that this class adds.
        log: actions so far.
        first_round: round of the initial labels.
        path: path of the result, if it has been written.

    Attributes:
        known_groups: names of groups that are known classes according to the result that created the groups.
    """

    def __init__(
        self,
        store: EmbeddingStore,
        name: str,
        work: LabelingState,
        rounds: NDArray[np.int64],
        params: dict[str, Any],
        *,
        log: Sequence[CommittedAction] = (),
        first_round: int = 0,
        path: Path | None = None,
    ) -> None:
        self.store, self.name, self.work = store, name, work
        self.log = list(log)
        self.known_groups = set(map(str, params.get("known", [])))
        self.label_rounds, self._params, self.first_round = rounds, params, first_round
        self._written = None if path is None else _read_file_version(path)
        self._lock = threading.Lock()

    @property
    def round(self) -> int:
        """Number of the last committed labeling action."""
        return self.log[-1].round if self.log else self.first_round

    def actions_since(self, number: int) -> list[CommittedAction]:
        """Return the labeling actions committed after round ``number``."""
        with self._lock:
            return [done for done in self.log if done.round > number]

    def commit_action(self, kind: str, raw: object, *, user: str, client: str, seen_round: int) -> CommittedAction:
        """Validate a labeling action received as JSON, apply it, and commit it.

        Args:
            kind: kind of user action, for the history.
            raw: the steps as parsed JSON.
            user: name of the user.
            client: id of the page.
            seen_round: last round known to the page.

        Raises:
            InvalidStepError: the action is invalid.
            EditConflictError: another page has changed the same images or groups since ``seen_round``.
            LabelkitError: the result cannot be written; nothing was changed.
        """
        with self._lock:
            steps = tuple(parse_steps(raw, self.store.n, self.work.classes))
            return self._commit(kind, steps, by=user, client=client, seen=seen_round)

    def plan_and_commit(
        self, kind: str, plan: Callable[[LabelingState], list[EditStep]], *, user: str, client: str
    ) -> CommittedAction | None:
        """Plan a labeling action from the current state, and commit it; ``None`` if the plan is empty."""
        with self._lock:
            steps = tuple(plan(self.work))
            return self._commit(kind, steps, by=user, client=client, seen=self.round) if steps else None

    def snapshot(self) -> tuple[LabelingState, list[CommittedAction], int]:
        """Return a copy of the labeling state, the actions so far, and the number of the last one."""
        with self._lock:
            return deepcopy(self.work), list(self.log), self.round

    def undo(self, number: int, *, user: str, client: str, seen_round: int) -> CommittedAction:
        """Undo a labeling action that has not been undone, and commit the undo as a new action."""
        with self._lock:
            found = next((done for done in self.log if done.round == number), None)
            if found is None or not found.back or any(done.undoes == number for done in self.log):
                raise InvalidStepError(f"action {number} cannot be undone")
            kind = "redo" if found.undoes else "undo"
            return self._commit(kind, found.back, by=user, client=client, seen=max(seen_round, number), undoes=number)

    def _commit(
        self, kind: str, steps: tuple[EditStep, ...], *, by: str, client: str, seen: int, undoes: int = 0
    ) -> CommittedAction:
        self._find_conflict(steps, client, seen)
        before, _ = self.work.labels()
        num_classes, num_groups = len(self.work.classes), len(self.work.named)
        back = tuple(self.work.apply(steps))
        if not back:
            raise InvalidStepError("the action would not change anything")
        done = CommittedAction(self.round + 1, kind, by, client, int(time.time()), steps, back, undoes)
        after, _ = self.work.labels()
        rounds = np.where(after == before, self.label_rounds, np.where(after >= 0, done.round, -1))
        self.log.append(done)
        old_rounds, self.label_rounds = self.label_rounds, rounds
        try:
            self.write()
        except BaseException:
            self.log.pop()
            self.label_rounds = old_rounds
            self.work.apply(back)
            del self.work.classes[num_classes:], self.work.named[num_groups:], self.work.group_names[num_groups:]
            raise
        return done

    def _find_conflict(self, steps: tuple[EditStep, ...], client: str, seen: int) -> None:
        rows, groups = find_changed_rows_and_groups(steps)
        theirs, both_rows, both_groups = [], set[int](), set[int]()
        for done in self.log:
            if done.round <= seen or done.client == client:
                continue
            their_rows, their_groups = find_changed_rows_and_groups(done.steps)
            if rows & their_rows or groups & their_groups:
                theirs.append({"round": done.round, "by": done.by, "kind": done.kind})
                both_rows |= rows & their_rows
                both_groups |= groups & their_groups
        if theirs:
            raise EditConflictError(theirs, sorted(both_rows), sorted(both_groups))

    def write(self) -> None:
        """Write the labels and the history of a labeling session to its result.

        Raises:
            Mismatch: the result on disk is not the one that this session wrote.
            LabelkitError: the result cannot be written (disk full, ...).
        """
        path = results_folder(self.store.path) / f"{self.name}.h5"
        if path.exists() and _read_file_version(path) != self._written:
            problem = "was written by another program while the page was open"
            raise Mismatch(str(path), problem, "Stop the server, then start it again with another --result.")
        labels, by_group = self.work.labels()
        refused = sorted(self.work.refused)
        last = len(self.log) - KEPT_BACK
        actions = [
            {**done.to_json(), "back": [step.to_json() for step in done.back] if place >= last else []}
            for place, done in enumerate(self.log)
        ]
        write_result(
            self.store,
            self.name,
            kind=LABELS_KIND,
            arrays={
                "labels": labels,
                "labeled": labels >= 0,
                "class_names": list(self.work.classes),
                "label_rounds": self.label_rounds,
                "by_group": by_group,
                "hand_labels": self.work.hand,
                "rejected": self.work.rejected,
                "work_groups": self.work.groups,
                "work_group_names": list(self.work.group_names),
                "work_group_classes": np.array(self.work.named, dtype=np.int64),
                "refused": np.array(refused, dtype=np.int64).reshape(-1, 2),
            },
            params={**self._params, "round": self.round, "first_round": self.first_round, "actions": actions},
            stage=STAGE,
            overwrite=True,
        )
        self._written = _read_file_version(path)


def _read_file_version(path: Path) -> tuple[int, int, int]:
    """Return the inode, time and size of a file, which identify its version, since every version is a new file."""
    status = path.stat()
    return status.st_ino, status.st_mtime_ns, status.st_size


def is_session(result: Result) -> bool:
    """Return whether a result was written by a labeling session."""
    return result.kind == LABELS_KIND and "work_groups" in result.arrays


def restore_session(store: EmbeddingStore, result: Result) -> LabelingSession:
    """Restore the labeling session that is stored in a result.

    Raises:
        StoreError: the result does not contain a session, or the session cannot be read.
    """
    if not is_session(result):
        problem = "was not created by `labelkit label --serve`"
        raise StoreError(str(result.path), problem, "Choose a new name for --result, and pass this result as --labels.")
    arrays, params = result.arrays, dict(result.params)
    try:
        log = [_done(one, store.n) for one in params.pop("actions")]
        first = int(params.pop("first_round"))
        params.pop("round")
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(str(result.path), f"its history cannot be read: {error}", "Restore the file.") from error
    work = LabelingState(
        classes=list(arrays["class_names"]),
        hand=np.array(arrays["hand_labels"], dtype=np.int64),
        rejected=np.array(arrays["rejected"], dtype=np.bool_),
        groups=np.array(arrays["work_groups"], dtype=np.int64),
        group_names=list(arrays["work_group_names"]),
        named=np.asarray(arrays["work_group_classes"], dtype=np.int64).tolist(),
        refused={(int(row), int(label)) for row, label in np.asarray(arrays["refused"]).tolist()},
    )
    rounds = np.array(arrays["label_rounds"], dtype=np.int64)
    return LabelingSession(store, result.name, work, rounds, params, log=log, first_round=first, path=result.path)


def _done(raw: dict[str, Any], num_rows: int) -> CommittedAction:
    steps, back = (tuple(parse_stored_step(one, num_rows) for one in raw[key]) for key in ("steps", "back"))
    kind, by, client = (str(raw[key]) for key in ("kind", "by", "client"))
    return CommittedAction(int(raw["round"]), kind, by, client, int(raw["when"]), steps, back, int(raw["undoes"]))
