r"""Propagate soft labels over a nearest-neighbor graph.

The graph connects each row to its nearest rows by cosine; an edge has weight :math:`\max(\cos, 0)^3`, which discounts
distant neighbors. For initial values Y, the values F solve :math:`F = \alpha S F + (1 - \alpha) Y` with
:math:`S = D^{-1/2} W D^{-1/2}`; they are computed by iteration.

Sources: D. Zhou et al., "Learning with Local and Global Consistency" (the equation); A. Iscen et al., "Label
Propagation for Deep Semi-supervised Learning" (the weights); Q. Huang et al., "Combining Label Propagation and Simple
Models Out-performs Graph Neural Networks" (the predictions of a classifier as initial values).
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labelkit.algorithms.indexes import ApproximateSearch, build_index
from labelkit.algorithms.neighbors import ExactSearch
from labelkit.cache import call_cached

_POWER = 3
#: Above this number of rows, neighbors are found approximately, since exact search takes quadratic time.
_MAX_EXACT = 50_000
#: Columns propagated at a time: 16 of 50,000 rows fit in the cache, which takes a third of the time of 80 at once.
_COLUMNS_AT_ONCE = 16


def build_neighbor_graph(features: ArrayLike, num_neighbors: int = 10) -> Any:
    """Build the normalized nearest-neighbor graph for label propagation.

    Args:
        features: (n, d) nonzero rows of any norm, n >= 2.
        num_neighbors: number of neighbors to which each row is connected, in both directions; at most n - 1 are used.

    Returns:
        (n, n) ``scipy.sparse.csr_matrix`` float64, symmetric, largest eigenvalue <= 1.

    Raises:
        ValueError: fewer than two rows, a zero row, NaN or infinity, or no neighbor requested.
    """
    from scipy.sparse import csr_matrix, diags

    rows = np.asarray(features, dtype=np.float32)
    if rows.ndim != 2 or len(rows) < 2 or num_neighbors < 1:
        raise ValueError(f"a graph requires at least 2 rows and 1 neighbor, got shape {rows.shape} and {num_neighbors}")
    n, k = len(rows), min(num_neighbors, len(rows) - 1)
    scores, neighbors = call_cached(_search, rows, k)
    weights = np.maximum(scores.astype(np.float64), 0) ** _POWER
    starts = np.repeat(np.arange(n), weights.shape[1])
    one_way = csr_matrix((weights.ravel(), (starts, neighbors.ravel())), shape=(n, n))
    both = one_way.maximum(one_way.T)
    # a row without neighbors of positive weight keeps its own value
    scale = 1 / np.sqrt(np.maximum(np.asarray(both.sum(axis=1)).ravel(), 1e-12))
    return csr_matrix(diags(scale) @ both @ diags(scale))


def _search(rows: NDArray[np.float32], k: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return the cosines (n, k) and indices of the nearest other rows; missing neighbors have cosine 0."""
    if len(rows) <= _MAX_EXACT:
        return ExactSearch(rows).search(rows, k, exclude_self=True)
    scores, found = ApproximateSearch(build_index(rows, "hnsw"), rows, width=64).search(rows, k + 1)
    own = (found == np.arange(len(rows))[:, None]) | (found < 0)
    return np.where(own, 0, np.nan_to_num(scores)).astype(np.float32), np.maximum(found, 0)


def propagate_labels(graph: Any, start: ArrayLike, *, alpha: float, num_iterations: int = 30) -> NDArray[np.float64]:
    r"""Propagate class probabilities over the neighbor graph and normalize them.

    Args:
        graph: result of :func:`build_neighbor_graph`.
        start: (n, k) float >= 0, initial class probabilities; all-zero rows carry no information.
        alpha: weight of the neighbors, in [0, 1).
        num_iterations: the remaining error is of the order of :math:`\alpha^{num\_iterations}`.

    Returns:
        (n, k) float64, rows sum to 1; uniform for rows that no label reaches.

    Raises:
        ValueError: shapes do not match, a negative value, or an alpha out of range.
    """
    values = np.asarray(start, dtype=np.float64)
    if values.ndim != 2 or values.shape[0] != graph.shape[0] or (values < 0).any():
        raise ValueError(f"start must have shape ({graph.shape[0]}, k) and no negative value, got shape {values.shape}")
    if not 0 <= alpha < 1:
        raise ValueError(f"alpha must be in [0, 1), got {alpha}")
    return _normalize_rows(_propagate(graph, values, alpha, num_iterations))


def diffuse_labels(
    graph: Any, seeds: ArrayLike, *, alpha: float = 0.9, num_iterations: int = 30
) -> NDArray[np.float64]:
    """Propagate labels over the graph, scale all classes to equal sums, and normalize each row.

    Thus, a class whose few labels happen to lie amid other classes does not absorb their images.

    Args:
        graph: result of :func:`build_neighbor_graph`.
        seeds: (n, k) float one-hot labels; all-zero rows are unlabeled.
        alpha: in [0, 1), as for :func:`propagate_labels`.
        num_iterations: number of iterations.

    Returns:
        (n, k) float64, rows sum to 1; uniform for rows that no label reaches.
    """
    found = _propagate(graph, np.asarray(seeds, dtype=np.float64), alpha, num_iterations)
    return _normalize_rows(found / np.maximum(found.sum(axis=0), np.finfo(np.float64).tiny))


def _propagate(graph: Any, start: NDArray[np.float64], alpha: float, num_iterations: int) -> NDArray[np.float64]:
    found = np.empty_like(start)
    for first in range(0, start.shape[1], _COLUMNS_AT_ONCE):
        columns = np.ascontiguousarray(start[:, first : first + _COLUMNS_AT_ONCE])
        kept = (1 - alpha) * columns
        for _ in range(num_iterations):
            columns = graph @ columns
            columns *= alpha
            columns += kept
        found[:, first : first + _COLUMNS_AT_ONCE] = columns
    return found


def _normalize_rows(values: NDArray[np.float64]) -> NDArray[np.float64]:
    totals = values.sum(axis=1, keepdims=True)
    return np.where(totals > 0, values / np.where(totals > 0, totals, 1), 1 / values.shape[1])
