from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from labelkit.algorithms import kmeans_nearest
from labelkit.algorithms.clustering import kmeans, spherical_kmeans
from labelkit.algorithms.kmeans_nearest import NearestCentroids, RunState
from labelkit.algorithms.kmeans_start import draw_rows
from numpy.typing import NDArray

Array = NDArray[Any]


class CountedRows:
    """Rows in memory that say which of them were read."""

    def __init__(self, rows: Array) -> None:
        self.rows, self.shape, self.dtype = rows, rows.shape, rows.dtype
        self.read = 0

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, where: Any) -> Array:
        found = self.rows[where]
        self.read += len(found)
        return found


def made(rows: Any) -> NearestCentroids:
    values = rows[:] if isinstance(rows, np.ndarray) else rows.rows
    return NearestCentroids(rows, (values.astype(np.float64) ** 2).sum(axis=1))


def distances(rows: Array, centroids: Array) -> Array:
    """By differences in float64."""
    return np.sqrt(((rows.astype(np.float64)[:, None] - centroids) ** 2).sum(axis=2))


def assert_true_of(state: RunState, rows: Array) -> None:
    found = distances(rows, state.centroids)
    np.testing.assert_array_equal(state.ids, found.argmin(axis=1))
    every = np.arange(len(rows))
    assert (state.upper >= found[every, state.ids] * (1 - 1e-12)).all()
    found[every, state.ids] = np.inf
    assert (state.lower <= found.min(axis=1) * (1 + 1e-12)).all()


# How far all centroids move per step, and one of them beside that.
@pytest.mark.parametrize(("step", "jump"), [(0.0, 0.0), (0.003, 0.0), (0.05, 0.0), (0.003, 1.0), (0.0, 3.0)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("width", [2, 30])
def test_bounds_hold_and_ids_are_the_nearest_while_centroids_move(
    dtype: Any, width: int, step: float, jump: float, rng: np.random.Generator
) -> None:
    centers = rng.standard_normal((25, width))
    rows = (centers[rng.integers(0, 25, 500)] + 0.2 * rng.standard_normal((500, width))).astype(dtype)
    nearest = made(rows)
    starts = [centers, rng.standard_normal((25, width))]
    states = nearest.begin(starts)
    for turn in range(8):
        for state in states:
            assert_true_of(state, rows)
        moved = []
        for state in states:
            target = state.centroids + step * rng.standard_normal(state.centroids.shape)
            target[turn] += jump * rng.standard_normal(width)
            moved.append(target)
        nearest.follow(states, moved)


def test_rows_far_from_a_tie_are_not_read_again(rng: np.random.Generator) -> None:
    rows = CountedRows(np.repeat(np.eye(30, dtype=np.float32) * 10, 20, axis=0))
    nearest = made(rows)
    centroids = np.eye(30) * 10 + 0.01 * rng.standard_normal((30, 30))
    (state,) = nearest.begin([centroids])
    assert rows.read == 600
    nearest.follow([state], [centroids + 0.01])
    assert rows.read == 600
    assert_true_of(state, rows.rows)


def test_a_centroid_that_moves_far_does_not_let_all_rows_be_compared_with_all() -> None:
    rows = np.repeat(np.eye(60, dtype=np.float32) * 10, 20, axis=0)
    nearest = made(rows)
    (state,) = nearest.begin([np.eye(60) * 10])
    shifts = np.where(np.arange(60) == 7, 20.0, 0.01)  # farther than the bounds are apart, which is sqrt(200)
    movers = nearest._movers(state, shifts)
    assert movers is not None
    assert 7 in movers
    assert len(movers) <= 3
    assert nearest._movers(state, np.full(60, 20.0)) is None


def test_rows_nearer_to_a_tie_than_float32_can_tell_are_decided_in_float64() -> None:
    rows = np.array([[1000, 0], [1000, 1e-4], [1000, -1e-4]], dtype=np.float32)
    first = np.array([[1000, 3.0], [1000, -3.0], [0, 0]])
    nearest = made(rows)
    (state,) = nearest.begin([first])
    np.testing.assert_array_equal(state.ids, [0, 0, 1])
    nearest.follow([state], [first[[1, 0, 2]]])
    np.testing.assert_array_equal(state.ids, [0, 1, 0])


@pytest.mark.parametrize("run", [kmeans, spherical_kmeans])
def test_the_best_of_several_given_starts_is_kept(run: Any, rng: np.random.Generator) -> None:
    rows = rng.standard_normal((200, 6)).astype("f4")
    starts = rows[rng.integers(0, 200, (5, 9))]
    alone = [run(rows, 9, generator=rng, init_centroids=start, tol=0) for start in starts]
    best = min(alone, key=lambda found: found.inertia)
    together = run(rows, 9, generator=rng, init_centroids=starts, tol=0)
    assert together.inertia == best.inertia
    np.testing.assert_array_equal(together.cluster_ids, best.cluster_ids)


def test_candidates_of_many_rows_are_drawn_from_all_and_judged_by_a_sample(rng: np.random.Generator) -> None:
    rows = rng.standard_normal((4200, 3))
    draws = rng.random((2, 5, 3))
    judges = np.sort(np.random.default_rng(0).choice(4200, 2048, replace=False))
    expected = []
    for tries in draws:
        picks = [int(tries[0, 0] * 4200)]
        closest = ((rows - rows[picks[0]]) ** 2).sum(axis=1)
        for step in range(1, 5):
            shares = np.cumsum(closest) / closest.sum()
            candidates = [int(np.argmax(shares >= draw)) for draw in tries[step]]
            each = [np.minimum(closest, ((rows - rows[row]) ** 2).sum(axis=1)) for row in candidates]
            best = min(range(3), key=lambda i: each[i][judges].sum())
            picks.append(candidates[best])
            closest = each[best]
        expected.append(picks)
    found = draw_rows(rows, (rows**2).sum(axis=1), None, draws)
    np.testing.assert_array_equal(found, expected)


def test_candidates_of_very_many_rows_are_drawn_from_a_sample_and_a_single_one_from_all(
    rng: np.random.Generator,
) -> None:
    rows = rng.standard_normal((40_000, 2))
    squares = (rows**2).sum(axis=1)
    draws = rng.random((3, 4, 2))
    pool = np.sort(np.random.default_rng(0).choice(40_000, 8192, replace=False))
    found = draw_rows(rows, squares, None, draws)
    np.testing.assert_array_equal(found, pool[draw_rows(rows[pool], squares[pool], None, draws)])
    single = draw_rows(rows, squares, None, draws[:, :, :1])
    np.testing.assert_array_equal(single[:, 0], (draws[:, 0, 0] * 40_000).astype(int))
    closest = ((rows - rows[single[0, 0]]) ** 2).sum(axis=1)
    assert single[0, 1] == np.argmax(np.cumsum(closest) / closest.sum() >= draws[0, 1, 0])


@pytest.mark.parametrize("width", [3, 40])
def test_restarts_side_by_side_end_as_each_would_alone(width: int, rng: np.random.Generator) -> None:
    rows = (rng.standard_normal((12, width))[rng.integers(0, 12, 700)] + rng.standard_normal((700, width))).astype("f4")
    candidates = 2 + int(np.log(15))
    draws = np.random.default_rng(4).random((6, 15, candidates))

    class OneRestart(np.random.Generator):
        """Draws what one restart of several would have drawn."""

        def __init__(self, restart: int) -> None:
            super().__init__(np.random.PCG64(0))
            self.restart = restart

        def random(self, size: Any = None, *args: Any, **kwargs: Any) -> Any:
            return draws[self.restart : self.restart + 1]

    alone = [kmeans(rows, 15, generator=OneRestart(restart), num_inits=1, tol=0) for restart in range(6)]
    best = min(alone, key=lambda found: found.inertia)
    together = kmeans(rows, 15, generator=np.random.default_rng(4), num_inits=6, tol=0)
    np.testing.assert_array_equal(together.cluster_ids, best.cluster_ids)
    np.testing.assert_array_equal(together.centroids, best.centroids)
    assert (together.inertia, together.num_iterations) == (best.inertia, best.num_iterations)


def test_a_product_has_rows_enough_and_stays_within_its_memory() -> None:
    assert kmeans_nearest._rows_at_once(100) == 1310  # what the cache holds
    assert kmeans_nearest._rows_at_once(25_000) == 256
    assert kmeans_nearest._rows_at_once(1_000_000) == 8
    assert kmeans_nearest._rows_at_once(1 << 30) == 1
