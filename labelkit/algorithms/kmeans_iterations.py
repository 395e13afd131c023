"""Lloyd's iterations of k-means: several restarts side by side, each as it would run alone.

Nearest centroids are those of ``kmeans_nearest.py``. Cluster sums are float64 and follow the rows that change cluster;
the inertia follows from them in float64, so it is exact for the cluster ids at hand.

Where several processes share the rows, each finds the nearest centroids of its own; sums and counts of clusters are
those of all processes, so that all move the same centroids and stop together. Every process draws the same starts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from labelkit.algorithms.kmeans_nearest import NearestCentroids, RunState
from labelkit.algorithms.kmeans_start import draw_rows, draws_from_all
from labelkit.algorithms.row_blocks import Floats, Rows, blocks, parts_of
from labelkit.algorithms.shared_rows import SharedRows

# Distances held while drawing starting centroids for several restarts together: 64 MB in float32.
_SEED_NUMBERS = 1 << 24
# Rows times restarts that run side by side, some 50 bytes each.
_SIDE_BY_SIDE = 1 << 20
# Share of the rows that change cluster; beyond it the sums of all are taken anew.
_MOST_CHANGED = 0.25


@dataclass(frozen=True, slots=True)
class Clustering:
    """A partition of n rows into k clusters.

    Attributes:
        cluster_ids: (n,) int64 in ``[0, k)``.
        centroids: (k, d) float, the means of exactly these members (spherical: of unit length);
            an empty cluster, possible only where rows repeat, has the place it was moved to.
        inertia: sum of squared distances to the centroids that the ids were assigned with;
            the sum to ``centroids`` is the same at convergence and never larger.
        num_iterations: assignments made by the restart that was kept.
    """

    cluster_ids: NDArray[np.int64]
    centroids: Floats
    inertia: float
    num_iterations: int


@dataclass(frozen=True, slots=True)
class Problem:
    """What stays the same over the restarts of one call.

    ``shared`` are the rows that are free to move, (m, d) of them this process's ``rows`` with ``squares`` (m,)
    as squared norms; ``fixed_sums`` (k, d) and ``fixed_counts`` (k,) stand for the rows that are not;
    ``total_square`` is the sum of the squared norms of both; ``device`` is where rows are compared, ``None``: by numpy.
    """

    shared: SharedRows
    squares: NDArray[np.float64]
    total_square: float
    fixed_sums: NDArray[np.float64]
    fixed_counts: NDArray[np.int64]
    max_iter: int
    converged: Callable[[NDArray[np.float64]], bool]
    spherical: bool = False
    device: str | None = None

    @property
    def rows(self) -> Rows:
        """(m, d) rows of this process."""
        return self.shared.own

    def sizes(self, ids: NDArray[np.int64], num_clusters: int) -> NDArray[np.int64]:
        """(k,) rows of all processes in each cluster, from the ids (m,) of this one."""
        counts = np.bincount(ids, minlength=num_clusters)
        return self.shared.processes.sum(counts.astype(np.float64)).astype(np.int64)


@dataclass(slots=True)
class _Run:
    """One restart between two iterations; ``before`` and ``free_sums`` are ids and sums of the iteration before."""

    state: RunState
    before: NDArray[np.int64]
    free_sums: NDArray[np.float64] | None = None
    best: Clustering | None = None
    num_iterations: int = 0

    def step(
        self, problem: Problem, free_sums: NDArray[np.float64], free_counts: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Keep what is there if it is the best so far, and return where the centroids move to.

        Args:
            problem: of the run.
            free_sums: (k, d) sums of the free rows of each cluster, of all processes.
            free_counts: (k,) how many these are.
        """
        ids, centroids = self.state.ids, self.state.centroids
        self.num_iterations += 1
        sums = problem.fixed_sums + free_sums
        counts = problem.fixed_counts + free_counts
        inertia = _inertia(problem.total_square, sums, counts, centroids)
        moved = _move(problem, ids, sums, counts, centroids)
        if self.best is None or inertia < self.best.inertia:
            self.best = Clustering(ids, moved, inertia, self.num_iterations)
        self.before = ids
        return moved


def iterate(problem: Problem, start: NDArray[np.float64]) -> Clustering:
    """Iterate from given centroids, (k, d); return the partition of lowest inertia."""
    (found,) = _iterate_together(problem, [start])
    return found


def best_from(problem: Problem, starts: Sequence[NDArray[np.float64]]) -> Clustering:
    """Iterate from each of several starts, (k, d) of equal shape; keep the first of the best."""
    return min(_from_each(problem, starts), key=attrgetter("inertia"))


def best_of(problem: Problem, start: NDArray[np.float64], draws: NDArray[np.float64]) -> Clustering:
    """Run one restart per row of ``draws`` (restarts, new centroids, candidates); keep the first of the best."""
    return min(each_of(problem, start, draws), key=attrgetter("inertia"))


def each_of(problem: Problem, start: NDArray[np.float64], draws: NDArray[np.float64]) -> Iterator[Clustering]:
    """Run one restart per row of ``draws``, as :func:`best_of`, and yield them all."""
    whole = problem.shared.whole
    together = _draws_together(problem, draws)
    picks = _drawn(problem, start, draws, together)
    for first in range(0, len(draws), together):
        some = picks[first : first + together]
        yield from _from_each(problem, [np.concatenate([start, whole[chosen]]) for chosen in some])


def _from_each(problem: Problem, starts: Sequence[NDArray[np.float64]]) -> Iterator[Clustering]:
    together = max(1, _SIDE_BY_SIDE // problem.shared.longest)
    for first in range(0, len(starts), together):
        yield from _iterate_together(problem, starts[first : first + together])


def _draws_together(problem: Problem, draws: NDArray[np.float64]) -> int:
    """Return for how many restarts starting rows are drawn at a time."""
    return max(1, _SEED_NUMBERS // (len(problem.shared) * int(draws.shape[2])))


def _drawn(
    problem: Problem, start: NDArray[np.float64], draws: NDArray[np.float64], together: int
) -> NDArray[np.int64]:
    """Return the starting rows of each restart, (restarts, new): drawn from all rows, by every process alike."""
    shared = problem.shared
    begun = None
    if len(start):
        (state,) = NearestCentroids(shared.own, problem.squares, problem.device).begin([start])
        begun = shared.processes.join(_own_distances(shared.own, state.ids, start))
    squares = shared.processes.join(problem.squares)
    rows = shared.readable() if draws_from_all(len(shared), *draws.shape[1:]) else shared.whole
    picks = [draw_rows(rows, squares, begun, draws[at : at + together]) for at in range(0, len(draws), together)]
    return np.concatenate(picks)


def _iterate_together(problem: Problem, starts: Sequence[NDArray[np.float64]]) -> list[Clustering]:
    """Iterate from several starts of equal shape, each as if alone; return the best partition of each."""
    rows = problem.rows
    nearest = NearestCentroids(rows, problem.squares, problem.device)
    nobody = np.full(len(rows), -1, dtype=np.int64)
    runs = [_Run(state, nobody) for state in nearest.begin(starts)]
    active = runs
    while active:
        _update_sums(rows, active)
        going, targets = [], []
        for run, (sums, counts) in zip(active, _sums_of_processes(problem, active), strict=True):
            moved = run.step(problem, sums, counts)
            shifts = np.linalg.norm(moved - run.state.centroids, axis=1)
            if run.num_iterations < problem.max_iter and not problem.converged(shifts):
                going.append(run)
                targets.append(moved)
        if going:
            nearest.follow([run.state for run in going], targets)
        active = going
    return [replace(_best_of_run(run), num_iterations=run.num_iterations) for run in runs]


def _sums_of_processes(problem: Problem, runs: Sequence[_Run]) -> list[tuple[NDArray[np.float64], NDArray[np.int64]]]:
    """Return the sums (k, d) and the counts (k,) of the free rows of all processes, for each of some runs."""
    own = []
    for run in runs:
        assert run.free_sums is not None  # they were brought to these ids
        own.append((run.free_sums, np.bincount(run.state.ids, minlength=len(run.free_sums))))
    if problem.shared.processes.size == 1:
        return own
    # one exchange for all
    found = problem.shared.processes.sum(np.stack([np.column_stack(both) for both in own]))
    return [(both[:, :-1], both[:, -1].astype(np.int64)) for both in found]


def _best_of_run(run: _Run) -> Clustering:
    assert run.best is not None  # every run made a step, and the inertia is finite
    return run.best


def sum_rows(rows: Rows, cluster_ids: NDArray[np.int64], num_clusters: int) -> NDArray[np.float64]:
    """Return the sum of the rows of each cluster, (k, d)."""
    return _sums_of_all(rows, [cluster_ids], num_clusters)[0]


def _sums_of_all(rows: Rows, partitions: Sequence[NDArray[np.int64]], num_clusters: int) -> list[NDArray[np.float64]]:
    """Return the sums of the rows of each cluster, (k, d), for each of several partitions."""
    from scipy.sparse import csc_array

    sums = [np.zeros((num_clusters, rows.shape[1])) for _ in partitions]
    if not partitions:
        return sums
    for block, values in parts_of(rows):
        part = values.astype(np.float64)
        ones, ends = np.ones(len(part)), np.arange(len(part) + 1)
        for total, ids in zip(sums, partitions, strict=True):
            total += np.asarray(csc_array((ones, ids[block], ends), shape=(num_clusters, len(part))) @ part)
    return sums


def _update_sums(rows: Rows, runs: Sequence[_Run]) -> None:
    """Bring the cluster sums of some runs to their ids: by the rows that changed cluster, or anew where many did.

    Each iteration rounds sums that follow once more, by some 1e-16 of them.
    """
    anew = []
    for run in runs:
        changed = np.flatnonzero(run.before != run.state.ids)
        if run.free_sums is None or len(changed) > _MOST_CHANGED * len(rows):
            anew.append(run)
        else:
            run.free_sums = _sums_after(rows, run.free_sums, changed, run.before, run.state.ids)
    if anew:
        found = _sums_of_all(rows, [run.state.ids for run in anew], len(anew[0].state.centroids))
        for run, sums in zip(anew, found, strict=True):
            run.free_sums = sums


def _sums_after(
    rows: Rows,
    sums: NDArray[np.float64],
    changed: NDArray[np.int64],
    before: NDArray[np.int64],
    ids: NDArray[np.int64],
) -> NDArray[np.float64]:
    """Return the sums of the rows of each cluster, (k, d), from those before some rows changed cluster."""
    from scipy.sparse import csc_array

    sums = sums.copy()
    for block in blocks(len(changed), rows.shape[1]):
        some = changed[block]
        both = np.stack([ids[some], before[some]], axis=1).ravel()
        signs, ends = np.tile([1.0, -1.0], len(some)), np.arange(0, 2 * len(some) + 1, 2)
        come_and_gone = csc_array((signs, both, ends), shape=(len(sums), len(some)))
        sums += np.asarray(come_and_gone @ rows[some].astype(np.float64))
    return sums


def _own_distances(rows: Rows, ids: NDArray[np.int64], centroids: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the squared distance of each row to the centroid of its own id, by differences."""
    distances = np.empty(len(rows))
    for block, part in parts_of(rows):
        difference = part - centroids[ids[block]]
        distances[block] = np.einsum("ij,ij->i", difference, difference)
    return distances


def _inertia(
    total_square: float, sums: NDArray[np.float64], counts: NDArray[np.int64], centroids: NDArray[np.float64]
) -> float:
    """Sum of |x - c|^2 = sum of |x|^2 - 2 c S + count |c|^2, with S the sum of the members."""
    cross = np.einsum("ij,ij->", sums, centroids)
    squares = np.einsum("i,ij,ij->", counts.astype(np.float64), centroids, centroids)
    return max(0.0, float(total_square - 2 * cross + squares))


def _move(
    problem: Problem,
    ids: NDArray[np.int64],
    sums: NDArray[np.float64],
    counts: NDArray[np.int64],
    centroids: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return the means of the members, and for empty clusters the rows farthest from their own centroid."""
    moved = sums / np.maximum(counts, 1)[:, None]
    if problem.spherical:
        lengths = np.linalg.norm(moved, axis=1, keepdims=True)
        moved = np.where(lengths > 0, moved / np.where(lengths > 0, lengths, 1), centroids)
    empty = np.flatnonzero(counts == 0)
    if len(empty):
        moved[empty] = problem.shared.farthest(_own_distances(problem.rows, ids, centroids), len(empty))
    return moved
