r"""Assign every class a prototype of its own, with the highest total score; quickly where little has changed.

Sources: R. Jonker and A. Volgenant, "A shortest augmenting path algorithm for dense and sparse linear assignment
problems" (1987), and the solver of scipy; that dual variables carry over from one problem to the next is the idea of
I. H. Toroslu and G. Ucoluk, "Incremental assignment problem" (2007). Where classes are matched with prototypes again
and again during training, class means drift slowly, and a matching with its prices usually proves itself in one look
at the scores.

A matching is best if columns have prices such that no row prefers another column than its own: with
:math:`s_{ij} - p_j \le s_{i,a(i)} - p_{a(i)}` for all i and j, no other matching can score more (duality).

    1. look          rows that prefer another column at the old prices are loose; none: the old matching is best
    2. raise prices  p_j = max over loose i of p_{a(i)} + s_ij - s_{i,a(i)}; this may loosen the row that has column j,
                     which is looked at next; none left after a few looks: the old matching is best
    3. few left      each loose row gets its column by a shortest augmenting path, which also corrects the prices
    4. many left     solve anew (scipy), and raise prices until they prove the new matching
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

# Rows looked at in one piece: few enough to stay in a processor's cache.
_CHUNK_VALUES = 1 << 18
# Rows looked at, per row of the matrix, when prices are sought: for the old matching and for a new one.
_FEW_LOOKS, _MANY_LOOKS = 2.0, 20.0
# Of all rows, how many may be left for paths to be tried, and how many steps per row of the matrix these may take: with
# more, scipy's compiled search is quicker.
_PATHS_SHARE, _STEPS_PER_ROW = 0.15, 0.75
# A new matching that differs in more rows will soon be another: prices are not sought for it.
_CHANGED_SHARE = 0.3
# Sums of scores and prices differ in their last digits, depending on their order.
_ROUNDING = 1e-13

How = Literal["kept", "greedy", "repaired", "solved"]
Float = NDArray[np.floating[Any]]


@dataclass(frozen=True, slots=True)
class Assignment:
    """A one-to-one matching of c rows with c of m columns.

    Attributes:
        columns: (c,) int64, the column of each row; no column twice.
        prices: (m,) float64; a start for the next, similar problem.
        value: total score of the matching, the largest possible.
        how: ``kept``: the previous matching was proved best; ``greedy``: every row has its best column; ``repaired``: a
            few rows were matched again; ``solved``: solved anew.
        num_changed: rows whose column is not that of the previous matching; 0 without one.
    """

    columns: NDArray[np.int64]
    prices: NDArray[np.float64]
    value: float
    how: How
    num_changed: int


def assign(scores: ArrayLike, previous: Assignment | None = None) -> Assignment:
    """Match rows with columns one to one so that the total score is the largest possible.

    The value is exact up to the rounding of its sum, whatever the previous matching was. Of several best matchings the
    previous one is kept if it is among them; otherwise, the choice is open.

    Args:
        scores: (c, m) finite, c <= m; float32 and float64 are used as they are.
        previous: of a problem of the same shape; the closer its scores, the quicker.

    Raises:
        ValueError: not a matrix, more rows than columns, a score that is not finite (names the row), or a previous
            matching of another shape.
    """
    matrix = _checked(scores)
    count, width = matrix.shape
    if previous is not None and (previous.columns.shape != (count,) or previous.prices.shape != (width,)):
        raise ValueError(
            f"the previous matching is of {previous.columns.shape[0]} rows and {previous.prices.shape[0]} columns, "
            f"the scores are of {count} and {width}"
        )
    if count < width:  # rows that want nothing take the columns that are left
        matrix = np.concatenate([matrix, np.zeros((width - count, width), matrix.dtype)])
    if previous is None:
        found, how = _cold(matrix)
    else:
        found, how = _warm(matrix, previous)
    columns = found.columns[:count]
    changed = 0 if previous is None else int((columns != previous.columns).sum())
    value = float(matrix[np.arange(count), columns].sum(dtype=np.float64))
    return Assignment(columns, found.prices, value, how, changed)


@dataclass(slots=True)
class _Matching:
    """Columns of all rows, and prices."""

    columns: NDArray[np.int64]
    prices: NDArray[np.float64]


def _checked(scores: ArrayLike) -> Float:
    matrix = np.asarray(scores)
    if matrix.dtype not in (np.float32, np.float64):
        matrix = matrix.astype(np.float64)
    if matrix.ndim != 2 or not 1 <= matrix.shape[0] <= matrix.shape[1]:
        raise ValueError(f"scores must have shape (c, m) with 1 <= c <= m, got {matrix.shape}")
    # a row with an infinity or a not-a-number has no finite sum; only such rows are looked at closely
    with np.errstate(over="ignore", invalid="ignore"):
        suspects = np.flatnonzero(~np.isfinite(matrix.sum(axis=1)))
    for row in suspects.tolist():
        if not np.isfinite(matrix[row]).all():
            raise ValueError(f"scores of row {row} are not all finite")
    return matrix


def _cold(matrix: Float) -> tuple[_Matching, How]:
    count = len(matrix)
    best = matrix.argmax(axis=1).astype(np.int64)
    if np.bincount(best, minlength=count).max() == 1:
        return _Matching(best, np.zeros(count)), "greedy"
    columns = _solve(matrix)
    return _Matching(columns, _proof(matrix, columns, np.zeros(count))), "solved"


def _warm(matrix: Float, previous: Assignment) -> tuple[_Matching, How]:
    count, columns, prices = len(matrix), previous.columns, previous.prices
    if len(columns) < count:
        columns = np.concatenate([columns, np.setdiff1d(np.arange(count), columns)])
    loose = _loose_rows(matrix, columns, prices)
    if not len(loose):
        return _Matching(columns, prices), "kept"
    raised, rest = _raise_prices(matrix, columns, prices, loose, _FEW_LOOKS)
    if not len(rest):
        return _Matching(columns, raised), "kept"
    # where rows have to swap, raised prices loosen ever more rows
    start, rows = (raised, rest) if len(rest) < len(loose) else (prices, loose)
    found = _match_again(matrix, columns, start, rows) if len(rows) <= _PATHS_SHARE * count else None
    how: How = "solved" if found is None else "repaired"
    if found is None:
        solved = _solve(matrix)
        is_near = (solved != columns).sum() <= _CHANGED_SHARE * count
        found = _Matching(solved, _proof(matrix, solved, prices) if is_near else prices)
    # as good, up to rounding: then the old one is as best as the new one, and the prices prove both
    if _total(matrix, columns) >= _total(matrix, found.columns) - count * _rounding(matrix, found.prices):
        return _Matching(columns, found.prices), "kept"
    return found, how


def _loose_rows(matrix: Float, columns: NDArray[np.int64], prices: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the rows that prefer another column than their own at these prices, ascending."""
    count = len(matrix)
    own = matrix[np.arange(count), columns].astype(np.float64) - prices[columns]
    tolerance = _rounding(matrix, prices)
    suspects = np.arange(count)
    if matrix.dtype == np.float32:
        # Half the bytes to read: what float32 cannot decide, and only that, is looked at again.
        single = prices.astype(np.float32)
        margin = 4 * float(np.finfo(np.float32).eps) * _scale(matrix, prices)
        parts = []
        for rows in _chunks(suspects, count):
            values = matrix[rows[0] : rows[-1] + 1] - single
            values[np.arange(len(rows)), columns[rows]] = -np.inf
            parts.append(rows[values.max(axis=1) > own[rows] - margin])
        suspects = np.concatenate(parts)
    parts = []
    for rows in _chunks(suspects, count):
        values = matrix[rows] - prices
        parts.append(rows[values.max(axis=1) > own[rows] + tolerance])
    return np.concatenate(parts) if parts else suspects


def _match_again(
    matrix: Float, columns: NDArray[np.int64], prices: NDArray[np.float64], loose: NDArray[np.int64]
) -> _Matching | None:
    """Free the loose rows and match each by a shortest augmenting path; ``None`` if that takes too many steps."""
    count = len(matrix)
    columns, prices = columns.copy(), prices.copy()
    owner = np.empty(count, dtype=np.int64)
    owner[columns] = np.arange(count)
    owner[columns[loose]] = -1
    left = int(_STEPS_PER_ROW * count)
    reached = np.empty(count, dtype=np.int64)  # columns whose distance is final, in this order
    distances = np.empty(count)
    for row in loose.tolist():
        distance = prices - matrix[row]  # to every column not yet reached; infinite for the others
        before = np.full(count, row)  # row from which a column is best come to
        number = 0
        while True:
            column = int(distance.argmin())
            nearest = float(distance[column])
            if owner[column] < 0:
                break
            if left == 0:
                return None
            left -= 1
            reached[number], distances[number] = column, nearest
            number += 1
            taker = int(owner[column])
            through = prices - matrix[taker]
            through += nearest - through[column]
            through[reached[:number]] = np.inf
            distance[column] = np.inf
            closer = through < distance
            before[closer] = taker
            np.copyto(distance, through, where=closer)
        prices[reached[:number]] += nearest - distances[:number]
        # along the path, every row takes the next column
        taker = -1
        while taker != row:
            taker = int(before[column])
            owner[column] = taker
            columns[taker], column = column, int(columns[taker])
    return _Matching(columns, prices)


def _solve(matrix: Float) -> NDArray[np.int64]:
    from scipy.optimize import linear_sum_assignment

    # negated in float64 here: scipy would make two copies more
    return linear_sum_assignment(np.negative(matrix, dtype=np.float64))[1].astype(np.int64)


def _proof(matrix: Float, columns: NDArray[np.int64], prices: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return prices that prove a best matching, or come near it within a limit of work."""
    # only differences count; without this they would grow from one problem to the next
    return _raise_prices(matrix, columns, prices - prices.mean(), np.arange(len(matrix)), _MANY_LOOKS)[0]


def _raise_prices(
    matrix: Float,
    columns: NDArray[np.int64],
    prices: NDArray[np.float64],
    rows: NDArray[np.int64],
    looks: float,
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Raise prices of columns that these rows prefer to their own, then look at the owners of those, and so on.

    Ends if the matching is best, since only a cycle of rows that would all gain could go on for ever.

    Args:
        matrix: (c, c) scores.
        columns: of every row.
        prices: at which only ``rows`` may prefer another column.
        rows: ascending.
        looks: rows that are looked at, per row of the matrix, before this gives up.

    Returns:
        Prices, and the rows that may still prefer another column; none if the prices prove the matching.
    """
    count = len(matrix)
    prices = prices.copy()
    owner = np.empty(count, dtype=np.int64)
    owner[columns] = np.arange(count)
    own = matrix[np.arange(count), columns].astype(np.float64)
    tolerance = _rounding(matrix, prices)
    left = int(looks * count)
    while len(rows) and left >= len(rows):
        left -= len(rows)
        before = prices.copy()
        for chunk in _chunks(rows, count):
            # at the fair price of a column no row envies its owner
            fair = (matrix[chunk] + (prices[columns[chunk]] - own[chunk])[:, None]).max(axis=0)
            np.copyto(prices, fair, where=fair > prices + tolerance)
        rows = np.sort(owner[prices > before])
    return prices, rows


def _chunks(rows: NDArray[np.int64], width: int) -> Iterator[NDArray[np.int64]]:
    size = max(1, _CHUNK_VALUES // width)
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


def _total(matrix: Float, columns: NDArray[np.int64]) -> float:
    return float(matrix[np.arange(len(matrix)), columns].sum(dtype=np.float64))


def _scale(matrix: Float, prices: NDArray[np.float64]) -> float:
    return max(float(matrix.max()), -float(matrix.min())) + float(np.abs(prices).max())


def _rounding(matrix: Float, prices: NDArray[np.float64]) -> float:
    return _ROUNDING * _scale(matrix, prices)
