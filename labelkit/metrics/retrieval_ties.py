"""Expected scores of a ranking in which similarities tie: the mean over random orders of what ties.

Cosines become integers of a resolution of 2^-29 (2e-9); equal integers count as tied.

Source: F. McSherry and M. Najork, "Computing information retrieval performance measures efficiently in the presence of
tied scores".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

# Cosines become integers of this resolution, which fit int32.
RESOLUTION = float(2**29)
LAST = -(2**30)
# A threshold is first looked for in a sample: one in this number of similarities.
_SAMPLE_STEP = 8


@dataclass(frozen=True)
class Pairs:
    """Candidates of the rows of a block, in no order: row of the block, cosine as an integer, same class."""

    rows: NDArray[np.int64]
    keys: NDArray[np.int64]
    hits: NDArray[np.bool_]


def cosine_keys(cosines: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return cosines of any shape as integers, equal where they count as tied."""
    return np.rint(cosines * RESOLUTION).astype(np.int64)


def by_row_and_key(
    rows: NDArray[np.int64], keys: NDArray[np.int64], *, kind: Literal["quicksort", "stable"] = "quicksort"
) -> NDArray[np.int64]:
    """Return the order of pairs by row, then from the largest key.

    Row and key fit one integer: sorting that takes a fraction of the time of ``numpy.lexsort``; ``stable`` is faster
    where most are in order already.
    """
    return np.argsort((rows << 32) - keys, kind=kind)


def largest_by_row(values: NDArray[Any], ranks: NDArray[np.int64]) -> NDArray[Any]:
    """Return the r-th largest value of each row; r differs by row."""
    found = np.empty(len(values), dtype=values.dtype)
    for i, (row, rank) in enumerate(zip(values, ranks.tolist(), strict=True)):
        chosen = row
        sample = row[::_SAMPLE_STEP]
        if len(sample) > 4 * rank:
            # The r-th largest of a sample is no larger than that of all: what is below it need not be looked at.
            chosen = row[row >= np.partition(sample, len(sample) - rank)[len(sample) - rank]]
        found[i] = np.partition(chosen, len(chosen) - rank)[len(chosen) - rank]
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
    b = len(wanted)
    order = by_row_and_key(pairs.rows, pairs.keys, kind="stable")
    rows, keys, hits = pairs.rows[order], pairs.keys[order], pairs.hits[order].astype(np.int64)
    if not len(rows):
        return np.zeros(b), np.zeros(b)
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
