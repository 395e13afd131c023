"""Plain and spherical k-means by faiss, and semi-supervised k-means based on nearest-neighbor search by faiss.

This module works around limits of faiss:
    - with many clusters, its random initialization leads to much higher inertia, so we use scikit-learn's k-means++;
    - it computes in float32 and fails at 1e20, so it receives centered rows divided by their largest number;
    - means and inertia of the result are recomputed in float64 from the original rows.

If rows are read in blocks because memory is limited, centroids are fitted to a sample of 256 rows per cluster, and all
rows are then assigned to them. If rows are in memory, all are used.

Sources: J. Johnson, M. Douze and H. Jegou, "Billion-scale similarity search with GPUs" (faiss); S. Vaze et al.,
"Generalized Category Discovery" (semi-supervised k-means; GitHub ``sgvaze/generalized-category-discovery``).
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cache, partial
from operator import attrgetter, itemgetter
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from threadpoolctl import ThreadpoolController

from labelkit.algorithms.row_blocks import (
    Floats,
    Rows,
    StoredRows,
    iterate_blocks,
    squared_norms,
    to_unit_length,
    validate_rows,
)

Doubles = NDArray[np.float64]
Singles = NDArray[np.float32]
Ids = NDArray[np.int64]

# Sampled rows per cluster, and minimum sample size: for fitting centroids to rows read in blocks (256 is faiss's
# default), and for drawing initial centroids.
_SAMPLED, _MIN_SAMPLED = 256, 8192
_STARTS, _MIN_STARTS = 32, 8192
# Below this number of products, threads spend longer waiting for each other than computing.
_FEW_PRODUCTS = 1 << 27
# Squared distances below this fraction of the largest number squared are rounding errors between equal rows.
_EQUAL = 1e-14
# Squared distances below this fraction of the squared norms from which they are computed are rounding errors.
_CANCELED = 1e-6
# A mean of unit rows shorter than this is a rounding error.
_NO_DIRECTION = 1e-7
# Maximum number of rounds in which classes exchange clusters; even two are rare.
_MAX_EXCHANGES = 10


@dataclass(frozen=True, slots=True)
class Clustering:
    """Partition of n samples into k clusters, with centroids and inertia.

    Attributes:
        cluster_ids: (n,) int64 in ``[0, k)``: the nearest centroid, once iterations have converged.
        centroids: (k, d) float, the means of exactly these clusters (spherical: of unit length).
        inertia: sum of squared distances to ``centroids``.
        num_iterations: number of assignment steps in the best restart.
    """

    cluster_ids: Ids
    centroids: Floats
    inertia: float
    num_iterations: int


@dataclass(frozen=True, slots=True)
class SemiSupervisedClustering:
    """Partition of unlabeled and labeled samples into k clusters, of which c belong to labeled classes.

    Attributes:
        unlabeled_ids: (n_u,) int64 in ``[0, k)``.
        labeled_ids: (n_l,) int64 in ``[0, c)``: the position of the label among the sorted labels.
        centroids: (k, d) float, the means of exactly these clusters.
        class_of_cluster: (k,) int64, the label of clusters ``0..c-1``, then -1.
        inertia: sum of squared distances of all rows, labeled ones included, to ``centroids``.
        num_iterations: number of assignment steps in the best restart.
    """

    unlabeled_ids: Ids
    labeled_ids: Ids
    centroids: Floats
    class_of_cluster: Ids
    inertia: float
    num_iterations: int


def kmeans(
    x: ArrayLike | StoredRows,
    num_clusters: int,
    *,
    generator: np.random.Generator,
    num_inits: int = 10,
    max_iter: int = 300,
    tol: float = 1e-6,
    init_centroids: ArrayLike | None = None,
    spherical: bool = False,
) -> Clustering:
    """Cluster samples by k-means, which minimizes the squared distances to the cluster means.

    Spherical k-means maximizes cosine similarities: rows are scaled to unit length, and a centroid is the mean of its
    members scaled to unit length, so the inertia is ``sum(2 - 2 cos)``, in ``[0, 4 n]``. If a mean is zero and has no
    direction, a member becomes the centroid.

    Args:
        x: (n, d) rows; compared in float32.
        num_clusters: k, from 1 to n.
        generator: source of all randomness. Equal generator states give equal results.
        num_inits: restarts; the one with the lowest inertia is returned, the first if tied.
        max_iter: maximum number of iterations per restart.
        tol: stop when an iteration reduces the inertia by a smaller fraction; 0 continues until it stops decreasing.
        init_centroids: (k, d) initial centroids; nothing is then drawn, and there are no restarts.
        spherical: spherical k-means, whose rows (and initial directions) must not be zero.

    Returns:
        The best partition. A cluster is empty only if there are fewer distinct rows than clusters.

    Raises:
        ValueError: k is not in ``[1, n]``, x is not (n, d), or contains NaN or infinity.
    """
    rows = validate_rows(x, "x")
    _check_settings(num_clusters, num_inits, max_iter, tol)
    if num_clusters > len(rows):
        raise ValueError(f"num_clusters must be at most the number of rows ({len(rows)}), got {num_clusters}")
    if spherical:
        scaled = _ScaledRows(to_unit_length(rows, "x"), np.zeros(rows.shape[1]), 1.0)
    else:
        scaled = _ScaledRows(rows, *_find_offset_and_scale(rows))
    points = scaled.rows_for_fitting(num_clusters)
    if init_centroids is None:
        starts = _initialize_centroids(points, num_clusters, num_inits, generator)
    else:
        given = validate_rows(init_centroids, "init_centroids")[:]
        starts = iter([scaled.scale_rows(to_unit_length(given, "init_centroids")[:] if spherical else given)])
    runs = (_fit_centroids(points, start, max_iter, tol, spherical=spherical) for start in starts)
    centroids, _, num_iterations = min(runs, key=itemgetter(1))
    ids, means, inertia = _assign_rows(scaled, centroids, spherical=spherical)
    return Clustering(ids, means.astype(rows.dtype), inertia, num_iterations)


def nearest_centroids(x: ArrayLike | StoredRows, centroids: ArrayLike) -> Ids:
    """Find the index (n,) int64 of each sample's nearest centroid in float32; ties go to the smaller index.

    Args:
        x: (n, d) rows.
        centroids: (k, d), k >= 1. To compare directions, pass unit rows and unit centroids.

    Raises:
        ValueError: shapes do not match, NaN or infinity.
    """
    rows, places = validate_rows(x, "x"), validate_rows(centroids, "centroids")[:]
    if not len(places):
        raise ValueError("centroids must have at least one row")
    if rows.shape[1] != places.shape[1]:
        raise ValueError(f"x has {rows.shape[1]} columns, but centroids have {places.shape[1]}")
    scaled = _ScaledRows(rows, *_find_offset_and_scale(rows, places))
    return scaled.find_nearest_centroids(scaled.scale_rows(places))


def sum_rows(rows: Rows, cluster_ids: Ids, num_clusters: int) -> Doubles:
    """Compute the sum (k, d) of the rows in each cluster."""
    from scipy.sparse import csc_array

    sums = np.zeros((num_clusters, rows.shape[1]))
    for block, part in iterate_blocks(rows):
        shape = (num_clusters, len(part))
        members = csc_array((np.ones(len(part)), cluster_ids[block], np.arange(len(part) + 1)), shape=shape)
        sums += np.asarray(members @ part.astype(np.float64))
    return sums


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
) -> SemiSupervisedClustering:
    """Cluster samples by k-means, keeping labeled samples in the cluster of their class.

    The first c centroids start at the class means (labels sorted), the others at unlabeled rows
    drawn one by one with probability proportional to the squared distance to the nearest
    centroid so far: with ``r = generator.random((num_inits, k - c))``, restart i picks for its
    j-th new centroid the first row whose cumulative share of the squared distances reaches
    ``r[i, j]``; when all distances are 0, row ``floor(r n_u)``. Each iteration assigns every
    unlabeled row to the nearest of the k centroids and moves each centroid to the mean of its
    members of both kinds. An empty cluster is moved to the unlabeled row farthest from its own
    centroid.

    In many dimensions, every row is nearer to a mean than to any other row, so that clusters that start at single
    rows may keep only those rows, unlike the classes, which start at means. If a restart ends with an unlabeled
    cluster of one row, the same number of restarts is added that start only at means: the k-means centroids of the
    unlabeled rows, except those that match the classes best. The best of them is used if its inertia is lower.

    A few labeled rows have little weight: the centroid of a class may drift to another class and leave its own rows
    to an unlabeled cluster. After the restarts, ``exchange`` matches each class to a distinct centroid, minimizing
    the total distance to the labeled rows, iterates again, and repeats this while the inertia falls.

    Args:
        unlabeled: (n_u, d) rows, used as they are: normalize them before if desired.
        labeled: (n_l, d) rows; n_l may be 0, which gives plain k-means.
        labels: (n_l,) integers >= 0, with c distinct values.
        num_clusters: k, at least c and at most c + n_u.
        generator: source of all randomness; only ``random`` is called: once, or not at all if k = c. Restarts from
            means use another generator, whose seed is its first number.
        num_inits: restarts; the one with the lowest inertia is returned, the first if tied.
        max_iter: maximum number of assignments per restart.
        tol: stop when ``(sum of centroid shifts)^2 < tol``, in squared units of the rows.
        exchange: rematch classes to clusters at the end, which is not in the source.

    Returns:
        The partition with the lowest inertia over all iterations of all restarts.

    Raises:
        ValueError: shapes do not match, NaN or infinity, a negative label, or a k outside
            the range above.

    Source:
        Sec. 3.2 of "Generalized Category Discovery" and its code, which yields NaN for an empty
        cluster and does not say what happens when all distances are 0.
    """
    free, fixed = validate_rows(unlabeled, "unlabeled"), validate_rows(labeled, "labeled")
    values = np.asarray(labels)
    if free.shape[1] != fixed.shape[1]:
        raise ValueError(f"unlabeled rows have {free.shape[1]} columns, but labeled rows have {fixed.shape[1]}")
    if values.shape != (len(fixed),):
        raise ValueError(f"labels must have shape ({len(fixed)},), got {values.shape}")
    if values.size and (not np.issubdtype(values.dtype, np.integer) or values.min() < 0):
        raise ValueError(f"labels must be integers >= 0, got {values.dtype} with minimum {values.min()}")
    classes, fixed_ids = np.unique(values.astype(np.int64), return_inverse=True)
    num_classes = len(classes)
    num_new = num_clusters - num_classes
    _check_settings(num_clusters, num_inits, max_iter, tol)
    if num_new < 0:
        raise ValueError(f"num_clusters must be at least {num_classes} (the labeled classes), got {num_clusters}")
    if num_new > len(free):
        raise ValueError(f"{num_new} unlabeled clusters require at least as many unlabeled rows, got {len(free)}")

    scaled = _ScaledRows(free, *_find_offset_and_scale(free, fixed))
    fixed_rows = scaled.scale_rows(fixed[:])
    points, sums = scaled.rows_for_fitting(num_clusters), sum_rows(fixed_rows, fixed_ids, num_classes)
    total_square = float(squared_norms(points).sum() + squared_norms(fixed_rows).sum())
    problem = _SemiSupervisedProblem(
        points, sums, np.bincount(fixed_ids), total_square, num_clusters, max_iter, float(np.sqrt(tol)) / scaled.scale
    )
    best = problem.run_restarts(generator.random((num_inits, num_new)) if num_new else np.empty((1, 0)))
    if exchange and num_classes:
        best = problem.rematch_centroids(best)
    ids, means, inertia = _assign_rows(scaled, best.centroids, fixed, fixed_ids)
    class_of_cluster = np.full(num_clusters, -1, dtype=np.int64)
    class_of_cluster[:num_classes] = classes
    return SemiSupervisedClustering(
        unlabeled_ids=ids,
        labeled_ids=fixed_ids.astype(np.int64),
        centroids=means.astype(np.result_type(free.dtype, fixed.dtype)),
        class_of_cluster=class_of_cluster,
        inertia=inertia,
        num_iterations=best.num_iterations,
    )


@dataclass(frozen=True, slots=True)
class _Restart:
    """Result of one restart: centroids, inertia and cluster sizes of its best assignment."""

    centroids: Singles
    inertia: float
    sizes: Ids
    num_iterations: int


@dataclass(frozen=True, slots=True)
class _SemiSupervisedProblem:
    """Data and settings shared by all restarts of semi-supervised k-means; rows are scaled."""

    points: Singles  # (n, d) unlabeled rows
    fixed_sums: Doubles  # (c, d) sum of the labeled rows of each class; classes are the first clusters
    fixed_sizes: Ids  # (c,) number of labeled rows of each class
    total_square: float  # sum of the squared norms of unlabeled and labeled rows
    num_clusters: int  # k
    max_iter: int  # maximum number of assignments
    least_shift: float  # iterations stop when the centroids shift less than this in total

    @property
    def means(self) -> Singles:
        """Means (c, d) float32 of the labeled classes."""
        return (self.fixed_sums / self.fixed_sizes[:, None]).astype(np.float32)

    def run_restarts(self, draws: Doubles) -> _Restart:
        """Run all restarts and return the best; if a new cluster has a single sample, also start from k-means."""
        means = self.means
        runs = [self.iterate(np.concatenate([means, self.points[picks]])) for picks in self._draw_centroids(draws)]
        # check all restarts, not just the best one, so that more restarts always include the results of fewer
        alone = any((run.sizes[len(means) :] == 1).any() for run in runs)
        if alone and len(means) and self.num_clusters <= len(self.points):
            generator = np.random.default_rng(int(draws[0, 0] * 2**53))
            for start in _initialize_centroids(self.points, self.num_clusters, len(draws), generator):
                centroids, _, _ = _fit_centroids(self.points, start, self.max_iter, 0, spherical=False)
                others = np.delete(centroids, _match_centroids(self.fixed_sums, self.fixed_sizes, centroids), axis=0)
                runs.append(self.iterate(np.concatenate([means, others])))
        return min(runs, key=attrgetter("inertia"))

    def _draw_centroids(self, draws: Doubles) -> Ids:
        """Draw indices of initial centroids for unlabeled clusters, (restarts, new), preferring distant points."""
        points, means, picks = self.points, self.means, np.empty(draws.shape, dtype=np.int64)
        closest = np.zeros((len(points), len(draws)))
        if len(means) and draws.size:
            closest += _squared_distances(points, _find_nearest(points, means), means)[:, None]
        squares = squared_norms(points)[:, None]
        for step, numbers in enumerate(draws.T):
            for restart, number in enumerate(numbers.tolist()):
                shares = np.cumsum(closest[:, restart])
                pick = int(shares.searchsorted(number * shares[-1])) if shares[-1] > 0 else int(number * len(points))
                picks[restart, step] = min(pick, len(points) - 1)
            chosen = picks[:, step]
            apart = squares + squares[chosen, 0] - points @ (2 * points[chosen].T)
            apart[apart < _CANCELED * squares] = 0
            closest = np.minimum(closest, apart) if len(means) or step else apart
        return picks

    def iterate(self, start: Singles) -> _Restart:
        """Run Lloyd's algorithm from initial centroids (k, d), and return the state with the lowest inertia."""
        k, centroids, best = self.num_clusters, start, None
        for number in range(1, self.max_iter + 1):
            ids = _find_nearest(self.points, centroids)
            sizes = np.bincount(ids, minlength=k)
            sums, members = sum_rows(self.points, ids, k), sizes.astype(np.float64)
            sums[: len(self.fixed_sums)] += self.fixed_sums
            members[: len(self.fixed_sizes)] += self.fixed_sizes
            exact = centroids.astype(np.float64)
            inertia = self.total_square + float(members @ np.square(exact).sum(axis=1) - 2 * (sums * exact).sum())
            if best is None or inertia < best.inertia:
                best = _Restart(centroids, inertia, sizes, number)
            moved = sums / np.maximum(members, 1)[:, None]
            if len(empty := np.flatnonzero(members == 0)):
                farthest = np.argsort(-_squared_distances(self.points, ids, exact), kind="stable")
                moved[empty] = self.points[farthest[: len(empty)]]
            shift = float(np.linalg.norm(moved - exact, axis=1).sum())
            if shift < self.least_shift or not shift:
                break
            centroids = moved.astype(np.float32)
        assert best is not None  # there is at least one iteration, and no inertia is NaN
        return replace(best, num_iterations=number)

    def rematch_centroids(self, best: _Restart) -> _Restart:
        """Reassign centroids to classes by their distances to labeled samples, as long as the inertia decreases."""
        for _ in range(_MAX_EXCHANGES):
            taken = _match_centroids(self.fixed_sums, self.fixed_sizes, best.centroids, by_rows=True)
            if (taken == np.arange(len(taken))).all():
                break
            run = self.iterate(np.concatenate([best.centroids[taken], np.delete(best.centroids, taken, axis=0)]))
            if run.inertia >= best.inertia:
                break
            best = run
        return best


def _match_centroids(sums: Doubles, sizes: Ids, centroids: Singles, *, by_rows: bool = False) -> Ids:
    """Match each class to a distinct centroid, (c,), minimizing the total distance to class means or to their rows."""
    from scipy.optimize import linear_sum_assignment

    exact = centroids.astype(np.float64)
    # up to a constant that is independent of the centroid
    apart = np.square(exact).sum(axis=1) - 2 * (sums / sizes[:, None]) @ exact.T
    return np.asarray(linear_sum_assignment(apart * (sizes[:, None] if by_rows else 1))[1], dtype=np.int64)


def _check_settings(num_clusters: int, num_inits: int, max_iter: int, tol: float) -> None:
    for name, value in (("num_clusters", num_clusters), ("num_inits", num_inits), ("max_iter", max_iter)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    if not tol >= 0:
        raise ValueError(f"tol must be >= 0, got {tol}")


def _initialize_centroids(
    points: Singles, num_clusters: int, num_inits: int, generator: np.random.Generator
) -> Iterator[Singles]:
    """Yield k-means++ centroids (k, d) for each restart, drawn from a sample if there are many points."""
    from sklearn.cluster import kmeans_plusplus

    most = max(_MIN_STARTS, _STARTS * num_clusters)
    for seed in generator.integers(2**31, size=num_inits).tolist():
        drawn = points
        if len(points) > most:
            drawn = points[np.sort(np.random.default_rng(seed).choice(len(points), most, replace=False))]
        with _limit_threads(len(drawn) * points.shape[1]):
            start = kmeans_plusplus(drawn, num_clusters, random_state=seed)[0]
        yield start


def _fit_centroids(
    points: Singles, start: Singles, max_iter: int, tol: float, *, spherical: bool
) -> tuple[Singles, float, int]:
    """Run faiss's k-means from initial centroids; return centroids (k, d), a loss to compare runs, and iterations."""
    import faiss

    num_points, width = points.shape
    found: Any = faiss.Kmeans(
        width,
        len(start),
        niter=max_iter,
        spherical=spherical,
        early_stop_threshold=tol,
        min_points_per_centroid=1,  # do not warn about few points
        max_points_per_centroid=num_points,  # use all points
    )
    with _limit_threads(num_points * width * len(start)):
        found.train(points, init_centroids=np.ascontiguousarray(start, dtype=np.float32))
    last = float(found.obj[-1])
    return found.centroids, -last if spherical else last, len(found.obj)


def _limit_threads(num_products: int) -> AbstractContextManager[object]:
    """Limit small problems to one thread: several threads would spend longer busy-waiting than computing."""
    return _thread_pools().limit(limits=1) if num_products < _FEW_PRODUCTS else nullcontext()


@cache
def _thread_pools() -> ThreadpoolController:
    import faiss  # noqa: F401 - so that the controller finds its library

    return ThreadpoolController()  # cached: searching for libraries takes milliseconds


def _find_nearest(points: Singles, centroids: Singles) -> Ids:
    """Return the nearest centroid of each point, (n,); ties go to the smaller id."""
    import faiss

    with _limit_threads(points.size * len(centroids)):
        return np.asarray(faiss.knn(points, np.ascontiguousarray(centroids), 1)[1][:, 0], dtype=np.int64)


@dataclass(frozen=True, slots=True)
class _ScaledRows:
    """Rows, with the offset (d,) and scale that are applied before passing them to faiss."""

    rows: Rows
    offset: Doubles
    scale: float

    def scale_rows(self, part: Floats) -> Singles:
        """Subtract the offset from rows and divide them by the scale; return float32."""
        return np.asarray((part - self.offset) / self.scale, dtype=np.float32)

    def rows_for_fitting(self, num_clusters: int) -> Singles:
        """Return the scaled rows used to fit centroids: all rows, or 256 per cluster if rows are read in blocks."""
        rows, most = self.rows, max(_MIN_SAMPLED, _SAMPLED * num_clusters)
        if isinstance(rows, StoredRows) and len(rows) > most:
            return self.scale_rows(rows[np.sort(np.random.default_rng(0).choice(len(rows), most, replace=False))])
        found = np.empty(rows.shape, dtype=np.float32)
        for block, part in iterate_blocks(rows):
            found[block] = self.scale_rows(part)
        return found

    def find_nearest_centroids(self, centroids: Singles) -> Ids:
        """Find the index (n,) int64 of the scaled centroid nearest to each row."""
        find = partial(_find_nearest_scaled, self.offset, self.scale, centroids)
        if not isinstance(self.rows, StoredRows) or self.rows.map_parts is None:
            return find(self.rows)
        return np.concatenate(list(self.rows.map_parts(find, self.rows)))


def _find_nearest_scaled(offset: Doubles, scale: float, centroids: Singles, rows: Rows) -> Ids:
    """Return the nearest scaled centroid of each row, (n,)."""
    scaled = _ScaledRows(rows, offset, scale)
    found = [_find_nearest(scaled.scale_rows(part), centroids) for _, part in iterate_blocks(rows)]
    return np.concatenate([np.empty(0, dtype=np.int64), *found])


def _find_offset_and_scale(*arrays: Rows) -> tuple[Doubles, float]:
    """Return the mean of all rows (d,), and the largest absolute number after subtracting it; 1 if that is 0."""
    width = arrays[0].shape[1]
    total, high, low = np.zeros(width), np.full(width, -np.inf), np.full(width, np.inf)
    for rows in arrays:
        for _, part in iterate_blocks(rows):
            total += part.sum(axis=0, dtype=np.float64)
            np.maximum(high, part.max(axis=0), out=high)
            np.minimum(low, part.min(axis=0), out=low)
    mean = total / max(1, sum(map(len, arrays)))
    largest = float(np.maximum(high - mean, mean - low).max())
    return mean, largest if largest > 0 else 1.0


def _assign_rows(
    scaled: _ScaledRows,
    centroids: Singles,
    fixed: Rows | None = None,
    fixed_ids: Ids | None = None,
    *,
    spherical: bool = False,
) -> tuple[Ids, Doubles, float]:
    """Assign rows to scaled centroids (k, d), and fill empty clusters with the rows farthest from their own centroid.

    Args:
        scaled: rows to assign.
        centroids: fitted centroids.
        fixed: rows whose cluster is fixed.
        fixed_ids: clusters of the fixed rows.
        spherical: whether means have unit length.

    Returns:
        (n,) ids; (k, d) means of all members, fixed or not; inertia of all rows.
    """
    rows, k = scaled.rows, len(centroids)
    ids, before = scaled.find_nearest_centroids(centroids), scaled.offset + scaled.scale * centroids.astype(np.float64)
    fixed_sums = 0.0 if fixed is None or fixed_ids is None else sum_rows(fixed, fixed_ids, k)
    fixed_sizes = 0 if fixed_ids is None else np.bincount(fixed_ids, minlength=k)
    while True:
        sizes = (np.bincount(ids, minlength=k) + fixed_sizes)[:, None]
        means = np.where(sizes > 0, (sum_rows(rows, ids, k) + fixed_sums) / np.maximum(sizes, 1), before)
        if spherical:
            lengths = np.linalg.norm(means, axis=1, keepdims=True)
            means /= np.where(lengths > 0, lengths, 1)
            for cluster in np.flatnonzero(lengths < _NO_DIRECTION):
                means[cluster] = rows[np.array([(ids == cluster).argmax()])][0]
        distances = _squared_distances(rows, ids, means)
        empty = np.flatnonzero(sizes == 0)
        far = np.argsort(-distances, kind="stable")[: len(empty)]
        far = far[distances[far] > _EQUAL * scaled.scale**2]
        if not len(far):
            break
        ids[far] = empty[: len(far)]
    inertia = float(distances.sum())
    if fixed is not None and fixed_ids is not None:
        inertia += float(_squared_distances(fixed, fixed_ids, means).sum())
    return ids, means, inertia


def _squared_distances(rows: Rows, ids: Ids, places: Floats) -> Doubles:
    """Compute the squared distance of each row to the centroid of its cluster, (n,), from differences."""
    found = np.empty(len(rows))
    for block, part in iterate_blocks(rows):
        difference = part.astype(np.float64) - places[ids[block]]
        found[block] = np.einsum("ij,ij->i", difference, difference)
    return found
