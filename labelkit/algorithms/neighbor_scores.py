"""Score named rows of a gallery in float64 and order them: what every search for neighbors ends with."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from labelkit.algorithms.row_blocks import StoredRows, parts_of

Metric = Literal["cosine", "l2", "dot"]
Held = NDArray[np.float32] | StoredRows

SPARE = 16
"""Candidates beyond k: they show that the k-th score is apart from what was left out."""
FEW_SPARE = 2
"""Likewise where float32 scores of single rows name the candidates and show which queries need all of them."""
ROUNDING = 1e-5
"""Rounding of a float32 product of d terms stays below this share of |q| |g|, for any d met here."""
# Numbers per temporary block: 32 MB in float64.
_BLOCK_NUMBERS = 1 << 22


def rescored(
    asked: NDArray[np.float32],
    held: Held,
    candidates: NDArray[np.int64],
    k: int,
    metric: Metric,
    *,
    exclude_self: bool,
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return nearness (q, k) and indices (q, k) of the nearest candidates.

    Args:
        asked: (q, d).
        held: (g, d).
        candidates: (q, m) rows of the gallery, ascending, -1 for none; m >= k.
        k: to be kept.
        metric: how they are compared.
        exclude_self: row i is no neighbor of query i.
    """
    rows_per_block = max(1, _BLOCK_NUMBERS // (candidates.shape[1] * held.shape[1]))
    # of one query each step takes about a microsecond: no block is copied where there is one
    parts = [
        _best_listed(asked[start : start + rows_per_block], held, candidates[start : start + rows_per_block], k, metric,
                     start if exclude_self else None)
        for start in range(0, len(asked), rows_per_block)
    ]  # fmt: skip
    if len(parts) == 1:
        return parts[0]
    return np.concatenate([scores for scores, _ in parts]), np.concatenate([indices for _, indices in parts])


def _best_listed(
    asked: NDArray[np.float32],
    held: Held,
    listed: NDArray[np.int64],
    k: int,
    metric: Metric,
    first: int | None,
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """As :func:`rescored` for some queries; ``first``: query i is row ``first + i``, which is no neighbor of it."""
    missing = listed < 0 if listed[:, 0].min() < 0 else None
    places = listed if missing is None else np.where(missing, 0, listed)
    rows = held.take(places, axis=0) if isinstance(held, np.ndarray) else held[places]
    exact = _nearness(asked[:, None], rows, metric)
    if missing is not None:
        exact[missing] = -np.inf
    if first is not None:
        exact[listed == np.arange(first, first + len(exact))[:, None]] = -np.inf
    order = (-exact).argsort(axis=1, kind="stable")[:, :k]
    if len(order) == 1:
        return exact.take(order[0], axis=1), listed.take(order[0], axis=1)
    own = np.arange(len(exact))[:, None]
    return exact[own, order], listed[own, order]


def squared_lengths(rows: NDArray[np.float32]) -> NDArray[np.float64]:
    """(n,) squared lengths."""
    return np.asarray(np.einsum("ij,ij->i", rows, rows, dtype=np.float64))


def longest(rows: Held) -> float:
    """The largest length of a row."""
    return float(np.sqrt(max((squared_lengths(part).max(initial=0) for _, part in parts_of(rows)), default=0)))


def _nearness(query: NDArray[np.float32], rows: NDArray[np.float32], metric: Metric) -> NDArray[np.float32]:
    """Return minus the distance, or the inner product, along the last axis, rounded from float64."""
    if metric == "l2":
        difference = rows.astype(np.float64) - query
        exact = -np.sqrt(np.einsum("...j,...j->...", difference, difference))
    else:
        exact = np.einsum("...j,...j->...", rows, query, dtype=np.float64)
    return np.asarray(exact, dtype=np.float32)


def search_all(
    query: NDArray[np.float32], held: Held, k: int, metric: Metric, excluded: int
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return nearness (k,) and indices (k,) among all gallery rows but the excluded one (-1: none)."""
    size = max(1, _BLOCK_NUMBERS // held.shape[1])
    exact = np.concatenate([_nearness(query, held[i : i + size], metric) for i in range(0, len(held), size)])
    if excluded >= 0:
        exact[excluded] = -np.inf
    order = np.argsort(-exact, kind="stable")[:k]
    return exact[order], order.astype(np.int64)
