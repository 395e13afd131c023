"""Choose the samples to label next: representative samples, samples between two classes, or both.

Strategies, all based on Euclidean distances; labeled rows count as chosen from the start:
    coverage      the row that most reduces the sum of squared distances from all rows to their nearest chosen row:
                  greedy facility location (k-medoids)
    both          the same sum, each row weighted by its uncertainty
    typical       k-means with one cluster per existing or future label; in the largest clusters without a label, the
                  row with the smallest mean distance to its neighbors in the cluster
    k-center      the row farthest from all chosen ones
    uncertainty   the row whose distances to its two nearest classes are most similar

Sources: G. Cornuejols, M. Fisher and G. Nemhauser, "Location of bank accounts to optimize float" (facility location and
its greedy algorithm); M. Minoux, "Accelerated greedy algorithms for maximizing submodular set functions" (bounds that
save most of the work); O. Sener and S. Savarese, "Active Learning for Convolutional Neural Networks: A Core-Set
Approach" (k-center); G. Hacohen, A. Dekel and D. Weinshall, "Active Learning on a Budget: Opposite Strategies Suit High
and Low Budgets" (TypiClust). Departures: choosing a row excludes its near-duplicates; with more than ``MAX_SERVED``
rows, facility location sums over a sample of them, so that time and memory grow linearly with the number of rows.

Scores that differ only by rounding errors are ties, which go to the first row.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labelkit.algorithms.clustering import kmeans, nearest_centroids
from labelkit.algorithms.neighbors import knn
from labelkit.algorithms.row_blocks import column_sums, row_slices

MAX_SERVED = 5_000
"""Maximum number of rows over which facility location is summed."""
MAX_CLUSTERS = 500
"""Maximum number of clusters of ``typical``, as published."""
_NEIGHBORS = 20
# Bounds recomputed at a time: enough to make passes over all rows rare, few enough to be fast.
_BOUNDS_AT_ONCE = 64
# Scores that differ by at most this fraction of the largest possible score are ties.
_TIE = 1e-13

Rows = NDArray[np.float32]
Ids = NDArray[np.int64]


class CandidatePool:
    """Samples that can still be chosen for labeling; near-duplicates of chosen samples are excluded.

    Args:
        rows: (n, d).
        duplicate_share: two rows are near-duplicates if their squared distance is at most this fraction of the mean
            squared distance between rows. It is relative because the features of some networks lie in a narrow cone.

    Attributes:
        rows: the rows passed in.
        eligible: (n,) bool, the rows that may still be chosen.
    """

    def __init__(self, rows: Rows, duplicate_share: float) -> None:
        self.rows = rows
        # relative to the mean, so that float32 is precise enough for rows that are very similar
        self._mean: NDArray[np.float64] = column_sums(rows) / len(rows)
        self._near: Rows = np.empty(rows.shape, dtype=np.float32)
        for block in row_slices(*rows.shape):
            self._near[block] = rows[block] - self._mean
        self._squares: Rows = _squares(self._near)
        between = 2 * float(self._squares.sum(dtype=np.float64)) / len(rows)
        # squared distances of equal rows deviate from 0 by about 1e-7 of the squared lengths they are computed from
        self._limit = duplicate_share * between + 1e-6 * float(self._squares.max())
        self.eligible = np.ones(len(self._near), dtype=bool)

    def exclude_near_duplicates(self, distances: NDArray[np.float64]) -> None:
        """Exclude near-duplicates of chosen samples, given squared distances (n,) to the nearest chosen sample."""
        self.eligible &= distances > self._limit

    def exclude(self, chosen: Ids) -> None:
        """Exclude the chosen samples and their near-duplicates."""
        self.eligible[chosen] = False
        others: Rows = (self.rows[chosen] - self._mean).astype(np.float32)
        squares: Rows = _squares(others)
        for block in row_slices(len(self._near), max(others.shape)):
            apart = self._squares[block, None] + squares - 2 * self._near[block] @ others.T
            self.eligible[block] &= apart.min(axis=1, initial=np.inf) > self._limit

    def take_best(self, scores: NDArray[np.float64], tie_tolerance: float = 0.0) -> int | None:
        """Choose and exclude the eligible row with the highest score (n,); return ``None`` if no row is eligible."""
        if not self.eligible.any():
            return None
        values = np.where(self.eligible, scores, -np.inf)
        row = int(np.flatnonzero(values >= values.max() - tie_tolerance)[0])
        self.exclude(np.array([row]))
        return row


@dataclass(frozen=True)
class NearestClasses:
    """The two classes nearest to each sample, with the uncertainty between them."""

    first: Ids  # (n,) int64, the nearest class
    second: Ids  # (n,) int64, the second nearest
    near: NDArray[np.float64]  # (n,) float64, squared distance to the nearest example of any class
    # (n,) float64 in [0, 1], squared distance to the nearest class divided by that to the second; 1 is a tie
    uncertainty: NDArray[np.float64]


def find_nearest_classes(rows: ArrayLike, examples: ArrayLike, classes: ArrayLike) -> NearestClasses:
    """Find the two classes nearest to each sample; the distance to a class is that to its nearest example.

    Args:
        rows: (n, d).
        examples: (m, d) labeled rows, or one mean per class.
        classes: (m,) integers >= 0, at least two different ones.

    Raises:
        ValueError: shapes do not match, or there are fewer than two classes.
    """
    points, places = np.asarray(rows, dtype=np.float32), np.asarray(examples, dtype=np.float32)
    known, column = np.unique(np.asarray(classes, dtype=np.int64), return_inverse=True)
    if points.ndim != 2 or places.ndim != 2 or points.shape[1] != places.shape[1] or len(column) != len(places):
        raise ValueError(f"rows {points.shape}, examples {places.shape} and {len(column)} classes do not match")
    if len(known) < 2:
        raise ValueError(f"examples must be of at least two classes, got {len(known)}")
    order = np.argsort(column, kind="stable")
    held, starts = places[order], np.searchsorted(column[order], np.arange(len(known)))
    # relative to the mean, since products of rows far from it would cancel
    mean = held.mean(axis=0, dtype=np.float64)
    shifted = held - mean
    squares = _squares(shifted)
    two = np.empty((len(points), 2), dtype=np.int64)
    for block in row_slices(len(points), max(held.shape)):
        part = points[block] - mean
        distances = _squares(part)[:, None] + squares - 2 * part @ shifted.T
        nearest = np.minimum.reduceat(np.maximum(distances, 0), starts, axis=1)
        two[block] = np.argsort(nearest, axis=1, kind="stable")[:, :2]
    apart = np.empty((len(points), 2))
    for place, examples in enumerate(np.split(held, starts[1:])):
        for side in (0, 1):
            members = np.flatnonzero(two[:, side] == place)
            apart[members, side] = find_nearest(points[members], examples)[1]
    near, far = apart.T
    # a row equal to examples of two classes, with both distances zero, is a tie
    uncertainty = np.where(far > 0, near / np.where(far > 0, far, 1), 1)
    return NearestClasses(known[two[:, 0]], known[two[:, 1]], near, uncertainty)


def choose_for_coverage(
    rows: Rows,
    count: int,
    labeled: Ids,
    candidates: CandidatePool,
    *,
    generator: np.random.Generator,
    weights: ArrayLike | None = None,
) -> tuple[Ids, NDArray[np.float64]]:
    r"""Choose samples greedily to minimize the weighted sum of squared distances to the nearest chosen sample.

    The sum is :math:`\sum_j w_j \min_{i \in C} |x_i - x_j|^2`. If C is empty, every distance counts as the largest
    possible, so that the first choice is the weighted medoid.

    Args:
        rows: (n, d).
        count: number of rows to choose; fewer are chosen if candidates run out.
        labeled: indices of the rows that are in C from the start.
        candidates: rows that may be chosen; modified.
        generator: samples the rows j if there are more than ``MAX_SERVED``.
        weights: (n,) w >= 0; by default all 1.

    Returns:
        (c,) rows in the order chosen; (c,) by how much each of them reduced the mean over the rows j.
    """
    served = np.arange(len(rows))
    if len(rows) > MAX_SERVED:
        served = np.sort(generator.choice(len(rows), MAX_SERVED, replace=False))
    amounts = np.ones(len(served)) if weights is None else np.asarray(weights, dtype=np.float64)[served]
    points, known = rows[served], rows[labeled]
    farthest = 4 * float(_squares(rows).max())
    gain = _Gain(points, amounts, np.minimum(find_nearest(points, known)[1], farthest))
    tie = _TIE * farthest * float(amounts.sum())
    bounds = np.empty(len(rows))
    for block in row_slices(len(rows), max(points.shape)):
        bounds[block] = gain.compute_exact_gains(rows[block]) if len(labeled) else gain.compute_gain_bounds(rows[block])
    chosen: list[int] = []
    gains: list[float] = []
    while len(chosen) < count:
        bounds[~candidates.eligible] = -np.inf
        row, found = _best_row(rows, gain, bounds, tie)
        if found == -np.inf:
            break
        chosen.append(row)
        gains.append(found / len(served))
        candidates.exclude(np.array([row]))
        gain.add(rows[row])
    return np.array(chosen, dtype=np.int64), np.array(gains)


class _Gain:
    """Reduction in the weighted sum of squared distances to the nearest chosen row that choosing a row would bring.

    Args:
        points: (m, d) rows j of the sum.
        amounts: (m,) weights.
        nearest: (m,) squared distances to the nearest chosen row so far.
    """

    def __init__(self, points: Rows, amounts: NDArray[np.float64], nearest: NDArray[np.float64]) -> None:
        # stored, since converting them for every few rows would take longer than the comparison itself
        self._points = points.astype(np.float64)
        self._squares: NDArray[np.float64] = _squares(self._points)
        self._amounts, self._nearest = amounts, nearest

    def compute_exact_gains(self, rows: Rows) -> NDArray[np.float64]:
        """Compute the exact gain (n,) float64 from choosing each row."""
        return np.maximum(self._nearest - self._apart(rows), 0) @ self._amounts

    def compute_gain_bounds(self, rows: Rows) -> NDArray[np.float64]:
        """Compute upper bounds (n,) on the gains, valid if no distance exceeds that to the nearest chosen row."""
        total = float((self._nearest - self._squares) @ self._amounts)
        sums = total - _squares(rows, np.float64) * float(self._amounts.sum())
        return np.asarray(sums + 2 * rows @ (self._amounts @ self._points))

    def add(self, row: NDArray[np.float32]) -> None:
        """Mark a row as chosen, and update the distances to the nearest chosen row."""
        self._nearest = np.minimum(self._nearest, self._apart(row[None])[0])

    def _apart(self, rows: Rows) -> NDArray[np.float64]:
        squares = _squares(rows, np.float64)[:, None] + self._squares
        return np.asarray(np.maximum(squares - 2 * rows.astype(np.float64) @ self._points.T, 0))


def _squares(rows: NDArray[np.floating], dtype: type[np.float64] | None = None) -> NDArray[Any]:
    """Return the squared norm of each row, computed in ``dtype``, by default that of the rows."""
    return np.asarray(np.einsum("ij,ij->i", rows, rows, dtype=dtype))


def _best_row(rows: Rows, gain: _Gain, bounds: NDArray[np.float64], tie: float) -> tuple[int, float]:
    """Return the row with the largest gain (the first if tied) and its gain; minus infinity if no row remains.

    Args:
        rows: (m, d).
        gain: computes the gain of any row.
        bounds: (m,) upper bounds on the gains, updated in place; earlier bounds remain valid, since gains only fall.
        tie: maximum difference between tied gains.
    """
    fresh = np.zeros(len(rows), dtype=bool)
    while True:
        least = float(np.max(np.where(fresh, bounds, -np.inf)))
        stale = np.flatnonzero(~fresh & (bounds >= least - tie) & (bounds > -np.inf))
        if not len(stale):
            row = int(np.flatnonzero(bounds >= bounds.max() - tie)[0])
            return row, float(bounds[row])
        if len(stale) > _BOUNDS_AT_ONCE:
            stale = np.sort(stale[np.argpartition(-bounds[stale], _BOUNDS_AT_ONCE - 1)[:_BOUNDS_AT_ONCE]])
        bounds[stale], fresh[stale] = gain.compute_exact_gains(rows[stale]), True


def choose_typical(
    rows: Rows, count: int, labeled: Ids, candidates: CandidatePool, *, generator: np.random.Generator
) -> tuple[Ids, NDArray[np.float64], Ids]:
    """Choose the most typical sample of each cluster that has no label, largest clusters first (TypiClust).

    The number of clusters is the number of existing and future labels, at most ``MAX_CLUSTERS``. The typicality of a
    row is the inverse of the mean distance to its 20 nearest neighbors in the cluster. Once every cluster has a label,
    those with the fewest labels come next.

    Args:
        rows: (n, d).
        count: number of rows to choose; fewer are chosen if candidates run out.
        labeled: indices of the labeled rows.
        candidates: rows that may be chosen; modified.
        generator: for k-means.

    Returns:
        (c,) rows in the order chosen; (c,) their typicality; (c,) sizes of their clusters.
    """
    num_clusters = min(len(labeled) + count, MAX_CLUSTERS, len(rows))
    found = kmeans(rows, num_clusters, generator=generator, num_inits=1, max_iter=50)
    cluster_ids = found.cluster_ids
    sizes = np.bincount(cluster_ids, minlength=num_clusters)
    labels = np.bincount(cluster_ids[labeled], minlength=num_clusters)
    typicality: dict[int, NDArray[np.float64]] = {}
    chosen: list[int] = []
    scores: list[float] = []
    while len(chosen) < count:
        left = np.bincount(cluster_ids[candidates.eligible], minlength=num_clusters)
        if not left.any():
            break
        cluster = next(int(c) for c in np.lexsort((-sizes, labels)) if left[c])
        members = np.flatnonzero(cluster_ids == cluster)
        if cluster not in typicality:
            typicality[cluster] = _typicality(rows[members])
        values = np.full(len(rows), -np.inf)
        values[members] = typicality[cluster]
        row = candidates.take_best(values)
        assert row is not None  # the cluster has an eligible row
        chosen.append(row)
        scores.append(float(values[row]))
        labels[cluster] += 1
    return np.array(chosen, dtype=np.int64), np.array(scores), sizes[cluster_ids[np.array(chosen, dtype=np.int64)]]


def _typicality(members: Rows) -> NDArray[np.float64]:
    """Return the inverse of the mean distance to the nearest members; 0 for a single member."""
    neighbors = min(_NEIGHBORS, len(members) - 1)
    if neighbors < 1:
        return np.zeros(1)
    distances, _ = knn(members, members, neighbors, metric="l2", exclude_self=True)
    mean = distances.astype(np.float64).mean(axis=1)
    return np.asarray(1 / np.maximum(mean, 1e-12))


def choose_farthest(rows: Rows, count: int, labeled: Ids, candidates: CandidatePool) -> tuple[Ids, NDArray[np.float64]]:
    """Choose samples one by one, each farthest from all labeled and chosen samples (greedy k-center).

    Without any label, the first choice is the row nearest to the mean.

    Returns:
        (c,) rows in the order chosen, ties going to the first; (c,) distance of each to the nearest earlier row, NaN
        for the first row if there are no labels.
    """
    tie = _TIE * 4 * float(_squares(rows).max())
    chosen: list[int] = []
    distances: list[float] = []
    nearest = find_nearest(rows, rows[labeled])[1]
    scores = nearest
    if not len(labeled):
        scores = -find_nearest(rows, (column_sums(rows) / len(rows)).astype(np.float32)[None])[1]
    while len(chosen) < count and (row := candidates.take_best(scores, tie)) is not None:
        distances.append(float(np.sqrt(scores[row])) if len(labeled) or chosen else np.nan)
        chosen.append(row)
        scores = nearest = np.minimum(nearest, find_nearest(rows, rows[row : row + 1])[1])
    return np.array(chosen, dtype=np.int64), np.array(distances)


def choose_best(scores: ArrayLike, count: int, candidates: CandidatePool) -> Ids:
    """Choose the highest-scoring samples, skipping near-duplicates of chosen samples; ties go to the earlier sample.

    Args:
        scores: (n,) of all rows, at most 1.
        count: number of rows to choose; fewer are chosen if candidates run out.
        candidates: rows that may be chosen; modified.
    """
    values = np.asarray(scores, dtype=np.float64)
    chosen: list[int] = []
    while len(chosen) < count and (row := candidates.take_best(values, _TIE)) is not None:
        chosen.append(row)
    return np.array(chosen, dtype=np.int64)


def find_nearest(points: Rows, references: Rows) -> tuple[Ids, NDArray[np.float64]]:
    """Find each point's (n, d) nearest reference (m, d) and its squared distance; ties go to the first reference.

    Returns:
        (n,) int64, -1 if there are no references; (n,) float64, infinity if there are none.
    """
    if not len(references):
        return np.full(len(points), -1, dtype=np.int64), np.full(len(points), np.inf)
    nearest, found = nearest_centroids(points, references), np.empty(len(points))
    for block in row_slices(*points.shape):
        apart = points[block].astype(np.float64) - references[nearest[block]]
        found[block] = _squares(apart)
    return nearest, found
