"""How much nearer each row is to its own cluster than to the next one.

Sources: P. J. Rousseeuw, "Silhouettes: a graphical aid to the interpretation and validation of
cluster analysis" (exact); E. R. Hruschka, L. N. de Castro and R. J. G. B. Campello, "Evolutionary
algorithms for clustering gene-expression data" (simplified).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

# Numbers per temporary block: 8 MB in float64.
_BLOCK_NUMBERS = 1 << 20


def pairwise_distances(x: ArrayLike) -> NDArray[np.float64]:
    """Return the Euclidean distances of all rows of (n, d) to each other, (n, n)."""
    rows = np.asarray(x, dtype=np.float64)
    rows = rows - rows.mean(axis=0)
    squares = np.einsum("ij,ij->i", rows, rows)
    distances: NDArray[np.float64] = squares[:, None] + squares - 2 * rows @ rows.T
    np.sqrt(np.maximum(distances, 0, out=distances), out=distances)
    np.fill_diagonal(distances, 0)
    return distances


def silhouette_score(distances: NDArray[np.float64], cluster_ids: ArrayLike) -> float:
    """Return the mean over the rows of ``(b - a) / max(a, b)``, in [-1, 1].

    ``a`` is the mean distance to the other members of the own cluster, ``b`` the smallest mean
    distance to the members of another one. A row alone in its cluster counts 0.

    Args:
        distances: (n, n), as of :func:`pairwise_distances`.
        cluster_ids: (n,) integers >= 0 with at least two different values.

    Raises:
        ValueError: shapes that do not fit, or a single cluster.
    """
    from scipy.sparse import csr_array

    ids, counts = _compact(cluster_ids, len(distances))
    one_hot = csr_array((np.ones(len(ids)), (ids, np.arange(len(ids)))), shape=(len(counts), len(ids)))
    sums = np.asarray(one_hot @ distances).T  # (n, k); distances are symmetric
    every = np.arange(len(ids))
    own_others = counts[ids] - 1
    own = sums[every, ids] / np.maximum(own_others, 1)
    means = sums / counts
    means[every, ids] = np.inf
    other = means.min(axis=1)
    return _mean_share(own, other, own_others > 0)


def simplified_silhouette_score(x: ArrayLike, cluster_ids: ArrayLike) -> float:
    """Return the silhouette with the distance to a cluster taken as that to its mean, in [-1, 1].

    Linear in the number of rows where the exact one is quadratic. A row alone in its cluster counts 0.

    Args:
        x: (n, d) rows.
        cluster_ids: (n,) integers >= 0 with at least two different values.

    Raises:
        ValueError: shapes that do not fit, or a single cluster.
    """
    from scipy.sparse import csr_array

    # float32 halves the time; a mean over the rows does not feel the lost digits
    rows = np.asarray(x, dtype=np.float32)
    ids, counts = _compact(cluster_ids, len(rows))
    one_hot = csr_array((np.ones(len(ids)), (ids, np.arange(len(ids)))), shape=(len(counts), len(ids)))
    rows = rows - rows.mean(axis=0, dtype=np.float64).astype(np.float32)
    means = np.asarray(one_hot @ rows.astype(np.float64)) / counts[:, None]
    factors = np.ascontiguousarray(-2 * means.T, dtype=np.float32)
    mean_squares = np.einsum("ij,ij->i", means, means).astype(np.float32)
    row_squares = np.einsum("ij,ij->i", rows, rows)
    own, other = np.empty(len(rows)), np.empty(len(rows))
    size = max(1, _BLOCK_NUMBERS // max(len(counts), rows.shape[1]))
    for start in range(0, len(rows), size):
        block = slice(start, start + size)
        squares = rows[block] @ factors + mean_squares + row_squares[block, None]
        every = np.arange(len(squares))
        own[block] = squares[every, ids[block]]
        squares[every, ids[block]] = np.inf
        other[block] = squares.min(axis=1)
    return _mean_share(np.sqrt(np.maximum(own, 0)), np.sqrt(np.maximum(other, 0)), counts[ids] > 1)


def _compact(cluster_ids: ArrayLike, num_rows: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the ids without gaps and the sizes of the clusters."""
    ids = np.asarray(cluster_ids)
    if ids.shape != (num_rows,):
        raise ValueError(f"cluster_ids must have shape ({num_rows},), got {ids.shape}")
    _, compact, counts = np.unique(ids, return_inverse=True, return_counts=True)
    if len(counts) < 2:
        raise ValueError(f"a silhouette needs at least two clusters, got {len(counts)}")
    return compact.astype(np.int64), counts


def _mean_share(own: NDArray[np.float64], other: NDArray[np.float64], counted: NDArray[np.bool_]) -> float:
    larger = np.maximum(own, other)
    counted = counted & (larger > 0)
    return float(np.where(counted, (other - own) / np.where(larger > 0, larger, 1), 0).mean())
