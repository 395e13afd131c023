from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from labelkit.algorithms.num_classes import (
    bounded_integer_search,
    candidate_class_counts,
    choose_num_classes_by_density,
    estimate_num_classes,
)
from numpy.typing import NDArray

Array = NDArray[Any]


def blobs(rng: np.random.Generator) -> tuple[Array, Array, Array]:
    """Six groups far apart, ten rows each; half of the first three are labeled, with values 5, 50, 500."""
    groups = np.repeat(np.arange(6), 10)
    rows = 20 * np.eye(6)[groups] + rng.standard_normal((60, 6))
    labels = np.where(groups < 3, 5 * 10 ** np.minimum(groups, 2), -1)
    return rows, labels, (groups < 3) & (np.arange(60) % 2 == 0)


def test_search_finds_the_minimum_with_few_evaluations() -> None:
    asked: list[int] = []

    def distance(number: int) -> float:
        asked.append(number)
        return abs(number - 37)

    found = bounded_integer_search(distance, 10, 100)
    assert found.best == 37
    assert len(asked) <= 12
    assert all(10 <= number <= 100 for number in asked)
    assert len(set(asked)) == len(asked)
    assert found.curve == [(number, abs(number - 37)) for number in asked]


@pytest.mark.parametrize(("low", "high"), [(4, 4), (4, 5), (4, 11)])
def test_short_range_is_looked_at_wholly(low: int, high: int) -> None:
    found = bounded_integer_search(lambda number: -number, low, high)
    assert found.best == high
    assert [number for number, _ in found.curve] == list(range(low, high + 1))
    assert bounded_integer_search(lambda _: 1.0, low, high).best == low  # the smallest of equals


def test_search_refuses_bounds_out_of_order() -> None:
    with pytest.raises(ValueError, match="at least low=5, got 4"):
        bounded_integer_search(lambda number: number, 5, 4)


def test_answer_is_the_best_number_evaluated(rng: np.random.Generator) -> None:
    rows, labels, mask = blobs(rng)
    seen: list[tuple[int, float]] = []
    found = estimate_num_classes(rows, labels, mask, k_min=3, k_max=20, progress=lambda *entry: seen.append(entry))
    assert found.curve == seen
    highest = max(score for _, score in seen)
    assert found.best == min(number for number, score in seen if score == highest)
    assert all(0 <= score <= 1 for _, score in seen)


def test_the_number_of_well_separated_groups_is_found(rng: np.random.Generator) -> None:
    rows, labels, mask = blobs(rng)
    found = estimate_num_classes(rows, labels, mask, k_min=1, k_max=8)
    scores = dict(found.curve)
    assert list(scores) == list(range(1, 9))
    assert scores[6] == 1.0
    assert scores[1] == pytest.approx(1 / 3)  # one cluster holds all, and names one of three classes
    # With 4 or 5 clusters the merged groups may be unlabeled ones, which the score cannot see.
    assert found.best in (4, 5, 6)


def test_labels_of_unlabeled_rows_are_never_read(rng: np.random.Generator) -> None:
    rows, labels, mask = blobs(rng)
    scrambled = np.where(mask, labels, rng.integers(-5, 500, 60))
    options: dict[str, Any] = {"k_min": 3, "k_max": 8, "num_inits": 1}
    assert estimate_num_classes(rows, labels, mask, **options) == estimate_num_classes(rows, scrambled, mask, **options)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"k_max": 61}, "k_max <= 60, got k_min=3, k_max=61"),
        ({"k_min": 9, "k_max": 8}, "k_min=9, k_max=8"),
        ({"k_min": 0}, "k_min=0"),
        ({"labeled_mask": np.zeros(60, dtype=bool)}, "at least one true entry"),
        ({"labeled_mask": np.zeros(60)}, "float64"),
        ({"labeled_mask": np.ones(60, dtype=bool)}, "labels of labeled rows must be >= 0, got -1"),
        ({"labels": np.zeros(3)}, r"\(3,\)"),
    ],
)
def test_bad_input_is_refused(changes: dict[str, Any], message: str, rng: np.random.Generator) -> None:
    rows, labels, mask = blobs(rng)
    arguments: dict[str, Any] = {"x": rows, "labels": labels, "labeled_mask": mask, "k_min": 3, "k_max": 8}
    with pytest.raises(ValueError, match=message):
        estimate_num_classes(**(arguments | changes))


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(2, 2, [2]), (2, 5, [2, 3, 4, 5]), (150, 250, list(range(150, 251))), (99, 100, [99, 100])],
)
def test_short_ranges_are_looked_at_wholly(low: int, high: int, expected: list[int]) -> None:
    assert candidate_class_counts(low, high) == expected


def test_numbers_above_a_hundred_come_in_steps_of_two_percent() -> None:
    numbers = candidate_class_counts(2, 1000)
    assert numbers[:99] == list(range(2, 101))
    assert numbers[99:102] == [102, 104, 106]
    assert numbers[-1] == 1000
    assert all(later - earlier <= max(1, 0.02 * earlier) for earlier, later in pairwise(numbers))


def test_no_range_is_refused() -> None:
    with pytest.raises(ValueError, match="low=5, high=4"):
        candidate_class_counts(5, 4)


def test_without_labels_dense_groups_are_counted(rng: np.random.Generator) -> None:
    rows = 5 * np.eye(6)[np.repeat(np.arange(6), 25)] + rng.normal(0, 0.2, (150, 6))

    found = choose_num_classes_by_density(rows, candidate_class_counts(2, 50))

    assert found.best == 6
    assert found.low < 6 < found.high


def test_a_number_needs_numbers_to_choose_from() -> None:
    with pytest.raises(ValueError, match="must not be empty"):
        choose_num_classes_by_density(np.eye(3), [])
