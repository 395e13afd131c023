"""Rank the gallery for a block of queries, exactly, in the time of a float32 matrix product.

    - Blocks of queries meet the whole gallery in float32. Comparisons are decided there wherever the rounding of the
      product, at most (d + 4) 2^-24, cannot matter.
    - The few pairs too close for that, and all pairs of one class, are computed again in float64.
    - A row with many that are too close (a collapsed model) is computed again in float64 as a whole.

So block size, threads and the order of the gallery change nothing, and memory is bounded by the block.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labelkit.algorithms.matching import as_ids
from labelkit.metrics.retrieval_ties import (
    LAST,
    RESOLUTION,
    Pairs,
    by_row_and_key,
    cosine_keys,
    largest_by_row,
    nearest_by_row,
    scores_at_r,
    sorted_by_key,
)

_MAX_BLOCK_ROWS = 1024
# Similarities looked at together: 2 MB in float32, so that they stay in the cache from one look to the next.
_PART_PAIRS = 1 << 19
# Similarities computed together: 32 MB, which is taken once per block; each new page of memory costs time. With fewer
# queries at once, the product spends its time on the layout of the gallery.
_PRODUCT_PAIRS = 1 << 23
# Numbers per temporary float64 array: 8 MB.
_EXACT_NUMBERS = 1 << 20
# Pairs that are computed again one by one: beyond this share of a row, a product of the row is faster.
_ONE_BY_ONE_SHARE = 1 / 32
_MIN_ONE_BY_ONE = 64

Rows = NDArray[Any]


def least_bytes(num_queries: int, num_gallery: int, dim: int, largest_class: int, *, num_threads: int = 1) -> int:
    """Return the smallest ``max_bytes`` that ``retrieval.score_retrieval`` can work with.

    Args:
        num_queries: q; 0 if the gallery is the queries.
        num_gallery: g.
        dim: d.
        largest_class: members of the largest class of the gallery.
        num_threads: as there.
    """
    fixed = _fixed_bytes(num_queries, num_gallery, dim)
    return fixed + num_threads * (_spare_bytes(dim) + _row_bytes(num_gallery, dim, largest_class))


def _fixed_bytes(num_queries: int, num_gallery: int, dim: int) -> int:
    """Unit rows in float32 and a few numbers per row."""
    return (num_gallery + num_queries) * (4 * dim + 64)


def _row_bytes(num_gallery: int, dim: int, largest_class: int) -> int:
    """What a block holds per query: similarities, or keys and their marks; then its class and itself in float64."""
    return 8 * num_gallery + 2 * largest_class + 24 * dim


def _spare_bytes(dim: int) -> int:
    """Temporary arrays of a fixed size."""
    return 8 * 8 * max(_EXACT_NUMBERS, dim)


@dataclass(frozen=True)
class BlockScores:
    """What is known of a block of queries: nearer strangers, ties with the nearest match, and scores at R."""

    above: NDArray[np.int64]
    tied_strangers: NDArray[np.int64]
    tied_matches: NDArray[np.int64]
    r_precision: NDArray[np.float64]
    average_precision: NDArray[np.float64]


@dataclass(frozen=True)
class _Side:
    """Rows in the order of their classes.

    Attributes:
        rows: as given, in the given order.
        lengths: (n,) float64, of these rows.
        order: (n,) int64, given position of each sorted row.
        labels: (n,) int64, sorted.
        unit: (n, d) float32, sorted, of length 1.
    """

    rows: Rows
    lengths: NDArray[np.float64]
    order: NDArray[np.int64]
    labels: NDArray[np.int64]
    unit: NDArray[np.float32]

    @classmethod
    def make(cls, values: ArrayLike, labels: ArrayLike, name: str) -> _Side:
        rows, classes = np.asarray(values), as_ids(labels, f"{name}labels")
        what = f"{name}embeddings"
        if rows.ndim != 2 or len(rows) != len(classes) or rows.shape[1] == 0:
            raise ValueError(f"{what} must have shape ({len(classes)}, d), got {rows.shape}")
        if rows.dtype not in (np.float16, np.float32, np.float64):
            rows = rows.astype(np.float64)
        lengths = np.empty(len(rows))
        step = max(1, _EXACT_NUMBERS // rows.shape[1])
        for start in range(0, len(rows), step):
            part = rows[start : start + step].astype(np.float64)
            lengths[start : start + step] = np.sqrt(np.einsum("ij,ij->i", part, part))
        bad = int((~np.isfinite(lengths)).sum())
        if bad:
            raise ValueError(f"{what} have {bad} of {len(rows)} rows with NaN or infinity")
        zeros = int((lengths == 0).sum())
        if zeros:
            raise ValueError(f"{what} have {zeros} of {len(rows)} rows of length zero, which have no direction")
        order = np.argsort(classes, kind="stable")
        unit = np.empty(rows.shape, dtype=np.float32)
        for start in range(0, len(rows), step):
            chosen = order[start : start + step]
            unit[start : start + step] = rows[chosen].astype(np.float64) / lengths[chosen, None]
        return cls(rows, lengths, order, classes[order], unit)

    def exact(self, places: NDArray[np.int64] | slice) -> NDArray[np.float64]:
        """Unit rows at sorted places in float64."""
        given = self.order[places]
        return np.asarray(self.rows[given].astype(np.float64) / self.lengths[given, None])


@dataclass(frozen=True)
class Ranking:
    """Queries and gallery, ready to be ranked.

    Attributes:
        asked, held: queries and gallery; the same object if they are the same rows.
        places: (s,) int64, sorted places of the queries that are scored.
        own: (s,) int64, sorted place in the gallery of the query itself, -1 for none.
        starts, ends: (s,) int64, where the class of the query stands in the gallery.
        wanted: (s,) int64, matches in the gallery.
        num_lone: queries that are not scored.
        ks: as asked for.
        at_r: whether scores at R are wanted.
        margin: bound on what float32 may be wrong by, ties included.
    """

    asked: _Side
    held: _Side
    places: NDArray[np.int64]
    own: NDArray[np.int64]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    wanted: NDArray[np.int64]
    num_lone: int
    ks: tuple[int, ...]
    at_r: bool
    margin: float

    @classmethod
    def make(
        cls,
        queries: ArrayLike,
        labels: ArrayLike,
        gallery: ArrayLike | None,
        gallery_labels: ArrayLike | None,
        own_rows: ArrayLike | None,
        ks: tuple[int, ...],
        at_r: bool,
    ) -> Ranking:
        """Sort queries and gallery by class; arguments and errors are those of ``retrieval.score_retrieval``."""
        if (gallery is None) != (gallery_labels is None):
            raise ValueError("gallery and gallery_labels go together")
        asked = _Side.make(queries, labels, "")
        held = asked
        if gallery is not None and gallery_labels is not None:
            held = _Side.make(gallery, gallery_labels, "gallery ")
        if asked.unit.shape[1] != held.unit.shape[1]:
            raise ValueError(f"queries have {asked.unit.shape[1]} columns, the gallery has {held.unit.shape[1]}")
        given_own = np.full(len(asked.order), -1) if gallery is not None else np.arange(len(asked.order))
        if own_rows is not None:
            given_own = np.asarray(own_rows, dtype=np.int64)
            if given_own.shape != (len(asked.order),) or given_own.min() < -1 or given_own.max() >= len(held.order):
                raise ValueError(f"own_rows must be ({len(asked.order)},) rows of the gallery or -1")
        place_of = np.empty(len(held.order), dtype=np.int64)
        place_of[held.order] = np.arange(len(held.order))
        own = given_own[asked.order]
        own = np.where(own >= 0, place_of[own], -1)
        if (own >= 0).any() and (held.labels[own[own >= 0]] != asked.labels[own >= 0]).any():
            raise ValueError("own_rows: a query and its own row of the gallery have different labels")
        available = len(held.order) - int((own >= 0).any())
        for k in ks:
            if not 1 <= k <= available:
                raise ValueError(f"k must be from 1 to {available}, the samples other than the query, got {k}")
        starts = np.searchsorted(held.labels, asked.labels, side="left")
        ends = np.searchsorted(held.labels, asked.labels, side="right")
        wanted = ends - starts - (own >= 0)
        places = np.flatnonzero(wanted > 0)
        dim = held.unit.shape[1]
        return cls(
            asked=asked,
            held=held,
            places=places,
            own=own[places],
            starts=starts[places],
            ends=ends[places],
            wanted=wanted[places],
            num_lone=len(wanted) - len(places),
            ks=ks,
            at_r=at_r,
            margin=(dim + 4) * 2.0**-24 + 1 / RESOLUTION,
        )

    @property
    def num_scored(self) -> int:
        """Queries that have a match."""
        return len(self.places)

    def block_rows(self, max_bytes: int, num_threads: int) -> int:
        """Queries per block that keep to the bound.

        Raises:
            ValueError: there is no room for one.
        """
        (num_gallery, dim), num_queries = self.held.unit.shape, len(self.asked.order)
        largest = int((self.ends - self.starts).max(initial=0))
        separate = 0 if self.asked is self.held else num_queries
        least = least_bytes(separate, num_gallery, dim, largest, num_threads=num_threads)
        if max_bytes < least:
            raise ValueError(f"max_bytes must be at least {least} for these rows, got {max_bytes}")
        free = (max_bytes - _fixed_bytes(separate, num_gallery, dim)) // num_threads - _spare_bytes(dim)
        room = free // _row_bytes(num_gallery, dim, largest)
        # All threads get work, if there is enough of it.
        return int(max(1, min(room, _MAX_BLOCK_ROWS, -(-self.num_scored // num_threads))))

    def score(self, block: slice) -> BlockScores:
        """Rank the gallery for a block of queries."""
        places, own = self.places[block], self.own[block]
        n, num_gallery = len(places), len(self.held.order)
        best, tied_matches = self._best_matches(block)
        level = best / RESOLUTION
        found = BlockScores(np.zeros(n, np.int64), np.zeros(n, np.int64), tied_matches, np.zeros(n), np.zeros(n))
        limit = max(_MIN_ONE_BY_ONE, int(num_gallery * _ONE_BY_ONE_SHARE))
        whole = np.zeros(n, dtype=np.bool_)
        step = max(1, _PART_PAIRS // num_gallery)
        together = step * max(1, _PRODUCT_PAIRS // (step * num_gallery))
        room = np.empty((min(n, together), num_gallery), dtype=np.float32)
        for first in range(0, n, together):
            some = slice(first, min(first + together, n))
            similar = np.matmul(self.asked.unit[places[some]], self.held.unit.T, out=room[: some.stop - first])
            itself = np.flatnonzero(own[some] >= 0)
            similar[itself, own[some][itself]] = -2
            for start in range(first, some.stop, step):
                part = slice(start, min(start + step, some.stop))
                here = similar[start - first : part.stop - first]
                self._compare(block, part, here, level[part], best[part], found, whole[part], limit)
        del similar, room
        rest = np.flatnonzero(whole)
        # Keys of these rows take the room that the similarities had.
        for start in range(0, len(rest), max(1, n // 2)):
            self._rank_exactly(block, rest[start : start + max(1, n // 2)], found)
        return found

    def _best_matches(self, block: slice) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Cosine of the nearest match of each query as an integer, and how many matches have it."""
        places, own, starts, ends = self.places[block], self.own[block], self.starts[block], self.ends[block]
        best, count = np.full(len(places), LAST), np.zeros(len(places), np.int64)
        # Queries are sorted by class: those of one class share their matches.
        borders = np.flatnonzero(np.diff(starts, prepend=-1, append=-1))
        for first, last in itertools.pairwise(borders.tolist()):
            left = self.asked.exact(places[first:last])
            step = max(1, _EXACT_NUMBERS // max(len(left), left.shape[1]))
            for start in range(starts[first], ends[first], step):
                stop = min(start + step, ends[first])
                keys = cosine_keys(left @ self.held.exact(slice(start, stop)).T)
                itself = np.flatnonzero((own[first:last] >= start) & (own[first:last] < stop))
                keys[itself, own[first:last][itself] - start] = LAST
                here = keys.max(axis=1)
                at_level = (keys == here[:, None]).sum(axis=1)
                before = best[first:last]
                count[first:last] = np.where(
                    here < before, count[first:last], at_level + (here == before) * count[first:last]
                )
                best[first:last] = np.maximum(here, before)
        return best, count

    def _compare(
        self,
        block: slice,
        part: slice,
        similar: NDArray[np.float32],
        level: NDArray[np.float64],
        best: NDArray[np.int64],
        found: BlockScores,
        whole: NDArray[np.bool_],
        limit: int,
    ) -> None:
        """Count strangers above and at the level of the nearest match; list who may be among the R nearest.

        Marks in ``whole`` the rows that have too many pairs to compute again one by one.
        """
        rows = np.arange(block.start + part.start, block.start + part.stop)
        high, low = (level + self.margin).astype(np.float32), (level - self.margin).astype(np.float32)
        # One step further, since the bounds themselves were rounded.
        over = similar > np.nextafter(high, np.float32(2))[:, None]
        near = (similar >= np.nextafter(low, np.float32(-3))[:, None]) ^ over
        found.above[part] = [np.count_nonzero(row) for row in over]  # faster than along an axis
        places, columns = _marked(near)
        strangers = (columns < self.starts[rows][places]) | (columns >= self.ends[rows][places])
        places, columns = places[strangers], columns[strangers]
        whole |= np.bincount(places, minlength=len(rows)) > limit
        kept = ~whole[places]
        places, columns = places[kept], columns[kept]
        difference = self._exact_keys(rows[places], columns) - best[places]
        found.above[part] += np.bincount(places[difference > 0], minlength=len(rows))
        found.tied_strangers[part] = np.bincount(places[difference == 0], minlength=len(rows))
        if self.at_r:
            pairs = self._pairs_in_order(rows, similar, whole, limit)
            found.r_precision[part], found.average_precision[part] = scores_at_r(pairs, self.wanted[rows])

    def _pairs_in_order(
        self, rows: NDArray[np.int64], similar: NDArray[np.float32], whole: NDArray[np.bool_], limit: int
    ) -> Pairs:
        """Who may be among the R nearest, in an order that is right.

        Candidates in a run of neighbors closer in float32 than both may be wrong by are computed again, unless the run
        is all of one class or all of others: their order among themselves counts for nothing. Marks in ``whole`` the
        rows that have too many of these, and leaves them out.
        """
        wanted, near = self.wanted[rows], int(np.ceil(2.5 * self.margin * RESOLUTION))
        marked = nearest_by_row(similar, wanted, ~whole, 3 * self.margin)
        places, columns, keys = sorted_by_key(similar, marked)
        if not len(keys):
            return Pairs(places, keys, np.zeros(0, dtype=np.bool_))
        # The rows that are left out have no last of the R nearest.
        lasts = np.where(whole, 0, np.searchsorted(places, np.arange(len(rows))) + wanted - 1)
        kept = keys >= keys[lasts][places] - near - 1
        places, columns, keys = places[kept], columns[kept], keys[kept]
        hits = (columns >= self.starts[rows][places]) & (columns < self.ends[rows][places])
        opens = np.ones(len(keys), dtype=np.bool_)
        opens[1:] = (places[1:] != places[:-1]) | (keys[:-1] - keys[1:] > near)
        begins = np.flatnonzero(opens)
        lengths = np.diff(begins, append=len(keys))
        share = np.add.reduceat(hits, begins, dtype=np.int64)
        unsure = np.repeat((share > 0) & (share < lengths), lengths)
        whole |= np.bincount(places[unsure], minlength=len(rows)) > limit
        if whole.any():
            kept = ~whole[places]
            places, columns, keys = places[kept], columns[kept], keys[kept]
            hits, unsure = hits[kept], unsure[kept]
        # Runs stay in their order: what is computed again changes places within its run.
        again = np.flatnonzero(unsure)
        exact = self._exact_keys(rows[places[again]], columns[again])
        order = by_row_and_key(places[again], exact)
        keys[again], hits[again] = exact[order], hits[again][order]
        return Pairs(places, keys, hits)

    def _exact_keys(self, rows: NDArray[np.int64], columns: NDArray[np.int64]) -> NDArray[np.int64]:
        """Cosines of pairs (scored query, place in the gallery) as integers, computed in float64."""
        keys = np.empty(len(rows), dtype=np.int64)
        step = max(1, _EXACT_NUMBERS // self.held.unit.shape[1])
        for start in range(0, len(rows), step):
            part = slice(start, start + step)
            queries, number = np.unique(rows[part], return_inverse=True)
            left, right = self.asked.exact(self.places[queries])[number], self.held.exact(columns[part])
            keys[part] = cosine_keys(np.einsum("ij,ij->i", left, right))
        return keys

    def _rank_exactly(self, block: slice, chosen: NDArray[np.int64], found: BlockScores) -> None:
        """Score some rows of a block from float64 products with the whole gallery."""
        rows = block.start + chosen
        num_gallery, dim = self.held.unit.shape
        keys = np.empty((len(rows), num_gallery), dtype=np.int32)
        left = self.asked.exact(self.places[rows])
        step = max(1, _EXACT_NUMBERS // max(dim, len(rows)))
        for start in range(0, num_gallery, step):
            columns = slice(start, min(start + step, num_gallery))
            keys[:, columns] = cosine_keys(left @ self.held.exact(columns).T)
        relevant = np.zeros(keys.shape, dtype=np.bool_)
        for i, row in enumerate(rows):
            relevant[i, self.starts[row] : self.ends[row]] = True
        itself = np.flatnonzero(self.own[rows] >= 0)
        keys[itself, self.own[rows][itself]] = LAST
        relevant[itself, self.own[rows][itself]] = False
        for i, row in enumerate(chosen):
            of_matches = keys[i][relevant[i]]
            best = of_matches.max()
            at_level = int((of_matches == best).sum())
            found.above[row] = (keys[i] > best).sum()
            found.tied_strangers[row] = int((keys[i] == best).sum()) - at_level
            found.tied_matches[row] = at_level
            if self.at_r:
                wanted = self.wanted[rows[i : i + 1]]
                listed = np.flatnonzero(keys[i] >= largest_by_row(keys[i : i + 1], wanted)[0])
                listed = listed[np.argsort(-keys[i][listed])]
                pairs = Pairs(np.zeros(len(listed), np.int64), keys[i][listed].astype(np.int64), relevant[i][listed])
                precision, average = scores_at_r(pairs, wanted)
                found.r_precision[row], found.average_precision[row] = precision[0], average[0]


def _marked(marks: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows and columns of what is true; faster than ``numpy.nonzero`` where that is little."""
    rows, columns = np.divmod(np.flatnonzero(marks), marks.shape[1])
    return rows, columns
