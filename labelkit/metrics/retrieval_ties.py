"""Expected scores of a ranking in which similarities tie: the mean over random orders of what ties.

Cosines become integers of a resolution of 2^-29 (2e-9); equal integers count as tied.

Source: F. McSherry and M. Najork, "Computing information retrieval performance measures efficiently in the presence of
tied scores".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Cosines become integers of this resolution, which fit int32.
RESOLUTION = float(2**29)
LAST = -(2**30)
# A threshold for the r nearest is first looked for among the maxima of at least so many groups, and so many for each of
# the r, if that leaves so many similarities for each; else in a sample, one in this number of similarities.
_LEAST_GROUPS, _GROUPS_PER_RANK, _PER_GROUP = 256, 8, 4
_SAMPLE_STEP = 8


@dataclass(frozen=True)
class Pairs:
    """Candidates of the rows of a block: row of the block, cosine as an integer, same class.

    By row, then from the largest key; neighbors of one class, and neighbors of others, may stand in any order.
    """

    rows: NDArray[np.int64]
    keys: NDArray[np.int64]
    hits: NDArray[np.bool_]


def cosine_keys(cosines: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return cosines of any shape as integers, equal where they count as tied."""
    return np.rint(cosines * RESOLUTION).astype(np.int64)


def by_row_and_key(rows: NDArray[np.int64], keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the order of pairs by row, then from the largest key.

    Row and key fit one integer: sorting that takes a fraction of the time of ``numpy.lexsort``.
    """
    return np.argsort((rows << 32) - keys)


def nearest_by_row(
    values: NDArray[np.float32], ranks: NDArray[np.int64], asked: NDArray[np.bool_], slack: float
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return rows and columns of the r largest of each row that is asked for, and of some more.

    None is left out that is less than ``slack`` below the r-th largest. A threshold comes from a part of the row; where
    fewer reach it than are asked for, it is looked for among all.
    """
    most = int(ranks.max(initial=1))
    if _PER_GROUP * _GROUPS_PER_RANK * most <= values.shape[1]:
        floors = _floors_of_groups(values, ranks, max(_LEAST_GROUPS, _GROUPS_PER_RANK * most))
    else:
        floors = _floors_of_sample(values, ranks)
    floors[~asked] = np.inf
    rows, columns, counts = _reaching(values, floors - np.float32(slack))
    short = np.flatnonzero(asked & (counts < ranks))
    if len(short):
        floors[short] = largest_by_row(values[short], ranks[short])
        rows, columns, _ = _reaching(values, floors - np.float32(slack))
    return rows, columns


def _floors_of_groups(values: NDArray[np.float32], ranks: NDArray[np.int64], num_groups: int) -> NDArray[np.float32]:
    """The r-th largest of the maxima of groups: at least r values reach it, and hardly more if few share a group."""
    # Neighbors are of one class: they go to different groups.
    num_groups = min(num_groups, values.shape[1])
    whole = values[:, : values.shape[1] // num_groups * num_groups]
    largest = whole.reshape(len(values), -1, num_groups).max(axis=1)
    return _at_places(largest, ranks)


def _floors_of_sample(values: NDArray[np.float32], ranks: NDArray[np.int64]) -> NDArray[np.float32]:
    """What about r values reach, or a few more, seldom less; -inf where the sample is too small."""
    # So many of the sample are expected among the r largest of all, and three standard deviations more.
    places = ranks / _SAMPLE_STEP
    places = np.ceil(places + 3 * np.sqrt(places) + 3).astype(np.int64)
    return _at_places(np.ascontiguousarray(values[:, ::_SAMPLE_STEP]), places)


def _at_places(values: NDArray[np.float32], places: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return the r-th largest of each row; -inf where the row is shorter."""
    size = values.shape[1]
    found = np.full(len(values), -np.inf, dtype=values.dtype)
    for place in np.unique(places[places <= size]).tolist():
        chosen = places == place
        found[chosen] = np.partition(values[chosen], size - place, axis=1)[:, size - place]
    return found


def _reaching(
    values: NDArray[np.float32], floors: NDArray[np.float32]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Rows and columns of the values that are no less than the floor of their row, and how many there are by row."""
    num_rows, num_columns = values.shape
    flat = np.flatnonzero(values >= floors[:, None])
    counts = np.diff(np.searchsorted(flat, num_columns * np.arange(num_rows + 1)))
    rows = np.repeat(np.arange(num_rows), counts)
    return rows, flat - rows * num_columns, counts


def sorted_by_key(
    similar: NDArray[np.float32], marked: tuple[NDArray[np.int64], NDArray[np.int64]]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return rows, columns and keys of some pairs, given by row: by row, then from the largest key.

    All three fit one integer, since a part has no more than 2^19 pairs, or one row: sorting takes a fraction of the
    time of finding an order.
    """
    rows, columns = marked
    bits = similar.shape[1].bit_length()
    packed = -LAST - cosine_keys(similar[rows, columns].astype(np.float64))
    packed += rows << 32
    packed <<= bits
    packed += columns
    packed.sort()
    columns = packed & ((1 << bits) - 1)
    packed >>= bits
    return rows, columns, -LAST - (packed & ((1 << 32) - 1))


def largest_by_row(values: NDArray[Any], ranks: NDArray[np.int64]) -> NDArray[Any]:
    """Return the r-th largest value of each row; r differs by row."""
    found = np.empty(len(values), dtype=values.dtype)
    for i, (row, rank) in enumerate(zip(values, ranks.tolist(), strict=True)):
        found[i] = np.partition(row, len(row) - rank)[len(row) - rank]
    return found


def chance_of_a_match(
    k: int, above: NDArray[np.int64], tied_strangers: NDArray[np.int64], tied_matches: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Expected recall at k of each query: above, then the tie in a random order."""
    from scipy.special import gammaln

    places = k - above
    chance = (places > tied_strangers).astype(np.float64)
    # The first match sits in the tie: all its places go to strangers in C(t, s) of C(t + m, s) draws.
    inside = (places > 0) & (places <= tied_strangers)
    t, m, s = tied_strangers[inside], tied_matches[inside], places[inside]
    missed = np.exp(gammaln(t + 1) - gammaln(t - s + 1) - gammaln(t + m + 1) + gammaln(t + m - s + 1))
    chance[inside] = 1 - missed
    return chance


def scores_at_r(pairs: Pairs, wanted: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Expected R-precision and average precision at R of each row.

    Args:
        pairs: the R nearest of each row and all that tie with the last of them, or more; a row may have none.
        wanted: (b,) R of each row.
    """
    rows, keys, hits = pairs.rows, pairs.keys, pairs.hits
    # Only a tie of hits with others is more than one order.
    open_ties = (rows[1:] == rows[:-1]) & (keys[1:] == keys[:-1]) & (hits[1:] != hits[:-1])
    tied = np.zeros(len(wanted), dtype=np.bool_)
    tied[rows[1:][open_ties]] = True
    if not tied.any():
        return _scores_in_order(rows, hits, wanted)
    of_tied = tied[rows]
    with_ties = _scores_with_ties(rows[of_tied], keys[of_tied], hits[of_tied].astype(np.int64), wanted)
    without = _scores_in_order(rows[~of_tied], hits[~of_tied], wanted)
    return np.where(tied, with_ties[0], without[0]), np.where(tied, with_ties[1], without[1])


def _scores_in_order(
    rows: NDArray[np.int64], hits: NDArray[np.bool_], wanted: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Scores of rows whose order is known."""
    b = len(wanted)
    found = np.flatnonzero(hits)
    of_row = rows[found]
    place = found - np.searchsorted(rows, np.arange(b))[of_row]
    within = place < wanted[of_row]
    of_row, place = of_row[within], place[within]
    count = np.bincount(of_row, minlength=b)
    rank = np.arange(len(of_row)) - (np.cumsum(count) - count)[of_row]
    return count / wanted, np.bincount(of_row, weights=(rank + 1) / (place + 1), minlength=b) / wanted


def _scores_with_ties(
    rows: NDArray[np.int64], keys: NDArray[np.int64], hits: NDArray[np.int64], wanted: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Scores of rows where hits tie with others."""
    b = len(wanted)
    position = np.arange(len(rows))
    first_of_row = np.searchsorted(rows, np.arange(b))
    place = position - first_of_row[rows]
    # Ties are runs of one key within a row.
    opens = np.ones(len(rows), dtype=np.bool_)
    opens[1:] = (rows[1:] != rows[:-1]) | (keys[1:] != keys[:-1])
    tie = np.cumsum(opens) - 1
    begins = np.flatnonzero(opens)
    num_tied = np.diff(begins, append=len(rows))[tie]
    num_hits = np.add.reduceat(hits, begins)[tie]
    hits_until = np.concatenate([[0], np.cumsum(hits)])
    before = hits_until[begins][tie] - hits_until[first_of_row[rows]]
    gain = np.where(place < wanted[rows], num_hits / num_tied, 0.0)
    # Given a hit here, each earlier place of the tie is a hit with chance (m - 1) / (t - 1).
    earlier = (position - begins[tie]) * (num_hits - 1) / np.maximum(num_tied - 1, 1)
    precise = gain * (before + 1 + earlier) / (place + 1)
    return (
        np.bincount(rows, weights=gain, minlength=b) / wanted,
        np.bincount(rows, weights=precise, minlength=b) / wanted,
    )
