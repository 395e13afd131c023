"""The steps of labeling in the browser: what they do, what takes them back, which are refused."""

import copy
from typing import Any

import numpy as np
import pytest
from labelkit.studio.label.actions import InvalidStepError, LabelingState, choose_training_labels, parse_steps
from labelkit.studio.label.asking import count_group_changes, plan_regrouping
from labelkit.studio.report.images import escape_for_page

N = 6


@pytest.fixture
def work() -> LabelingState:
    """Six images in two groups, the last in none; the first has a label."""
    return LabelingState(
        classes=["cup"],
        hand=np.array([0, -1, -1, -1, -1, -1]),
        rejected=np.zeros(N, dtype=bool),
        groups=np.array([0, 0, 0, 1, 1, -1]),
        group_names=["new-1", "new-2"],
        named=[-1, -1],
    )


def do(work: LabelingState, *steps: dict[str, Any]) -> list[dict[str, Any]]:
    return [step.to_json() for step in work.apply(parse_steps(list(steps), N))]


def names(work: LabelingState) -> list[str]:
    labels, _ = work.labels()
    return ["" if label < 0 else work.classes[label] for label in labels]


def test_the_name_of_a_group_is_the_label_of_its_images_without_one(work: LabelingState) -> None:
    do(work, {"do": "name", "group": 0, "name": "umbrella"})
    _, by_group = work.labels()

    assert names(work) == ["cup", "umbrella", "umbrella", "", "", ""]
    assert by_group.tolist() == [False, True, True, False, False, False]


def test_a_refused_name_and_a_rejected_image_give_no_label(work: LabelingState) -> None:
    do(
        work,
        {"do": "name", "group": 0, "name": "umbrella"},
        {"do": "not", "rows": [1], "name": "umbrella", "value": True},
        {"do": "reject", "rows": [0], "value": True},
    )

    assert names(work) == ["", "", "umbrella", "", "", ""]


def test_an_image_moved_into_a_named_group_gets_its_name_and_a_new_group_has_none(work: LabelingState) -> None:
    do(work, {"do": "name", "group": 1, "name": "dog"}, {"do": "group", "rows": [5, 1], "group": 1})
    do(work, {"do": "make", "group": 2, "name": "part of dog"}, {"do": "group", "rows": [4], "group": 2})

    assert names(work) == ["cup", "dog", "", "dog", "", "dog"]
    assert work.group_names[2] == "part of dog"


STEPS: list[list[dict[str, Any]]] = [
    [{"do": "label", "rows": [0, 1, 4], "name": "dog"}],
    [{"do": "label", "rows": [0, 1], "name": None}],
    [{"do": "name", "group": 1, "name": "cup"}, {"do": "name", "group": 1, "name": "dog"}],
    [{"do": "group", "rows": [0, 3, 5], "group": -1}],
    [{"do": "reject", "rows": [0, 3], "value": True}],
    [{"do": "not", "rows": [2, 3], "name": "dog", "value": True}],
    [
        {"do": "make", "group": 2, "name": "rest"},
        {"do": "group", "rows": [0, 3], "group": 2},
        {"do": "name", "group": 2, "name": "x"},
    ],
]


@pytest.mark.parametrize("steps", STEPS)
def test_what_takes_steps_back_takes_all_of_them_back(work: LabelingState, steps: list[dict[str, Any]]) -> None:
    before = copy.deepcopy(work)

    back = do(work, *steps)
    assert (work.hand.tolist(), work.groups.tolist(), work.rejected.tolist(), work.named, work.refused) != (
        before.hand.tolist(), before.groups.tolist(), before.rejected.tolist(), before.named, before.refused
    )  # fmt: skip
    do(work, *back)

    assert names(work) == names(before)
    assert work.hand.tolist() == before.hand.tolist()
    assert work.groups.tolist() == before.groups.tolist()
    assert work.rejected.tolist() == before.rejected.tolist()
    assert work.named[:2] == before.named
    assert work.refused == before.refused


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        ("label", "a list of 1 to"),
        ([], "a list of 1 to"),
        ([{"do": "delete"}], "one of label, not"),
        ([{"do": "label", "rows": [0]}], "must have the keys do, name, rows"),
        ([{"do": "label", "rows": [6], "name": "x"}], "rows must be from 0 to 5"),
        ([{"do": "label", "rows": [-1], "name": "x"}], "rows must be from 0 to 5"),
        ([{"do": "label", "rows": [True], "name": "x"}], "list of integers"),
        ([{"do": "label", "rows": [], "name": "x"}], "non-empty list"),
        ([{"do": "label", "rows": [0], "name": "  "}], "not be empty"),
        ([{"do": "label", "rows": [0], "name": "x" * 1000}], "at most 200 characters, got 1,000"),
        ([{"do": "label", "rows": [0], "name": "a\nb"}], "not contain line breaks"),
        ([{"do": "label", "rows": [0], "name": " ? "}], r"'\?' means unlabeled"),
        ([{"do": "reject", "rows": [0], "value": 1}], "true or false"),
        ([{"do": "group", "rows": [0], "group": "1"}], "number of a group"),
        ([{"do": "not", "rows": [0], "name": None, "value": True}], "not be empty"),
    ],
)
def test_what_is_no_step_is_refused(raw: object, problem: str) -> None:
    with pytest.raises(InvalidStepError, match=problem):
        parse_steps(raw, N)


@pytest.mark.parametrize(("written", "name"), [("3.0", "3"), ("a\u00a0b", "a\u00a0b"), ("می\u200cروم", "می\u200cروم")])
def test_a_name_is_that_of_a_table_and_the_page_shows_it_as_it_is(written: str, name: str) -> None:
    (step,) = parse_steps([{"do": "label", "rows": [0], "name": written}], N)

    assert step.name == name
    assert escape_for_page(name) == name


@pytest.mark.parametrize(("written", "name"), [("none", "none"), ("Caf\u00e9", "Cafe\u0301"), ("dog", "dog")])
def test_a_class_that_is_there_keeps_its_name_and_spelling(written: str, name: str) -> None:
    (step,) = parse_steps([{"do": "label", "rows": [0], "name": written}], N, ["none", "Cafe\u0301"])

    assert step.name == name


@pytest.mark.parametrize(
    "step",
    [
        {"do": "group", "rows": [0], "group": 2},
        {"do": "name", "group": 5, "name": "x"},
        {"do": "name", "group": -1, "name": "x"},
        {"do": "make", "group": 3, "name": "x"},
    ],
)
def test_a_group_that_is_not_there_changes_nothing(work: LabelingState, step: dict[str, Any]) -> None:
    with pytest.raises(InvalidStepError, match="group"):
        do(work, {"do": "label", "rows": [1], "name": "dog"}, step)

    assert names(work) == ["cup", "", "", "", "", ""]
    assert work.classes == ["cup"]


def test_learning_takes_single_images_and_the_most_typical_of_named_groups() -> None:
    """Group 0 lies on a line, with its mean at 10: the last two of fourteen images are the farthest from it."""
    line = [10.0] * 12 + [5.0, 15.0]
    work = LabelingState(
        classes=["cup", "umbrella"],
        hand=np.array([-1] * 13 + [-1, 0, 0]),
        rejected=np.array([False] * 15 + [True]),
        groups=np.array([0] * 14 + [-1, -1]),
        group_names=["new-1"],
        named=[1],
    )

    learned = choose_training_labels(work, np.array([[value] for value in [*line, 0.0, 0.0]], dtype=np.float32))

    assert learned.tolist() == [1] * 12 + [-1, -1, 0, -1]


def test_a_new_answer_moves_only_what_nobody_decided(work: LabelingState) -> None:
    do(work, {"do": "name", "group": 1, "name": "dog"}, {"do": "reject", "rows": [2], "value": True})
    do(work, {"do": "not", "rows": [5], "name": "dog", "value": True})
    # images 2 (rejected), 3 and 4 (in a named group) stay, and 5 is no dog
    steps = plan_regrouping(work, np.array([1, 1, 1, 0, 0, 1]), ["new-1", "dog"])

    assert [step.to_json() for step in steps] == [
        {"do": "make", "group": 2, "name": "dog"},
        {"do": "group", "rows": [0, 1], "group": 2},
    ]
    before = copy.deepcopy(work)
    work.apply(steps)
    assert count_group_changes(before, work) == {
        "moved": 2,
        "groups": [
            {"name": "new-1", "before": 3, "after": 1, "came": 0, "left": 2},
            {"name": "dog", "before": 0, "after": 2, "came": 2, "left": 0},
        ],
    }
    assert count_group_changes(work, work) == {"moved": 0, "groups": []}


def test_a_new_group_that_is_called_as_before_keeps_its_number(work: LabelingState) -> None:
    steps = plan_regrouping(work, np.array([-1, 1, 1, 0, 1, 0]), ["new-2", "new-1"])

    assert names(work)[0] == "cup"
    assert [step.to_json() for step in steps] == [
        {"do": "group", "rows": [5], "group": 1},
        {"do": "group", "rows": [4], "group": 0},
    ]
