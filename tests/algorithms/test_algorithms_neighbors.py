import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from labelkit.algorithms.indexes import (
    ApproximateSearch,
    Kind,
    build_index,
    default_pq_bytes,
    find_approximate_neighbors,
)
from labelkit.algorithms.neighbors import ExactSearch, knn
from labelkit.algorithms.row_blocks import StoredRows
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


def test_rows_of_a_store_are_held_once(rng: np.random.Generator) -> None:
    stored = rng.normal(size=(20_000, 256)).astype(np.float16)
    tracemalloc.start()
    search = ExactSearch(StoredRows(stored, in_blocks=False), metric="cosine")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1.9 * search.rows[:].nbytes


def test_k_may_be_the_whole_gallery_and_queries_may_be_none() -> None:
    _, indices = knn([[2.0]], [[0.0], [5], [3]], 3, metric="l2")
    np.testing.assert_array_equal(indices, [[2, 0, 1]])
    scores, indices = knn(np.zeros((0, 1)), [[1.0]], 1, metric="dot")
    assert scores.shape == indices.shape == (0, 1)


@pytest.mark.parametrize("metric", ["cosine", "dot", "l2"])
@pytest.mark.parametrize("in_blocks", [False, True])
def test_a_device_finds_what_faiss_finds(
    metric: Any, in_blocks: bool, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = rng.standard_normal((1200, 12)).astype(np.float32)
    rows[700:720] = rows[:20]
    monkeypatch.setattr("labelkit.algorithms.row_blocks.BLOCK_NUMBERS", 12 * 100)  # 12 blocks
    monkeypatch.setattr("labelkit.algorithms.neighbors._QUERIES_AT_ONCE", 16)
    gallery = StoredRows(rows, in_blocks=True) if in_blocks else rows
    here, there = (ExactSearch(gallery, metric=metric, device=d).search(rows[:40], 130) for d in (None, "cpu"))

    np.testing.assert_array_equal(there[1], here[1])
    np.testing.assert_array_equal(there[0], here[0])


PRETENDED = """
import numpy as np
from labelkit.algorithms.neighbors import ExactSearch
from tests.pretend_gpu import PretendGpu

rows = np.random.default_rng(0).standard_normal((500, 12), dtype=np.float32)
with PretendGpu():
    for metric in ("cosine", "dot", "l2"):
        found = [ExactSearch(rows, metric=metric, device=d).search(rows[:40], 9) for d in (None, "pretend:0")]
        assert (found[0][1] == found[1][1]).all()
"""


@pytest.mark.slow
def test_nothing_mixes_devices() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PRETENDED], capture_output=True, text=True, cwd=Path(__file__).parents[2]
    )
    assert done.returncode == 0, done.stderr


KINDS: tuple[Kind, ...] = ("hnsw", "ivfpq")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("metric", ["cosine", "l2", "dot"])
def test_an_index_looked_through_in_full_finds_what_exact_search_finds(
    metric: Any, kind: Kind, rng: np.random.Generator
) -> None:
    rows = rng.standard_normal((400, 8)).astype(np.float32)
    search = ApproximateSearch(build_index(rows, kind, metric=metric), rows, metric=metric, width=400)

    # more candidates than rows
    scores, indices = search.search(rows[:20], 390)

    expected_scores, expected_indices = knn(rows[:20], rows, 390, metric=metric)
    agree = indices == expected_indices
    assert agree.mean() > 0.97  # a graph may have a row that no way leads to
    np.testing.assert_allclose(scores[agree], expected_scores[agree], rtol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_an_index_of_rows_in_blocks_is_that_of_rows_in_memory(kind: Kind, rng: np.random.Generator) -> None:
    rows = rng.standard_normal((3000, 8)).astype(np.float32)
    stored = StoredRows(rows, in_blocks=True)

    found = [ApproximateSearch(build_index(x, kind), x).search(rows[:20], 5) for x in (rows, stored)]

    _, truth = knn(rows[:20], rows, 5)
    for scores, indices in found:
        assert (indices == truth).mean() > 0.9
        np.testing.assert_allclose(scores[:, 0], 1, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_an_index_is_searched_where_faiss_was_taught_to_take_tensors(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, kind: Kind
) -> None:
    import faiss

    rows = rng.normal(size=(400, 8)).astype(np.float32)
    search = ApproximateSearch(build_index(rows, kind), rows)
    expected = search.search(rows[:5], 3)
    # as faiss.contrib.torch_utils does, for the life of the process: other tests may have loaded it
    for index_class in (faiss.IndexHNSWFlat, faiss.IndexIVFPQ):
        if not hasattr(index_class, "search_numpy"):
            monkeypatch.setattr(index_class, "search_numpy", index_class.search, raising=False)
            monkeypatch.setattr(index_class, "search", lambda self, x, k: self.search_numpy(x, k))

    found = search.search(rows[:5], 3)

    np.testing.assert_array_equal(found[1], expected[1])
    np.testing.assert_array_equal(found[0], expected[0])


def _unit(rows: Array) -> Array:
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def test_rows_near_each_of_many_are_mostly_the_nearest(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("labelkit.algorithms.indexes._COMPARED_ROWS", 1000)
    rows = _unit(rng.standard_normal((40, 8))[rng.integers(40, size=4000)] + 0.2 * rng.standard_normal((4000, 8)))
    found, exact = find_approximate_neighbors(rows, 5), knn(rows, rows, 5, exclude_self=True)[1]
    assert found.shape == (4000, 5)
    assert found.min() >= 0
    assert (found != np.arange(4000)[:, None]).all()
    shared = [len(set(one) & set(other)) / 5 for one, other in zip(found.tolist(), exact.tolist(), strict=True)]
    assert np.mean(shared) > 0.9


@pytest.mark.parametrize(("dim", "size"), [(1280, 64), (384, 64), (128, 32), (100, 25), (7, 1)])
def test_compressed_rows_have_at_most_64_bytes(dim: int, size: int) -> None:
    assert default_pq_bytes(dim) == size
