"""What is believed of the number of classes."""

from __future__ import annotations

import numpy as np
import pytest
from labelkit.algorithms.class_number_belief import believe_num_classes, dense_group_counts, density_spread
from labelkit.algorithms.labeled_share import LabeledShare
from numpy.typing import NDArray


def clouds(number: int, size: int = 40) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    rng = np.random.default_rng(5)
    truth = np.repeat(np.arange(number), size)
    return (4 * rng.normal(size=(number, 24))[truth] + rng.normal(size=(len(truth), 24))).astype(np.float32), truth


@pytest.mark.parametrize("number", [2, 5, 12])
def test_clear_groups_are_counted(number: int) -> None:
    rows, _ = clouds(number)
    assert dense_group_counts(rows) == (number,) * 5
    choice = believe_num_classes(rows, np.full(len(rows), -1), range(2, 100), generator=np.random.default_rng(0))
    assert choice.best == number
    # all sizes agree, so log K has the error of 0.55: 96 % lie within 2.05 of it, but nothing lies below 2
    assert choice.low == pytest.approx(max(2, number * np.exp(-2.05 * 0.55)), abs=1)
    assert choice.high == pytest.approx(number * np.exp(2.05 * 0.55), rel=0.3)
    assert [curve.name for curve in choice.criteria] == ["density"]


def test_labels_in_half_of_the_classes_tell_the_rest() -> None:
    rows, truth = clouds(20, 30)
    labels = np.where((truth < 10) & (np.arange(600) % 30 < 6), truth, -1)
    choice = believe_num_classes(rows, labels, range(10, 200), generator=np.random.default_rng(0))
    assert choice.best == pytest.approx(20, abs=2)
    assert choice.low <= 20 <= choice.high < 40
    assert [curve.name for curve in choice.criteria] == ["share", "density"]


def test_labels_in_all_classes_say_that_nothing_is_new() -> None:
    rows, truth = clouds(20, 30)
    labels = np.where(np.arange(600) % 30 < 6, truth, -1)
    choice = believe_num_classes(rows, labels, range(20, 200), generator=np.random.default_rng(0))
    assert (choice.best, choice.low) == (20, 20)
    assert choice.high <= 26


def test_noise_never_gets_a_narrow_interval() -> None:
    rows = np.random.default_rng(0).normal(size=(600, 64)).astype(np.float32)
    choice = believe_num_classes(rows, np.full(600, -1), range(2, 200), generator=np.random.default_rng(0))
    assert choice.high / choice.low > 5
    assert density_spread(dense_group_counts(rows)) > 0.5


def test_a_sample_is_judged_by_the_numbers_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    # 5 classes have labels, all of the rows without a label would be half of the whole: ten classes, however
    # many labels the sample kept
    found = LabeledShare(0.5, 0.01, 0.01, 5, 50, 300, 0.0)
    monkeypatch.setattr("labelkit.algorithms.class_number_belief.labeled_share", lambda *_, **__: found)
    rows, _ = clouds(10, 30)
    choice = believe_num_classes(
        rows,
        np.full(300, -1),
        range(5, 100),
        generator=np.random.default_rng(0),
        num_rows=30_000,
        num_labels=50,
    )
    assert choice.best == 10


def test_there_must_be_a_number() -> None:
    with pytest.raises(ValueError, match="empty"):
        believe_num_classes(np.ones((4, 2)), np.full(4, -1), [], generator=np.random.default_rng(0))


def test_the_interval_is_the_shortest_that_holds_enough() -> None:
    rows, _ = clouds(12)
    choice = believe_num_classes(rows, np.full(len(rows), -1), range(2, 100), generator=np.random.default_rng(0))
    numbers, scores = np.array(choice.numbers), np.array(choice.scores)
    upper = np.log(np.append((numbers[1:] + numbers[:-1]) / 2, numbers[-1] + 0.5))
    lower = np.append(np.log(numbers[0] - 0.5), upper[:-1])
    parts = scores * (upper - lower)

    def held(start: int, end: int) -> float:
        return float(parts[start : end + 1].sum() / parts.sum())

    # every pair of ends
    enough = [
        (upper[end] - lower[start], int(numbers[start]), int(numbers[end]))
        for start in range(len(numbers))
        for end in range(start, len(numbers))
        if held(start, end) >= 0.96
    ]
    assert (choice.low, choice.high) == min(enough)[1:]
