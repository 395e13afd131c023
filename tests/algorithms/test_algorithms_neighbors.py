from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from labelkit.algorithms.neighbors import knn
from numpy.typing import NDArray

Array = NDArray[Any]


def brute(queries: Array, gallery: Array, k: int, metric: str, exclude_self: bool) -> tuple[Array, Array]:
    """Sort all pairs in float64, row by row; equal scores by index."""
    scores, indices = [], []
    for i, query in enumerate(queries.astype(np.float64)):
        values = []
        for row in gallery.astype(np.float64):
            if metric == "l2":
                values.append(-np.sqrt(((query - row) ** 2).sum()))
            elif metric == "dot":
                values.append(query @ row)
            else:
                values.append(query @ row / np.linalg.norm(query) / np.linalg.norm(row))
        order = sorted((j for j in range(len(values)) if not (exclude_self and i == j)), key=lambda j: (-values[j], j))
        indices.append(order[:k])
        scores.append([abs(values[j]) if metric == "l2" else values[j] for j in order[:k]])
    return np.array(scores), np.array(indices)


@pytest.mark.parametrize("exclude_self", [False, True])
@pytest.mark.parametrize("metric", ["cosine", "l2", "dot"])
def test_neighbors_equal_brute_force(metric: Any, exclude_self: bool, rng: np.random.Generator) -> None:
    rows = rng.standard_normal((70, 6)).astype(np.float32)
    scores, indices = knn(rows, rows, 9, metric=metric, exclude_self=exclude_self)
    expected_scores, expected_indices = brute(rows, rows, 9, metric, exclude_self)
    np.testing.assert_array_equal(indices, expected_indices)
    np.testing.assert_allclose(scores, expected_scores, atol=1e-6)
    assert scores.dtype == np.float32
    assert indices.dtype == np.int64


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(-2, 2), min_size=40, max_size=90), st.integers(1, 20), st.sampled_from(["l2", "dot"]))
def test_ties_go_to_the_smaller_index(values: list[int], k: int, metric: Any) -> None:
    # Small integers: products are exact and most scores tie, far beyond the candidates listed first.
    gallery = np.array(values, dtype=np.float32)[:, None]
    queries = np.array([[1.0], [-2]], dtype=np.float32)
    scores, indices = knn(queries, gallery, k, metric=metric)
    expected_scores, expected_indices = brute(queries, gallery, k, metric, exclude_self=False)
    np.testing.assert_array_equal(indices, expected_indices)
    np.testing.assert_array_equal(scores, expected_scores)


@pytest.mark.parametrize("metric", ["cosine", "l2", "dot"])
def test_equal_rows_come_in_order_of_their_index(metric: Any) -> None:
    rows = np.tile(np.linspace(0.1, 0.9, 33, dtype=np.float32), (61, 1))
    _, indices = knn(rows, rows, 3, metric=metric, exclude_self=True)
    np.testing.assert_array_equal(indices[0], [1, 2, 3])
    np.testing.assert_array_equal(indices[1], [0, 2, 3])
    np.testing.assert_array_equal(indices[60], [0, 1, 2])


def test_distance_to_itself_is_exactly_zero_far_from_the_origin(rng: np.random.Generator) -> None:
    rows = (rng.standard_normal((50, 8)) + 1000).astype(np.float32)
    scores, indices = knn(rows, rows, 1, metric="l2")
    np.testing.assert_array_equal(indices[:, 0], np.arange(50))
    np.testing.assert_array_equal(scores, np.zeros((50, 1)))


def test_cosine_ignores_length() -> None:
    scores, indices = knn([[1.0, 0]], [[1.0, 1], [500, 0], [-3, 0]], 3)
    np.testing.assert_array_equal(indices, [[1, 0, 2]])
    np.testing.assert_allclose(scores, [[1, np.sqrt(0.5), -1]], rtol=1e-6)


def test_k_may_be_the_whole_gallery_and_queries_may_be_none() -> None:
    _, indices = knn([[2.0]], [[0.0], [5], [3]], 3, metric="l2")
    np.testing.assert_array_equal(indices, [[2, 0, 1]])
    scores, indices = knn(np.zeros((0, 1)), [[1.0]], 1, metric="dot")
    assert scores.shape == indices.shape == (0, 1)


@pytest.mark.parametrize(
    ("queries", "gallery", "k", "options", "message"),
    [
        ([[1.0]], [[1.0], [2]], 3, {}, "k must be from 1 to 2"),
        ([[1.0], [2]], [[1.0], [2]], 2, {"exclude_self": True}, "k must be from 1 to 1"),
        ([[1.0]], [[1.0], [2]], 0, {}, "got 0"),
        ([[1.0]], [[1.0], [2]], 1, {"exclude_self": True}, "1 and 2 rows"),
        ([[1.0]], [[0.0], [2]], 1, {}, "gallery has 1 of 2 rows of length zero"),
        ([[np.nan]], [[1.0], [2]], 1, {}, "queries has 1 of 1 rows with NaN"),
        ([[1.0, 2]], [[1.0], [2]], 1, {}, "2 columns, the gallery has 1"),
        ([1.0], [[1.0], [2]], 1, {}, r"\(1,\)"),
        ([[1.0]], [[1e30]], 1, {"metric": "l2"}, "overflow"),
        ([[1.0]], [[1.0]], 1, {"metric": "hamming"}, "'hamming'"),
    ],
)
def test_bad_input_is_refused(
    queries: list[Any], gallery: list[Any], k: int, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        knn(queries, gallery, k, **options)
