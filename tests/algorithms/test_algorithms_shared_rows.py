"""Processes that share rows find what one process finds: threads stand for them here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from labelkit.algorithms import group_tree as trees
from labelkit.algorithms import row_blocks
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


def test_parts_are_all_of_it_and_about_equal() -> None:
    for number in (0, 1, 7, 301):
        processes = [type("P", (), {"rank": rank, "size": 4})() for rank in range(4)]
        parts = [np.arange(number)[part_of(number, one)] for one in processes]
        np.testing.assert_array_equal(np.concatenate(parts), np.arange(number))
        assert max(map(len, parts)) == largest_part(number, processes[0])
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize("place", [1, 8])
def test_a_row_that_is_no_number_is_refused_by_every_process(place: int) -> None:
    rows = np.ones((9, 2), dtype=np.float32)
    rows[place] = np.nan

    def run(processes: Processes) -> str:
        with pytest.raises(ValueError, match="NaN") as caught:
            shared_rows(rows, "x", processes)
        return str(caught.value)

    assert len(set(in_threads(2, run))) == 1


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
