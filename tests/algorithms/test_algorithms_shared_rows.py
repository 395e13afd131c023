"""Processes that share rows find what one process finds: threads stand for them here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from labelkit.algorithms import clustering, kmeans_iterations, kmeans_start, row_blocks
from labelkit.algorithms import group_tree as trees
from labelkit.algorithms.clustering import kmeans, semi_supervised_kmeans, spherical_kmeans
from labelkit.algorithms.group_tree import GroupTree, group_tree
from labelkit.algorithms.row_blocks import StoredRows, as_singles
from labelkit.algorithms.shared_rows import ALONE, Processes, largest_part, of_first, part_of, shared_rows
from numpy.typing import NDArray
from tests.process_threads import in_threads

SIZES = [2, 3]


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_blocks, "BLOCK_NUMBERS", 256)


@pytest.fixture
def stored(tmp_path: Path, rng: np.random.Generator) -> NDArray[np.float16]:
    """(301, 5) in a file, of overlapping groups, so that k-means takes some iterations."""
    values = (rng.standard_normal((301, 5)) + 2 * rng.standard_normal((7, 5))[np.arange(301) % 7] + 5).astype(
        np.float16
    )
    values.tofile(tmp_path / "rows")
    return np.memmap(tmp_path / "rows", np.float16, "r", 0, values.shape)


def assert_alike(found: list[Any], expected: Any) -> None:
    for one in found:
        np.testing.assert_array_equal(one.cluster_ids, expected.cluster_ids)
        np.testing.assert_allclose(one.centroids, expected.centroids, rtol=1e-6)
        np.testing.assert_array_equal(one.centroids, found[0].centroids)
        assert one.inertia == pytest.approx(expected.inertia, rel=1e-12)
        assert one.num_iterations == expected.num_iterations


def test_parts_are_all_of_it_and_about_equal() -> None:
    for number in (0, 1, 7, 301):
        processes = [type("P", (), {"rank": rank, "size": 4})() for rank in range(4)]
        parts = [np.arange(number)[part_of(number, one)] for one in processes]
        np.testing.assert_array_equal(np.concatenate(parts), np.arange(number))
        assert max(map(len, parts)) == largest_part(number, processes[0])
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("in_blocks", [True, False])
@pytest.mark.parametrize("algorithm", [kmeans, spherical_kmeans])
def test_k_means_of_several_processes_is_that_of_one(
    stored: NDArray[np.float16], algorithm: Any, in_blocks: bool, size: int
) -> None:
    def run(processes: Processes) -> Any:
        rows = StoredRows(stored, np.arange(300, -1, -1), unit=True, in_blocks=in_blocks)
        return algorithm(rows, 7, generator=np.random.default_rng(3), num_inits=3, processes=processes)

    expected = run(ALONE)
    assert expected.num_iterations > 3
    assert_alike(in_threads(size, run), expected)


def test_processes_run_as_many_starts_side_by_side_though_their_parts_differ(
    stored: NDArray[np.float16], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        kmeans_iterations, "_SIDE_BY_SIDE", 301
    )  # two of the 150 rows of one, one of the 151 of another

    def run(processes: Processes) -> Any:
        rows = StoredRows(stored, in_blocks=True)
        return kmeans(rows, 7, generator=np.random.default_rng(0), num_inits=4, processes=processes)

    assert_alike(in_threads(2, run), run(ALONE))


def test_starts_from_a_sample_are_those_of_one_process(
    stored: NDArray[np.float16], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, number in (("_POOL", 50), ("_POOL_PER_CENTROID", 1), ("_JUDGES", 10), ("_JUDGES_PER_CENTROID", 1)):
        monkeypatch.setattr(kmeans_start, name, number)
    assert not kmeans_start.draws_from_all(301, 7, 3)
    assert kmeans_start.draws_from_all(301, 7, 1)

    def run(processes: Processes) -> Any:
        rows = StoredRows(stored, in_blocks=False)
        return kmeans(rows, 7, generator=np.random.default_rng(0), num_inits=2, max_iter=2, processes=processes)

    assert_alike(in_threads(2, run), run(ALONE))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("exchange", [True, False])
def test_semi_supervised_k_means_of_several_processes_is_that_of_one(
    stored: NDArray[np.float16], exchange: bool, size: int
) -> None:
    labeled = np.arange(0, 301, 5)
    free = np.setdiff1d(np.arange(301), labeled)

    def run(processes: Processes) -> Any:
        return semi_supervised_kmeans(
            StoredRows(stored, free, in_blocks=True),
            StoredRows(stored, labeled, in_blocks=True),
            (labeled % 7) // 2,
            9,
            generator=np.random.default_rng(1),
            num_inits=3,
            exchange=exchange,
            processes=processes,
        )

    expected, found = run(ALONE), in_threads(size, run)
    for one in found:
        np.testing.assert_array_equal(one.unlabeled_ids, expected.unlabeled_ids)
        np.testing.assert_array_equal(one.labeled_ids, expected.labeled_ids)
        np.testing.assert_array_equal(one.class_of_cluster, expected.class_of_cluster)
        np.testing.assert_allclose(one.centroids, expected.centroids, rtol=1e-6)
        assert one.inertia == pytest.approx(expected.inertia, rel=1e-12)


def test_a_start_from_means_is_that_of_one_process(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    # in many dimensions a new cluster keeps its one row, and restarts from means are made
    rows = (rng.standard_normal((90, 200)) + 0.6 * rng.standard_normal((4, 200))[np.arange(90) % 4]).astype(np.float32)
    starts = clustering._starts_at_means
    made = []

    def counted(*given: Any) -> Any:
        made.append(starts(*given))
        return made[-1]

    monkeypatch.setattr(clustering, "_starts_at_means", counted)

    def run(processes: Processes) -> Any:
        generator = np.random.default_rng(0)
        return semi_supervised_kmeans(
            rows[:70], rows[70:], np.arange(70, 90) % 4 % 2, 4, generator=generator, num_inits=2, processes=processes
        )

    expected, found = run(ALONE), in_threads(3, run)
    assert [len(one) for one in made] == [2] * 4
    for one in found:
        np.testing.assert_array_equal(one.unlabeled_ids, expected.unlabeled_ids)


def test_an_empty_cluster_takes_the_farthest_row_of_all_processes() -> None:
    # both far rows are of the second process; the farther one goes to the first empty cluster
    rows = np.array([[0.0], [1], [0], [1], [0], [9], [1], [30]], dtype=np.float32)
    starts = np.array([[0.5], [100], [101]])

    def run(processes: Processes) -> Any:
        return kmeans(
            rows, 3, generator=np.random.default_rng(0), init_centroids=starts, max_iter=2, processes=processes
        )

    found = in_threads(2, run)
    assert_alike(found, run(ALONE))
    assert found[0].cluster_ids.tolist() == [0, 0, 0, 0, 0, 2, 0, 1]


def test_of_equally_far_rows_the_earlier_comes_first() -> None:
    rows = np.arange(6, dtype=np.float32)[:, None]
    distances = np.array([1.0, 3, 2, 3, 3, 0])

    def run(processes: Processes) -> Any:
        shared = shared_rows(rows, "x", processes)
        return shared.farthest(distances[shared.where], 3).ravel().tolist()

    assert run(ALONE) == [1, 3, 4]
    assert in_threads(2, run) == [[1, 3, 4]] * 2


def test_more_processes_than_rows_find_the_same() -> None:
    rows = np.array([[0.0, 1], [0, 2], [5, 5]], dtype=np.float32)

    def run(processes: Processes) -> Any:
        return kmeans(rows, 2, generator=np.random.default_rng(0), processes=processes)

    found = in_threads(4, run)
    assert_alike(found, run(ALONE))
    assert found[0].cluster_ids[0] == found[0].cluster_ids[1] != found[0].cluster_ids[2]


@pytest.mark.parametrize("place", [1, 8])
def test_a_row_that_is_no_number_is_refused_by_every_process(place: int) -> None:
    rows = np.ones((9, 2), dtype=np.float32)
    rows[place] = np.nan

    def run(processes: Processes) -> str:
        with pytest.raises(ValueError, match="NaN") as caught:
            shared_rows(rows, "x", processes)
        return str(caught.value)

    assert len(set(in_threads(2, run))) == 1


def test_a_row_without_a_direction_is_counted_over_all_processes() -> None:
    rows = np.ones((9, 2), dtype=np.float32)
    rows[[0, 8]] = 0

    def run(processes: Processes) -> str:
        with pytest.raises(ValueError, match="x has 2 of 9 rows of length zero"):
            shared_rows(rows, "x", processes).unit_length("x")
        return ""

    in_threads(2, run)


def test_rows_in_float64_are_not_shared() -> None:
    def run(processes: Processes) -> str:
        with pytest.raises(ValueError, match="x is float64"):
            shared_rows(np.ones((9, 2)), "x", processes)
        return ""

    in_threads(2, run)


def test_halves_become_the_singles_that_numpy_makes_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("labelkit.algorithms.row_blocks._HALVES_AT_ONCE", 1000)
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    finite = every[np.isfinite(every)]

    for halves in (finite, every, finite[:60_000:7].reshape(-1, 2)[:, ::2], finite[:0].reshape(0, 3)):
        singles = as_singles(halves)
        np.testing.assert_array_equal(singles, halves.astype(np.float32))
        assert singles.dtype == np.float32
        # zeros below zero stay so
        np.testing.assert_array_equal(np.signbit(singles), np.signbit(halves))
    given = np.ones((2, 3), dtype=np.float32)
    assert not np.shares_memory(as_singles(given), given)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_chosen_rows_of_a_map_are_those_of_memory(tmp_path: Path, rng: np.random.Generator, dtype: Any) -> None:
    values = rng.normal(size=(6000, 4)).astype(dtype)
    values.tofile(tmp_path / "rows")
    held = np.memmap(tmp_path / "rows", dtype, "r", shape=values.shape)
    nearly_all, few = np.delete(np.arange(6000), np.arange(0, 6000, 9)), np.arange(3, 6000, 11)

    for chosen in (nearly_all, few, rng.permutation(6000)):
        rows = StoredRows(held, chosen, in_blocks=True)
        np.testing.assert_array_equal(rows.to_array(), values[chosen].astype(np.float32))
        where = np.array([[5, 2], [400, 2]])
        np.testing.assert_array_equal(rows[where], values[chosen[where]].astype(np.float32))


def test_rows_that_were_given_are_neither_copied_nor_changed() -> None:
    given = np.array([[3.0, 4], [0, 2]])
    shared = shared_rows(given, "x", ALONE)
    assert np.shares_memory(shared.own, given)

    scaled = shared.unit_length("x")
    found = scaled.moved(np.array([1.0, 0]))

    np.testing.assert_array_equal(given, [[3, 4], [0, 2]])
    np.testing.assert_allclose(found.own, [[-0.4, 0.8], [-1, 1]])
    assert found.whole is found.own
    assert found.own is scaled.own  # what was made here is overwritten


def test_rows_made_here_are_scaled_and_moved_in_place() -> None:
    shared = shared_rows(np.array([[3.0, 4], [0, 2]], dtype=np.float16), "x", ALONE)
    own = shared.own

    found = shared.unit_length("x").moved(np.array([1.0, 0]))

    assert found.own is own
    np.testing.assert_allclose(own, [[-0.4, 0.8], [-1, 1]], rtol=1e-6)


def test_rows_of_length_1_stay_as_they_are() -> None:
    shared = shared_rows(np.array([[0.6, 0.8], [0, 1]], dtype=np.float32), "x", ALONE)
    assert shared.unit_length("x").own is shared.own
    longer = shared_rows(np.array([[0.6, 0.8], [0, 1.000002]], dtype=np.float32), "x", ALONE)
    np.testing.assert_array_equal(longer.unit_length("x").own[1], [0, 1])


def test_rows_that_follow_each_other_are_a_part(stored: NDArray[np.float16]) -> None:
    for rows in (
        StoredRows(stored, unit=True, in_blocks=True),
        StoredRows(stored, np.arange(0, 300, 2), in_blocks=True),
    ):
        rows = rows.less(np.ones(5, dtype=np.float32))
        np.testing.assert_array_equal(rows.part(slice(20, 90)).to_array(), rows.to_array()[20:90])


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("most", [60, 1000])
def test_a_tree_of_several_processes_is_that_of_one(
    stored: NDArray[np.float16], most: int, known: bool, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, number in (("MOST_LEAVES", most), ("_SMALL_GROUPS", 50), ("_DRAWN", 200)):
        monkeypatch.setattr(trees, name, number)
    labels = np.where(np.arange(301) % 9 == 0, np.arange(301) % 7, -1) if known else np.full(301, -1)

    def run(processes: Processes) -> GroupTree:
        rows = StoredRows(stored, unit=True, in_blocks=False)
        return group_tree(rows, labels, generator=np.random.default_rng(0), processes=processes)

    expected = run(ALONE)
    assert (expected.most <= 60) == (most == 60)
    for one in in_threads(size, run):
        for name in ("leaves", "sizes", "unions", "labels"):
            np.testing.assert_array_equal(getattr(one, name), getattr(expected, name))
        np.testing.assert_allclose(one.places, expected.places, rtol=1e-5, atol=1e-6)


def test_the_first_process_says_what_counts() -> None:
    def run(processes: Processes) -> list[list[int]]:
        return [of_first(np.full((processes.rank + 1, 2), processes.rank), processes).tolist()]

    assert in_threads(3, run) == [[[[0, 0]]]] * 3


@pytest.mark.parametrize(("far", "moves"), [(0.1, False), (30.0, True)])
def test_rows_are_moved_to_their_mean_where_a_common_offset_costs_digits(
    rng: np.random.Generator, far: float, moves: bool
) -> None:
    values = (rng.normal(size=(200, 3)) + far).astype(np.float32)
    parts = [shared_rows(part, "x", ALONE) for part in (values[:150], values[150:])]

    found, squares, offset = clustering._around(values.mean(axis=0, dtype=np.float64), *parts)

    assert bool(offset.any()) == moves
    for part, before, square in zip(found, parts, squares, strict=True):
        assert (part is before) != moves
        np.testing.assert_allclose(part.own, before.own - offset, atol=1e-5)
        np.testing.assert_allclose(square, (part.own.astype(np.float64) ** 2).sum(axis=1))
