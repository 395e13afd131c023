"""Find near rows of a gallery by an index, which looks at some of them; indexes are built, extended and read here.

A graph (HNSW) or inverted lists of compressed rows (IVF-PQ) name the candidates; their scores are computed again in
float64 as by exact search, so that only which rows are named is approximate, not how they score.

An index may lie in several pieces, each of rows that follow each other: all are searched, and their candidates merged
by score. Lists of all pieces share their centroids and codes. A piece in a file is mapped, not read: pages come into
memory as a search looks at them.

Sources: Y. Malkov and D. Yashunin, "Efficient and robust approximate nearest neighbor search using
Hierarchical Navigable Small World graphs"; H. Jegou, M. Douze, C. Schmid, "Product quantization for nearest
neighbor search"; faiss for both.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labelkit.algorithms.neighbor_inputs import as_queries, as_rows, check_k, known
from labelkit.algorithms.neighbor_scores import (
    FEW_SPARE,
    ROUNDING,
    SPARE,
    Metric,
    longest,
    rescored,
    squared_lengths,
)
from labelkit.algorithms.neighbors import knn
from labelkit.algorithms.row_blocks import StoredRows

# Values that one byte of a product quantizer can take; it is trained on as many rows at least.
_PQ_VALUES = 256
# Rows that train a product quantizer, and a centroid of a list: more hardly change either.
_PQ_ROWS, _ROWS_PER_LIST = 256 * _PQ_VALUES, 64
# Rows that are all compared with each other, and lists that are looked through for one where there are more.
_COMPARED_ROWS, _NEAR_LISTS = 1 << 16, 16


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


@dataclass(frozen=True)
class BuiltIndex:
    """An index in memory.

    Attributes:
        index: as faiss has it.
    """

    index: Any

    def __len__(self) -> int:
        """Return how many rows it has."""
        return int(self.index.ntotal)

    def write(self, take: Callable[[bytes], object]) -> None:
        """Give away the bytes of the index, one piece after the other."""
        import faiss

        made: Any = faiss  # its annotations know no such class

        def taken(data: Any) -> None:
            take(bytes(data))

        faiss.write_index(self.index, made.PyCallbackIOWriter(taken))


Piece = NDArray[np.uint8] | Path | BuiltIndex
"""An index: its bytes as faiss writes them, a file that begins with them, or in memory."""


def build_index(
    gallery: ArrayLike | StoredRows, recipe: HNSWRecipe | IVFPQRecipe, *, metric: Metric = "cosine"
) -> NDArray[np.uint8]:
    """Build an index of all rows for :class:`ApproximateSearch`.

    Args:
        gallery: (g, d), computed from as float32.
        recipe: what to build. IVF-PQ needs 256 rows.
        metric: as for :func:`knn`.

    Returns:
        (b,) uint8, the index as faiss writes it. Never read one that this module did not make: the reader of
        faiss is not safe on foreign bytes.

    Raises:
        ValueError: as for :class:`ExactSearch`, or rows and recipe do not fit.
    """
    rows = as_rows(gallery, "gallery", known(metric))[:]
    empty = _trained(rows, recipe, metric)
    empty.add(rows)
    return _serialized(empty)


def empty_index(
    gallery: ArrayLike | StoredRows, recipe: HNSWRecipe | IVFPQRecipe, *, metric: Metric = "cosine"
) -> NDArray[np.uint8]:
    """Return an index without rows, its centroids and codes trained on a sample of the gallery.

    Pieces of an index all begin with it: :func:`extend_index` adds their rows.

    Args:
        gallery: (g, d), computed from as float32.
        recipe: what to build. IVF-PQ needs 256 rows.
        metric: as for :func:`knn`.

    Raises:
        ValueError: rows and recipe do not fit.
    """
    rows: Any = gallery if isinstance(gallery, StoredRows) else np.asarray(gallery)
    sample: Any = slice(0, 1)
    if isinstance(recipe, IVFPQRecipe):
        recipe = replace(recipe, num_lists=recipe.num_lists or default_num_lists(len(rows)))
        used = num_trained(len(rows), recipe.num_lists or 1)
        sample = np.sort(np.random.default_rng(recipe.seed).choice(len(rows), used, replace=False))
    return _serialized(_trained(_scaled(rows[sample], metric), recipe, metric))


def num_trained(num_rows: int, num_lists: int) -> int:
    """Rows that the centroids and codes of an IVF-PQ index are trained on."""
    return min(num_rows, max(_PQ_ROWS, _ROWS_PER_LIST * num_lists))


def extend_index(
    base: NDArray[np.uint8] | Path, parts: Iterable[NDArray[np.float32]], *, metric: Metric = "cosine"
) -> BuiltIndex:
    """Return an index that has some rows more than another one, which stays as it is.

    Args:
        base: an index that this module made.
        parts: (m, d) rows each, computed from as float32; they come after those of ``base``.
        metric: as the index was built with.

    Raises:
        ValueError: faiss cannot read the index, or rows do not fit it.
    """
    index = _read(base, mapped=False)
    for rows in parts:
        index.add(_scaled(rows, metric))
    return BuiltIndex(index)


def without_rows(piece: NDArray[np.uint8] | Path) -> NDArray[np.uint8]:
    """Return the index without its rows, as :func:`empty_index` made it.

    Raises:
        ValueError: faiss cannot read it.
    """
    index = _read(piece, mapped=False)
    index.reset()
    return _serialized(index)


def _scaled(rows: ArrayLike, metric: Metric) -> NDArray[np.float32]:
    found = as_rows(rows, "gallery", known(metric))
    assert isinstance(found, np.ndarray)
    return found


def _trained(rows: NDArray[np.float32], recipe: HNSWRecipe | IVFPQRecipe, metric: Metric) -> Any:
    """An index of faiss without rows, trained on all of these; they are scaled already."""
    import faiss

    num_rows, dim = rows.shape
    kind = faiss.METRIC_L2 if metric == "l2" else faiss.METRIC_INNER_PRODUCT
    if isinstance(recipe, HNSWRecipe):
        graph = faiss.IndexHNSWFlat(dim, recipe.num_links, kind)
        graph.hnsw.efConstruction = recipe.build_width
        return graph
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
    return lists


def default_num_lists(num_rows: int) -> int:
    """Lists of an IVF-PQ index by default: 4 sqrt(g), but at most one per 39 rows."""
    return max(1, min(round(4 * math.sqrt(num_rows)), num_rows // 39))


def default_pq_bytes(dim: int) -> int:
    """Bytes per row of an IVF-PQ index by default: the largest divisor of d that is at most d / 4."""
    return next(size for size in range(max(1, dim // 4), 0, -1) if dim % size == 0)


def near_rows(rows: NDArray[np.float32], k: int) -> NDArray[np.int64]:
    """Name k near other rows of each row, by their cosine.

    Up to 65,536 rows are compared with all others. Of more, a row is compared with those in the 16 inverted lists
    nearest to it, so that time grows with n sqrt(n), and some of the nearest are missed.

    Args:
        rows: (n, d) of length 1.
        k: from 1 to n - 1.

    Returns:
        (n, k) int64, nearest first, never the row itself.

    Raises:
        ValueError: as for :func:`labelkit.algorithms.neighbors.knn`.
    """
    if len(rows) <= _COMPARED_ROWS:
        return knn(rows, rows, k, exclude_self=True)[1]
    import faiss

    num_lists = default_num_lists(len(rows))
    made: Any = faiss  # its annotations know no optional arguments
    index = made.IndexIVFFlat(made.IndexFlatIP(rows.shape[1]), rows.shape[1], num_lists, made.METRIC_INNER_PRODUCT)
    index.cp.niter = 5  # more find no more rows
    sample = np.random.default_rng(0).choice(len(rows), min(len(rows), _ROWS_PER_LIST * num_lists), replace=False)
    index.train(rows[np.sort(sample)])
    index.add(rows)
    index.nprobe = min(num_lists, _NEAR_LISTS)
    listed = index.search(rows, k + 1)[1]
    is_self = listed == np.arange(len(rows))[:, None]
    is_self[~is_self.any(axis=1), -1] = True
    near: NDArray[np.int64] = listed[~is_self].reshape(len(rows), k)
    few = np.flatnonzero(near[:, -1] < 0)
    if len(few):
        found = knn(rows[few], rows, k + 1)[1]
        for place, row in enumerate(few.tolist()):
            near[row] = found[place][found[place] != row][:k]
    return near


def index_format() -> str:
    """Name of what :func:`build_index` writes; another version may write something else."""
    import faiss

    return f"faiss {faiss.__version__}"


def num_threads() -> int:
    """Threads that faiss works with."""
    import faiss

    return int(faiss.omp_get_max_threads())


def use_threads(number: int) -> None:
    """Let faiss work with so many threads where this thread calls it; others keep theirs."""
    import faiss

    faiss.omp_set_num_threads(number)


class ApproximateSearch:
    """A gallery and its index.

    Args:
        index: of exactly these rows, by this module in this version of faiss; pieces of it in the order of their rows.
        gallery: (g, d), computed from as float32.
        metric: as for :func:`knn`, and as the index was built with.
        width: HNSW: candidates kept on the walk. IVF-PQ: lists looked through. The larger, the more exact.
        num_rescored: IVF-PQ: candidates that are scored exactly.

    Raises:
        ValueError: as for :class:`ExactSearch`; the index is of other rows or of another kind.
    """

    def __init__(
        self,
        index: Piece | Sequence[Piece],
        gallery: ArrayLike | StoredRows,
        *,
        metric: Metric = "cosine",
        width: int,
        num_rescored: int = 100,
    ) -> None:
        import faiss

        self.metric: Metric = known(metric)
        self.rows = as_rows(gallery, "gallery", metric)
        pieces = [index] if isinstance(index, Path | np.ndarray | BuiltIndex) else list(index)
        # faiss holds the addresses of pieces alone
        self._pieces: list[Any] = [_read(piece, mapped=True) for piece in pieces]
        num_rows, dims = sum(piece.ntotal for piece in self._pieces), {piece.d for piece in self._pieces}
        if num_rows != len(self.rows) or dims != {self.rows.shape[1]}:
            raise ValueError(f"the index has {num_rows} rows, the gallery has {self.rows.shape}")
        if any(isinstance(piece, faiss.IndexIVF) and not _lists_each_row_once(piece) for piece in self._pieces):
            raise ValueError("the lists of the index do not hold each row of the gallery once")
        self._is_graph = isinstance(self._pieces[0], faiss.IndexHNSW)
        if any(isinstance(piece, faiss.IndexHNSW) != self._is_graph for piece in self._pieces):
            raise ValueError("pieces of the index are of several kinds")
        self._index = self._pieces[0] if len(pieces) == 1 else _side_by_side(self._pieces)
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

    def widen(self, width: int) -> None:
        """Search with another width from now on."""
        self._width = width

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
        asked = as_queries(queries, self.rows, self.metric)
        check_k(k, len(self.rows))
        if not len(asked):
            return np.empty((0, k), dtype=np.float32), np.empty((0, k), dtype=np.int64)
        if self._is_graph:
            num_candidates = min(len(self.rows), k + SPARE)
            width = max(self._width, num_candidates)
        else:
            num_candidates = min(len(self.rows), max(k + SPARE, self._num_rescored))
            width = min(self._width, self._pieces[0].nlist)
        knows_scores = self._is_graph or self._refined is not None
        listed = min(num_candidates, k + FEW_SPARE) if knows_scores else num_candidates
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
            return scores, indices, last <= behind + ROUNDING
        lengths = np.sqrt(squared_lengths(asked))
        if self.metric == "dot":
            return scores, indices, last <= behind + ROUNDING * lengths * self._reach
        squares = last.astype(np.float64) ** 2
        return scores, indices, squares >= behind - ROUNDING * (lengths + self._reach) ** 2

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


def _side_by_side(pieces: Sequence[Any]) -> Any:
    """One index of pieces, whose rows are numbered one piece after the other; pieces are searched at the same time."""
    import faiss

    made: Any = faiss  # its annotations know one argument
    shards = made.IndexShards(pieces[0].d, faiss.omp_get_max_threads() > 1, True)
    for piece in pieces:
        shards.add_shard(piece)
    return shards


def _serialized(index: Any) -> NDArray[np.uint8]:
    import faiss

    return np.asarray(faiss.serialize_index(index), dtype=np.uint8)


def _read(piece: Piece, *, mapped: bool) -> Any:
    """Read an index by faiss.

    Args:
        piece: where it is.
        mapped: leave the rows of a file there; such an index cannot be extended.

    Raises:
        ValueError: faiss cannot read it.
    """
    import faiss

    if isinstance(piece, BuiltIndex):
        return piece.index
    try:
        if not isinstance(piece, Path):
            return faiss.deserialize_index(piece)
        if not mapped or sys.platform not in ("linux", "darwin"):
            return faiss.read_index(str(piece))
        # versions of faiss before 1.11 cannot map a graph, and read it
        return faiss.read_index(str(piece), getattr(faiss, "IO_FLAG_MMAP_IFC", 0))
    except (RuntimeError, MemoryError) as error:  # a changed size may ask for more than there is
        raise ValueError(f"faiss cannot read the index: {error}") from error


def _lists_each_row_once(index: Any) -> bool:
    """Look into the lists of an IVF index: the numbers in them are used as they are when rows are fetched."""
    import faiss

    lists = index.invlists
    seen = np.zeros(index.ntotal, dtype=np.bool_)
    total = 0
    for i in range(index.nlist):
        size = lists.list_size(i)
        if size:  # an empty list has no numbers to point to
            ids = faiss.rev_swig_ptr(lists.get_ids(i), size)
            if ids.min() < 0 or ids.max() >= len(seen):
                return False
            seen[ids] = True
            total += size
    return total == len(seen) and bool(seen.all())
