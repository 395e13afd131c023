"""k-means in three forms: plain, spherical, and with the clusters of some rows fixed.

Sources: Lloyd's iterations; starting centroids of k-means++ (``kmeans_start.py``); semi-supervised form of
S. Vaze et al., "Generalized Category Discovery" (GitHub ``sgvaze/generalized-category-discovery``).

How it is made fast without losing digits:
    - nearest centroids come from one matrix product per block of rows for all restarts, in the
      precision of the input; rows are centered first where a common offset would cost digits;
    - bounds on distances spare rows whose nearest centroid cannot have changed (``kmeans_nearest.py``);
    - cluster sums are float64, and the inertia follows from them in float64, so it is exact for
      the cluster ids at hand, whatever the product rounded;
    - rows whose two nearest centroids are closer to a tie than float32 can tell are decided in
      float64, so that clusters tiny against the spread of the data come out right;
    - starting centroids of all restarts are drawn together, one product for all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from operator import attrgetter

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labelkit.algorithms.kmeans_iterations import Clustering, Problem, best_from, best_of, each_of, iterate, sum_rows
from labelkit.algorithms.kmeans_nearest import NearestCentroids
from labelkit.algorithms.row_blocks import (
    Floats,
    StoredRows,
    checked_rows,
    may_overwrite,
    moved,
    squared_norms,
    unit_length,
)
from labelkit.algorithms.shared_rows import ALONE, Processes, SharedRows, shared_rows

# An offset of at most this share of the squared lengths costs products of rows no digit that counts.
_SHARE_OF_OFFSET = 0.25
# Rounds of classes that change places; two are rare.
_MOST_EXCHANGES = 10


@dataclass(frozen=True, slots=True)
class SemiSupervisedClustering:
    """A partition of unlabeled and labeled rows into k clusters, c of them named by a label.

    Attributes:
        unlabeled_ids: (n_u,) int64 in ``[0, k)``.
        labeled_ids: (n_l,) int64 in ``[0, c)``: the position of the label among the sorted labels.
        centroids: (k, d) float, the means of exactly these members.
        class_of_cluster: (k,) int64, the label of clusters ``0..c-1``, then -1.
        inertia: sum of squared distances of all rows, labeled ones included, to the centroids
            that the ids were assigned with.
        num_iterations: assignments made by the restart that was kept.
    """

    unlabeled_ids: NDArray[np.int64]
    labeled_ids: NDArray[np.int64]
    centroids: Floats
    class_of_cluster: NDArray[np.int64]
    inertia: float
    num_iterations: int


def kmeans(
    x: ArrayLike | StoredRows,
    num_clusters: int,
    *,
    generator: np.random.Generator,
    num_inits: int = 10,
    max_iter: int = 300,
    tol: float = 1e-4,
    init_centroids: ArrayLike | None = None,
    processes: Processes = ALONE,
    device: str | None = None,
) -> Clustering:
    """Partition rows so that the squared distances to the cluster means are small.

    Args:
        x: (n, d) rows. float64 is computed in float64, everything else in float32.
        num_clusters: k, from 1 to n.
        generator: all randomness. Two equal generators give equal results.
        num_inits: restarts; the one of lowest inertia is kept, the first of equals.
        max_iter: assignments per restart, at most.
        tol: stop when the summed squared shift of the centroids is at most ``tol`` times the
            mean variance of the columns; 0 waits until nothing moves.
        init_centroids: (k, d) starting centroids, or (r, k, d) of r restarts; then nothing is drawn.
        processes: that share the rows. Each calls this with the same arguments and gets the same result, which differs
            from that of one process by the rounding of sums in float64.
        device: of torch, where float32 rows are compared with centroids, such as ``cuda``; ``None``: by numpy. Ids are
            decided in float64 where rounding could change them, so that they are the same.

    Returns:
        The best partition. An empty cluster takes the row farthest from its own centroid.

    Raises:
        ValueError: k is not in ``[1, n]``, x is not (n, d), or holds NaN or infinity.
    """
    rows = shared_rows(x, "x", processes)
    return _cluster_all(
        rows, num_clusters, generator, num_inits, max_iter, tol, init_centroids, device, spherical=False
    )


def spherical_kmeans(
    x: ArrayLike | StoredRows,
    num_clusters: int,
    *,
    generator: np.random.Generator,
    num_inits: int = 10,
    max_iter: int = 300,
    tol: float = 1e-4,
    init_centroids: ArrayLike | None = None,
    processes: Processes = ALONE,
    device: str | None = None,
) -> Clustering:
    """Partition rows by direction: the cosines to unit centroids are large.

    Rows are scaled to unit length and a centroid is the mean of its members scaled to unit
    length, so the inertia is ``sum(2 - 2 cos)``, in ``[0, 4 n]``. Members whose mean is zero
    have no direction; their centroid stays where it was.

    Args:
        x: (n, d) rows of any length but zero.
        num_clusters: k, from 1 to n.
        generator: all randomness.
        num_inits: restarts; the one of lowest inertia is kept.
        max_iter: assignments per restart, at most.
        tol: as in :func:`kmeans`, on the scaled rows.
        init_centroids: (k, d) starting directions, or (r, k, d) of r restarts; then nothing is drawn.
        processes: as in :func:`kmeans`.
        device: as in :func:`kmeans`.

    Raises:
        ValueError: as in :func:`kmeans`, or a row (or starting direction) is zero.
    """
    rows = shared_rows(x, "x", processes).unit_length("x")
    return _cluster_all(rows, num_clusters, generator, num_inits, max_iter, tol, init_centroids, device, spherical=True)


def semi_supervised_kmeans(
    unlabeled: ArrayLike | StoredRows,
    labeled: ArrayLike | StoredRows,
    labels: ArrayLike,
    num_clusters: int,
    *,
    generator: np.random.Generator,
    num_inits: int = 10,
    max_iter: int = 100,
    tol: float = 1e-4,
    exchange: bool = False,
    processes: Processes = ALONE,
    device: str | None = None,
) -> SemiSupervisedClustering:
    """Partition unlabeled rows while labeled rows stay with their class.

    The first c centroids start at the class means (labels sorted), the others at unlabeled rows
    drawn one by one with probability proportional to the squared distance to the nearest
    centroid so far: with ``r = generator.random((num_inits, k - c))``, restart i picks for its
    j-th new centroid the first row whose cumulative share of the squared distances reaches
    ``r[i, j]``; when all distances are 0, row ``floor(r n_u)``. Each iteration assigns every
    unlabeled row to the nearest of the k centroids and moves each centroid to the mean of its
    members of both kinds. An empty cluster is moved to the unlabeled row farthest from its own
    centroid.

    In many dimensions a mean is nearer to every row than another single row is, so that clusters
    which start at single rows keep nothing but these beside the class means. Where a restart
    has a cluster of one row without a label, as many more are made that start at means alone:
    k-means of the unlabeled rows, less the centroids that match the classes best. The best of them
    is kept if its inertia is lower.

    A few labeled rows weigh little: a class may end with the rows of another, and its own rows as a
    cluster without labels. ``exchange`` gives the classes, after the restarts, those centroids that
    their labeled rows are nearest to in sum (one each), iterates again, and repeats this while the
    inertia falls.

    Args:
        unlabeled: (n_u, d) rows, used as they are: normalize before, if wanted.
        labeled: (n_l, d) rows; n_l may be 0, which is k-means.
        labels: (n_l,) integers >= 0, any values; c of them are distinct.
        num_clusters: k, at least c and at most c + n_u.
        generator: all randomness; only ``random`` is called: once, not at all if k = c. Restarts from means
            draw from a generator that its first number seeds.
        num_inits: restarts; the one of lowest inertia is kept, the first of equals.
        max_iter: assignments per restart, at most.
        tol: stop when ``(sum of centroid shifts)^2 < tol``, in squared units of the rows.
        exchange: let classes change places with other clusters in the end, which is not in the source.
        processes: as in :func:`kmeans`.
        device: as in :func:`kmeans`.

    Returns:
        The partition of lowest inertia seen, over all iterations of all restarts.

    Raises:
        ValueError: shapes that do not fit, NaN or infinity, a negative label, or a k outside
            the range above.

    Source:
        Sec. 3.2 of "Generalized Category Discovery" and its code, which yields NaN for an empty
        cluster and does not say what happens when all distances are 0.
    """
    free = shared_rows(unlabeled, "unlabeled", processes)
    fixed = shared_rows(labeled, "labeled", processes)
    values = np.asarray(labels)
    if free.shape[1] != fixed.shape[1]:
        raise ValueError(f"unlabeled rows have {free.shape[1]} columns, labeled rows {fixed.shape[1]}")
    if values.shape != (len(fixed),):
        raise ValueError(f"labels must have shape ({len(fixed)},), got {values.shape}")
    if values.size and (not np.issubdtype(values.dtype, np.integer) or values.min() < 0):
        raise ValueError(f"labels must be integers >= 0, got {values.dtype} with minimum {values.min()}")
    classes, labeled_ids = np.unique(values.astype(np.int64), return_inverse=True)
    num_classes = len(classes)
    num_new = num_clusters - num_classes
    _check_settings(num_clusters, num_inits, max_iter, tol)
    if num_new < 0:
        raise ValueError(f"num_clusters={num_clusters} is below the {num_classes} labeled classes")
    if num_new > len(free):
        raise ValueError(f"{num_new} clusters without labels need as many unlabeled rows, got {len(free)}")

    dtype = np.result_type(free.dtype, fixed.dtype)
    rows, fixed_rows = free.as_type(dtype), fixed.as_type(dtype)
    mean = (rows.column_sums() + fixed_rows.column_sums()) / max(len(rows) + len(fixed_rows), 1)
    (rows, fixed_rows), (squares, fixed_squares), offset = _around(mean, rows, fixed_rows)
    total_square = rows.total(np.concatenate([squares, fixed_squares]))
    sums = np.zeros((num_clusters, rows.shape[1]))
    sums[:num_classes] = processes.sum(sum_rows(fixed_rows.own, labeled_ids[fixed_rows.where], num_classes))
    counts = np.bincount(labeled_ids, minlength=num_clusters)
    class_means = sums[:num_classes] / counts[:num_classes, None]

    def converged(shifts: NDArray[np.float64]) -> bool:
        return bool(shifts.sum() ** 2 < tol) or not shifts.any()

    problem = Problem(rows, squares, total_square, sums, counts, max_iter, converged, device=device)
    if num_new == 0:
        best = iterate(problem, class_means)
    else:
        draws = generator.random((num_inits, num_new))[:, :, None]
        runs: list[Clustering] = []
        alone = False
        for run in each_of(problem, class_means, draws):
            runs = [min(*runs, run, key=attrgetter("inertia"))] if runs else [run]
            alone = alone or bool((problem.sizes(run.cluster_ids, num_clusters)[num_classes:] == 1).any())
        # asked of every restart, not of the best: more restarts must never leave out what fewer make
        if num_classes and num_clusters <= len(rows) and alone:
            seeded = np.random.default_rng(int(draws[0, 0, 0] * 2**53))
            runs.append(best_from(problem, _starts_at_means(problem, class_means, seeded, num_inits)))
        best = min(runs, key=attrgetter("inertia"))
    if exchange and num_classes:
        best = _exchanged(problem, class_means, best)
    class_of_cluster = np.full(num_clusters, -1, dtype=np.int64)
    class_of_cluster[:num_classes] = classes
    return SemiSupervisedClustering(
        unlabeled_ids=processes.join(best.cluster_ids),
        labeled_ids=labeled_ids.astype(np.int64),
        centroids=(best.centroids + offset).astype(dtype),
        class_of_cluster=class_of_cluster,
        inertia=best.inertia,
        num_iterations=best.num_iterations,
    )


def _exchanged(problem: Problem, class_means: NDArray[np.float64], best: Clustering) -> Clustering:
    """Give each class the centroid that its labeled rows are nearest to, one each, as long as the inertia falls."""
    from scipy.optimize import linear_sum_assignment

    num_classes = len(class_means)
    for _ in range(_MOST_EXCHANGES):
        centroids = best.centroids
        # up to what does not depend on the centroid, the squared distances of the labeled rows of a class
        apart = (centroids**2).sum(axis=1) - 2 * class_means @ centroids.T
        _, taken = linear_sum_assignment(problem.fixed_counts[:num_classes, None] * apart)
        if (taken == np.arange(num_classes)).all():
            break
        run = iterate(problem, np.concatenate([centroids[taken], np.delete(centroids, taken, axis=0)]))
        if run.inertia >= best.inertia:
            break
        best = run
    return best


def _starts_at_means(
    problem: Problem, class_means: NDArray[np.float64], generator: np.random.Generator, num_inits: int
) -> list[NDArray[np.float64]]:
    """Return the class means, and the centroids of k-means of the free rows that match none of them, (k, d) each."""
    from scipy.optimize import linear_sum_assignment

    num_clusters, width = problem.fixed_sums.shape
    no_sums, no_counts = np.zeros((num_clusters, width)), np.zeros(num_clusters, dtype=np.int64)
    total = problem.shared.total(problem.squares)
    plain = replace(problem, total_square=total, fixed_sums=no_sums, fixed_counts=no_counts)
    draws = generator.random((num_inits, num_clusters, 2 + int(np.log(num_clusters))))
    starts = []
    for means in (found.centroids for found in each_of(plain, np.zeros((0, width)), draws)):
        distances = ((class_means**2).sum(axis=1)[:, None] + (means**2).sum(axis=1)) - 2 * class_means @ means.T
        _, taken = linear_sum_assignment(distances)
        starts.append(np.concatenate([class_means, np.delete(means, taken, axis=0)]).astype(np.float64))
    return starts


def nearest_centroids(x: ArrayLike | StoredRows, centroids: ArrayLike) -> NDArray[np.int64]:
    """Return the nearest centroid of each row, (n,) int64; the smaller id of equals.

    Args:
        x: (n, d) rows.
        centroids: (k, d), k >= 1. For directions pass unit rows and unit centroids.

    Raises:
        ValueError: shapes that do not fit, NaN or infinity.
    """
    rows, places = checked_rows(x, "x"), checked_rows(centroids, "centroids")
    if not len(places):
        raise ValueError("centroids must have at least one row")
    if rows.shape[1] != places.shape[1]:
        raise ValueError(f"x has {rows.shape[1]} columns, centroids have {places.shape[1]}")
    points = places[:]
    offset = points.mean(axis=0, dtype=np.float64).astype(rows.dtype)
    rows = moved(rows, offset, in_place=may_overwrite(rows, x))
    (found,) = NearestCentroids(rows, squared_norms(rows)).begin([points.astype(np.float64) - offset])
    return found.ids


def _cluster_all(
    rows: SharedRows,
    num_clusters: int,
    generator: np.random.Generator,
    num_inits: int,
    max_iter: int,
    tol: float,
    init_centroids: ArrayLike | None,
    device: str | None,
    *,
    spherical: bool,
) -> Clustering:
    """Run plain or spherical k-means with no row fixed."""
    _check_settings(num_clusters, num_inits, max_iter, tol)
    if num_clusters > len(rows):
        raise ValueError(f"num_clusters={num_clusters} needs as many rows, got {len(rows)}")
    num_rows, width = rows.shape
    mean = rows.column_sums() / num_rows
    # Unit rows keep their origin, since it is what their length is measured from.
    (rows,), (squares,), offset = _around(np.zeros(width) if spherical else mean, rows)
    mean, total_square = mean - offset, rows.total(squares)
    threshold = tol * max(0.0, total_square / num_rows - float(mean @ mean)) / width

    def converged(shifts: NDArray[np.float64]) -> bool:
        return bool(shifts @ shifts <= threshold)

    no_sums, no_counts = np.zeros((num_clusters, width)), np.zeros(num_clusters, dtype=np.int64)
    problem = Problem(rows, squares, total_square, no_sums, no_counts, max_iter, converged, spherical, device)
    if init_centroids is None:
        draws = generator.random((num_inits, num_clusters, 2 + int(np.log(num_clusters))))
        best = best_of(problem, np.zeros((0, width)), draws)
    else:
        given = np.asarray(init_centroids)
        if given.shape[-2:] != (num_clusters, width) or given.ndim not in (2, 3) or not len(given):
            raise ValueError(f"init_centroids must have shape {(num_clusters, width)}, got {given.shape}")
        start = checked_rows(given.reshape(-1, width), "init_centroids")[:]
        if spherical:
            start = unit_length(start, "init_centroids")[:]
        best = best_from(problem, list((start.astype(np.float64) - offset).reshape(-1, num_clusters, width)))
    ids = rows.processes.join(best.cluster_ids)
    return Clustering(ids, (best.centroids + offset).astype(rows.dtype), best.inertia, best.num_iterations)


def _check_settings(num_clusters: int, num_inits: int, max_iter: int, tol: float) -> None:
    for name, value in (("num_clusters", num_clusters), ("num_inits", num_inits), ("max_iter", max_iter)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    if not tol >= 0:
        raise ValueError(f"tol must be >= 0, got {tol}")


def _around(
    mean: NDArray[np.float64], *parts: SharedRows
) -> tuple[list[SharedRows], list[NDArray[np.float64]], NDArray[np.float64]]:
    """Move rows to their mean (d,), where products of them would else lose digits to what they have in common.

    Returns:
        The rows, their squared norms, and what was taken off, (d,): zeros where that is at most a quarter of the
        squared lengths.
    """
    squares = [part.squared_norms() for part in parts]
    offset = mean.astype(parts[0].dtype).astype(np.float64)
    total_square = parts[0].total(np.concatenate(squares))
    if float(offset @ offset) * sum(map(len, parts)) <= _SHARE_OF_OFFSET * total_square:
        return list(parts), squares, np.zeros_like(offset)
    moved_parts = [part.moved(offset) for part in parts]
    return moved_parts, [part.squared_norms() for part in moved_parts], offset
