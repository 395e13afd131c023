"""Score how well same-class samples are nearest neighbors: recall@k, R-precision, MAP@R.

Queries are ranked against a gallery by cosine, all against all without a sample itself unless a gallery is given;
queries whose class has no (other) member there are left out. Where similarities tie, a metric is its expected value
over random orders of the tied samples (``retrieval_ties``), so that a model that maps all images to one point scores
what chance gives. How the ranking is exact and quick is said in ``retrieval_blocks``.

Source: K. Musgrave et al., "A Metric Learning Reality Check" (R-precision, MAP@R).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labelkit.algorithms.one_thread import one_blas_thread
from labelkit.algorithms.shared_rows import ALONE, Processes, part_of
from labelkit.metrics.retrieval_blocks import BlockScores, Ranking
from labelkit.metrics.retrieval_ties import chance_of_a_match

DEFAULT_MAX_BYTES = 1 << 30


@dataclass(frozen=True)
class RetrievalScores:
    """How well every query found its class; queries without a match in the gallery are left out.

    Attributes:
        ks: numbers of neighbors, as asked for.
        query_rows: (q,) int64, ascending positions of the scored queries.
        labels: (q,) int64, their classes.
        recall: (q, len(ks)) float64 in [0, 1], (chance of) a match among the k nearest.
        r_precision: (q,) float64 in [0, 1], share of matches among the R nearest; R is ``num_matches``. ``None`` if
            not asked for.
        average_precision: (q,) float64 in [0, r_precision], average precision at R; ``None`` likewise.
        num_matches: (q,) int64, members of the class in the gallery other than the query.
        tied: (q,) bool, whether the nearest match is as near as a sample of another class.
        num_lone: queries left out because the gallery has no match for them.
        block_rows: queries ranked at a time.
    """

    ks: tuple[int, ...]
    query_rows: NDArray[np.int64]
    labels: NDArray[np.int64]
    recall: NDArray[np.float64]
    r_precision: NDArray[np.float64] | None
    average_precision: NDArray[np.float64] | None
    num_matches: NDArray[np.int64]
    tied: NDArray[np.bool_]
    num_lone: int
    block_rows: int

    @property
    def recall_at(self) -> dict[int, float]:
        """Mean recall by k; NaN without queries."""
        return {k: _mean(self.recall[:, i]) for i, k in enumerate(self.ks)}

    @property
    def mean_r_precision(self) -> float:
        """R-precision over the queries; NaN without queries or if not asked for."""
        return _mean(self.r_precision)

    @property
    def map_at_r(self) -> float:
        """MAP@R over the queries; NaN without queries or if not asked for."""
        return _mean(self.average_precision)


def score_retrieval(
    queries: ArrayLike,
    labels: ArrayLike,
    *,
    gallery: ArrayLike | None = None,
    gallery_labels: ArrayLike | None = None,
    own_rows: ArrayLike | None = None,
    ks: Sequence[int] = (1,),
    at_r: bool = True,
    max_bytes: int = DEFAULT_MAX_BYTES,
    num_threads: int = 1,
    on_block: Callable[[int], object] | None = None,
    processes: Processes = ALONE,
) -> RetrievalScores:
    """Rank a gallery for every query and score the ranking.

    Args:
        queries: (q, d) rows of any length but zero.
        labels: (q,) integers >= 0.
        gallery: (g, d), likewise; by default the queries, each without itself.
        gallery_labels: (g,) integers >= 0; needed with a gallery.
        own_rows: (q,) int64, the row of the gallery that is the query itself and is left out, -1 for none; by
            default none if there is a gallery.
        ks: numbers of neighbors, each from 1 to the rows of the gallery, less one if some query is among them.
        at_r: also compute R-precision and MAP@R, which costs some time more.
        max_bytes: bound on the memory used beside the arguments; see ``least_bytes``. Not part of it: some
            megabytes of the scores themselves.
        num_threads: blocks worked on at a time; with more than one, each matrix product takes one thread.
        on_block: is told the number of queries done, block by block.
        processes: that share the queries; each calls this with the same arguments and gets the scores of all.

    Raises:
        ValueError: shapes that do not fit, NaN or infinity, a zero row, a k out of range, or a bound too small.
    """
    ranking = Ranking.make(queries, labels, gallery, gallery_labels, own_rows, tuple(ks), at_r)
    size = ranking.block_rows(max_bytes, num_threads)
    scores = _empty_scores(ranking, size)
    own = part_of(ranking.num_scored, processes)
    blocks = [slice(start, min(start + size, own.stop)) for start in range(own.start, own.stop, size)]
    if num_threads == 1:
        found: Iterator[BlockScores] = map(ranking.score, blocks)
        _collect(scores, blocks, found, on_block)
    else:
        with one_blas_thread, ThreadPoolExecutor(num_threads) as pool:
            _collect(scores, blocks, pool.map(ranking.score, blocks), on_block)
    return _in_given_order(_joined(scores, own, processes))


def _joined(scores: RetrievalScores, own: slice, processes: Processes) -> RetrievalScores:
    """Scores of all processes, of which this one filled in its own."""

    def whole(values: NDArray[Any]) -> NDArray[Any]:
        return processes.join(values[own])

    return replace(
        scores,
        recall=whole(scores.recall),
        tied=whole(scores.tied),
        r_precision=None if scores.r_precision is None else whole(scores.r_precision),
        average_precision=None if scores.average_precision is None else whole(scores.average_precision),
    )


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
    return score_retrieval(embeddings, labels, ks=ks, at_r=False).recall_at


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
    return score_retrieval(embeddings, labels, ks=()).mean_r_precision


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
    return score_retrieval(embeddings, labels, ks=()).map_at_r


def _mean(values: NDArray[np.float64] | None) -> float:
    return float(values.mean()) if values is not None and len(values) else float("nan")


def _empty_scores(ranking: Ranking, block_rows: int) -> RetrievalScores:
    """Return scores to be filled, in the order of ``ranking.places``."""
    n = len(ranking.places)
    return RetrievalScores(
        ks=ranking.ks,
        query_rows=ranking.asked.order[ranking.places],
        labels=ranking.asked.labels[ranking.places],
        recall=np.empty((n, len(ranking.ks))),
        r_precision=np.empty(n) if ranking.at_r else None,
        average_precision=np.empty(n) if ranking.at_r else None,
        num_matches=ranking.wanted,
        tied=np.empty(n, dtype=np.bool_),
        num_lone=ranking.num_lone,
        block_rows=block_rows,
    )


def _in_given_order(scores: RetrievalScores) -> RetrievalScores:
    """Return scores by ascending position of the query."""
    order = np.argsort(scores.query_rows)
    return replace(
        scores,
        query_rows=scores.query_rows[order],
        labels=scores.labels[order],
        recall=scores.recall[order],
        r_precision=None if scores.r_precision is None else scores.r_precision[order],
        average_precision=None if scores.average_precision is None else scores.average_precision[order],
        num_matches=scores.num_matches[order],
        tied=scores.tied[order],
    )


def _collect(
    scores: RetrievalScores,
    blocks: Sequence[slice],
    found: Iterator[BlockScores],
    on_block: Callable[[int], object] | None,
) -> None:
    """Write the scores of blocks, in their order, to where they belong."""
    for block, one in zip(blocks, found, strict=True):
        for i, k in enumerate(scores.ks):
            scores.recall[block, i] = chance_of_a_match(k, one.above, one.tied_strangers, one.tied_matches)
        scores.tied[block] = one.tied_strangers > 0
        if scores.r_precision is not None and scores.average_precision is not None:
            scores.r_precision[block] = one.r_precision
            scores.average_precision[block] = one.average_precision
        if on_block is not None:
            on_block(block.stop - block.start)
