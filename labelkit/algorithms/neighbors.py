"""Find the k nearest rows of a gallery, exactly or nearly so; the one import of faiss.

Exactly: a flat search by faiss names a few more candidates than asked for; their scores are computed again
in float64 row by row, so that equal rows have equal scores and ties can go to the smaller index.
Queries for which rounding may hide a neighbor among the rows left out are searched again in full.

Nearly: a graph (HNSW) or inverted lists of compressed rows (IVF-PQ) name the candidates; their scores are
computed again in the same way, so that only which rows are named is approximate, not how they score.

Sources: Y. Malkov and D. Yashunin, "Efficient and robust approximate nearest neighbor search using
Hierarchical Navigable Small World graphs"; H. Jegou, M. Douze, C. Schmid, "Product quantization for nearest
neighbor search"; faiss for both.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labelkit.algorithms.neighbor_scores import Held, Metric, longest, rescored, search_all, squared_lengths
from labelkit.algorithms.row_blocks import BLOCK_NUMBERS, StoredRows, blocks, column_sums, parts_of

# Candidates beyond k: they show that the k-th score is apart from what was left out.
_SPARE = 16
# Likewise where float32 scores of single rows name the candidates and show which queries need all of them.
_FEW_SPARE = 2
# Rounding of a float32 product of d terms stays below this share of |q| |g|, for any d met here.
_ROUNDING = 1e-5
# Values that one byte of a product quantizer can take; it is trained on as many rows at least.
_PQ_VALUES = 256


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

    Raises:
        ValueError: not (g, d), NaN or infinity, a zero row with ``cosine``, or an unknown metric.
    """

    def __init__(self, gallery: ArrayLike | StoredRows, *, metric: Metric = "cosine") -> None:
        self.metric: Metric = _known(metric)
        self.rows = _as_rows(gallery, "gallery", metric)
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
        asked = _as_queries(queries, self.rows, self.metric)
        if exclude_self and len(asked) != len(self.rows):
            raise ValueError(f"exclude_self needs queries = gallery, got {len(asked)} and {len(self.rows)} rows")
        available = len(self.rows) - int(exclude_self)
        _check_k(k, available)
        if not len(asked):
            return np.empty((0, k), dtype=np.float32), np.empty((0, k), dtype=np.int64)
        num_candidates = min(len(self.rows), k + int(exclude_self) + _SPARE)
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
        if isinstance(self._shifted, StoredRows):
            rough, indices = _knn_in_blocks(
                asked, self._shifted, num_candidates, kind, nearest_first=self.metric == "l2"
            )
        else:
            rough, indices = faiss.knn(asked, self._shifted, num_candidates, metric=kind)
        last = rough[:, -1].astype(np.float64)
        lengths = np.sqrt(squared_lengths(asked))
        if self.metric == "l2":
            return -last, _ROUNDING * (lengths + self._reach) ** 2, indices.astype(np.int64, copy=False)
        return last, _ROUNDING * lengths * self._reach, indices.astype(np.int64, copy=False)


@dataclass(frozen=True)
class HNSWRecipe:
    """A graph of near neighbors that is walked from far to near.

    Attributes:
        num_links: links per row; twice as many at the lowest level.
        build_width: candidates kept while a row is linked.
    """

    num_links: int = 32
    build_width: int = 200


@dataclass(frozen=True)
class IVFPQRecipe:
    """Rows compressed to some bytes, in lists by their nearest centroid; only some lists are looked through.

    Attributes:
        num_lists: centroids; ``None``: 4 sqrt(g), but at most one per 39 rows.
        num_bytes: bytes per row; ``None``: the largest divisor of d that is at most d / 4.
        seed: of the training of centroids and codes.
    """

    num_lists: int | None = None
    num_bytes: int | None = None
    seed: int = 0


def build_index(
    gallery: ArrayLike | StoredRows, recipe: HNSWRecipe | IVFPQRecipe, *, metric: Metric = "cosine"
) -> NDArray[np.uint8]:
    """Build an index for :class:`ApproximateSearch`.

    Args:
        gallery: (g, d), computed from as float32.
        recipe: what to build. IVF-PQ needs 256 rows.
        metric: as for :func:`knn`.

    Returns:
        (b,) uint8, the index as faiss writes it. Never read one that this function did not make: the reader of
        faiss is not safe on foreign bytes.

    Raises:
        ValueError: as for :class:`ExactSearch`, or rows and recipe do not fit.
    """
    import faiss

    rows = _as_rows(gallery, "gallery", _known(metric))[:]
    num_rows, dim = rows.shape
    kind = faiss.METRIC_L2 if metric == "l2" else faiss.METRIC_INNER_PRODUCT
    if isinstance(recipe, HNSWRecipe):
        graph = faiss.IndexHNSWFlat(dim, recipe.num_links, kind)
        graph.hnsw.efConstruction = recipe.build_width
        graph.add(rows)
        return _serialized(graph)
    if num_rows < _PQ_VALUES:
        raise ValueError(f"IVF-PQ needs {_PQ_VALUES} rows to be trained on, got {num_rows}")
    num_bytes = recipe.num_bytes or default_pq_bytes(dim)
    if dim % num_bytes:
        raise ValueError(f"num_bytes must divide the {dim} columns, got {num_bytes}")
    num_lists = recipe.num_lists or default_num_lists(num_rows)
    if num_lists > num_rows:
        raise ValueError(f"num_lists must be at most the {num_rows} rows, got {num_lists}")
    centroids = faiss.IndexFlatL2(dim) if metric == "l2" else faiss.IndexFlatIP(dim)
    lists = faiss.IndexIVFPQ(centroids, dim, num_lists, num_bytes, 8, kind)
    for parameters in (lists.cp, lists.pq.cp):
        parameters.seed = recipe.seed + 1  # faiss takes 0 for "draw one"
        parameters.min_points_per_centroid = 1
    lists.train(rows)
    lists.add(rows)
    return _serialized(lists)


def default_num_lists(num_rows: int) -> int:
    """Lists of an IVF-PQ index by default: 4 sqrt(g), but at most one per 39 rows."""
    return max(1, min(round(4 * math.sqrt(num_rows)), num_rows // 39))


def default_pq_bytes(dim: int) -> int:
    """Bytes per row of an IVF-PQ index by default: the largest divisor of d that is at most d / 4."""
    return next(size for size in range(max(1, dim // 4), 0, -1) if dim % size == 0)


def index_format() -> str:
    """Name of what :func:`build_index` writes; another version may write something else."""
    import faiss

    return f"faiss {faiss.__version__}"


class ApproximateSearch:
    """A gallery and its index.

    Args:
        index: of exactly these rows, by :func:`build_index` in this version of faiss.
        gallery: (g, d), computed from as float32.
        metric: as for :func:`knn`, and as the index was built with.
        width: HNSW: candidates kept on the walk. IVF-PQ: lists looked through. The larger, the more exact.
        num_rescored: IVF-PQ: candidates that are scored exactly.

    Raises:
        ValueError: as for :class:`ExactSearch`; the index is of other rows or of another kind.
    """

    def __init__(
        self,
        index: NDArray[np.uint8],
        gallery: ArrayLike | StoredRows,
        *,
        metric: Metric = "cosine",
        width: int,
        num_rescored: int = 100,
    ) -> None:
        import faiss

        self.metric: Metric = _known(metric)
        self.rows = _as_rows(gallery, "gallery", metric)
        try:
            self._index: Any = faiss.deserialize_index(index)
        except (RuntimeError, MemoryError) as error:  # a changed size may ask for more than there is
            raise ValueError(f"faiss cannot read the index: {error}") from error
        if (self._index.ntotal, self._index.d) != self.rows.shape:
            raise ValueError(f"the index has {self._index.ntotal} rows, the gallery has {self.rows.shape}")
        if isinstance(self._index, faiss.IndexIVF) and not _lists_each_row_once(self._index):
            raise ValueError("the lists of the index do not hold each row of the gallery once")
        self._is_graph = isinstance(self._index, faiss.IndexHNSW)
        self._refined: Any = None
        if not self._is_graph and not isinstance(self.rows, StoredRows):
            # one copy of the rows, which faiss and we read
            flat = faiss.IndexFlat(self._index.d, self._index.metric_type)
            flat.add(self.rows)
            self.rows = faiss.rev_swig_ptr(flat.get_xb(), self.rows.size).reshape(self.rows.shape)
            self._refined = faiss.IndexRefine(self._index, flat)
        self._reach = longest(self.rows)
        self._width = width
        self._num_rescored = num_rescored
        self._parameters: tuple[tuple[int, int, int], Any] = ((0, 0, 0), None)

    def search(self, queries: ArrayLike, k: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return up to k near rows of each query, nearest first.

        Args:
            queries: (q, d), computed from as float32.
            k: from 1 to g.

        Returns:
            scores (q, k) float32 and indices (q, k) int64; where fewer were found, NaN and -1 at the end. The more
            rows are asked for, the wider the search.

        Raises:
            ValueError: shapes that do not fit, NaN or infinity, a zero row with ``cosine``, or k out of range.
        """
        asked = _as_queries(queries, self.rows, self.metric)
        _check_k(k, len(self.rows))
        if not len(asked):
            return np.empty((0, k), dtype=np.float32), np.empty((0, k), dtype=np.int64)
        if self._is_graph:
            num_candidates = min(len(self.rows), k + _SPARE)
            width = max(self._width, num_candidates)
        else:
            num_candidates = min(len(self.rows), max(k + _SPARE, self._num_rescored))
            width = min(self._width, self._index.nlist)
        knows_scores = self._is_graph or self._refined is not None
        listed = min(num_candidates, k + _FEW_SPARE) if knows_scores else num_candidates
        scores, indices, is_open = self._nearest(asked, k, listed, num_candidates, width)
        if listed < num_candidates and is_open.any():
            again = np.flatnonzero(is_open)
            scores[again], indices[again], _ = self._nearest(asked[again], k, num_candidates, num_candidates, width)
        if indices[:, -1].min() < 0:
            scores[indices < 0] = np.nan
        return (np.abs(scores) if self.metric == "l2" else scores), indices

    def _nearest(
        self, asked: NDArray[np.float32], k: int, listed: int, num_candidates: int, width: int
    ) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.bool_]]:
        """Score again what the index lists first.

        Returns:
            (q, k) nearness and (q, k) rows; (q,) whether rounding may hide one of them behind what is listed.
        """
        index = self._index if self._refined is None else self._refined
        # faiss.contrib.torch_utils, which others load, puts a search in its place that takes no parameters
        search = getattr(index, "search_numpy", index.search)
        rough, candidates = search(asked, listed, params=self._told(listed, num_candidates, width))
        scores, indices = rescored(asked, self.rows, np.sort(candidates, axis=1), k, self.metric, exclude_self=False)
        last, behind = scores[:, -1], rough[:, -1]
        if self.metric == "cosine":
            return scores, indices, last <= behind + _ROUNDING
        lengths = np.sqrt(squared_lengths(asked))
        if self.metric == "dot":
            return scores, indices, last <= behind + _ROUNDING * lengths * self._reach
        squares = last.astype(np.float64) ** 2
        return scores, indices, squares >= behind - _ROUNDING * (lengths + self._reach) ** 2

    def _told(self, listed: int, num_candidates: int, width: int) -> Any:
        """Return what tells faiss how wide to search; to make it takes a tenth as long as a search by a graph."""
        import faiss

        key = listed, num_candidates, width
        if self._parameters[0] != key:
            made: Any = faiss  # its annotations know no class of parameters
            if self._is_graph:
                told = made.SearchParametersHNSW(efSearch=width)
            else:
                told = made.SearchParametersIVF(nprobe=width)
            if self._refined is not None:
                # faiss cuts the product to a whole number
                share = (num_candidates + 0.5) / listed
                told = made.IndexRefineSearchParameters(k_factor=share, base_index_params=told)
            self._parameters = key, told
        return self._parameters[1]


def _serialized(index: Any) -> NDArray[np.uint8]:
    import faiss

    return np.asarray(faiss.serialize_index(index), dtype=np.uint8)


def _lists_each_row_once(index: Any) -> bool:
    """Look into the lists of an IVF index: the numbers in them are used as they are when rows are fetched."""
    import faiss

    lists = index.invlists
    found = [
        faiss.rev_swig_ptr(lists.get_ids(i), lists.list_size(i))
        for i in range(index.nlist)
        if lists.list_size(i)  # an empty list has no numbers to point to
    ]
    ids = np.sort(np.concatenate(found)) if found else np.empty(0, dtype=np.int64)
    return np.array_equal(ids, np.arange(index.ntotal))


def _known(metric: Metric) -> Metric:
    if metric not in ("cosine", "l2", "dot"):
        raise ValueError(f"metric must be 'cosine', 'l2' or 'dot', got {metric!r}")
    return metric


def _check_k(k: int, available: int) -> None:
    if not 1 <= k <= available:
        raise ValueError(f"k must be from 1 to {available}, the rows to choose from, got {k}")


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


def _as_queries(queries: ArrayLike, held: Held, metric: Metric) -> NDArray[np.float32]:
    asked = _as_rows(queries, "queries", metric)[:]
    if asked.shape[1] != held.shape[1]:
        raise ValueError(f"queries have {asked.shape[1]} columns, the gallery has {held.shape[1]}")
    return asked


def _as_rows(x: ArrayLike | StoredRows, name: str, metric: Metric) -> Held:
    rows: Held
    if isinstance(x, StoredRows):
        rows = x if x.in_blocks else x.to_array()
    else:
        array = np.asarray(x)
        if array.ndim != 2 or array.shape[1] == 0:
            raise ValueError(f"{name} must have shape (n, d) with d >= 1, got {array.shape}")
        rows = np.ascontiguousarray(array, dtype=np.float32)
    if isinstance(rows, np.ndarray) and metric == "cosine" and 0 < rows.size <= BLOCK_NUMBERS:
        # a query of its own: most of the time would be that of steps, not of numbers
        squares = squared_lengths(rows)
        lowest, highest = (squares.item(),) * 2 if len(rows) == 1 else (squares.min(), squares.max())
        if lowest > 0 and highest < np.inf:
            return (rows / np.sqrt(squares)[:, None]).astype(np.float32)
    bad, squares = 0, np.empty(len(rows))
    for where, part in parts_of(rows):
        # of a sum of squares, whose numbers are few
        squares[where] = squared_lengths(part)
        if not np.isfinite(squares[where]).all():
            bad += int((~np.isfinite(part).all(axis=1)).sum())
    if bad:
        raise ValueError(f"{name} has {bad} of {len(rows)} rows with NaN or infinity")
    if metric == "cosine":
        return _unit(rows, squares, name, in_place=isinstance(x, StoredRows))
    if len(rows) and squares.max() > np.finfo(np.float32).max / 16:
        raise ValueError(f"{name} has rows as long as {np.sqrt(squares.max()):.1e}, whose products overflow float32")
    return rows


def _unit(rows: Held, squares: NDArray[np.float64], name: str, *, in_place: bool) -> Held:
    zeros = int((squares == 0).sum())
    if zeros:
        raise ValueError(f"{name} has {zeros} of {len(rows)} rows of length zero, which have no direction")
    lengths = np.sqrt(squares)
    if isinstance(rows, StoredRows):
        return rows.divided(lengths)
    unit = rows if in_place else np.empty_like(rows)
    for where in blocks(*rows.shape):
        np.divide(rows[where], lengths[where, None], out=unit[where], casting="same_kind")
    return unit
