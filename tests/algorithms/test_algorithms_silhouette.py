from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import sklearn.metrics
from labelkit.algorithms.silhouette import pairwise_distances, silhouette_score, simplified_silhouette_score
from numpy.typing import NDArray
from sklearn.datasets import load_digits

Array = NDArray[Any]


def simplified_by_loops(rows: Array, ids: list[int]) -> float:
    means = {j: rows[np.array(ids) == j].mean(axis=0) for j in set(ids)}
    values = []
    for row, own in zip(rows, ids, strict=True):
        a = np.linalg.norm(row - means[own])
        b = min(np.linalg.norm(row - mean) for j, mean in means.items() if j != own)
        values.append(0.0 if ids.count(own) == 1 else (b - a) / max(a, b))
    return float(np.mean(values))


def test_distances_are_euclidean(rng: np.random.Generator) -> None:
    rows = rng.standard_normal((9, 4)) + 100
    expected = [[np.linalg.norm(here - there) for there in rows] for here in rows]
    np.testing.assert_allclose(pairwise_distances(rows), expected, atol=1e-6)


@pytest.mark.parametrize("num_clusters", [2, 7, 40])
def test_exact_silhouette_is_that_of_scikit_learn(rng: np.random.Generator, num_clusters: int) -> None:
    rows = load_digits().data[:300]
    ids = rng.integers(0, num_clusters, 300)
    expected = sklearn.metrics.silhouette_score(rows, ids)
    assert silhouette_score(pairwise_distances(rows), ids) == pytest.approx(expected, abs=1e-9)


def test_row_alone_counts_zero_as_in_scikit_learn() -> None:
    rows, ids = np.array([[0.0], [1], [8], [20]]), [5, 5, 9, 2]
    expected = sklearn.metrics.silhouette_score(rows, ids)
    assert silhouette_score(pairwise_distances(rows), ids) == pytest.approx(expected)


def test_four_points_in_two_pairs_by_hand() -> None:
    # each row: a = 1, b = mean of 9 and 10, or of 10 and 11
    rows = np.array([[0.0], [1], [10], [11]])
    expected = (2 * (10.5 - 1) / 10.5 + 2 * (9.5 - 1) / 9.5) / 4
    assert silhouette_score(pairwise_distances(rows), [0, 0, 1, 1]) == pytest.approx(expected)
    # to the means: a = 0.5, b = 10.5 or 9.5
    expected = (2 * (10.5 - 0.5) / 10.5 + 2 * (9.5 - 0.5) / 9.5) / 4
    assert simplified_silhouette_score(rows, [0, 0, 1, 1]) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("seed", range(4))
def test_simplified_silhouette_equals_plain_loops(seed: int) -> None:
    generator = np.random.default_rng(seed)
    rows = generator.standard_normal((30, 3))
    ids = [*generator.integers(0, 4, 29).tolist(), 11]
    assert simplified_silhouette_score(rows, ids) == pytest.approx(simplified_by_loops(rows, ids), abs=1e-5)


def test_equal_rows_in_two_clusters_count_zero() -> None:
    rows = np.ones((4, 2))
    assert silhouette_score(pairwise_distances(rows), [0, 0, 1, 1]) == 0
    assert simplified_silhouette_score(rows, [0, 0, 1, 1]) == 0


def test_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match="at least two clusters, got 1"):
        silhouette_score(np.zeros((3, 3)), [1, 1, 1])
    with pytest.raises(ValueError, match=r"shape \(3,\)"):
        simplified_silhouette_score(np.zeros((3, 2)), [0, 1])
