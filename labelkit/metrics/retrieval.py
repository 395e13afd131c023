"""Score how well same-class samples are nearest neighbors: recall@k, R-precision, MAP@R.

Every sample is a query against all others by cosine; itself is left out, and so are queries
whose class has no other member. Where similarities tie, a metric is its expected value over
random orders of the tied samples, so that a model that maps all images to one point scores what
chance gives. Cosines that round to the same multiple of 2^-29 (2e-9) count as tied.

Sources: K. Musgrave et al., "A Metric Learning Reality Check" (R-precision, MAP@R);
F. McSherry and M. Najork, "Computing information retrieval performance measures efficiently in
the presence of tied scores" (expected values).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labelkit.algorithms.matching import as_ids

# Cosines become integers of this resolution; with a relevance bit appended they fit int32.
_RESOLUTION = float(2**29)
_LAST = -(2**30)
# Pairs of query and gallery row per block: 16 MB in float64.
_BLOCK_PAIRS = 1 << 21


def recall_at_k(embeddings: ArrayLike, labels: ArrayLike, ks: Sequence[int]) -> dict[int, float]:
    """Return for each k the share of queries with a sample of their class among the k nearest.

    Args:
        embeddings: (n, d) rows of any length but zero.
        labels: (n,) integers >= 0.
        ks: numbers of neighbors, from 1 to n - 1.

    Returns:
        Recall in [0, 1] by k; NaN if no class has two members.

    Raises:
        ValueError: shapes that do not fit, NaN or infinity, a zero row, or a k out of range.
    """
    from scipy.special import gammaln

    unit, classes = _as_unit(embeddings, labels)
    for k in ks:
        if not 1 <= k < len(unit):
            raise ValueError(f"k must be from 1 to {len(unit) - 1}, the samples other than the query, got {k}")
    sums = dict.fromkeys(ks, 0.0)
    num_queries = 0
    for similar, relevant in _blocks(unit, classes):
        best = np.where(relevant, similar, _LAST).max(axis=1, keepdims=True)
        tied = similar == best
        above = (similar > best).sum(axis=1)
        num_tied, num_hits = tied.sum(axis=1), (tied & relevant).sum(axis=1)
        num_queries += len(similar)
        for k in ks:
            places = k - above
            # The first hit sits in the tie: all its places for others are C(t - m, s) of C(t, s) draws.
            misses = num_tied - num_hits
            inside = (places > 0) & (places <= misses)
            t, m, s = num_tied[inside], misses[inside], places[inside]
            missed = np.exp(gammaln(m + 1) - gammaln(m - s + 1) - gammaln(t + 1) + gammaln(t - s + 1))
            sums[k] += float((places > misses).sum() + (1 - missed).sum())
    return {k: total / num_queries if num_queries else float("nan") for k, total in sums.items()}


def r_precision(embeddings: ArrayLike, labels: ArrayLike) -> float:
    """Return the mean share of a query's class among its R nearest, R = other members of the class.

    Args:
        embeddings: (n, d) rows of any length but zero.
        labels: (n,) integers >= 0.

    Returns:
        In [0, 1]; NaN if no class has two members.

    Raises:
        ValueError: shapes that do not fit, NaN or infinity, or a zero row.
    """
    return _mean_over_places(embeddings, labels, with_precision=False)


def map_at_r(embeddings: ArrayLike, labels: ArrayLike) -> float:
    """Return the mean average precision at R, R = other members of the query's class.

    For one query it is ``1/R`` times the sum, over the hits among the R nearest, of the share
    of hits up to their place.

    Args:
        embeddings: (n, d) rows of any length but zero.
        labels: (n,) integers >= 0.

    Returns:
        In [0, 1], at most the R-precision; NaN if no class has two members.

    Raises:
        ValueError: shapes that do not fit, NaN or infinity, or a zero row.
    """
    return _mean_over_places(embeddings, labels, with_precision=True)


def _as_unit(embeddings: ArrayLike, labels: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    rows, classes = np.asarray(embeddings, dtype=np.float64), as_ids(labels, "labels")
    if rows.ndim != 2 or len(rows) != len(classes):
        raise ValueError(f"embeddings must have shape ({len(classes)}, d), got {rows.shape}")
    bad = int((~np.isfinite(rows).all(axis=1)).sum())
    if bad:
        raise ValueError(f"embeddings have {bad} of {len(rows)} rows with NaN or infinity")
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    zeros = int((lengths == 0).sum())
    if zeros:
        raise ValueError(f"embeddings have {zeros} of {len(rows)} rows of length zero, which have no direction")
    return rows / lengths, classes


def _blocks(
    unit: NDArray[np.float64], classes: NDArray[np.int64]
) -> Iterator[tuple[NDArray[np.int32], NDArray[np.bool_]]]:
    """Yield rounded cosines (b, n), itself smaller than any other, and same-class marks (b, n), itself unmarked."""
    queries = np.flatnonzero(np.bincount(classes)[classes] > 1)
    size = max(1, _BLOCK_PAIRS // len(unit))
    for start in range(0, len(queries), size):
        block = queries[start : start + size]
        own = (np.arange(len(block)), block)
        similar = np.rint((unit[block] @ unit.T) * _RESOLUTION).astype(np.int32)
        similar[own] = _LAST
        relevant = classes[block][:, None] == classes
        relevant[own] = False
        yield similar, relevant


def _mean_over_places(embeddings: ArrayLike, labels: ArrayLike, *, with_precision: bool) -> float:
    """Average over queries the chance of a hit at places 1 to R, times the precision there if asked."""
    unit, classes = _as_unit(embeddings, labels)
    places = np.arange(len(unit))
    total, num_queries = 0.0, 0
    for similar, relevant in _blocks(unit, classes):
        # One integer holds both, and sorting integers is far cheaper than sorting indices.
        keys = np.sort(2 * similar + relevant, axis=1)[:, ::-1]
        values, hits = keys >> 1, keys & 1
        wanted = relevant.sum(axis=1)[:, None]  # R
        last = int(wanted.max())
        opens = np.ones(keys.shape, dtype=bool)
        opens[:, 1:] = values[:, 1:] != values[:, :-1]
        first = np.maximum.accumulate(np.where(opens, places, 0), axis=1)[:, :last]
        after = np.full(keys.shape, len(unit))
        after[:, :-1] = np.where(opens[:, 1:], places[1:], len(unit))
        after = np.minimum.accumulate(after[:, ::-1], axis=1)[:, ::-1][:, :last]
        hits_up_to = np.concatenate([np.zeros((len(keys), 1), dtype=np.int64), np.cumsum(hits, axis=1)], axis=1)
        before = np.take_along_axis(hits_up_to, first, axis=1)
        num_hits, num_tied = np.take_along_axis(hits_up_to, after, axis=1) - before, after - first
        gain = num_hits / num_tied
        if with_precision:
            # Given a hit here, each earlier place of the tie is a hit with chance (m - 1) / (t - 1).
            earlier = (places[:last] - first) * (num_hits - 1) / np.maximum(num_tied - 1, 1)
            gain *= (before + 1 + earlier) / (places[:last] + 1)
        total += float((np.where(places[:last] < wanted, gain, 0) / wanted).sum())
        num_queries += len(keys)
    return total / num_queries if num_queries else float("nan")
