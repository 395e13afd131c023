"""Suggestions against plain loops over all choices."""

from typing import Any

import numpy as np
import pytest
from labelkit.algorithms import active_learning
from labelkit.algorithms.active_learning import (
    CandidatePool,
    choose_best,
    choose_farthest,
    choose_for_coverage,
    choose_typical,
    find_nearest,
    find_nearest_classes,
)
from numpy.typing import NDArray

Array = NDArray[Any]


def unit(rows: Array) -> Array:
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture
def rows(rng: np.random.Generator) -> Array:
    return unit(rng.normal(size=(40, 5)))


@pytest.fixture
def anyone(rows: Array) -> CandidatePool:
    return CandidatePool(rows, 0.0)


def cost(rows: Array, chosen: list[int], weights: Array) -> float:
    total = 0.0
    for j in range(len(rows)):
        nearest = 4.0
        for i in chosen:
            nearest = min(
                nearest, float(sum((float(a) - float(b)) ** 2 for a, b in zip(rows[i], rows[j], strict=True)))
            )
        total += weights[j] * nearest
    return total


@pytest.mark.parametrize("labeled", [[], [3, 17]])
@pytest.mark.parametrize("weighted", [False, True])
def test_each_covering_choice_lowers_the_sum_of_distances_the_most(
    rows: Array, anyone: CandidatePool, rng: np.random.Generator, labeled: list[int], weighted: bool
) -> None:
    weights = rng.uniform(size=40) if weighted else np.ones(40)
    anyone.exclude(np.array(labeled, dtype=np.int64))
    expected: list[int] = []
    falls = []
    for _ in range(5):
        before = cost(rows, labeled + expected, weights)
        left = [row for row in range(40) if row not in labeled + expected]
        costs = [cost(rows, [*labeled, *expected, row], weights) for row in left]
        expected.append(left[int(np.argmin(costs))])
        falls.append((before - min(costs)) / 40)

    chosen, gains = choose_for_coverage(
        rows, 5, np.array(labeled, dtype=np.int64), anyone, generator=rng, weights=weights if weighted else None
    )

    assert chosen.tolist() == expected
    np.testing.assert_allclose(gains, falls, rtol=1e-5)


@pytest.mark.parametrize("labeled", [[], [3, 17]])
def test_covering_rows_that_lie_close_together_is_as_exact_as_in_float64(
    rng: np.random.Generator, labeled: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(active_learning, "_BOUNDS_AT_ONCE", 5)
    # in float32, products of such rows are further off than their squared distances differ
    rows = (20 + 0.02 * rng.normal(size=(60, 30))).astype(np.float32)
    apart = ((rows[:, None].astype(np.float64) - rows[None]) ** 2).sum(axis=2)
    nearest = apart[:, labeled].min(axis=1, initial=4 * float((rows.astype(np.float64) ** 2).sum(axis=1).max()))
    expected: list[int] = []
    for _ in range(6):
        gains = np.maximum(nearest - apart, 0).sum(axis=1)
        gains[labeled + expected] = -1
        expected.append(int(gains.argmax()))
        nearest = np.minimum(nearest, apart[:, expected[-1]])
    candidates = CandidatePool(rows, 0.0)
    candidates.eligible[labeled] = False

    chosen, _ = choose_for_coverage(rows, 6, np.array(labeled, dtype=np.int64), candidates, generator=rng)

    assert chosen.tolist() == expected


def test_the_farthest_row_is_the_one_whose_nearest_label_is_farthest(rows: Array, anyone: CandidatePool) -> None:
    labeled = [0, 1]
    anyone.exclude(np.array(labeled))
    have, distances = list(labeled), []
    for _ in range(6):
        nearest = [min(np.linalg.norm(rows[i] - rows[j]) for j in have) for i in range(40)]
        have.append(int(np.argmax(nearest)))
        distances.append(max(nearest))

    chosen, apart = choose_farthest(rows, 6, np.array(labeled), anyone)

    assert chosen.tolist() == have[2:]
    np.testing.assert_allclose(apart, distances, rtol=1e-5)


def test_the_first_of_the_farthest_rows_is_nearest_to_the_mean(rows: Array, anyone: CandidatePool) -> None:
    chosen, apart = choose_farthest(rows, 1, np.zeros(0, dtype=np.int64), anyone)

    assert chosen.tolist() == [int(np.argmin(np.linalg.norm(rows - rows.mean(axis=0), axis=1)))]
    assert np.isnan(apart[0])


def test_typical_rows_are_the_middles_of_the_largest_clusters_without_a_label(rng: np.random.Generator) -> None:
    places = np.eye(4)[:3]
    sizes = (9, 30, 20)
    blobs = [unit(place + 0.05 * rng.normal(size=(size, 4))) for place, size in zip(places, sizes, strict=True)]
    points = np.concatenate(blobs)
    starts = np.cumsum((0, *sizes))
    middles = []
    for blob in blobs:
        apart = np.sqrt(((blob[:, None] - blob[None]) ** 2).sum(axis=2))
        near = np.sort(apart, axis=1)[:, 1 : 1 + min(20, len(blob) - 1)]
        middles.append(int(near.mean(axis=1).argmin()))
    labeled = np.array([0])
    candidates = CandidatePool(points, 0.0)
    candidates.exclude(labeled)

    chosen, scores, of = choose_typical(points, 2, labeled, candidates, generator=rng)

    assert chosen.tolist() == [starts[1] + middles[1], starts[2] + middles[2]]
    assert of.tolist() == [30, 20]
    assert (scores > 1).all()


def test_uncertainty_is_the_share_of_the_squared_distances_to_the_two_nearest_classes(rng: np.random.Generator) -> None:
    points, examples = rng.normal(size=(12, 3)), rng.normal(size=(7, 3))
    classes = [5, 2, 2, 9, 5, 9, 2]
    found = find_nearest_classes(points, examples, classes)

    for row in range(12):
        nearest = {
            c: min(((points[row] - examples[i]) ** 2).sum() for i in range(7) if classes[i] == c) for c in (2, 5, 9)
        }
        first, second = sorted(nearest, key=nearest.__getitem__)[:2]
        assert (found.first[row], found.second[row]) == (first, second)
        assert found.uncertainty[row] == pytest.approx(nearest[first] / nearest[second], rel=1e-4)


def test_a_choice_rules_out_its_near_duplicates(rng: np.random.Generator) -> None:
    points = unit(rng.normal(size=(10, 6)))
    points = np.concatenate([points, unit(points + 0.001 * rng.normal(size=(10, 6)))])
    scores = np.arange(20)[::-1]
    nobody = np.zeros(0, dtype=np.int64)

    assert choose_best(scores, 20, CandidatePool(points, 0.001)).tolist() == list(range(10))
    for chosen in (
        choose_for_coverage(points, 20, nobody, CandidatePool(points, 0.001), generator=rng)[0],
        choose_farthest(points, 20, nobody, CandidatePool(points, 0.001))[0],
        choose_typical(points, 20, nobody, CandidatePool(points, 0.001), generator=rng)[0],
    ):
        assert sorted(row % 10 for row in chosen.tolist()) == list(range(10))


def test_duplicates_of_labeled_rows_and_all_but_one_black_image_are_ruled_out() -> None:
    points = np.array([[1, 0], [1, 0], [0, 1], [0, 0], [0, 0]], dtype=np.float32)
    candidates = CandidatePool(points, 0.0)
    candidates.exclude(np.array([0]))

    assert choose_best([5, 4, 3, 2, 1], 5, candidates).tolist() == [2, 3]


def test_the_nearest_place_is_the_first_of_equals_with_its_squared_distance() -> None:
    points = np.array([[0.5, 0], [3, 0], [1.5, 1]], dtype=np.float32)
    nearest, apart = find_nearest(points, np.array([[2.0, 0], [0, 2], [2, 0]], dtype=np.float32))

    assert nearest.tolist() == [0, 0, 0]
    assert apart.tolist() == [2.25, 1, 1.25]
    nearest, apart = find_nearest(points, points[:0])
    assert nearest.tolist() == [-1] * 3
    assert np.isinf(apart).all()
