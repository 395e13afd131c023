from typing import Any

import numpy as np
import pytest
from labelkit.methods.few_labels import critical_samples
from labelkit.methods.few_labels.critical_samples import (
    compute_soft_labels,
    discover_critical_samples,
    entropy_bits,
    rank_weights,
)
from numpy.typing import NDArray
from tests.methods.few_labels.test_snowball_algorithm import cloud

Array = NDArray[Any]

# The one-dimensional search of the specification: rows 0 to 3 have labels.
LINE = np.array([0, 1, 6, 7, 0.5, 1.5, 2.5, 3.2, 3.4, 3.75, 4.4, 5.0, 6.5, 9.0])[:, None]
LINE_LABELS = np.array([0, 0, 1, 1] + [-1] * 10)


def soft_of(order: list[int], num_classes: int, beta: float) -> tuple[Array, float]:
    """Soft label and entropy of a row whose reference rows, by nearness, have these classes."""
    rows = np.arange(len(order) + 1, dtype=float)[:, None]
    soft = compute_soft_labels(rows, np.array([0]), np.array([-1, *order]), num_classes, beta, 1.0)
    return soft[0], float(entropy_bits(soft)[0])


@pytest.mark.parametrize(
    ("order", "expected", "entropy"),
    [
        ([0, 0, 1, 1], [0.614035, 0.385965], 0.962146),
        ([0, 1, 0, 1], [0.561404, 0.438596], 0.989093),
        ([0, 1, 1, 0], [0.526316, 0.473684], 0.998001),
        ([1, 0, 0, 1], [0.473684, 0.526316], 0.998001),
        ([0, 0, 1, 1, 2, 2], [0.478983, 0.301075, 0.219941], 1.510591),
        ([0, 1, 2, 0, 1, 2], [0.410557, 0.322581, 0.266862], 1.562430),
        ([2, 2, 0, 1, 1, 0], [0.266862, 0.254154, 0.478983], 1.519518),
        ([0, 1, 1, 0, 2, 2], [0.410557, 0.369501, 0.219941], 1.538560),
    ],
)
def test_soft_labels_of_two_and_three_classes_are_those_of_the_specification(
    order: list[int], expected: list[float], entropy: float
) -> None:
    soft, bits = soft_of(order, len(expected), 1 / len(expected))
    np.testing.assert_allclose(soft, expected, atol=1e-6)
    assert bits == pytest.approx(entropy, abs=1e-6)


@pytest.mark.parametrize(
    ("beta", "expected"),
    [
        (0.01, [0.5, 0.090909, 0.019608, 0.009901]),
        (0.1, [0.909091, 0.5, 0.166667, 0.090909]),
        (1.0, [0.990099, 0.909091, 0.666667, 0.5]),
    ],
)
def test_rank_weights_are_those_of_the_specification(beta: float, expected: list[float]) -> None:
    np.testing.assert_allclose(rank_weights(100, beta)[[0, 9, 49, 99]], expected, atol=1e-6)


def test_toy_distances_and_entropies_are_those_of_the_specification() -> None:
    found = discover_critical_samples(LINE, LINE_LABELS, 10, confine=False, balance="global")
    distance = np.array([0, 1, 2, 2.7, 2.9, 2.75, 2.1, 1.5, 0, 2.5])
    expected = np.full(10, 0.962146)
    expected[[3, 4, 5]] = 0.989093

    assert len(found.indices) > 6
    np.testing.assert_allclose(found.distance, distance[found.indices - 4])
    np.testing.assert_allclose(found.entropy, expected[found.indices - 4], atol=1e-6)


@pytest.mark.parametrize(
    ("options", "confined", "wrong", "index_sum"),
    [
        ({}, 425, 2, 34735),
        ({"balance": "global"}, 436, 1, 30758),
        ({"criterion": "min_entropy"}, 425, 1, 49846),
        ({"confine": False}, 1747, 31, 49393),
        ({"confine": False, "balance": "global"}, 1747, 29, 49365),
    ],
)
def test_digits_give_the_specified_rows(
    labeled_digits: tuple[Array, Array, Array], options: dict[str, Any], confined: int, wrong: int, index_sum: int
) -> None:
    pixels, labels, truth = labeled_digits
    found = discover_critical_samples(pixels, labels, 50, **options)

    assert sum(report["confined"] for report in found.per_class) == confined
    assert int((found.labels != truth[found.indices]).sum()) == wrong
    assert int(found.indices.sum()) == index_sum


def test_equally_near_reference_rows_rank_by_their_number() -> None:
    rows = np.array([[0.0], [1], [-1], [2], [-2]])
    soft = compute_soft_labels(rows, np.array([0]), np.array([-1, 0, 1, 1, 0]), 2, 0.5, 1.0)
    np.testing.assert_allclose(soft, [[0.526316, 0.473684]], atol=1e-6)  # ranked 0, 1, 1, 0


def test_a_row_whose_nearest_mean_and_soft_label_differ_is_counted_and_not_taken() -> None:
    # row 6 is nearer to the mean of class 0, and its nearest labeled rows are of class 1
    rows = np.array([[0.0], [5], [5.5], [20], [0.2], [19], [5.2]])
    labels = np.array([0, 0, 1, 1, -1, -1, -1])

    weights = rank_weights(4, 0.5)  # of rows 1, 2, 0, 3
    assert weights[0] + weights[2] > weights[1] + weights[3]
    found = discover_critical_samples(rows, labels, 3, confine=False, balance="global")
    assert found.labels[found.indices == 6].tolist() == [0]
    rows[6] = 5.4  # now row 2 is the nearest
    found = discover_critical_samples(rows, labels, 3, confine=False, balance="global")
    assert 6 not in found.indices
    assert [report["disagreeing"] for report in found.per_class] == [1, 0]
    assert found.disagreement == pytest.approx(1 / 3)
    assert found.exhausted


def test_tied_votes_go_to_the_nearest_mean() -> None:
    tied = np.array([[0.5, 0.5, 0.0], [0.2, 0.4, 0.4]])
    assert critical_samples._choose_classes(tied, np.array([1, 0])).tolist() == [1, 1]


def test_one_label_per_class_is_told_of() -> None:
    rows, labels = cloud(7, per_class=1)
    found = discover_critical_samples(rows, labels, 9)
    assert "entropies are equal" in found.warnings[0]
    nearest = discover_critical_samples(rows, labels, 9, criterion="min_distance")
    assert nearest.indices.tolist() == found.indices.tolist()
    assert nearest.warnings == ()


def test_features_that_are_not_finite_are_refused() -> None:
    with pytest.raises(ValueError, match="features contains NaN"):
        discover_critical_samples(np.where(np.arange(14) == 9, np.nan, LINE[:, 0])[:, None], LINE_LABELS, 2)


def test_a_skipped_class_has_no_weight() -> None:
    found = discover_critical_samples(LINE, LINE_LABELS, 4, num_classes=3)
    assert found.soft[:, 2].tolist() == [0] * len(found.indices)
    # beta is 1 / 2: two classes have labels
    assert found.entropy.tolist() == discover_critical_samples(LINE, LINE_LABELS, 4).entropy.tolist()
