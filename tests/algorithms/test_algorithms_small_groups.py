"""Rows of small groups are set aside: the others get their groups, and odd ones join the nearest."""

from __future__ import annotations

import numpy as np
import pytest
from labelkit.algorithms.clustering import kmeans, nearest_centroids, semi_supervised_kmeans
from labelkit.algorithms.small_groups import set_aside_small
from numpy.typing import NDArray

Ints = NDArray[np.int64]


@pytest.fixture
def rows(rng: np.random.Generator) -> NDArray[np.float64]:
    """Two clouds of 20, near each other, and one row that is far from both."""
    near = np.repeat([[0.0, 0], [1, 0]], 20, axis=0) + rng.normal(0, 0.05, (40, 2))
    return np.concatenate([near, [[0, 50.0]]])


def group(rows: NDArray[np.float64], number: int, min_size: int) -> tuple[Ints, Ints]:
    def run(places: Ints) -> tuple[Ints, NDArray[np.floating]]:
        found = kmeans(rows[places], number, generator=np.random.default_rng(0))
        return found.cluster_ids, found.centroids

    return set_aside_small(run, lambda places, c: nearest_centroids(rows[places], c), len(rows), min_size=min_size)


def test_an_odd_row_takes_no_group_from_the_others(rows: NDArray[np.float64]) -> None:
    plain, none = group(rows, 2, 1)
    ids, moved = group(rows, 2, 2)

    assert (sorted(np.bincount(plain).tolist()), len(none)) == ([1, 40], 0)
    assert moved.tolist() == [40]
    assert len(set(ids[:20])) == len(set(ids[20:40])) == 1
    assert ids[0] != ids[20]


def test_small_groups_are_dissolved_the_smallest_first_if_many_rows_are_in_them(rows: NDArray[np.float64]) -> None:
    ids, moved = group(rows, 3, 20)

    used, counts = np.unique(ids, return_counts=True)
    assert len(used) < 3
    assert counts.min() >= 20
    assert 40 in moved


def test_a_named_group_and_its_rows_are_kept(rows: NDArray[np.float64]) -> None:
    known = np.zeros(41, dtype=bool)
    known[0] = True

    def run(places: Ints) -> tuple[Ints, NDArray[np.floating]]:
        free = ~known[places]
        found = semi_supervised_kmeans(
            rows[places][free], rows[places][~free], [7], 3, generator=np.random.default_rng(0)
        )
        ids = np.empty(len(places), dtype=np.int64)
        ids[free], ids[~free] = found.unlabeled_ids, found.labeled_ids
        return ids, found.centroids

    ids, moved = set_aside_small(
        run, lambda places, c: nearest_centroids(rows[places], c), 41, min_size=30, num_named=1, always=known
    )

    assert ids[0] == 0
    assert 0 not in moved
