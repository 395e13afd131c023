"""Retrieval metrics for samples of the same class: recall@k, R-precision and MAP@R.

For each query, the gallery is ranked by cosine similarity; without a gallery, each sample is ranked against all others.
Queries without another sample of their class in the gallery are skipped. Cosines are rounded to multiples of 2^-29
(2e-9); on ties, a metric is its expected value over random orders of the tied samples, so that a model that maps all
images to one point scores like random guessing.

Blocks of queries are compared with the whole gallery by a float32 matrix product, which decides all comparisons that
its rounding error, at most (d + 4) 2^-24, cannot change. The few relevant pairs that are too close are recomputed in
float64; queries with many such pairs (a collapsed model) or of a large class use a product with the whole gallery.

Sources: K. Musgrave et al., "A Metric Learning Reality Check" (R-precision, MAP@R); F. McSherry and M. Najork,
"Computing information retrieval performance measures efficiently in the presence of tied scores". We use our own code,
since pytorch-metric-learning lists the neighbors of every row, in ten times the memory, and breaks ties by position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from threadpoolctl import threadpool_limits

from labelkit.algorithms.matching import validate_ids
from labelkit.algorithms.row_blocks import StoredRows

_RESOLUTION = float(2**29)
# Similarities computed at a time (8 MB, or this many rows) and processed at a time, so that they fit in the cache.
_PRODUCT_PAIRS, _MIN_ROWS, _PART_PAIRS, _EXACT_PART_PAIRS = 1 << 21, 64, 1 << 19, 1 << 17
# Numbers per temporary float64 array: 2 MB.
_EXACT_NUMBERS = 1 << 18
# Above this fraction of a row (its inverse is given), a float64 product of the row is faster than single pairs.
_ONE_BY_ONE_SHARE, _MIN_ONE_BY_ONE = 256, 32
# The threshold for the r nearest is the r-th largest of the maxima of this many groups, or this many per rank r.
_MIN_GROUPS, _GROUPS_PER_RANK = 256, 8
# Minimum number of queries per worker process, so that preparing the gallery takes at most a tenth of the time.
_PART_QUERIES = 1 << 13

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class RetrievalScores:
    """Retrieval scores of the queries that have a match in the gallery.

    Attributes:
        ks: requested numbers of neighbors.
        query_rows: (q,) int64, ascending positions of the scored queries.
        labels: (q,) int64, their classes.
        recall: (q, len(ks)) float64 in [0, 1], whether a match is among the k nearest; a probability on ties.
        r_precision: (q,) float64 in [0, 1], share of matches among the R nearest, R = number of matches; if requested.
        average_precision: (q,) float64 in [0, r_precision], average precision at R; if requested.
        tied: (q,) bool, whether a sample of another class is exactly as near as the nearest match.
        num_lone, block_rows: number of queries skipped for lack of a match; number of queries ranked at a time.
    """

    ks: tuple[int, ...]
    query_rows: Ints
    labels: Ints
    recall: Floats
    r_precision: Floats | None
    average_precision: Floats | None
    tied: Bools
    num_lone: int
    block_rows: int

    @property
    def recall_at(self) -> dict[int, float]:
        """Mean recall at each k; NaN without queries."""
        return {k: _mean(self.recall[:, i]) for i, k in enumerate(self.ks)}

    @property
    def mean_r_precision(self) -> float:
        """Mean R-precision over the queries; NaN without queries, or if it was not requested."""
        return _mean(self.r_precision)

    @property
    def map_at_r(self) -> float:
        """MAP@R: mean over the queries of ``1/R`` times the summed precision at each hit among the R nearest."""
        return _mean(self.average_precision)


def score_retrieval(
    queries: ArrayLike | StoredRows,
    labels: ArrayLike,
    *,
    gallery: ArrayLike | StoredRows | None = None,
    gallery_labels: ArrayLike | None = None,
    own_rows: ArrayLike | None = None,
    ks: Sequence[int] = (1,),
    at_r: bool = True,
    max_bytes: int = 1 << 30,
    num_threads: int = 1,
    on_block: Callable[[int], object] | None = None,
    spread: Callable[[Callable[[range], Floats], list[range]], Iterable[Floats]] | None = None,
) -> RetrievalScores:
    """Rank the gallery for every query and score the rankings by recall@k, R-precision and MAP@R.

    Args:
        queries: (q, d) embeddings of any nonzero norm; stored embeddings are read once.
        labels: (q,) integers >= 0.
        gallery: (g, d), likewise; by default, the queries, excluding each query itself.
        gallery_labels: (g,) integers >= 0; required with a gallery.
        own_rows: (q,) int64, gallery row that is the query itself and is excluded; -1 (default with a gallery): none.
        ks: numbers of neighbors, each from 1 to the gallery size (minus one if the gallery contains any query).
        at_r: also compute R-precision and MAP@R, which takes longer.
        max_bytes: maximum memory for blocks of similarities in bytes; each thread holds at least one row.
        num_threads: number of blocks processed in parallel; if more than one, each matrix product uses one thread.
        on_block: called after each block with the number of its queries.
        spread: applies a function to parts of the queries, possibly in other processes (which read stored embeddings
            themselves), and yields the results in order; ``None``: run everything here. The scores are the same.

    Raises:
        ValueError: shapes do not match, an embedding is zero or not finite, or a k is out of range.
    """
    if (gallery is None) != (gallery_labels is None):
        raise ValueError("gallery and gallery_labels must be passed together")
    gallery_side = query_side = _SortedRows(queries, labels, "")
    if gallery is not None and gallery_labels is not None:
        gallery_side = _SortedRows(gallery, gallery_labels, "gallery ")
    ranking = _Ranking(query_side, gallery_side, own_rows, ks, at_r=at_r)
    n, num_gallery = len(ranking.places), len(gallery_side.order)
    size = max(1, min(max(_MIN_ROWS, _PRODUCT_PAIRS // num_gallery), max_bytes // num_threads // (8 * num_gallery)))
    score = partial(ranking.score_queries, size=size, num_threads=num_threads)
    if spread is None:
        found = score(range(n), on_block=on_block)
    else:
        step = size * max(1, _PART_QUERIES // size)  # the same blocks
        found = np.concatenate([*spread(score, [range(i, min(i + step, n)) for i in range(0, max(1, n), step)])])
    order = np.argsort(query_rows := query_side.order[ranking.places])
    above, strangers, matches, r_precision, average_precision = found[order].T
    recall = [_expected_recall(k, above, strangers, matches) for k in ks]
    return RetrievalScores(
        ks=tuple(ks),
        query_rows=query_rows[order],
        labels=query_side.labels[ranking.places][order],
        recall=np.stack(recall, axis=1) if recall else np.empty((n, 0)),
        r_precision=r_precision if at_r else None,
        average_precision=average_precision if at_r else None,
        tied=strangers > 0,
        num_lone=len(query_side.order) - n,
        block_rows=size,
    )


def _mean(values: Floats | None) -> float:
    return float(values.mean()) if values is not None and len(values) else float("nan")


class _SortedRows:
    """Embeddings with their norms, and a class-sorted order with labels and float32 unit vectors in this order."""

    def __init__(self, values: ArrayLike | StoredRows, labels: ArrayLike, name: str) -> None:
        self._arguments = values, labels, name
        rows = values.to_array() if isinstance(values, StoredRows) else np.asarray(values)
        what, classes = f"{name}embeddings", validate_ids(labels, f"{name}labels")
        if rows.ndim != 2 or len(rows) != len(classes) or rows.shape[1] == 0:
            raise ValueError(f"{what} must have shape ({len(classes)}, d), got {rows.shape}")
        self.rows = rows if rows.dtype in (np.float16, np.float32, np.float64) else rows.astype(np.float64)
        self.lengths = np.ones(len(rows))
        self.order = np.argsort(classes, kind="stable")
        self.labels = classes[self.order]
        self.unit: NDArray[np.float32] = np.empty(rows.shape, dtype=np.float32)
        step = max(1, _EXACT_NUMBERS // rows.shape[1])
        parts = [slice(start, start + step) for start in range(0, len(rows), step)]
        for part in parts:
            exact = self.read_unit_vectors(part)  # as stored, since all lengths are still 1
            self.lengths[self.order[part]] = np.sqrt(np.einsum("ij,ij->i", exact, exact))
        if bad := np.count_nonzero(~np.isfinite(self.lengths)):
            raise ValueError(f"{bad} of {len(rows)} rows of {what} contain NaN or infinity")
        if bad := np.count_nonzero(self.lengths == 0):
            raise ValueError(f"{bad} of {len(rows)} rows of {what} have zero norm, and thus no direction")
        for part in parts:
            self.unit[part] = self.read_unit_vectors(part)

    def __reduce__(self) -> tuple[type[_SortedRows], tuple[Any, ...]]:
        return _SortedRows, self._arguments  # other processes read stored embeddings themselves

    def read_unit_vectors(self, positions: Ints | slice) -> Floats:
        """Return the float64 unit vectors at the given positions, which must be sorted."""
        given = self.order[positions]
        return np.asarray(self.rows[given].astype(np.float64) / self.lengths[given, None])


class _Ranking:
    """Queries and gallery, preprocessed for ranking.

    Attributes of the queries with a match, sorted by class: ``places``, positions among all queries; ``own``, position
    of the query itself in the gallery, -1 = none; ``starts`` and ``ends`` of its class there; ``wanted``, matches.
    """

    def __init__(
        self,
        query_side: _SortedRows,
        gallery_side: _SortedRows,
        own_rows: ArrayLike | None,
        ks: Sequence[int],
        *,
        at_r: bool,
    ) -> None:
        (n, dim), num_gallery = query_side.unit.shape, len(gallery_side.order)
        if gallery_side.unit.shape[1] != dim:
            raise ValueError(f"queries have {dim} columns, but the gallery has {gallery_side.unit.shape[1]}")
        given_own = np.arange(n) if gallery_side is query_side else np.full(n, -1)
        if own_rows is not None:
            given_own = np.asarray(own_rows, dtype=np.int64)
            if given_own.shape != (n,) or given_own.min() < -1 or given_own.max() >= num_gallery:
                raise ValueError(f"own_rows must be {n} gallery rows, or -1 for none")
        place_of = np.empty(num_gallery, dtype=np.int64)
        place_of[gallery_side.order] = np.arange(num_gallery)
        own = given_own[query_side.order]
        own = np.where(own >= 0, place_of[own], -1)
        if (gallery_side.labels[own] != query_side.labels)[own >= 0].any():
            raise ValueError("own_rows must link each query to a gallery row with the same label")
        available = num_gallery - int((own >= 0).any())
        for k in ks:
            if not 1 <= k <= available:
                raise ValueError(f"k must be from 1 to {available} (all samples except the query), got {k}")
        starts, ends = (
            np.searchsorted(gallery_side.labels, query_side.labels, side=side) for side in ("left", "right")
        )
        wanted = ends - starts - (own >= 0)
        self.places = np.flatnonzero(wanted > 0)
        self.own, self.starts, self.ends, self.wanted = (part[self.places] for part in (own, starts, ends, wanted))
        self.query_side, self.gallery_side, self.at_r = query_side, gallery_side, at_r
        # maximum float32 difference between two cosines that tie, or whose order is reversed
        self._margin = 2 * (dim + 4) * 2.0**-24 + 2 / _RESOLUTION
        self._limit = max(_MIN_ONE_BY_ONE, num_gallery // _ONE_BY_ONE_SHARE)

    def score_queries(
        self, part: range, *, size: int, num_threads: int, on_block: Callable[[int], object] | None = None
    ) -> Floats:
        """Rank the gallery for a range of p queries, ``size`` at a time; return (p, 5), as ``score`` does."""
        blocks = [slice(start, min(start + size, part.stop)) for start in part[::size]]
        found = [np.empty((0, 5))]
        with threadpool_limits(1 if num_threads > 1 else None, "blas"), ThreadPoolExecutor(num_threads) as pool:
            for one in (pool.map if num_threads > 1 else map)(self.score, blocks):
                found.append(one)
                if on_block is not None:
                    on_block(len(one))
        return np.concatenate(found)

    def score(self, block: slice) -> Floats:
        """Rank the gallery for a block of queries, using float64 for large classes or many near ties.

        Returns (b, 5): counts of samples nearer than the nearest match, of other-class and matching ties; scores at R.
        """
        found = np.empty((block.stop - block.start, 5))
        exactly = self.wanted[block] > self._limit
        for is_exact in (False, True):
            chosen = np.flatnonzero(exactly == is_exact)
            similar = self._compute_cosines(block.start + chosen, exactly=is_exact)
            step = max(1, (_EXACT_PART_PAIRS if is_exact else _PART_PAIRS) // similar.shape[1])
            for start in range(0, len(chosen), step):
                part = chosen[start : start + step]
                found[part], again = self._rank(block.start + part, similar[start : start + step], exactly=is_exact)
                exactly[part] |= again
            del similar
        return found

    def _compute_cosines(self, rows: Ints, *, exactly: bool) -> NDArray[Any]:
        """Return cosines of queries with the whole gallery, in float32 or as float64 multiples of the resolution."""
        if exactly:
            num_gallery, dim = self.gallery_side.unit.shape
            similar: NDArray[Any] = np.empty((len(rows), num_gallery))
            left = self.query_side.read_unit_vectors(self.places[rows])
            step = max(1, _EXACT_NUMBERS // dim)
            for start in range(0, num_gallery if len(rows) else 0, step):
                here = similar[:, start : start + step]
                np.matmul(left, self.gallery_side.read_unit_vectors(slice(start, start + step)).T, out=here)
                np.rint(np.multiply(here, _RESOLUTION, out=here), out=here)
        else:
            similar = self.query_side.unit[self.places[rows]] @ self.gallery_side.unit.T
        itself = np.flatnonzero(self.own[rows] >= 0)
        similar[itself, self.own[rows][itself]] = -2 * _RESOLUTION
        return similar

    def _rank(self, rows: Ints, similar: NDArray[Any], *, exactly: bool) -> tuple[Floats, Bools]:
        """Return the columns of ``score``, and which rows have too many pairs to recompute.

        Recomputed are pairs that float32 may misorder, pairs of the same class, and candidates for the R nearest.
        """
        margin = np.asarray(0.0 if exactly else self._margin, similar.dtype)
        ranges = list(zip(self.starts[rows].tolist(), self.ends[rows].tolist(), strict=True))
        level = np.array([similar[i, start:end].max() for i, (start, end) in enumerate(ranges)])[:, None]
        over = similar > level + margin
        marks = similar >= level - margin
        marks ^= over
        if self.at_r:
            marks |= similar >= _rank_thresholds(similar, self.wanted[rows]) - margin
        for i, (start, end) in enumerate(ranges):
            marks[i, start:end] = similar[i, start:end] > -1.5 * _RESOLUTION  # not the query itself
        places, columns = np.divmod(np.flatnonzero(marks), similar.shape[1])
        again = (np.bincount(places, minlength=len(rows)) > 2 * self._limit) & (not exactly)
        if exactly:
            keys = similar[places, columns].astype(np.int64)
        else:
            places, columns = places[~again[places]], columns[~again[places]]
            left, right = (
                self.query_side.read_unit_vectors(self.places[rows])[places],
                self.gallery_side.read_unit_vectors(columns),
            )
            keys = np.rint(np.einsum("ij,ij->i", left, right) * _RESOLUTION).astype(np.int64)
        hits = (columns >= self.starts[rows][places]) & (columns < self.ends[rows][places])
        best = np.full(len(rows), -4 * int(_RESOLUTION))
        np.maximum.at(best, places[hits], keys[hits])
        best = best[places]
        level_of_best, nearer = keys == best, (keys > best) & ~hits & ~over[places, columns]
        kinds = (nearer, level_of_best & ~hits, level_of_best & hits)
        above, strangers, matches = (np.bincount(places[kind], minlength=len(rows)) for kind in kinds)
        above += [np.count_nonzero(row) for row in over]  # faster than along an axis
        order = np.argsort((places << 32) - keys)
        at_r = _scores_at_r(places[order], keys[order], hits[order], self.wanted[rows])
        return np.stack([above, strangers, matches, *at_r], axis=1), again


def _rank_thresholds(values: NDArray[Any], ranks: Ints) -> NDArray[Any]:
    """Return (b, 1) thresholds that at least r values of a row reach, and few more: the r-th largest group maximum."""
    # Neighboring columns belong to the same class, so they are assigned to different groups.
    groups = min(max(_MIN_GROUPS, _GROUPS_PER_RANK * int(ranks.max())), values.shape[1])
    largest = values[:, : values.shape[1] // groups * groups].reshape(len(values), -1, groups).max(axis=1)
    places = groups - ranks
    return np.take_along_axis(np.partition(largest, np.unique(places), axis=1), places[:, None], axis=1)


def _expected_recall(k: int, above: Floats, tied_strangers: Floats, tied_matches: Floats) -> Floats:
    """Compute each query's expected recall at k, with the tied samples in random order after the nearer ones."""
    from scipy.special import gammaln

    # The first match is among the ties: all s places go to samples of other classes in C(t, s) of C(t + m, s) draws.
    t, m, s = tied_strangers, tied_matches, np.clip(k - above, 0, tied_strangers)
    missed = np.exp(gammaln(t + 1) - gammaln(t - s + 1) - gammaln(t + m + 1) + gammaln(t + m - s + 1))
    return np.where(k - above > t, 1.0, 1 - missed)


def _scores_at_r(rows: Ints, keys: Ints, hits: Bools, wanted: Ints) -> Floats:
    """Compute the expected R-precision and average precision at R of each row, (2, b); R is ``wanted``, (b,).

    The p pairs include the R nearest of each row and all ties with the last of them, sorted by row and decreasing
    similarity: their row, cosine as an integer, and whether they are matches. A row may have no pairs.
    """
    position, b = np.arange(len(rows)), len(wanted)
    first_of_row = np.searchsorted(rows, np.arange(b))[rows]
    place = position - first_of_row
    # Ties are runs of equal keys within a row.
    opens = (np.diff(rows, prepend=-1) | np.diff(keys, prepend=0)) != 0
    begins = np.flatnonzero(opens)
    tie = np.cumsum(opens) - 1
    num_tied = np.diff(begins, append=len(rows))[tie]
    hits_until = np.concatenate([[0], np.cumsum(hits)])
    num_hits = np.diff(hits_until[np.append(begins, len(rows))])[tie]
    before = hits_until[begins[tie]] - hits_until[first_of_row]
    gain = np.where(place < wanted[rows], num_hits / num_tied, 0.0)
    # Given a hit here, each earlier place of the tie is a hit with probability (m - 1) / (t - 1).
    earlier = (position - begins[tie]) * (num_hits - 1) / np.maximum(num_tied - 1, 1)
    precise = gain * (before + 1 + earlier) / (place + 1)
    return np.stack([np.bincount(rows, weights=one, minlength=b) / wanted for one in (gain, precise)])
