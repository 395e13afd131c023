"""Find the k nearest rows of a gallery, exactly; ``labelkit.algorithms.indexes`` finds them nearly so.

A flat search by faiss names a few more candidates than asked for; their scores are computed again
in float64 row by row, so that equal rows have equal scores and ties can go to the smaller index.
Queries for which rounding may hide a neighbor among the rows left out are searched again in full.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labelkit.algorithms.device_products import DeviceProducts
from labelkit.algorithms.neighbor_inputs import as_queries, as_rows, check_k, known
from labelkit.algorithms.neighbor_scores import ROUNDING, SPARE, Metric, longest, rescored, search_all, squared_lengths
from labelkit.algorithms.row_blocks import StoredRows, column_sums, parts_of


def knn(
    queries: ArrayLike,
    gallery: ArrayLike | StoredRows,
    k: int,
    *,
    metric: Metric = "cosine",
    exclude_self: bool = False,
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return the k nearest gallery rows of each query, nearest first.

    Args:
        queries: (q, d), computed from as float32.
        gallery: (g, d), computed from as float32.
        k: neighbors per query; at most g, or g - 1 with ``exclude_self``.
        metric: ``cosine`` (rows of any length but zero) and ``dot``: the larger, the nearer;
            ``l2``: Euclidean distance, the smaller, the nearer.
        exclude_self: queries are the gallery, and row i is no neighbor of query i.

    Returns:
        scores (q, k) float32 and indices (q, k) int64 of gallery rows. Of equal scores the
        smaller index comes first.

    Raises:
        ValueError: shapes that do not fit, NaN or infinity, a zero row with ``cosine``, k out of
            range, or an unknown metric.
    """
    return ExactSearch(gallery, metric=metric).search(queries, k, exclude_self=exclude_self)


class ExactSearch:
    """A gallery ready to be searched again and again, exactly.

    Args:
        gallery: (g, d), computed from as float32.
        metric: as for :func:`knn`.
        device: of torch, where candidates are found, such as ``cuda``; ``None``: by faiss on the processor. Scores and
            ties are those of float64 on the processor either way.

    Raises:
        ValueError: not (g, d), NaN or infinity, a zero row with ``cosine``, or an unknown metric.
    """

    def __init__(
        self, gallery: ArrayLike | StoredRows, *, metric: Metric = "cosine", device: str | None = None
    ) -> None:
        self._products = None if device is None else DeviceProducts(device)
        self.metric: Metric = known(metric)
        self.rows = as_rows(gallery, "gallery", metric)
        self._offset: NDArray[np.float32] | None = None
        self._shifted = self.rows
        if metric == "l2":
            # Distances do not feel a shift, their products do: a common offset would cost digits.
            self._offset = (column_sums(self.rows) / max(1, len(self.rows))).astype(np.float32)
            if isinstance(self.rows, StoredRows):
                self._shifted = self.rows.less(self._offset)
            else:
                self._shifted = self.rows - self._offset
        self._reach = longest(self._shifted)

    def search(
        self, queries: ArrayLike, k: int, *, exclude_self: bool = False
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return the k nearest rows of each query; see :func:`knn`."""
        asked = as_queries(queries, self.rows, self.metric)
        if exclude_self and len(asked) != len(self.rows):
            raise ValueError(f"exclude_self needs queries = gallery, got {len(asked)} and {len(self.rows)} rows")
        available = len(self.rows) - int(exclude_self)
        check_k(k, available)
        if not len(asked):
            return np.empty((0, k), dtype=np.float32), np.empty((0, k), dtype=np.int64)
        num_candidates = min(len(self.rows), k + int(exclude_self) + SPARE)
        last_rough, slack, candidates = self._shortlist(asked, num_candidates)
        candidates = np.sort(candidates, axis=1)
        scores, indices = rescored(asked, self.rows, candidates, k, self.metric, exclude_self=exclude_self)
        if num_candidates < len(self.rows):
            last = scores[:, -1].astype(np.float64)
            if self.metric == "l2":
                last = -(last**2)
            for query in np.flatnonzero(last <= last_rough + slack).tolist():
                excluded = query if exclude_self else -1
                scores[query], indices[query] = search_all(asked[query], self.rows, k, self.metric, excluded)
        return (np.abs(scores) if self.metric == "l2" else scores), indices

    def _shortlist(
        self, asked: NDArray[np.float32], num_candidates: int
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
        """Name the nearest m rows as far as float32 products tell.

        Returns:
            (q,) rough inner product, or minus the squared distance, of the farthest row named;
            (q,) bound on the rounding of that number; (q, m) int64 rows.
        """
        import faiss

        if self._offset is not None:
            asked = asked - self._offset
        kind = faiss.METRIC_L2 if self.metric == "l2" else faiss.METRIC_INNER_PRODUCT
        if self._products is not None:
            by_distance = self.metric == "l2"
            rough, indices = self._products.nearest(
                asked, parts_of(self._shifted), num_candidates, by_distance=by_distance
            )
        elif isinstance(self._shifted, StoredRows):
            rough, indices = _knn_in_blocks(
                asked, self._shifted, num_candidates, kind, nearest_first=self.metric == "l2"
            )
        else:
            rough, indices = faiss.knn(asked, self._shifted, num_candidates, metric=kind)
        last = rough[:, -1].astype(np.float64)
        lengths = np.sqrt(squared_lengths(asked))
        if self.metric == "l2":
            return -last, ROUNDING * (lengths + self._reach) ** 2, indices.astype(np.int64, copy=False)
        return last, ROUNDING * lengths * self._reach, indices.astype(np.int64, copy=False)


def _knn_in_blocks(
    asked: NDArray[np.float32], held: StoredRows, k: int, kind: int, *, nearest_first: bool
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """As ``faiss.knn``, over one block of rows after the other; ``nearest_first``: small numbers are near."""
    import faiss

    best = np.empty((len(asked), 0), dtype=np.float32), np.empty((len(asked), 0), dtype=np.int64)
    for where, part in parts_of(held):
        rough, indices = faiss.knn(asked, part, min(k, len(part)), metric=kind)
        values = np.concatenate([best[0], rough], axis=1)
        places = np.concatenate([best[1], indices + where.start], axis=1)
        order = np.argsort(values if nearest_first else -values, axis=1, kind="stable")[:, :k]
        best = np.take_along_axis(values, order, axis=1), np.take_along_axis(places, order, axis=1)
    return best
