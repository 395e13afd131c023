"""Rows that k-means starts from: far ones first in probability, for several restarts together.

Source: D. Arthur and S. Vassilvitskii, "k-means++: The Advantages of Careful Seeding". Several candidates are drawn and
the best is kept, as scikit-learn does.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from labelkit.algorithms.row_blocks import Floats, Rows, blocks

# Squared distances below this share of the squared norm have lost most digits in float32.
_CANCELLED = 1e-5


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
    every = np.arange(restarts)
    picks = np.empty((restarts, num_new), dtype=np.int64)
    closest = np.zeros((restarts, len(rows)), dtype=rows.dtype)
    if begun is not None:
        closest[:] = begun
    for step in range(num_new):
        nothing_yet = begun is None and step == 0
        # Without any centroid all distances are 0, so the pick is uniform; candidates are then all alike.
        tries = draws[:, step, : 1 if nothing_yet else num_candidates]
        candidates = _pick_by_distance(closest, tries)
        distances = _distances_to_rows(rows, squares, candidates.ravel()).reshape(*tries.shape, len(rows))
        if not nothing_yet:
            np.minimum(distances, closest[:, None], out=distances)
        chosen = distances.sum(axis=2, dtype=np.float64).argmin(axis=1) if tries.shape[1] > 1 else 0 * every
        closest = distances[every, chosen]
        picks[:, step] = candidates[every, chosen]
    return picks


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


def _distances_to_rows(rows: Rows, squares: NDArray[np.float64], picks: NDArray[np.int64]) -> Floats:
    """Return the squared distances of all rows to some of them, (p, n); exactly 0 between equal rows."""
    norms = squares.astype(rows.dtype)
    points, point_norms = rows[picks], norms[picks, None]
    distances: Floats = np.empty((len(picks), len(rows)), dtype=rows.dtype)
    for block in blocks(len(rows), max(len(picks), rows.shape[1])):
        part, near = distances[:, block], rows[block]
        np.matmul(points, near.T, out=part)
        part *= -2
        part += norms[block]
        part += point_norms
        # What cancelled is computed again by differences.
        doubtful = np.argwhere(part <= _CANCELLED * norms[block])
        for piece in blocks(len(doubtful), rows.shape[1]):
            point, row = doubtful[piece].T
            difference = near[row] - points[point]
            part[point, row] = np.einsum("ij,ij->i", difference, difference)
    return np.maximum(distances, 0, out=distances)
