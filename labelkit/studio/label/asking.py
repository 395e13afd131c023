"""Predict again from the labels so far, in subprocesses, and report the changes (the button "Predict again").

The user's decisions remain: labels of images, rejected images, and groups named by the user. All other images move to
the groups of the new prediction; groups with the same name as before keep their number.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelkit.data.path_rule import escape_path
from labelkit.errors import LabelkitError
from labelkit.store.csv_table import csv_text
from labelkit.store.results import Result, find_free_name, list_results, read_result
from labelkit.studio.label.actions import EditStep, InvalidStepError, LabelingState, choose_training_labels
from labelkit.studio.label.browser import BrowsedStore
from labelkit.studio.label.session import LabelingSession
from labelkit.studio.report.groups import describe_groups

_LAST_WORDS = 600


def plan_regrouping(state: LabelingState, group_ids: NDArray[np.int64], names: list[str]) -> list[EditStep]:
    """Plan the steps that move all images outside named groups into the groups of a new prediction.

    ``group_ids`` (n,) are the groups of the images in the new prediction, -1 = none; ``names`` are the groups' names.
    """
    is_named = np.array([*(label >= 0 for label in state.named), False])
    free = ~state.rejected & ~is_named[state.groups]
    number = {name: group for group, name in enumerate(state.group_names) if state.named[group] < 0}
    steps: list[EditStep] = []
    count = len(state.group_names)
    for group, name in enumerate(names):
        rows = np.flatnonzero(free & (group_ids == group))
        label = state.classes.index(name) if name in state.classes else -1
        rows = np.array([row for row in rows.tolist() if (row, label) not in state.refused], dtype=np.int64)
        if not len(rows):
            continue
        if name not in number:
            steps.append(EditStep("make", group=count, name=name))
            number[name], count = count, count + 1
        moved = rows[state.groups[rows] != number[name]]
        if len(moved):
            steps.append(EditStep("group", rows=tuple(moved.tolist()), group=number[name]))
    return steps


def count_group_changes(before: LabelingState, after: LabelingState) -> dict[str, Any]:
    """Count how many images joined and left each unnamed group that changed between two states."""
    lines = []
    for group, name in enumerate(after.group_names):
        was, now = before.groups == group, after.groups == group
        counts = {"before": was.sum(), "after": now.sum(), "came": (now & ~was).sum(), "left": (was & ~now).sum()}
        if after.named[group] < 0 and (was != now).any():
            lines.append({"name": name, **{key: int(count) for key, count in counts.items()}})
    return {"moved": int((before.groups != after.groups).sum()), "groups": lines}


class BackgroundPredictor:
    """Background job that predicts again with the current labels, one request at a time.

    Args:
        session: session whose labels are used for training, and whose groups are updated.
        browsed: the store shown on the pages, which receives the new confidences.
        predict: function that returns the new predictions, instead of ``discover categories`` and ``discover answer``;
            it runs its commands with ``run_command``.

    Attributes:
        asked: the last request as reported to pages: its ``number``, from 1 (0: no request yet); its ``state``,
            ``idle``, ``running``, ``done`` or ``failed``; its ``step``, the current step or the reason for a failure;
            and what ``changed``, see ``count_group_changes``.
    """

    def __init__(
        self,
        session: LabelingSession,
        browsed: BrowsedStore,
        predict: Callable[[BackgroundPredictor], Result] | None = None,
    ) -> None:
        self.session, self.browsed, self.predict = session, browsed, predict
        self.asked: dict[str, Any] = {"number": 0, "state": "idle", "step": "", "changed": None}
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._stopped = False

    def start(self, *, user: str, client: str) -> None:
        """Start a new prediction with the current labels, in a background thread.

        Raises:
            InvalidStepError: a prediction is already running, or there is nothing to learn from.
        """
        with self._lock:
            if self.asked["state"] == "running":
                raise InvalidStepError("a prediction is already running")
            work, _, _ = self.session.snapshot()
            learned = choose_training_labels(work, self.browsed.images.features)
            if not (learned >= 0).any():
                raise InvalidStepError("there are no labels to learn from: name a group or label an image first")
            number = self.asked["number"] + 1
            self.asked = {"number": number, "state": "running", "step": "grouping the images", "changed": None}
        threading.Thread(target=self._run, args=(learned, work.classes, user, client), daemon=True).start()

    def stop(self) -> None:
        """Stop the running prediction by killing its process."""
        self._stopped = True
        if self._process is not None:
            self._process.kill()

    def _run(self, learned: NDArray[np.int64], classes: list[str], by: str, client: str) -> None:
        try:
            if self.predict is not None:
                result = self.predict(self)
            else:
                with tempfile.TemporaryDirectory() as folder:
                    result = self._answer(Path(folder) / "labels.csv", learned, classes)
            changed = self._apply_prediction(result, by=by, client=client)
            self.asked = {**self.asked, "state": "done", "step": "", "changed": changed}
        except Exception as error:
            self.asked = {**self.asked, "state": "failed", "step": str(error) or type(error).__name__}
            if not isinstance(error, (LabelkitError, OSError, ValueError)):
                raise  # a bug: the thread prints the traceback

    def _answer(self, table: Path, learned: NDArray[np.int64], classes: list[str]) -> Result:
        """Run the commands, and return the predictions, or the groups if there are too few labels to predict."""
        store = self.session.store
        labeled = np.flatnonzero(learned >= 0).tolist()
        lines = ([escape_path(store.sample_ids[row]), classes[int(learned[row])]] for row in labeled)
        # strict encoding, because a name that is not valid text would change in a round trip
        table.write_bytes(csv_text(["path", "label"], lines).encode())
        groups, answer = find_free_name(store, "groups"), find_free_name(store, "answer")
        shared = ["--index", str(store.path), "--labels", str(table), "--no-own-labels"]
        not_these = table.with_name("ruled-out.csv")
        refused = sorted(self.session.snapshot()[0].refused)
        lines = ([escape_path(store.sample_ids[row]), classes[label]] for row, label in refused)
        not_these.write_bytes(csv_text(["path", "label"], lines).encode())
        previous = []
        if (grouping := self.browsed.grouping) is not None:
            # the groups behind the shown predictions, whose names are to be reused
            earlier = str(grouping.result.params.get("grouping", grouping.result.name))
            if earlier in list_results(store):
                previous = ["--previous", str(store.path), "--previous-result", earlier]
        self.run_command("discover", "categories", *shared, "--result", groups, *previous)
        if np.bincount(learned[learned >= 0]).max() < 2:
            return read_result(store, groups)
        self.asked = {**self.asked, "step": "predicting labels"}
        shared += ["--grouping", groups, "--result", answer, "--ruled-out", str(not_these)]
        self.run_command("discover", "answer", *shared)
        return read_result(store, answer)

    def run_command(self, *words: str) -> dict[str, Any]:
        """Run a labelkit command in a subprocess, and return its JSON output.

        Raises:
            ValueError: the command failed; the text is its error message.
        """
        command = [sys.executable, "-m", "labelkit", *words, "--json"]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True)
        if self._stopped:
            self._process.kill()
        told, problem = self._process.communicate()
        if self._process.returncode:
            raise ValueError(problem.strip()[-_LAST_WORDS:] or f"exit code {self._process.returncode}")
        return dict(json.loads(told))

    def _apply_prediction(self, result: Result, *, by: str, client: str) -> dict[str, Any]:
        made = describe_groups(self.browsed.store, self.browsed.images, result, "predicted again", 1)
        if made is None:
            raise ValueError(f"result {result.name} does not assign any image to a group")
        before, _, _ = self.session.snapshot()
        names = [group.name for group in made.groups]
        done = self.session.plan_and_commit(
            "predict again", lambda work: plan_regrouping(work, made.ids, names), user=by, client=client
        )
        self.browsed.grouping = made
        after, _, _ = self.session.snapshot()
        return {**count_group_changes(before, after), "result": result.name, "round": 0 if done is None else done.round}
