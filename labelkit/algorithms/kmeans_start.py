"""Rows that k-means starts from: far ones first in probability, for several restarts together.

Source: D. Arthur and S. Vassilvitskii, "k-means++: The Advantages of Careful Seeding". Several candidates are drawn and
the best is kept, as scikit-learn does. Of many rows a random sample judges the candidates, of very many they are drawn
from a sample, too; the samples follow from the shapes alone. A single candidate is drawn from all rows.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from labelkit.algorithms.row_blocks import Floats, Rows, blocks

# Squared distances below this share of the squared norm have lost most digits in float32.
_CANCELLED = 1e-5
# Rows that judge candidates: at least so many, and so many for each new centroid. Of fewer than twice that, all do.
_JUDGES, _JUDGES_PER_CENTROID = 2048, 32
# Rows that candidates are drawn from, likewise; of fewer than four times that, all are.
_POOL, _POOL_PER_CENTROID = 8192, 64


def draw_rows(
    rows: Rows, squares: NDArray[np.float64], begun: Floats | None, draws: NDArray[np.float64]
) -> NDArray[np.int64]:
    """Draw starting rows for several restarts together, far rows first in probability.

    Args:
        rows: (n, d).
        squares: (n,) squared norms of the rows.
        begun: (n,) squared distances to the nearest of the centroids that are there already; ``None`` without any.
        draws: (restarts, new, candidates) uniform in [0, 1). Of several candidates the one that
            leaves the smallest sum of squared distances is kept.

    Returns:
        (restarts, new) int64 row numbers.
    """
    restarts, num_new, num_candidates = draws.shape
    pool = _pool(len(rows), num_new, num_candidates)
    if pool is not None:
        return pool[draw_rows(rows[pool], squares[pool], None if begun is None else begun[pool], draws)]
    every = np.arange(restarts)
    picks = np.empty((restarts, num_new), dtype=np.int64)
    norms = squares.astype(rows.dtype)
    closest = np.zeros((restarts, len(rows)), dtype=rows.dtype)
    if begun is not None:
        closest[:] = begun
    judges = _sample(len(rows), max(_JUDGES, _JUDGES_PER_CENTROID * num_new), 2) if num_candidates > 1 else None
    panel = None if judges is None else rows[judges]
    for step in range(num_new):
        nothing_yet = begun is None and step == 0
        # Without any centroid all distances are 0, so the pick is uniform; candidates are then all alike.
        tries = draws[:, step, : 1 if nothing_yet else num_candidates]
        candidates = _pick_by_distance(closest, tries)
        chosen, distances = np.zeros(restarts, dtype=np.int64), None
        if tries.shape[1] > 1:
            judging, of_judges = (rows, slice(None)) if panel is None else (panel, judges)
            found = _distances_to_rows(judging, norms[of_judges], rows[candidates.ravel()], norms[candidates.ravel()])
            found = found.reshape(*tries.shape, len(judging))
            np.minimum(found, closest[:, None, of_judges], out=found)
            chosen = found.sum(axis=2, dtype=np.float64).argmin(axis=1)
            distances = found[every, chosen] if panel is None else None
        picks[:, step] = candidates[every, chosen]
        if distances is None:
            distances = _distances_to_rows(rows, norms, rows[picks[:, step]], norms[picks[:, step]])
            if not nothing_yet:
                np.minimum(distances, closest, out=distances)
        closest = distances
    return picks


def draws_from_all(num_rows: int, num_new: int, num_candidates: int) -> bool:
    """Whether so many starting rows are drawn from all rows, and not from a sample of them."""
    return _pool(num_rows, num_new, num_candidates) is None


def _pool(num_rows: int, num_new: int, num_candidates: int) -> NDArray[np.int64] | None:
    """Return the sample that candidates are drawn from; ``None``: all rows."""
    return _sample(num_rows, max(_POOL, _POOL_PER_CENTROID * num_new), 4) if num_candidates > 1 else None


def _sample(num_rows: int, number: int, times: int) -> NDArray[np.int64] | None:
    """Return so many of the rows at random, ascending; ``None``: there are fewer than some times as many, take all."""
    if num_rows < times * number:
        return None
    return np.sort(np.random.default_rng(0).choice(num_rows, number, replace=False))


def _pick_by_distance(closest: Floats, tries: NDArray[np.float64]) -> NDArray[np.int64]:
    """Pick for each uniform number the first row whose cumulative share of the squared distances reaches it."""
    num_rows = closest.shape[1]
    picks = np.empty(tries.shape, dtype=np.int64)
    for i, uniform in enumerate(tries):
        cumulative = np.cumsum(closest[i], dtype=np.float64)
        total = cumulative[-1]
        picks[i] = np.searchsorted(cumulative, uniform * total) if total > 0 else (uniform * num_rows).astype(np.int64)
    np.minimum(picks, num_rows - 1, out=picks)
    return picks


def _distances_to_rows(rows: Rows, norms: Floats, points: Floats, point_norms: Floats) -> Floats:
    """Return the squared distances of all rows to some of them, (p, n); exactly 0 between equal rows."""
    distances: Floats = np.empty((len(points), len(rows)), dtype=rows.dtype)
    factors = -2 * points
    for block in blocks(len(rows), max(len(points), rows.shape[1])):
        part, near = distances[:, block], rows[block]
        np.matmul(factors, near.T, out=part)
        part += norms[block]
        part += point_norms[:, None]
        # What cancelled is computed again by differences.
        doubtful = np.flatnonzero(part <= _CANCELLED * norms[block])
        for piece in blocks(len(doubtful), rows.shape[1]):
            point, row = np.divmod(doubtful[piece], part.shape[1])
            difference = near[row] - points[point]
            part[point, row] = np.einsum("ij,ij->i", difference, difference)
    return np.maximum(distances, 0, out=distances)
