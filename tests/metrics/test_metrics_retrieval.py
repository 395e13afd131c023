import math
import pickle
import tracemalloc
from dataclasses import asdict
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from labelkit.algorithms.row_blocks import StoredRows
from labelkit.metrics import retrieval
from labelkit.metrics.retrieval import RetrievalScores, score_retrieval
from numpy.typing import NDArray
from tests.tiers import quick_every

Array = NDArray[Any]


def scores_of_order(order: list[int], relevant: list[bool], ks: tuple[int, ...]) -> list[float]:
    """Recall at each k, R-precision and MAP@R of one query's ranking, by counting."""
    hits = [relevant[j] for j in order]
    wanted = sum(relevant)
    precisions = [sum(hits[: i + 1]) / (i + 1) for i in range(wanted) if hits[i]]
    return [float(any(hits[:k])) for k in ks] + [sum(hits[:wanted]) / wanted, sum(precisions) / wanted]


def brute(angles: list[float], labels: list[int], ks: tuple[int, ...]) -> Array:
    """Average over every order of the samples, so that ties take every order too."""
    per_query = []
    for query in range(len(labels)):
        others = [j for j in range(len(labels)) if j != query]
        relevant = [labels[j] == labels[query] for j in range(len(labels))]
        relevant[query] = False
        if not any(relevant):
            continue
        distance = [abs(angle - angles[query]) for angle in angles]
        orders = [sorted(order, key=lambda j: distance[j]) for order in permutations(others)]
        per_query.append(np.mean([scores_of_order(order, relevant, ks) for order in orders], axis=0))
    return np.mean(per_query, axis=0)


def on_circle(angles: list[float]) -> Array:
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)


@pytest.mark.parametrize(
    ("angles", "labels"),
    [
        ([0.0, 0.1, 0.25, 0.9, 1.0, 1.4], [0, 0, 1, 1, 0, 1]),
        ([0.0, 0.0, 0.0, 0.5, 0.5, 1.0], [0, 1, 0, 1, 0, 0]),
        ([0.0, 0.2, 0.2, 0.2, 0.2, 0.9], [0, 0, 1, 1, 0, 2]),
        ([0.3] * 6, [0, 0, 0, 1, 1, 2]),
    ],
)
def test_scores_equal_the_mean_over_all_orders_of_ties(angles: list[float], labels: list[int]) -> None:
    ks = (1, 2, 3, 5)
    embeddings = on_circle(angles) * np.linspace(1, 9, len(angles))[:, None]
    expected = brute(angles, labels, ks)
    scores = score_retrieval(embeddings, labels, ks=ks)
    found = [*scores.recall_at.values(), scores.mean_r_precision, scores.map_at_r]
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_without_two_members_of_any_class_nothing_can_be_scored() -> None:
    embeddings, labels = on_circle([0, 1, 2]), [0, 1, 2]
    scores = score_retrieval(embeddings, labels)
    assert all(math.isnan(value) for value in (scores.recall_at[1], scores.mean_r_precision, scores.map_at_r))


def sorted_by_loops(
    queries: Array, labels: Array, gallery: Array, gallery_labels: Array, own: Array, ks: tuple[int, ...]
) -> Array:
    """Sort the gallery in float64 for one query after another; NaN for queries without a match."""
    units = [rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (queries.astype(float), gallery)]
    found = np.full((len(queries), len(ks) + 2), np.nan)
    for i, query in enumerate(units[0]):
        others = [j for j in range(len(gallery)) if j != own[i]]
        order = sorted(others, key=lambda j: -float(units[1][j] @ query))
        relevant = [bool(gallery_labels[j] == labels[i]) for j in range(len(gallery))]
        if any(relevant[j] for j in others):
            kept = [relevant[j] and j != own[i] for j in range(len(gallery))]
            found[i] = scores_of_order(order, kept, ks)
    return found


@pytest.mark.parametrize("per_class", [3, 40])
@pytest.mark.parametrize("dtype", quick_every(3, [np.float32, np.float16, np.float64]))
def test_scores_equal_a_plain_sort_whatever_blocks_and_threads(
    rng: np.random.Generator, per_class: int, dtype: type[np.floating[Any]]
) -> None:
    labels = rng.permutation(np.arange(240) // per_class)
    rows = (rng.standard_normal((240, 16)) + 0.5 * rng.standard_normal((80, 16))[labels]).astype(dtype)
    ks = (1, 3, 10, 100)
    expected = sorted_by_loops(rows, labels, rows.astype(float), labels, np.arange(240), ks)

    for options in ({}, {"max_bytes": 1}, {"max_bytes": 20_000}, {"num_threads": 3}):
        scores = score_retrieval(rows, labels, ks=ks, **options)  # type: ignore[arg-type] # numbers, all of them
        found = np.column_stack([scores.recall, scores.r_precision, scores.average_precision])
        np.testing.assert_allclose(found, expected, rtol=1e-12)
        np.testing.assert_array_equal(scores.query_rows, np.arange(240))
        assert not scores.tied.any()


def test_a_gallery_with_some_of_the_queries_leaves_each_out_of_its_own_ranking(rng: np.random.Generator) -> None:
    rows, labels = rng.standard_normal((90, 8)), rng.integers(0, 12, 90)
    queries, gallery = np.arange(0, 50), np.arange(30, 90)
    own = np.where(queries >= 30, queries - 30, -1)
    ks = (1, 2, 20)
    expected = sorted_by_loops(rows[queries], labels[queries], rows[gallery], labels[gallery], own, ks)

    scores = score_retrieval(
        rows[queries], labels[queries], gallery=rows[gallery], gallery_labels=labels[gallery], own_rows=own, ks=ks
    )

    assert scores.num_lone == np.isnan(expected[:, 0]).sum()
    np.testing.assert_allclose(scores.recall, expected[scores.query_rows, :3], rtol=1e-12)
    np.testing.assert_allclose(np.nan_to_num(scores.average_precision), expected[scores.query_rows, -1], rtol=1e-12)


def test_parts_in_other_processes_have_the_scores_of_the_whole(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = rng.permutation([*np.arange(200) // 4, 99])  # one has no match
    rows = StoredRows(rng.standard_normal((201, 8)), in_blocks=True)
    gallery: dict[str, Any] = {"gallery": rows, "gallery_labels": labels, "own_rows": np.arange(20, 170)}
    cases: list[Any] = [(rows, labels, {}), (rows.subset(slice(20, 170)), labels[20:170], gallery)]
    for constant in ("_PRODUCT_PAIRS", "_MIN_ROWS", "_PART_QUERIES"):
        monkeypatch.setattr(retrieval, constant, 64)
    parts: list[range] = []

    def elsewhere(function: Any, given: list[range]) -> list[Array]:
        parts.extend(given)
        return [pickle.loads(pickle.dumps(function))(part) for part in given]

    for queries, own, more in cases:
        whole, joined = (
            score_retrieval(queries, own, ks=(1, 2), spread=spread, **more) for spread in (None, elsewhere)
        )
        np.testing.assert_equal(asdict(joined), asdict(whole))
    assert [len(part) for part in parts] == [64, 64, 64, 8, 64, 64, 22]


def test_cosines_nearer_than_float32_can_tell_are_told_apart() -> None:
    # One query, its match, and a hundred strangers a little nearer or farther; 1e-8 of a cosine of 0.6.
    offsets = np.array([0.0, *(1e-8 * np.arange(1, 51)), *(-1e-8 * np.arange(1, 51))])
    cosines = 0.6 + offsets
    gallery = np.stack([cosines, np.sqrt(1 - cosines**2)], axis=1)
    labels = [0] + [1] * 100

    scores = score_retrieval([[1.0, 0.0]], [0], gallery=gallery, gallery_labels=labels, ks=(50, 51))

    assert scores.recall_at == {50: 0.0, 51: 1.0}
    assert not scores.tied.any()


def test_cosines_of_one_multiple_are_tied() -> None:
    gallery = np.stack([0.6 + np.array([0, 1e-11, -1e-11]), np.full(3, 0.8)], axis=1)

    scores = score_retrieval([[1.0, 0.0]], [0], gallery=gallery, gallery_labels=[0, 1, 1], ks=(1,))

    assert scores.recall_at[1] == pytest.approx(1 / 3)
    assert scores.tied.all()


def test_rows_far_apart_in_length_are_one_direction(rng: np.random.Generator) -> None:
    rows, labels = rng.standard_normal((40, 5)), np.arange(40) // 2
    scaled = rows * 10.0 ** rng.integers(-20, 20, (40, 1))
    found, expected = (score_retrieval(one, labels, ks=(1, 5)).recall_at for one in (scaled, rows))
    assert found == expected


def peak_of(rows: Array, labels: Array, **options: Any) -> tuple[int, RetrievalScores]:
    tracemalloc.start()
    scores = score_retrieval(rows, labels, **options)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak, scores


@pytest.mark.parametrize("kind", ["random", "one class", "collapsed"])
def test_memory_keeps_to_the_bound(rng: np.random.Generator, kind: str) -> None:
    rows = rng.standard_normal((1200, 32), dtype=np.float32)
    labels = np.arange(1200) // (1200 if kind == "one class" else 5)
    if kind == "collapsed":
        rows[:] = rows[0]
    score_retrieval(rows[:10], labels[:10] // 5)  # what is imported on first use does not count

    peak, scores = peak_of(rows, labels, ks=(1, 10), max_bytes=4 << 20)

    # unit rows, and a part of the similarities that is looked at, come on top
    assert peak <= (4 << 20) + 2 * rows.nbytes + 100 * (1 << 19)
    assert 50 < scores.block_rows < 1200


def by_full_sort(rows: Array, labels: Array) -> tuple[list[float], list[float]]:
    """R-precision and average precision at R of every query, from a sort of all in float64, tie by tie."""
    unit = rows.astype(np.float64)
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    precisions, averages = [], []
    for query in range(len(rows)):
        others = np.delete(np.arange(len(rows)), query)
        keys = np.rint(unit[others] @ unit[query] * 2**29)
        order = np.argsort(-keys, kind="stable")
        keys, hits = keys[order], (labels[others] == labels[query])[order]
        wanted = int(hits.sum())
        precision = average = 0.0
        start = before = 0
        while start < wanted:
            tied = keys == keys[start]
            number, of_class = int(tied.sum()), int(hits[tied].sum())
            for place in range(start, min(start + number, wanted)):
                earlier = (place - start) * (of_class - 1) / max(number - 1, 1)
                precision += of_class / number
                average += of_class / number * (before + 1 + earlier) / (place + 1)
            start, before = start + number, before + of_class
        precisions.append(precision / wanted)
        averages.append(average / wanted)
    return precisions, averages


@pytest.mark.parametrize("apart", quick_every(6, [0.0, 1e-9, 1e-7, 1e-6, 1e-5, 1e-4]))
@pytest.mark.parametrize(("num_classes", "width"), [(2, 3), pytest.param(3, 64, marks=pytest.mark.slow), (40, 8)])
def test_scores_at_r_of_near_copies_equal_those_of_a_full_sort(
    num_classes: int, width: int, apart: float, rng: np.random.Generator
) -> None:
    labels = np.concatenate([np.arange(num_classes).repeat(2), rng.integers(0, num_classes, 320 - 2 * num_classes)])
    rows = rng.standard_normal((num_classes, width))[labels] + 2 * rng.standard_normal((320, width))
    copies = rng.integers(0, 320, 160)
    rows[copies] = rows[rng.integers(0, 320, 160)] + apart * rng.standard_normal((160, width))
    found = score_retrieval(rows, labels)
    precision, average = by_full_sort(rows, labels)
    np.testing.assert_allclose(found.r_precision, precision, rtol=1e-12)
    np.testing.assert_allclose(found.average_precision, average, rtol=1e-12)


@pytest.mark.parametrize("num_others", [0, 4000])
def test_a_match_that_rounding_puts_behind_the_r_nearest_counts(num_others: int) -> None:
    # Match and stranger are as near as float64 can tell; in float32 either may be first.
    generator = np.random.default_rng(3)
    rows, labels = [], []
    for pair in range(40):
        query, aside = np.linalg.qr(generator.standard_normal((64, 2)))[0].T
        rows += [query, query + 0.1 * aside, query - 0.1 * aside]
        labels += [2 * pair, 2 * pair, 2 * pair + 1]
    rows.extend(generator.standard_normal((num_others, 64)))
    labels.extend(range(1000, 1000 + num_others))
    found = score_retrieval(np.array(rows), np.array(labels))
    np.testing.assert_allclose(found.r_precision[::2], 0.5)


@pytest.mark.parametrize("limit", quick_every(3, [0, 10_000]))
@pytest.mark.parametrize("apart", [0.0, 1e-8, 1e-6])
def test_float32_and_float64_products_lead_to_the_same_scores(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, limit: int, apart: float
) -> None:
    rows, labels = rng.standard_normal((300, 12)), rng.integers(0, 30, 300)
    rows[:60] = rows[rng.integers(60, 300, 60)] + apart * rng.standard_normal((60, 12))
    monkeypatch.setattr(retrieval, "_MIN_ONE_BY_ONE", limit)
    precision, average = by_full_sort(rows, labels)
    found = score_retrieval(rows, labels, ks=(1, 2, 50))
    np.testing.assert_allclose(found.r_precision, precision, rtol=1e-12)
    np.testing.assert_allclose(found.average_precision, average, rtol=1e-12)
    monkeypatch.setattr(retrieval, "_MIN_ONE_BY_ONE", 10_000 - limit)
    np.testing.assert_allclose(score_retrieval(rows, labels, ks=(1, 2, 50)).recall, found.recall, rtol=1e-12)
