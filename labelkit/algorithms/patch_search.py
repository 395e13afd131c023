"""Nearest rows of a gallery that comes block by block, exactly, in the memory of one block."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from labelkit.algorithms.neighbor_scores import Metric
from labelkit.algorithms.neighbors import ExactSearch


class BlockSearch:
    """The k nearest rows of one query among all rows seen so far.

    Args:
        query: (d,), computed from as float32.
        k: rows to keep.
        metric: ``cosine`` (rows without length are never found) and ``dot``: the larger, the nearer; ``l2``: the
            smaller, the nearer.

    Raises:
        ValueError: a query that is not finite, or without length where directions are compared.
    """

    def __init__(self, query: NDArray[np.floating], k: int, *, metric: Metric = "cosine") -> None:
        self._query = np.ascontiguousarray(query, dtype=np.float32)[None]
        if not np.isfinite(self._query).all() or (metric == "cosine" and not self._query.any()):
            raise ValueError("the query is not finite, or has no direction")
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}")
        self._k, self._metric = k, metric
        self._scores = np.empty(0, dtype=np.float32)
        self._numbers = np.empty(0, dtype=np.int64)

    def add(self, rows: NDArray[np.floating], numbers: NDArray[np.int64]) -> None:
        """Look at more rows.

        Args:
            rows: (m, d) floats of any precision.
            numbers: (m,) what they are called.
        """
        held = np.asarray(rows, dtype=np.float32)
        if self._metric == "cosine":
            there = held.any(axis=1)
            if not there.all():
                held, numbers = held[there], numbers[there]
        if not len(held):
            return
        search = ExactSearch(held, metric=self._metric)
        scores, indices = search.search(self._query, min(self._k, len(held)))
        self._scores = np.concatenate([self._scores, scores[0]])
        self._numbers = np.concatenate([self._numbers, numbers[indices[0]]])
        key = self._scores if self._metric == "l2" else -self._scores
        order = np.lexsort((self._numbers, key))[: self._k]
        self._scores, self._numbers = self._scores[order], self._numbers[order]

    @property
    def found(self) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Scores and numbers of the nearest rows, nearest first, of equal scores the smaller number; at most k."""
        return self._scores, self._numbers
