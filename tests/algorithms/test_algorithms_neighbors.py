from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from labelkit.algorithms.indexes import (
    ApproximateSearch,
    HNSWRecipe,
    IVFPQRecipe,
    build_index,
    default_num_lists,
    default_pq_bytes,
    empty_index,
    extend_index,
    near_rows,
    without_rows,
)
from labelkit.algorithms.neighbors import ExactSearch, knn
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


def test_a_search_can_be_used_again(rng: np.random.Generator) -> None:
    rows = rng.standard_normal((70, 6)).astype(np.float32)
    search = ExactSearch(rows, metric="l2")
    for query in rows[:3]:
        scores, indices = search.search(query[None], 4)
        expected_scores, expected_indices = brute(query[None], rows, 4, "l2", exclude_self=False)
        np.testing.assert_array_equal(indices, expected_indices)
        np.testing.assert_allclose(scores, expected_scores, atol=1e-6)


RECIPES = [HNSWRecipe(num_links=8, build_width=40), IVFPQRecipe(num_lists=5, num_bytes=4)]


@pytest.mark.parametrize("recipe", RECIPES, ids=["hnsw", "ivfpq"])
@pytest.mark.parametrize("metric", ["cosine", "l2", "dot"])
def test_an_index_looked_through_in_full_finds_what_exact_search_finds(
    metric: Any, recipe: Any, rng: np.random.Generator
) -> None:
    rows = rng.standard_normal((400, 8)).astype(np.float32)
    # All lists and all rows as candidates; on the walk, more candidates than rows.
    search = ApproximateSearch(
        build_index(rows, recipe, metric=metric), rows, metric=metric, width=400, num_rescored=400
    )

    scores, indices = search.search(rows[:20], 12)

    expected_scores, expected_indices = knn(rows[:20], rows, 12, metric=metric)
    agree = indices == expected_indices
    assert agree.mean() > 0.97
    np.testing.assert_allclose(scores[agree], expected_scores[agree], rtol=1e-6)


@pytest.mark.parametrize("recipe", RECIPES, ids=["hnsw", "ivfpq"])
@pytest.mark.parametrize("metric", ["cosine", "l2", "dot"])
def test_of_many_equal_rows_an_index_names_the_first_too(metric: Any, recipe: Any, rng: np.random.Generator) -> None:
    rows = 3 * rng.standard_normal((400, 8)).astype(np.float32)
    copies = np.sort(rng.choice(400, 15, replace=False))
    rows[copies] = 9.0
    search = ApproximateSearch(
        build_index(rows, recipe, metric=metric), rows, metric=metric, width=400, num_rescored=400
    )

    # beside a query that is decided at once
    _, indices = search.search(np.stack([rows[copies[0]], np.delete(rows, copies, axis=0)[0]]), 3)

    np.testing.assert_array_equal(indices[0], copies[:3])
    np.testing.assert_array_equal(search.search(rows[copies[:1]], 3)[1], [copies[:3]])


@pytest.mark.parametrize("recipe", RECIPES, ids=["hnsw", "ivfpq"])
def test_queries_of_their_own_find_what_all_together_find(recipe: Any, rng: np.random.Generator) -> None:
    rows = rng.standard_normal((500, 8)).astype(np.float32)
    search = ApproximateSearch(build_index(rows[:450], recipe), rows[:450], width=20, num_rescored=40)

    together = search.search(rows[450:], 4)
    alone = [search.search(row[None], 4) for row in rows[450:]]

    for number in (0, 1):
        np.testing.assert_array_equal(together[number], np.concatenate([one[number] for one in alone]))


@pytest.mark.parametrize("recipe", RECIPES, ids=["hnsw", "ivfpq"])
@pytest.mark.parametrize("metric", ["cosine", "l2", "dot"])
@pytest.mark.parametrize("in_files", [False, True], ids=["in memory", "in files"])
def test_pieces_of_an_index_are_searched_together(
    metric: Any, recipe: Any, in_files: bool, rng: np.random.Generator, tmp_path: Path
) -> None:
    rows = rng.standard_normal((700, 8)).astype(np.float32)
    empty = empty_index(rows, recipe, metric=metric)
    pieces: list[Any] = []
    for number, (start, stop) in enumerate([(0, 400), (400, 420), (420, 700)]):
        built = extend_index(empty, [rows[start : stop - 10], rows[stop - 10 : stop]], metric=metric)
        assert len(built) == stop - start
        pieces.append(built)
        if in_files:
            pieces[-1] = tmp_path / str(number)
            with pieces[-1].open("wb") as file:
                built.write(file.write)
                file.write(b"what the caller says about it")
    search = ApproximateSearch(pieces, rows, metric=metric, width=700, num_rescored=700)

    scores, indices = search.search(rows[:30], 12)

    expected_scores, expected_indices = knn(rows[:30], rows, 12, metric=metric)
    agree = indices == expected_indices
    assert agree.mean() > 0.97  # a graph may have a row that no way leads to
    np.testing.assert_allclose(scores[agree], expected_scores[agree], rtol=1e-6)


@pytest.mark.parametrize("recipe", RECIPES, ids=["hnsw", "ivfpq"])
def test_an_index_without_its_rows_is_what_it_began_with(recipe: Any, rng: np.random.Generator) -> None:
    rows = rng.standard_normal((400, 8)).astype(np.float32)
    whole = build_index(rows, recipe)

    np.testing.assert_array_equal(without_rows(whole), empty_index(rows, recipe))
    again = ApproximateSearch(extend_index(without_rows(whole), [rows]), rows, width=20)
    for mine, theirs in zip(
        again.search(rows[:20], 5), ApproximateSearch(whole, rows, width=20).search(rows[:20], 5), strict=True
    ):
        np.testing.assert_array_equal(mine, theirs)


def test_pieces_of_several_kinds_are_refused(rng: np.random.Generator) -> None:
    rows = rng.standard_normal((600, 8)).astype(np.float32)
    pieces = [build_index(part, recipe) for part, recipe in zip((rows[:300], rows[300:]), RECIPES, strict=True)]
    with pytest.raises(ValueError, match="of several kinds"):
        ApproximateSearch(pieces, rows, width=5)


def test_few_lists_find_less_but_score_it_exactly(rng: np.random.Generator) -> None:
    rows = rng.standard_normal((600, 8)).astype(np.float32)
    search = ApproximateSearch(build_index(rows, IVFPQRecipe(num_lists=60)), rows, width=1, num_rescored=20)

    scores, indices = search.search(rows, 30)

    found = indices >= 0
    assert 0 < found.mean() < 1
    assert np.isnan(scores[~found]).all()
    assert (np.diff(found.astype(int), axis=1) <= 0).all()  # what is missing stands at the end
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    cosines = np.take_along_axis(unit @ unit.T, np.maximum(indices, 0), axis=1)
    np.testing.assert_allclose(scores[found], cosines[found], atol=1e-6)
    assert (scores[:, 0] > 1 - 1e-6).mean() > 0.9  # a row is in its own list


@pytest.mark.parametrize("recipe", RECIPES, ids=["hnsw", "ivfpq"])
def test_the_same_rows_give_the_same_index(recipe: Any, rng: np.random.Generator) -> None:
    rows = rng.standard_normal((300, 8)).astype(np.float32)
    np.testing.assert_array_equal(build_index(rows, recipe), build_index(rows, recipe))


def test_default_sizes_of_an_index() -> None:
    assert [default_num_lists(n) for n in (30, 1797, 1_000_000)] == [1, 46, 4000]
    assert [default_pq_bytes(d) for d in (2, 7, 64, 100, 512)] == [1, 1, 16, 25, 128]


@pytest.mark.parametrize(
    ("rows", "recipe", "message"),
    [
        (255, IVFPQRecipe(), "needs 256 rows to be trained on, got 255"),
        (300, IVFPQRecipe(num_bytes=3), "num_bytes must divide the 8 columns, got 3"),
        (300, IVFPQRecipe(num_lists=301), "at most the 300 rows, got 301"),
    ],
)
def test_an_index_that_does_not_fit_the_rows_is_refused(rows: int, recipe: IVFPQRecipe, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_index(np.ones((rows, 8), dtype=np.float32), recipe)


def test_an_index_of_other_rows_is_refused(rng: np.random.Generator) -> None:
    rows = rng.standard_normal((50, 4)).astype(np.float32)
    index = build_index(rows, HNSWRecipe())
    with pytest.raises(ValueError, match="the index has 50 rows, the gallery has"):
        ApproximateSearch(index, rows[:49], width=10)
    with pytest.raises(ValueError, match="cannot read the index"):
        ApproximateSearch(index[:100], rows, width=10)


def test_a_search_for_few_is_as_wide_after_one_for_many_as_before() -> None:
    rows = np.random.default_rng(0).standard_normal((3000, 32)).astype(np.float32)
    index = build_index(rows[:2900], HNSWRecipe(num_links=4, build_width=8))
    used, fresh = (ApproximateSearch(index, rows[:2900], width=1) for _ in range(2))

    _, many = used.search(rows[2900:], 500)
    _, after = used.search(rows[2900:], 3)
    _, before = fresh.search(rows[2900:], 3)

    np.testing.assert_array_equal(after, before)
    # a search that looks at more finds others
    assert (many[:, :3] != before).any()


@pytest.mark.parametrize("recipe", [HNSWRecipe(), IVFPQRecipe(num_lists=4)])
def test_an_index_is_searched_where_faiss_was_taught_to_take_tensors(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, recipe: HNSWRecipe | IVFPQRecipe
) -> None:
    import faiss

    rows = rng.normal(size=(400, 8)).astype(np.float32)
    index = build_index(rows, recipe)
    expected = ApproximateSearch(index, rows, width=64).search(rows[:5], 3)
    # as faiss.contrib.torch_utils does, for the life of the process: other tests may have loaded it
    for kind in (faiss.IndexHNSWFlat, faiss.IndexRefine):
        if not hasattr(kind, "search_numpy"):
            monkeypatch.setattr(kind, "search_numpy", kind.search, raising=False)
            monkeypatch.setattr(kind, "search", lambda self, x, k: self.search_numpy(x, k))

    found = ApproximateSearch(index, rows, width=64).search(rows[:5], 3)

    np.testing.assert_array_equal(found[1], expected[1])
    np.testing.assert_array_equal(found[0], expected[0])


def _unit(rows: Array) -> Array:
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def test_rows_near_many_others_are_those_of_exact_search_where_they_are_few(rng: np.random.Generator) -> None:
    rows = _unit(rng.standard_normal((300, 6)))
    np.testing.assert_array_equal(near_rows(rows, 5), knn(rows, rows, 5, exclude_self=True)[1])


def test_rows_near_each_of_many_are_mostly_the_nearest(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("labelkit.algorithms.indexes._COMPARED_ROWS", 1000)
    rows = _unit(rng.standard_normal((40, 8))[rng.integers(40, size=4000)] + 0.2 * rng.standard_normal((4000, 8)))
    found, exact = near_rows(rows, 5), knn(rows, rows, 5, exclude_self=True)[1]
    assert found.shape == (4000, 5)
    assert found.min() >= 0
    assert (found != np.arange(4000)[:, None]).all()
    shared = [len(set(one) & set(other)) / 5 for one, other in zip(found.tolist(), exact.tolist(), strict=True)]
    assert np.mean(shared) > 0.9


def test_rows_near_each_of_many_are_others_where_rows_are_equal_or_lists_short(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("labelkit.algorithms.indexes._COMPARED_ROWS", 100)
    monkeypatch.setattr("labelkit.algorithms.indexes._NEAR_LISTS", 1)
    rows = _unit(np.concatenate([np.ones((50, 4)), rng.standard_normal((950, 4))]))
    found = near_rows(rows, 45)
    assert found.shape == (1000, 45)
    assert found.min() >= 0
    assert (found != np.arange(1000)[:, None]).all()
    assert all(len(set(near)) == 45 for near in found.tolist())
