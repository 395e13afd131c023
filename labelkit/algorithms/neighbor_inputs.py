"""Check what a search for neighbors is given, and scale rows to length 1 where they are compared by angle."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labelkit.algorithms.neighbor_scores import Held, Metric, squared_lengths
from labelkit.algorithms.row_blocks import BLOCK_NUMBERS, StoredRows, blocks, parts_of


def known(metric: Metric) -> Metric:
    """Return a metric.

    Raises:
        ValueError: there is no such one.
    """
    if metric not in ("cosine", "l2", "dot"):
        raise ValueError(f"metric must be 'cosine', 'l2' or 'dot', got {metric!r}")
    return metric


def check_k(k: int, available: int) -> None:
    """Look at a number of neighbors.

    Raises:
        ValueError: it is out of range.
    """
    if not 1 <= k <= available:
        raise ValueError(f"k must be from 1 to {available}, the rows to choose from, got {k}")


def as_queries(queries: ArrayLike, held: Held, metric: Metric) -> NDArray[np.float32]:
    """Return queries of a gallery, (q, d), of length 1 for ``cosine``.

    Raises:
        ValueError: shapes that do not fit, NaN or infinity, or a zero row with ``cosine``.
    """
    asked = as_rows(queries, "queries", metric)[:]
    if asked.shape[1] != held.shape[1]:
        raise ValueError(f"queries have {asked.shape[1]} columns, the gallery has {held.shape[1]}")
    return asked


def as_rows(x: ArrayLike | StoredRows, name: str, metric: Metric) -> Held:
    """Return rows, (n, d), of length 1 for ``cosine``; those to be read in blocks stay where they are.

    Args:
        x: (n, d).
        name: of them, for messages.
        metric: how they will be compared.

    Raises:
        ValueError: not (n, d), NaN or infinity, a zero row with ``cosine``, or numbers whose products overflow.
    """
    rows: Held
    if isinstance(x, StoredRows):
        rows = x if x.in_blocks else x.to_array()
    else:
        array = np.asarray(x)
        if array.ndim != 2 or array.shape[1] == 0:
            raise ValueError(f"{name} must have shape (n, d) with d >= 1, got {array.shape}")
        rows = np.ascontiguousarray(array, dtype=np.float32)
    if isinstance(rows, np.ndarray) and metric == "cosine" and 0 < rows.size <= BLOCK_NUMBERS:
        # a query of its own: most of the time would be that of steps, not of numbers
        squares = squared_lengths(rows)
        lowest, highest = (squares.item(),) * 2 if len(rows) == 1 else (squares.min(), squares.max())
        if lowest > 0 and highest < np.inf:
            return (rows / np.sqrt(squares)[:, None]).astype(np.float32)
    bad, squares = 0, np.empty(len(rows))
    for where, part in parts_of(rows):
        # of a sum of squares, whose numbers are few
        squares[where] = squared_lengths(part)
        if not np.isfinite(squares[where]).all():
            bad += int((~np.isfinite(part).all(axis=1)).sum())
    if bad:
        raise ValueError(f"{name} has {bad} of {len(rows)} rows with NaN or infinity")
    if metric == "cosine":
        return _unit(rows, squares, name, in_place=isinstance(x, StoredRows))
    if len(rows) and squares.max() > np.finfo(np.float32).max / 16:
        raise ValueError(f"{name} has rows as long as {np.sqrt(squares.max()):.1e}, whose products overflow float32")
    return rows


def _unit(rows: Held, squares: NDArray[np.float64], name: str, *, in_place: bool) -> Held:
    zeros = int((squares == 0).sum())
    if zeros:
        raise ValueError(f"{name} has {zeros} of {len(rows)} rows of length zero, which have no direction")
    lengths = np.sqrt(squares)
    if isinstance(rows, StoredRows):
        return rows.divided(lengths)
    unit = rows if in_place else np.empty_like(rows)
    for where in blocks(*rows.shape):
        np.divide(rows[where], lengths[where, None], out=unit[where], casting="same_kind")
    return unit
