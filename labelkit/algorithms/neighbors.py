"""Exact k-nearest-neighbor search; for approximate search, see ``labelkit.algorithms.indexes``.

A flat faiss search proposes a few more candidates than requested; their scores are recomputed in
float64 row by row, so that equal rows have equal scores and ties go to the smaller index.
Queries for which rounding may have excluded a neighbor are compared with all rows.
A GPU can propose the candidates instead of faiss, one block of rows at a time.
"""

from typing import Literal, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labelkit.algorithms.row_blocks import (
    StoredRows,
    column_sums,
    row_slices,
    squared_norms,
    to_unit_length,
    validate_rows,
)

Metric = Literal["cosine", "l2", "dot"]
GalleryRows = NDArray[np.float32] | StoredRows

SPARE = 16
"""Candidates beyond k, which show that the k-th score is clearly better than those of all other rows."""
# The rounding error of a float32 product of d terms is below this fraction of |q| |g|, for any practical d.
_ROUNDING = 1e-5
# Numbers per temporary block: 32 MB in float64.
_BLOCK_NUMBERS = 1 << 22
# Queries that a GPU compares with a block of rows at a time.
_QUERIES_AT_ONCE = 4096


def knn(
    queries: ArrayLike,
    gallery: ArrayLike | StoredRows,
    k: int,
    *,
    metric: Metric = "cosine",
    exclude_self: bool = False,
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Find each query's k nearest gallery rows by exact search, nearest first.

    Args:
        queries: (q, d), converted to float32.
        gallery: (g, d), converted to float32.
        k: neighbors per query; at most g, or g - 1 with ``exclude_self``.
        metric: ``cosine`` (nonzero rows of any norm) and ``dot``: larger is nearer; ``l2``: Euclidean
            distance, smaller is nearer.
        exclude_self: the queries are the gallery, and row i is not a neighbor of query i.

    Returns:
        scores (q, k) float32 and indices (q, k) int64 of gallery rows. For equal scores, the
        smaller index comes first.

    Raises:
        ValueError: shapes do not match, NaN or infinity, a zero row with ``cosine``, k out of
            range, or an unknown metric.
    """
    return ExactSearch(gallery, metric=metric).search(queries, k, exclude_self=exclude_self)


class ExactSearch:
    """Exact nearest-neighbor search in a gallery, for repeated queries.

    Args:
        gallery: (g, d), converted to float32.
        metric: as for :func:`knn`.
        device: torch device for finding candidates, such as ``cuda``; ``None``: faiss on the CPU. In both cases, final
            scores and ties are determined in float64 on the CPU.

    Raises:
        ValueError: not (g, d), NaN or infinity, a zero row with ``cosine``, or an unknown metric.
    """

    def __init__(
        self, gallery: ArrayLike | StoredRows, *, metric: Metric = "cosine", device: str | None = None
    ) -> None:
        self._device = device
        self.metric: Metric = metric
        self.rows = prepare_rows(gallery, "gallery", metric)
        self._offset: NDArray[np.float32] | None = None
        self._shifted = self.rows
        if metric == "l2":
            # Distances do not change with a shift, but products do: a common offset would reduce precision.
            self._offset = (column_sums(self.rows) / max(1, len(self.rows))).astype(np.float32)
            if isinstance(self.rows, StoredRows):
                self._shifted = self.rows.centered_at(self._offset)
            else:
                self._shifted = self.rows - self._offset
        self._reach = float(np.sqrt(squared_norms(self._shifted).max(initial=0)))

    def search(
        self, queries: ArrayLike, k: int, *, exclude_self: bool = False
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Find each query's k nearest gallery rows by exact search; see :func:`knn`."""
        query_rows = prepare_queries(queries, self.rows, self.metric)
        if exclude_self and len(query_rows) != len(self.rows):
            raise ValueError(
                f"exclude_self requires queries == gallery, got {len(query_rows)} and {len(self.rows)} rows"
            )
        available = len(self.rows) - int(exclude_self)
        if not 1 <= k <= available:
            raise ValueError(f"k must be from 1 to the number of available rows ({available}), got {k}")
        if not len(query_rows):
            return np.empty((0, k), dtype=np.float32), np.empty((0, k), dtype=np.int64)
        num_candidates = min(len(self.rows), k + int(exclude_self) + SPARE)
        last_rough, slack, candidates = self._shortlist(query_rows, num_candidates)
        candidates = np.sort(candidates, axis=1)
        scores, indices = rescore(query_rows, self.rows, candidates, k, self.metric, exclude_self=exclude_self)
        if num_candidates < len(self.rows):
            last = scores[:, -1].astype(np.float64)
            if self.metric == "l2":
                last = -(last**2)
            for query in np.flatnonzero(last <= last_rough + slack).tolist():
                excluded = query if exclude_self else -1
                scores[query], indices[query] = _search_all(query_rows[query], self.rows, k, self.metric, excluded)
        return (np.abs(scores) if self.metric == "l2" else scores), indices

    def _shortlist(
        self, query_rows: NDArray[np.float32], num_candidates: int
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
        """Return the m nearest rows according to float32 products.

        Returns:
            (q,) approximate inner product, or negative squared distance, of the farthest row returned;
            (q,) bound on its rounding error; (q, m) int64 rows.
        """
        if self._offset is not None:
            query_rows = query_rows - self._offset
        wheres = row_slices(*self._shifted.shape)
        if isinstance(self._shifted, np.ndarray) and self._device is None:
            wheres = [slice(0, len(self._shifted))]
        rough = np.empty((len(query_rows), 0), dtype=np.float32)
        places = np.empty((len(query_rows), 0), dtype=np.int64)
        for where in wheres:
            part = self._shifted[where]
            count = min(num_candidates, len(part))
            near, found = _search_in_float32(query_rows, part, count, self.metric, self._device)
            rough, places = np.hstack([rough, near]), np.hstack([places, found + where.start])
            order = np.argsort(-rough, axis=1, kind="stable")[:, :num_candidates]
            rough, places = np.take_along_axis(rough, order, axis=1), np.take_along_axis(places, order, axis=1)
        lengths = np.sqrt(squared_norms(query_rows))
        scale = (lengths + self._reach) ** 2 if self.metric == "l2" else lengths * self._reach
        return rough[:, -1].astype(np.float64), _ROUNDING * scale, places


def _search_in_float32(
    query_rows: NDArray[np.float32], rows: NDArray[np.float32], k: int, metric: Metric, device: str | None
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return (q, k) products or negative squared distances in float32, nearest first, and their rows."""
    if device is None:
        import faiss

        kind = faiss.METRIC_L2 if metric == "l2" else faiss.METRIC_INNER_PRODUCT
        near, places = faiss.knn(query_rows, rows, k, metric=kind)
        return (-near if metric == "l2" else near), places.astype(np.int64, copy=False)
    import torch

    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")  # the rounding errors of TF32 exceed the slack
    try:
        gallery = torch.from_numpy(rows).to(device)
        squares = gallery.square().sum(1)
        found = []
        for start in range(0, len(query_rows), _QUERIES_AT_ONCE):
            queries = torch.from_numpy(query_rows[start : start + _QUERIES_AT_ONCE]).to(device)
            scores = queries @ gallery.T
            if metric == "l2":
                scores = 2 * scores - squares - queries.square().sum(1, keepdim=True)
            found.append(scores.topk(k, dim=1))
    finally:
        torch.set_float32_matmul_precision(precision)
    return torch.cat([one[0] for one in found]).cpu().numpy(), torch.cat([one[1] for one in found]).cpu().numpy()


def prepare_queries(queries: ArrayLike, gallery_rows: GalleryRows, metric: Metric) -> NDArray[np.float32]:
    """Check queries (q, d) against the gallery and normalize them for ``cosine``.

    Raises:
        ValueError: shapes do not match, NaN or infinity, or a zero row with ``cosine``.
    """
    query_rows = prepare_rows(queries, "queries", metric)[:]
    if query_rows.shape[1] != gallery_rows.shape[1]:
        raise ValueError(f"queries have {query_rows.shape[1]} columns, but the gallery has {gallery_rows.shape[1]}")
    return query_rows


def prepare_rows(x: ArrayLike | StoredRows, name: str, metric: Metric) -> GalleryRows:
    """Check an array (n, d), and normalize its rows for ``cosine``, lazily if they are read in blocks.

    Args:
        x: (n, d).
        name: name of the array, for messages.
        metric: metric by which rows will be compared.

    Raises:
        ValueError: an unknown metric; not (n, d), NaN or infinity, or a zero row with ``cosine``.
    """
    if metric not in ("cosine", "l2", "dot"):
        raise ValueError(f"metric must be 'cosine', 'l2' or 'dot', got {metric!r}")
    rows = validate_rows(x if isinstance(x, StoredRows) else np.asarray(x, dtype=np.float32), name)
    if metric == "cosine":
        rows = to_unit_length(rows, name, in_place=isinstance(x, StoredRows))  # a copy of our own
    return cast(GalleryRows, rows)


def rescore(
    query_rows: NDArray[np.float32],
    gallery_rows: GalleryRows,
    candidates: NDArray[np.int64],
    k: int,
    metric: Metric,
    *,
    exclude_self: bool,
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Compute exact similarities of the candidates; return the k largest (q, k) and their indices (q, k).

    Args:
        query_rows: (q, d).
        gallery_rows: (g, d).
        candidates: (q, m) rows of the gallery, ascending, -1 for none; m >= k.
        k: number of rows to return.
        metric: metric by which rows are compared.
        exclude_self: row i is not a neighbor of query i.
    """
    scores, indices = np.empty((len(query_rows), k), dtype=np.float32), np.empty((len(query_rows), k), dtype=np.int64)
    rows_per_block = max(1, _BLOCK_NUMBERS // (candidates.shape[1] * gallery_rows.shape[1]))
    for start in range(0, len(query_rows), rows_per_block):
        here = slice(start, start + rows_per_block)
        listed = candidates[here]
        exact = _exact_scores(query_rows[here, None], gallery_rows[np.maximum(listed, 0)], metric)
        exact[listed < 0] = -np.inf
        if exclude_self:
            exact[listed == np.arange(start, start + len(exact))[:, None]] = -np.inf
        order = (-exact).argsort(axis=1, kind="stable")[:, :k]
        scores[here] = np.take_along_axis(exact, order, axis=1)
        indices[here] = np.take_along_axis(listed, order, axis=1)
    return scores, indices


def _exact_scores(query: NDArray[np.float32], rows: NDArray[np.float32], metric: Metric) -> NDArray[np.float32]:
    """Return the negative distance or the inner product along the last axis, rounded from float64."""
    if metric == "l2":
        difference = rows.astype(np.float64) - query
        exact = -np.sqrt(np.einsum("...j,...j->...", difference, difference))
    else:
        exact = np.einsum("...j,...j->...", rows, query, dtype=np.float64)
    return np.asarray(exact, dtype=np.float32)


def _search_all(
    query: NDArray[np.float32], gallery_rows: GalleryRows, k: int, metric: Metric, excluded: int
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return the k best scores and indices among all gallery rows except the excluded one (-1: none)."""
    size = max(1, _BLOCK_NUMBERS // gallery_rows.shape[1])
    exact = np.concatenate(
        [_exact_scores(query, gallery_rows[i : i + size], metric) for i in range(0, len(gallery_rows), size)]
    )
    if excluded >= 0:
        exact[excluded] = -np.inf
    order = np.argsort(-exact, kind="stable")[:k]
    return exact[order], order.astype(np.int64)
