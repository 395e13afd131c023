"""Find the k nearest rows of a gallery, exactly; the one import of faiss.

A flat faiss index names a few more candidates than asked for; their scores are computed again
in float64 row by row, so that equal rows have equal scores and ties can go to the smaller index.
Queries for which rounding may hide a neighbor among the rows left out are searched again in full.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

Metric = Literal["cosine", "l2", "dot"]

# Candidates beyond k: they show that the k-th score is apart from what was left out.
_SPARE = 16
# Rounding of a float32 product of d terms stays below this share of |q| |g|, for any d met here.
_ROUNDING = 1e-5
# Numbers per temporary block: 32 MB in float64.
_BLOCK_NUMBERS = 1 << 22


def knn(
    queries: ArrayLike, gallery: ArrayLike, k: int, *, metric: Metric = "cosine", exclude_self: bool = False
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return the k nearest gallery rows of each query, nearest first.

    Args:
        queries: (q, d), computed from as float32.
        gallery: (g, d), computed from as float32.
        k: neighbors per query; at most g, or g - 1 with ``exclude_self``.
        metric: ``cosine`` (rows of any length but zero) and ``dot``: the larger, the nearer;
            ``l2``: Euclidean distance, the smaller, the nearer.
        exclude_self: queries are the gallery, and row i is no neighbor of query i.

    Returns:
        scores (q, k) float32 and indices (q, k) int64 of gallery rows. Of equal scores the
        smaller index comes first.

    Raises:
        ValueError: shapes that do not fit, NaN or infinity, a zero row with ``cosine``, k out of
            range, or an unknown metric.
    """
    if metric not in ("cosine", "l2", "dot"):
        raise ValueError(f"metric must be 'cosine', 'l2' or 'dot', got {metric!r}")
    asked, held = _as_rows(queries, "queries", metric), _as_rows(gallery, "gallery", metric)
    if asked.shape[1] != held.shape[1]:
        raise ValueError(f"queries have {asked.shape[1]} columns, the gallery has {held.shape[1]}")
    if exclude_self and len(asked) != len(held):
        raise ValueError(f"exclude_self needs queries = gallery, got {len(asked)} and {len(held)} rows")
    available = len(held) - int(exclude_self)
    if not 1 <= k <= available:
        raise ValueError(f"k must be from 1 to {available}, the rows to choose from, got {k}")
    if not len(asked):
        return np.empty((0, k), dtype=np.float32), np.empty((0, k), dtype=np.int64)

    num_candidates = min(len(held), k + int(exclude_self) + _SPARE)
    last_rough, slack, candidates = _shortlist(asked, held, num_candidates, metric)
    scores = np.empty((len(asked), k), dtype=np.float32)
    indices = np.empty((len(asked), k), dtype=np.int64)
    rows_per_block = max(1, _BLOCK_NUMBERS // (num_candidates * held.shape[1]))
    for start in range(0, len(asked), rows_per_block):
        block = slice(start, start + rows_per_block)
        listed = np.sort(candidates[block], axis=1)
        exact = _nearness(asked[block][:, None], held[listed], metric)
        if exclude_self:
            exact[listed == np.arange(start, start + len(exact))[:, None]] = -np.inf
        order = np.argsort(-exact, axis=1, kind="stable")[:, :k]
        scores[block] = np.take_along_axis(exact, order, axis=1)
        indices[block] = np.take_along_axis(listed, order, axis=1)
    if num_candidates < len(held):
        last = scores[:, -1].astype(np.float64)
        if metric == "l2":
            last = -(last**2)
        for query in np.flatnonzero(last <= last_rough + slack).tolist():
            scores[query], indices[query] = _search_all(asked[query], held, k, metric, query if exclude_self else -1)
    return (np.abs(scores) if metric == "l2" else scores), indices


def _as_rows(x: ArrayLike, name: str, metric: Metric) -> NDArray[np.float32]:
    array = np.asarray(x)
    if array.ndim != 2 or array.shape[1] == 0:
        raise ValueError(f"{name} must have shape (n, d) with d >= 1, got {array.shape}")
    rows = np.ascontiguousarray(array, dtype=np.float32)
    bad = int((~np.isfinite(rows).all(axis=1)).sum())
    if bad:
        raise ValueError(f"{name} has {bad} of {len(rows)} rows with NaN or infinity")
    squares = _squares(rows)
    if metric == "cosine":
        zeros = int((squares == 0).sum())
        if zeros:
            raise ValueError(f"{name} has {zeros} of {len(rows)} rows of length zero, which have no direction")
        return (rows / np.sqrt(squares)[:, None]).astype(np.float32)
    if rows.size and squares.max() > np.finfo(np.float32).max / 16:
        raise ValueError(f"{name} has rows as long as {np.sqrt(squares.max()):.1e}, whose products overflow float32")
    return rows


def _squares(rows: NDArray[np.float32]) -> NDArray[np.float64]:
    return np.asarray(np.einsum("ij,ij->i", rows, rows, dtype=np.float64))


def _shortlist(
    asked: NDArray[np.float32], held: NDArray[np.float32], num_candidates: int, metric: Metric
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    """Name the nearest m rows as far as float32 products tell.

    Returns:
        (q,) rough inner product, or minus the squared distance, of the farthest row named;
        (q,) bound on the rounding of that number; (q, m) int64 rows.
    """
    import faiss

    width = held.shape[1]
    if metric == "l2":
        # Distances do not feel a shift, their products do: a common offset would cost digits.
        offset = held.mean(axis=0, dtype=np.float64).astype(np.float32)
        asked, held = asked - offset, held - offset
    index = faiss.IndexFlatL2(width) if metric == "l2" else faiss.IndexFlatIP(width)
    index.add(held)
    rough, indices = index.search(asked, num_candidates)
    last = rough[:, -1].astype(np.float64)
    lengths, reach = np.sqrt(_squares(asked)), float(np.sqrt(_squares(held).max()))
    if metric == "l2":
        return -last, _ROUNDING * (lengths + reach) ** 2, indices.astype(np.int64, copy=False)
    return last, _ROUNDING * lengths * reach, indices.astype(np.int64, copy=False)


def _nearness(query: NDArray[np.float32], rows: NDArray[np.float32], metric: Metric) -> NDArray[np.float32]:
    """Return minus the distance, or the inner product, along the last axis, rounded from float64."""
    if metric == "l2":
        difference = rows.astype(np.float64) - query
        exact = -np.sqrt(np.einsum("...j,...j->...", difference, difference))
    else:
        exact = np.einsum("...j,...j->...", rows, query, dtype=np.float64)
    return np.asarray(exact, dtype=np.float32)


def _search_all(
    query: NDArray[np.float32], held: NDArray[np.float32], k: int, metric: Metric, excluded: int
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return nearness (k,) and indices (k,) among all gallery rows but the excluded one (-1: none)."""
    size = max(1, _BLOCK_NUMBERS // held.shape[1])
    exact = np.concatenate([_nearness(query, held[i : i + size], metric) for i in range(0, len(held), size)])
    if excluded >= 0:
        exact[excluded] = -np.inf
    order = np.argsort(-exact, kind="stable")[:k]
    return exact[order], order.astype(np.int64)
