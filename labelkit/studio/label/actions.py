"""Labeling actions as small steps that can be checked, applied, and undone.

The page translates every action (naming a group, merging two groups, marking an image as wrong) into steps of six
kinds. The server knows only these steps, so that the meaning of an action is defined in one place, the page.

    {"do": "label",  "rows": [3, 4], "name": "umbrella"}   label individual images; name null removes the label
    {"do": "not",    "rows": [3], "name": "umbrella", "value": true}   mark images as not belonging to this class
    {"do": "reject", "rows": [3], "value": true}           exclude images from labeling, such as blurred images
    {"do": "group",  "rows": [3, 4], "group": 2}           move images to a group; -1: to no group
    {"do": "name",   "group": 2, "name": "umbrella"}       label all images of a group; name null removes the label
    {"do": "make",   "group": 7, "name": "part of new-3"}  create a group, with the next number

The label of an individual image takes precedence over the name of its group. A rejected image has no label.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelkit.commands.common.labels import keep_typical_labels
from labelkit.data.tables import match_known_spelling, to_class_name
from labelkit.formatting import is_displayable

MAX_LETTERS = 200
MAX_STEPS = 2_000
_KEYS = {
    "label": {"do", "rows", "name"},
    "not": {"do", "rows", "name", "value"},
    "reject": {"do", "rows", "value"},
    "group": {"do", "rows", "group"},
    "name": {"do", "group", "name"},
    "make": {"do", "group", "name"},
}


class InvalidStepError(ValueError):
    """Raised for an invalid labeling step; the message gives the reason."""


@dataclass(frozen=True)
class EditStep:
    """Validated step of a labeling action, such as naming a group or moving images.

    Attributes:
        do: kind of step; see the docstring of this module.
        rows: rows of the store, without duplicates.
        group: number of a group; -1 = none.
        name: name of a class or group; ``None`` removes a name.
        value: whether to set or remove a mark.
    """

    do: str
    rows: tuple[int, ...] = ()
    group: int = -1
    name: str | None = None
    value: bool = True

    def to_json(self) -> dict[str, Any]:
        """Return the labeling step in the page's JSON format."""
        whole = {"do": self.do, "rows": list(self.rows), "group": self.group, "name": self.name, "value": self.value}
        return {key: whole[key] for key in ("do", "rows", "group", "name", "value") if key in _KEYS[self.do]}


def parse_steps(raw: object, num_rows: int, classes: Sequence[str] = ()) -> list[EditStep]:
    """Parse and validate the steps of a labeling action, received as JSON from a browser.

    The names of existing ``classes`` may be any text; other names are adjusted to the spelling of these.

    Raises:
        InvalidStepError: this is not a list of steps, or a row or name is invalid, ...
    """
    if not isinstance(raw, list) or not raw or len(raw) > MAX_STEPS:
        raise InvalidStepError(f"an action must be a list of 1 to {MAX_STEPS} steps")
    return [_check_name(parse_stored_step(one, num_rows), classes) for one in raw]


def parse_stored_step(raw: object, num_rows: int) -> EditStep:
    """Parse and validate one step of a stored action, which may contain the name of any class of the store."""
    if not isinstance(raw, dict) or not isinstance(raw.get("do"), str) or raw["do"] not in _KEYS:
        raise InvalidStepError(f"a step must be an object whose `do` is one of {', '.join(_KEYS)}")
    do = raw["do"]
    if set(raw) != _KEYS[do]:
        raise InvalidStepError(f"a step {do!r} must have the keys {', '.join(sorted(_KEYS[do]))}")
    rows: tuple[int, ...] = ()
    if "rows" in raw:
        listed = raw["rows"]
        if not isinstance(listed, list) or not listed or not all(type(row) is int for row in listed):
            raise InvalidStepError("rows must be a non-empty list of integers")
        if min(listed) < 0 or max(listed) >= num_rows:
            raise InvalidStepError(f"rows must be from 0 to {num_rows - 1}")
        rows = tuple(dict.fromkeys(listed))
    group = raw.get("group", -1)
    if type(group) is not int or not -1 <= group <= num_rows + MAX_STEPS * num_rows:
        raise InvalidStepError("group must be the number of a group, or -1")
    value = raw.get("value", True)
    if type(value) is not bool:
        raise InvalidStepError("value must be true or false")
    name = raw.get("name")
    if name is not None or do in ("not", "make"):
        if not isinstance(name, str) or not name.strip():
            raise InvalidStepError("a name must not be empty")
    return EditStep(do, rows, group, name, value)


def _check_name(step: EditStep, classes: Sequence[str]) -> EditStep:
    if step.name is None or step.name in classes:
        return step
    name = to_class_name(step.name)
    if name is None:
        raise InvalidStepError(f"{step.name.strip()!r} means unlabeled: choose another name")
    if len(name) > MAX_LETTERS:
        raise InvalidStepError(f"a name may have at most {MAX_LETTERS} characters, got {len(name):,}")
    if not all(map(is_displayable, name)):
        raise InvalidStepError("a name must not contain line breaks or unprintable characters")
    return replace(step, name=match_known_spelling({0: name}, classes)[0])


@dataclass
class LabelingState:
    """Labels and groups of n images during labeling, and which images are rejected.

    Attributes:
        classes: names of the classes, in order of first use.
        hand: (n,) int64 class of individually labeled images, -1 = none.
        rejected: (n,) bool, whether the image is excluded from labeling.
        groups: (n,) int64 group, -1 = none.
        group_names: names of the groups before the user names them.
        named: class of each group, -1 = not named by the user.
        refused: (row, class) pairs of images marked as not belonging to a class.
    """

    classes: list[str]
    hand: NDArray[np.int64]
    rejected: NDArray[np.bool_]
    groups: NDArray[np.int64]
    group_names: list[str]
    named: list[int]
    refused: set[tuple[int, int]] = field(default_factory=set)

    def __len__(self) -> int:
        return len(self.hand)

    def labels(self) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return each image's class (n,) int64, -1 = none, and whether it comes from the image's group (n,) bool."""
        of_group = np.array([*self.named, -1], dtype=np.int64)[self.groups]  # the last entry is for group -1
        for row, label in self.refused:
            if of_group[row] == label:
                of_group[row] = -1
        labels = np.where(self.hand >= 0, self.hand, of_group)
        labels[self.rejected] = -1
        return labels, (self.hand < 0) & (labels >= 0)

    def apply(self, steps: Sequence[EditStep]) -> list[EditStep]:
        """Apply labeling steps, and return the steps that undo them, in the order in which to apply them.

        Raises:
            InvalidStepError: a group does not exist, or a new group lacks the next number or images; nothing changed.
        """
        if all(step.do == "make" for step in steps):
            raise InvalidStepError("a new group must contain images")
        count = len(self.named)
        for step in steps:
            if step.do == "make":
                if step.group != count:
                    raise InvalidStepError(f"the next group must have number {count}, got {step.group}")
                count += 1
            elif step.group >= count or (step.do == "name" and step.group < 0):
                raise InvalidStepError(f"there is no group {step.group}")
        back: list[EditStep] = []
        for step in steps:
            back[:0] = self._apply(step)
        return back

    def _apply(self, step: EditStep) -> list[EditStep]:
        rows = np.array(step.rows, dtype=np.int64)
        if step.do == "make":
            assert step.name is not None
            self.group_names.append(step.name)
            self.named.append(-1)
            return []  # nothing to undo, since an empty group is not shown
        if step.do == "name":
            before = self.named[step.group]
            self.named[step.group] = self._class(step.name)
            return [EditStep("name", group=step.group, name=self._name(before))]
        if step.do == "label":
            back = [EditStep("label", rows=part, name=self._name(old)) for old, part in _parts(rows, self.hand[rows])]
            self.hand[rows] = self._class(step.name)
            return back
        if step.do == "group":
            back = [EditStep("group", rows=part, group=old) for old, part in _parts(rows, self.groups[rows])]
            self.groups[rows] = step.group
            return back
        if step.do == "reject":
            changed = rows[self.rejected[rows] != step.value]
            self.rejected[changed] = step.value
            return [EditStep("reject", rows=tuple(changed.tolist()), value=not step.value)] if len(changed) else []
        label = self._class(step.name)
        marks = [row for row in step.rows if ((row, label) in self.refused) != step.value]
        for row in marks:
            (self.refused.add if step.value else self.refused.discard)((row, label))
        return [EditStep("not", rows=tuple(marks), name=step.name, value=not step.value)] if marks else []

    def _class(self, name: str | None) -> int:
        if name is None:
            return -1
        if name not in self.classes:
            self.classes.append(name)
        return self.classes.index(name)

    def _name(self, label: int) -> str | None:
        return None if label < 0 else self.classes[label]


def _parts(rows: NDArray[np.int64], values: NDArray[np.int64]) -> list[tuple[int, tuple[int, ...]]]:
    """Group rows by their value: return (value, rows) for each distinct value."""
    return [(int(value), tuple(rows[values == value].tolist())) for value in np.unique(values)]


def find_changed_rows_and_groups(steps: Sequence[EditStep]) -> tuple[set[int], set[int]]:
    """Find the rows and groups that steps change; moving images into a group does not count as changing the group."""
    rows = {row for step in steps for row in step.rows}
    return rows, {step.group for step in steps if step.do in ("name", "make")}


def choose_training_labels(state: LabelingState, features: NDArray[np.float32]) -> NDArray[np.int64]:
    """Choose labels (n,) int64 to train on, -1 = none: of individually labeled images and typical ones of named groups.

    ``features`` (n, d) are those that the metric of the store compares.
    """
    return keep_typical_labels(*state.labels(), state.groups, features)
