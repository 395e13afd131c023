"""The nearest centroid of every row, for several runs of k-means together, from one iteration to the next.

Sources: G. Hamerly, "Making k-means even faster": a bound on the distance to the own centroid from above and one on the
distance to every other from below, which the shifts of the centroids loosen. Rows whose bounds do not meet keep their
centroid and are not looked at.

Two steps are ours. A single centroid that moves far would loosen the bounds of all rows: those that move most, as many
as pay, are compared with all rows, and only the shifts of the others loosen the bounds. And runs that look at all rows
share one matrix product per block, so that a block is read once for all of them.

On a device of torch (``device_products.py``) all rows are compared with all centroids each time, a block at a time.

Ids are those of a comparison in float64, whatever was skipped: scores ``|c|^2 - 2 x c`` are computed in the precision
of the rows, the bounds hold what this may be wrong by, and float32 rows closer to a tie than that are decided in
float64. Rows that are float64 are all compared with all centroids each time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from labelkit.algorithms.device_products import DeviceProducts
from labelkit.algorithms.row_blocks import Floats, Rows, blocks

Doubles = NDArray[np.float64]

# Scores looked at together: 512 KB in float32, so that they stay in the cache from one look to the next.
_SCORE_NUMBERS = 1 << 17
# A product of fewer rows with many centroids takes a multiple of the time; scores held for it are 32 MB in float32.
_LEAST_ROWS, _MOST_NUMBERS = 256, 1 << 23
# What it costs to fetch a row, in centroids that could be compared with it meanwhile; what keeping its bounds costs,
# in numbers that could be multiplied.
_FETCH_COST, _BOUND_COST = 12, 2500
# Centroids of several runs in one product: more would not make it faster.
_SHARED_COLUMNS = 256
# Shares of the centroids that may be compared with all rows since they moved most.
_MOVER_SHARES = (0.0, 0.05, 0.1, 0.2, 0.35)
# Rows for each mover from which on going along the rows, one mover after the other, is faster than along the movers.
_LONG = 100
# What the squared norms may be wrong by, as a share of them.
_ROUNDED = 1e-14


@dataclass(slots=True)
class RunState:
    """What is known of n rows and the k centroids of one run.

    Attributes:
        centroids: (k, d), those that the rest holds for.
        ids: (n,) int64, the nearest; the smaller of equals.
        upper: (n,) no less than the distance to it.
        lower: (n,) no more than the distance to any other.
    """

    centroids: Doubles
    ids: NDArray[np.int64]
    upper: Doubles
    lower: Doubles


@dataclass(frozen=True, slots=True)
class _Look:
    """One run in one iteration.

    ``movers`` are compared with all rows, ``rest`` is the largest shift of the others; ``rounding`` times the lengths
    of row and longest centroid bounds what a score may be wrong by.
    """

    state: RunState
    exact: Doubles
    exact_squares: Doubles
    factors: Floats
    squares: Floats
    reach: float
    rounding: float
    movers: NDArray[np.int64]
    mover_factors: Floats
    is_mover: NDArray[np.bool_]

    def slack(self, lengths: Doubles) -> Doubles:
        """What scores of rows of these lengths may be wrong by."""
        return self.rounding * (lengths + self.reach)


class NearestCentroids:
    """Nearest centroids of fixed rows.

    Args:
        rows: (n, d).
        squares: (n,) their squared norms.
        device: of torch, where float32 rows are compared; ``None``: by numpy, as are rows that are float64.
    """

    def __init__(self, rows: Rows, squares: Doubles, device: str | None = None) -> None:
        self.rows = rows
        self.squares = squares
        self.lengths = np.sqrt(squares)
        # Ties of float64 rows are decided by their products, which must not depend on what else is computed.
        self._rounds_coarsely = rows.dtype == np.float32
        self._products = DeviceProducts(device) if device is not None and self._rounds_coarsely else None

    def begin(self, centroids: Sequence[Doubles]) -> list[RunState]:
        """Find the nearest of each run's centroids, of equal shape (k, d)."""
        n = len(self.rows)
        states = [RunState(c, np.empty(n, dtype=np.int64), np.empty(n), np.empty(n)) for c in centroids]
        self._look([self._plan(state, None) for state in states], [])
        return states

    def follow(self, states: Sequence[RunState], centroids: Sequence[Doubles]) -> None:
        """Bring what is known of some runs to new centroids of them."""
        every, some = [], []
        for state, moved in zip(states, centroids, strict=True):
            shifts = np.linalg.norm(moved - state.centroids, axis=1)
            movers = self._movers(state, shifts) if self._rounds_coarsely and self._products is None else None
            state.centroids, state.ids = moved, state.ids.copy()
            look = self._plan(state, movers)
            if movers is None:
                every.append(look)
            else:
                state.upper += shifts[state.ids]
                state.lower -= shifts[~look.is_mover].max(initial=0)
                some.append(look)
        self._look(every, some)

    def _movers(self, state: RunState, shifts: Doubles) -> NDArray[np.int64] | None:
        """Choose centroids to compare with all rows; ``None``: all of them."""
        k, n = len(shifts), len(self.rows)
        order = np.argsort(-shifts, kind="stable")
        keeping = _BOUND_COST / self.rows.shape[1]
        best, cost = None, float(_FETCH_COST + k + keeping)
        own_shifts = shifts[state.ids]
        for number in sorted({int(np.ceil(share * k)) for share in _MOVER_SHARES}):
            fetch = _FETCH_COST + number + keeping if number else 0
            if number >= k or fetch >= cost:
                break
            rest = shifts[order[number]]
            # The distance to an own centroid that is compared anyway is guessed to stay.
            loosened = state.upper + np.where(own_shifts > rest, 0, own_shifts)
            unsure = int(np.count_nonzero(loosened >= state.lower - rest))
            here = fetch + unsure / max(1, n) * (2 * _FETCH_COST + k + keeping)
            if here < cost:
                best, cost = order[:number], here
        return None if best is None else np.sort(best)

    def _plan(self, state: RunState, movers: NDArray[np.int64] | None) -> _Look:
        dtype, centroids = self.rows.dtype, state.centroids
        squares = np.einsum("ij,ij->i", centroids, centroids)
        is_mover = np.zeros(len(centroids), dtype=np.bool_)
        is_mover[slice(None) if movers is None else movers] = True
        factors = (-2 * centroids).astype(dtype)
        reach = float(np.sqrt(squares.max()))
        return _Look(
            state=state,
            exact=-2 * centroids,
            exact_squares=squares,
            factors=factors,
            squares=squares.astype(dtype),
            reach=reach,
            rounding=2 * float(np.finfo(dtype).eps) * float(np.sqrt(centroids.shape[1])) * reach,
            movers=np.arange(len(centroids)) if movers is None else movers,
            mover_factors=factors[is_mover].T,
            is_mover=is_mover,
        )

    def _look(self, every: Sequence[_Look], some: Sequence[_Look]) -> None:
        """Update runs that look at ``every`` row with all centroids, and runs that look at ``some``."""
        num_rows, width = self.rows.shape
        if self._products is not None:
            for block in blocks(num_rows, width):
                part = self.rows[block]
                for look in every:
                    found = self._products.two_smallest(part, look.factors, look.squares)
                    self._note(look, block, part, *found)
            return
        k = len((*every, *some)[0].factors)
        size = max(1, _SHARED_COLUMNS // k) if self._rounds_coarsely else 1
        groups = [every[start : start + size] for start in range(0, len(every), size)]
        factors = [np.concatenate([look.factors for look in group]).T for group in groups]
        columns = k * min(size, max(1, len(every)))
        step = _rows_at_once(columns)
        buffer: Floats = np.empty(step * columns, dtype=self.rows.dtype)
        for block in blocks(num_rows, width):
            if not every and not any(len(look.movers) or self._unsure(look, block).any() for look in some):
                continue
            part = self.rows[block]
            for where, few in _pieces(part, block.start, step) if every else ():
                for group, joined in zip(groups, factors, strict=True):
                    scores = buffer[: len(few) * joined.shape[1]].reshape(len(few), -1)
                    self._decide_all(group, where, few, np.matmul(few, joined, out=scores))
            for look in some:
                for where, few in _pieces(part, block.start, _rows_at_once(max(1, len(look.movers)))):
                    self._decide_some(look, where, few)

    def _unsure(self, look: _Look, block: slice) -> NDArray[np.bool_]:
        state = look.state
        return state.upper[block] >= state.lower[block]

    def _decide_all(self, looks: Sequence[_Look], block: slice, part: Floats, scores: Floats) -> None:
        """Take the nearest of all centroids of several runs; ``scores`` (rows, runs x k) lack their squares."""
        scores += np.concatenate([look.squares for look in looks])
        ids, best, second = _two_smallest(scores.reshape(len(part) * len(looks), -1))
        for i, look in enumerate(looks):
            # of each row, what this run found
            mine = slice(i, None, len(looks))
            self._note(look, block, part, ids[mine], best[mine], second[mine])

    def _decide_some(self, look: _Look, block: slice, part: Floats) -> None:
        """Compare all rows with the centroids that moved most, and those that this leaves unsure with all."""
        if len(look.movers):
            self._compare_movers(look, block, part)
        unsure = np.flatnonzero(self._unsure(look, block))
        step = _rows_at_once(len(look.factors))
        for start in range(0, len(unsure), step):
            chosen = unsure[start : start + step]
            few = part[chosen]
            scores = few @ look.factors.T
            scores += look.squares
            self._note(look, chosen + block.start, few, *_two_smallest(scores))

    def _compare_movers(self, look: _Look, block: slice, part: Floats) -> None:
        """Tighten the bounds by the distances to the movers, which the bounds do not know of yet.

        Rows that this does not decide get bounds that meet.
        """
        state = look.state
        if len(part) >= _LONG * len(look.movers):
            scores = look.mover_factors.T @ part.T
            scores += look.squares[look.movers, None]
            places, best, second = _two_smallest_of_columns(scores)
        else:
            scores = part @ look.mover_factors
            scores += look.squares[look.movers]
            places, best, second = _two_smallest(scores)
        squares, slack = self.squares[block], look.slack(self.lengths[block])
        near, far = _at_most(squares, best, slack), _at_least(squares, best, slack)
        other = _at_least(squares, second, slack)
        upper, lower = state.upper[block], state.lower[block]
        own_moved = look.is_mover[state.ids[block]]
        state.ids[block] = np.where(own_moved, look.movers[places], state.ids[block])
        state.lower[block] = np.minimum(lower, np.where(own_moved, other, far))
        state.upper[block] = np.where(own_moved, near, upper)

    def _note(
        self,
        look: _Look,
        where: slice | NDArray[np.int64],
        part: Floats,
        ids: NDArray[np.int64],
        best: Floats,
        second: Floats,
    ) -> None:
        """Write down the nearest of all centroids; decide float32 rows that are too close to a tie in float64."""
        state = look.state
        slack, squares = look.slack(self.lengths[where]), self.squares[where]
        upper, lower = _at_most(squares, best, slack), _at_least(squares, second, slack)
        if self._rounds_coarsely:
            doubtful = np.flatnonzero(second - best <= slack)
            for piece in blocks(len(doubtful), max(look.exact.shape)):
                rows = doubtful[piece]
                exact = part[rows].astype(np.float64) @ look.exact.T
                ids[rows] = (exact + look.exact_squares).argmin(axis=1)
                upper[rows], lower[rows] = np.inf, 0
        state.ids[where], state.upper[where], state.lower[where] = ids, upper, lower


def _rows_at_once(columns: int) -> int:
    """Rows that are compared with so many centroids together: enough for a quick product, in the cache if it can be."""
    return max(1, _SCORE_NUMBERS // columns, min(_LEAST_ROWS, _MOST_NUMBERS // columns))


def _pieces(part: Floats, first: int, size: int) -> Iterator[tuple[slice, Floats]]:
    """Yield (where, rows there) of a block that starts at row ``first``."""
    for start in range(0, len(part), max(1, size)):
        few = part[start : start + max(1, size)]
        yield slice(first + start, first + start + len(few)), few


def _at_most(squares: Doubles, scores: Floats, slack: Doubles) -> Doubles:
    """Distances to centroids with these scores, or a little more."""
    return np.sqrt(np.maximum(squares * (1 + _ROUNDED) + scores + slack, 0))


def _at_least(squares: Doubles, scores: Floats, slack: Doubles) -> Doubles:
    """Distances to centroids with these scores, or a little less."""
    return np.sqrt(np.maximum(squares * (1 - _ROUNDED) + scores - slack, 0))


def _two_smallest(scores: Floats) -> tuple[NDArray[np.int64], Floats, Floats]:
    """Return the place of the smallest of each row, the first of equals, it, and the second; overwrites ``scores``."""
    own = np.arange(len(scores))
    places = scores.argmin(axis=1)
    best = scores[own, places]
    scores[own, places] = np.inf
    return places, best, scores[own, scores.argmin(axis=1)]


def _two_smallest_of_columns(scores: Floats) -> tuple[NDArray[np.int64], Floats, Floats]:
    """As :func:`_two_smallest` of ``scores.T``: a few long rows, one after the other."""
    places = np.zeros(scores.shape[1], dtype=np.int64)
    best = scores[0].copy()
    second = np.full_like(best, np.inf)
    larger, less = np.empty_like(best), np.empty(len(best), dtype=np.bool_)
    for place, row in enumerate(scores[1:], 1):
        np.less(row, best, out=less)
        np.minimum(second, np.maximum(row, best, out=larger), out=second)
        np.minimum(best, row, out=best)
        places[less] = place
    return places, best, second
