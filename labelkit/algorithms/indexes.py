"""Approximate nearest-neighbor search with faiss indexes, which examine only part of the gallery.

A graph (HNSW) or inverted lists of compressed rows (IVF-PQ) propose a few more candidates than requested; their scores
are recomputed in float64 as in exact search, so that the selection is approximate, but the scores are not.

Sources: Y. Malkov and D. Yashunin, "Efficient and robust approximate nearest neighbor search using
Hierarchical Navigable Small World graphs"; H. Jegou, M. Douze, C. Schmid, "Product quantization for nearest
neighbor search"; faiss for both.
"""

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labelkit.algorithms.neighbors import SPARE, Metric, knn, prepare_queries, prepare_rows, rescore
from labelkit.algorithms.row_blocks import StoredRows
from labelkit.progress import current_progress

Kind = Literal["hnsw", "ivfpq"]

# Rows added at a time: signals are handled only between these steps.
_ROWS_AT_ONCE = 4096
# Links per row of a graph (twice as many at the lowest level), and candidates kept while a row is being linked.
LINKS, _BUILD_WIDTH = 32, 200
WIDTHS: dict[Kind, int] = {"hnsw": 128, "ivfpq": 32}
"""Default search width: number of candidates kept during graph traversal, or number of lists searched."""
# Minimum number of candidates to rescore: scores of compressed rows are rough.
_CANDIDATES: dict[Kind, int] = {"hnsw": 0, "ivfpq": 100}
# Values that one byte of a product quantizer can take; also the minimum number of its training rows.
_PQ_VALUES = 256
_MAX_PQ_BYTES = 64
# Training rows for a product quantizer, and per list centroid: more hardly change either.
_PQ_ROWS, _ROWS_PER_LIST = 256 * _PQ_VALUES, 64
# Maximum number of rows for comparing all pairs, and lists searched per row if there are more.
_COMPARED_ROWS, _NEAR_LISTS = 1 << 16, 16


def build_index(gallery: ArrayLike | StoredRows, kind: Kind, *, metric: Metric = "cosine") -> Any:
    """Build an ANN index of all gallery embeddings, for :class:`ApproximateSearch`.

    Args:
        gallery: (g, d), converted to float32.
        kind: ``hnsw``: a graph of near neighbors; ``ivfpq``: rows compressed to d / 4 bytes, at most 64, in 4 sqrt(g)
            lists by their nearest centroid, trained on a sample. It requires at least 256 rows.
        metric: as for :func:`knn`.

    Returns:
        A faiss index.

    Raises:
        ValueError: as for :class:`ExactSearch`, or too few rows.
    """
    import faiss

    rows: Any = gallery if isinstance(gallery, StoredRows) else np.asarray(gallery)
    num_rows, dim = rows.shape
    made: Any = faiss  # its annotations lack optional arguments
    by = made.METRIC_L2 if metric == "l2" else made.METRIC_INNER_PRODUCT
    if kind == "hnsw":
        index = made.IndexHNSWFlat(dim, LINKS, by)
        index.hnsw.efConstruction = _BUILD_WIDTH
    else:
        if num_rows < _PQ_VALUES:
            raise ValueError(f"IVF-PQ requires at least {_PQ_VALUES} rows for training, got {num_rows}")
        index = made.IndexIVFPQ(made.IndexFlat(dim, by), dim, default_num_lists(num_rows), default_pq_bytes(dim), 8, by)
        index.pq.cp.min_points_per_centroid = 1  # otherwise, faiss prints a warning
        num_sampled = min(num_rows, max(_PQ_ROWS, _ROWS_PER_LIST * default_num_lists(num_rows)))
        sample = np.random.default_rng(0).choice(num_rows, num_sampled, replace=False)
        index.train(prepare_rows(rows[np.sort(sample)], "gallery", metric))
    with current_progress().task(f"building the {kind} index of {num_rows:,} rows", total=num_rows) as task:
        for start in range(0, num_rows, _ROWS_AT_ONCE):
            part = prepare_rows(rows[start : start + _ROWS_AT_ONCE], "gallery", metric)
            index.add(part)
            task.advance(len(part))
    return index


def default_num_lists(num_rows: int) -> int:
    """Return the number of lists in an IVF-PQ index: 4 sqrt(g), but at most one per 39 embeddings."""
    return max(1, min(round(4 * math.sqrt(num_rows)), num_rows // 39))


def default_pq_bytes(dim: int) -> int:
    """Return the number of bytes per embedding in an IVF-PQ index: the largest divisor of d up to d / 4 and 64.

    More bytes make training slow, and change the results little, since candidates are scored again exactly.
    """
    return next(size for size in range(min(max(1, dim // 4), _MAX_PQ_BYTES), 0, -1) if dim % size == 0)


def find_approximate_neighbors(rows: NDArray[np.float32], k: int) -> NDArray[np.int64]:
    """Find the approximate k nearest neighbors of each embedding by cosine similarity, excluding itself.

    Up to 65,536 embeddings are compared with all others. If there are more, each is compared only with those in the 16
    nearest inverted lists, so that time grows with n sqrt(n), and some neighbors are missed.

    Args:
        rows: (n, d) of unit norm.
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
    made: Any = faiss  # its annotations lack optional arguments
    index = made.IndexIVFFlat(made.IndexFlatIP(rows.shape[1]), rows.shape[1], num_lists, made.METRIC_INNER_PRODUCT)
    index.cp.niter = 5  # more iterations do not find more neighbors
    sample = np.random.default_rng(0).choice(len(rows), min(len(rows), _ROWS_PER_LIST * num_lists), replace=False)
    index.train(rows[np.sort(sample)])
    index.add(rows)
    index.nprobe = min(num_lists, _NEAR_LISTS)
    listed = index.search(rows, k + 1)[1]
    few = np.flatnonzero(listed[:, -1] < 0)
    if len(few):
        index.nprobe = num_lists
        listed[few] = index.search(rows[few], k + 1)[1]
    is_self = listed == np.arange(len(rows))[:, None]
    is_self[~is_self.any(axis=1), -1] = True
    return np.asarray(listed[~is_self].reshape(len(rows), k))


def index_format() -> str:
    """Return the name of the index format, which depends on the version of faiss."""
    import faiss

    return f"faiss {faiss.__version__}"


def write_index(index: Any, write: Callable[[Any], None]) -> None:
    """Serialize an index and pass its bytes to ``write``, chunk by chunk."""
    import faiss

    made: Any = faiss  # its annotations lack this class
    faiss.write_index(index, made.PyCallbackIOWriter(write))


def read_index(path: Path) -> Any:
    """Read an ANN index from a file, memory-mapped if faiss supports it.

    Only read files written by this module: faiss's reader is not safe for untrusted data.

    Raises:
        ValueError: faiss cannot read it.
    """
    import faiss

    # faiss before 1.11 cannot map a graph and loads it into memory
    is_mapped = sys.platform in ("linux", "darwin")
    try:
        return faiss.read_index(str(path), getattr(faiss, "IO_FLAG_MMAP_IFC", 0) if is_mapped else 0)
    except (RuntimeError, MemoryError) as error:
        raise ValueError(f"faiss cannot read the index: {error}") from error


class ApproximateSearch:
    """Approximate nearest-neighbor search in a gallery with a faiss index.

    Args:
        index: index of exactly this gallery, from :func:`build_index` or :func:`read_index`.
        gallery: (g, d), converted to float32.
        metric: as for :func:`knn`; must be the metric with which the index was built.
        width: number of candidates kept during graph traversal (default: 128), or of lists searched (default: 32);
            larger is more accurate.

    Raises:
        ValueError: as for :class:`ExactSearch`, or the index has another shape.
    """

    def __init__(
        self, index: Any, gallery: ArrayLike | StoredRows, *, metric: Metric = "cosine", width: int | None = None
    ) -> None:
        import faiss

        self.metric: Metric = metric
        self.rows = prepare_rows(gallery, "gallery", metric)
        if (index.ntotal, index.d) != self.rows.shape:
            raise ValueError(f"the index has shape ({index.ntotal}, {index.d}), but the gallery has {self.rows.shape}")
        self._index = index
        self._kind: Kind = "hnsw" if isinstance(index, faiss.IndexHNSW) else "ivfpq"
        self.width = width or WIDTHS[self._kind]

    def search(self, queries: ArrayLike, k: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return up to k approximate nearest gallery embeddings of each query, nearest first.

        Args:
            queries: (q, d), converted to float32.
            k: from 1 to g.

        Returns:
            scores (q, k) float32 and indices (q, k) int64; if fewer were found, NaN and -1 at the end. The search
            becomes wider for larger k.

        Raises:
            ValueError: shapes do not match, NaN or infinity, a zero row with ``cosine``, or k out of range.
        """
        import faiss

        query_rows = prepare_queries(queries, self.rows, self.metric)
        if not 1 <= k <= len(self.rows):
            raise ValueError(f"k must be from 1 to the number of available rows ({len(self.rows)}), got {k}")
        made: Any = faiss  # its annotations lack the parameter classes
        listed = min(len(self.rows), max(k + SPARE, _CANDIDATES[self._kind]))
        if self._kind == "hnsw":
            parameters = made.SearchParametersHNSW(efSearch=max(self.width, listed))
        else:
            parameters = made.SearchParametersIVF(nprobe=min(self.width, self._index.nlist))
        # faiss.contrib.torch_utils, which other packages import, replaces search with a function without parameters
        search = getattr(self._index, "search_numpy", self._index.search)
        _, candidates = search(query_rows, listed, params=parameters)
        scores, indices = rescore(
            query_rows, self.rows, np.sort(candidates, axis=1), k, self.metric, exclude_self=False
        )
        scores[indices < 0] = np.nan
        return (np.abs(scores) if self.metric == "l2" else scores), indices
