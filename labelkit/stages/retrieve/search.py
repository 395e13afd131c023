"""Search the rows of a store, exactly or by an index that is built once and kept in the user's cache.

An index is never read from beside a store: the reader of faiss is not safe on foreign bytes. In the cache a file is
``NAME-<kind>-<digest of everything it depends on>.index``: one line of JSON, then the index as faiss writes it.
The line says what the index is of and the SHA-256 of the rest; a file that does not agree is built again.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from labelkit.algorithms.neighbor_scores import Metric
from labelkit.algorithms.neighbors import (
    ApproximateSearch,
    ExactSearch,
    HNSWRecipe,
    IVFPQRecipe,
    build_index,
    default_num_lists,
    default_pq_bytes,
    index_format,
)
from labelkit.algorithms.row_blocks import StoredRows
from labelkit.config.paths import cache_folder
from labelkit.config.retrieve import RetrieveConfig
from labelkit.data.keyed_random import keyed_generator
from labelkit.errors import ConfigError, LabelkitError
from labelkit.percent import percent
from labelkit.reading import parse_json, read_record
from labelkit.stages.progress import current_progress
from labelkit.store.commit import canonical_json, commit_bytes, commit_json
from labelkit.store.embeddings import EmbeddingStore
from labelkit.store.opening import open_regular

Kind = Literal["hnsw", "ivfpq"]

_MAX_HEADER = 1 << 16
_MEASURED: dict[str, type] = {"recall": float, "k": int, "rows": int, "exact_ms": float, "index_ms": float}
_SAMPLE_ROWS, _SAMPLE_K, _TIMED_ROWS = 200, 10, 20
_WANTED_RECALL = 0.95
# If fewer rows than this pass a filter, looking at each of them is as quick as any index, and exact.
_FEW_ROWS = 20_000
# Rows fetched beyond k where some will be left out.
_EXTRA = 50


class Search(Protocol):
    """Finds rows of a gallery."""

    def search(self, queries: NDArray[np.float32], k: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return scores and indices (q, k), nearest first; -1 where fewer are found."""
        ...


@dataclass(frozen=True)
class Measured:
    """How an index compares with exact search, on rows of the store as queries.

    Attributes:
        recall: share of the exact ``k`` nearest other rows that are found.
        k: neighbors per row.
        rows: rows that were looked up.
        exact_ms, index_ms: milliseconds of one query alone, median.
    """

    recall: float
    k: int
    rows: int
    exact_ms: float
    index_ms: float


@dataclass(frozen=True)
class FoundIndex:
    """An index that is ready.

    Attributes:
        search: looks rows up.
        path: file in the cache; ``None`` if it could not be kept.
        built: whether it was built just now.
        size_bytes: of the index.
        recipe: how it is built and searched.
        measured: how good it is.
    """

    search: ApproximateSearch
    path: Path | None
    built: bool
    size_bytes: int
    recipe: dict[str, object]
    measured: Measured

    def to_json(self, kind: str) -> dict[str, object]:
        """Return what a program may want to know."""
        return {
            "kind": kind,
            "path": self.path,
            "built": self.built,
            "bytes": self.size_bytes,
            "recipe": self.recipe,
            "measured": asdict(self.measured),
        }


def few_rows(num_rows: int) -> bool:
    """Whether so few rows are left by a filter that no index is needed."""
    return num_rows <= _FEW_ROWS


def indexed_search(store: EmbeddingStore, gallery: StoredRows, metric: Metric, config: RetrieveConfig) -> FoundIndex:
    """Find the index of a store in the cache, or build it and keep it there.

    Args:
        store: whose rows they are.
        gallery: (g, d) rows that can be found; they follow from the store alone.
        metric: of the store.
        config: kind and settings.

    Raises:
        ConfigError: the settings do not fit these rows.
    """
    assert config.search != "exact"
    kind: Kind = config.search
    recipe = _recipe(gallery, config)
    width = config.search_width or (128 if kind == "hnsw" else 32)
    identity: dict[str, Any] = {
        "format": "labelkit.index",
        "format_version": "1.0",
        "written_by": index_format(),
        "store_digest": store.content_digest,
        "kind": kind,
        "metric": metric,
        "rows": len(gallery),
        "dim": gallery.shape[1],
        "recipe": asdict(recipe),
    }
    digest = hashlib.sha256(canonical_json(identity).encode()).hexdigest()
    path = cache_folder() / "indexes" / f"{store.path.stem}-{kind}-{digest[:32]}.index"
    progress = current_progress()

    def ready(index: NDArray[np.uint8]) -> ApproximateSearch:
        return ApproximateSearch(index, gallery, metric=metric, width=width, num_rescored=config.rescore)

    found = _load(path, identity, ready)
    kept: Path | None = path
    built = found is None
    if found is None:
        seconds = time.monotonic()
        with progress.task(f"building the {kind} index of {len(gallery)} rows", total=1) as task:
            try:
                index = build_index(gallery, recipe, metric=metric)
            except ValueError as error:
                remedy = "Use --search exact, or other settings of the index."
                raise ConfigError(f"--search {kind}", f"{store.path}: {error}", remedy) from error
            task.advance(1)
        progress.message(f"built the {kind} index in {time.monotonic() - seconds:.1f} s")
        found = ready(index), len(index)
        if not _keep(path, identity, index):
            kept = None
    search, size = found
    settings = {"width": width, "rescore": config.rescore, "identity": digest}
    measured = _measured(path, settings, search, gallery, metric)
    if measured.recall < _WANTED_RECALL:
        progress.warning(
            f"the {kind} index finds {percent(measured.recall)} % of the {measured.k} nearest rows; "
            "raise --search-width" + (" or --rescore" if kind == "ivfpq" else "") + ", or use --search exact"
        )
    return FoundIndex(
        search, kept, built, size, {**asdict(recipe), "width": width, "rescore": config.rescore}, measured
    )


def find(
    search: Search,
    queries: NDArray[np.float32],
    k: int,
    num_rows: int,
    is_wanted: Callable[[int, NDArray[np.int64], NDArray[np.float32]], NDArray[np.bool_]] | None,
) -> list[tuple[NDArray[np.int64], NDArray[np.float32]]]:
    """Return up to k wanted rows of each query: their indices and scores, nearest first.

    More and more rows are fetched until k of them are wanted or no more can be found.

    Args:
        search: of a gallery.
        queries: (q, d).
        k: rows per query.
        num_rows: rows of the gallery.
        is_wanted: query, indices and scores to (m,) marks; ``None``: all are.
    """
    found: dict[int, tuple[NDArray[np.int64], NDArray[np.float32]]] = {}
    fetch = min(num_rows, k if is_wanted is None else k + _EXTRA)
    missing = list(range(len(queries)))
    while missing:
        scores, indices = search.search(queries[missing], fetch)
        still: list[int] = []
        for i, query in enumerate(missing):
            there = indices[i] >= 0
            rows, near = indices[i][there], scores[i][there]
            if is_wanted is not None:
                wanted = is_wanted(query, rows, near)
                rows, near = rows[wanted], near[wanted]
            if len(rows) < k and fetch < num_rows:
                still.append(query)
            found[query] = rows[:k], near[:k]
        missing, fetch = still, min(num_rows, 2 * fetch)
    return [found[query] for query in range(len(queries))]


def _recipe(gallery: StoredRows, config: RetrieveConfig) -> HNSWRecipe | IVFPQRecipe:
    if config.search == "hnsw":
        return HNSWRecipe(num_links=config.hnsw_links, build_width=config.hnsw_build_width)
    num_rows, dim = gallery.shape
    return IVFPQRecipe(
        num_lists=config.ivf_lists or default_num_lists(num_rows), num_bytes=config.pq_bytes or default_pq_bytes(dim)
    )


def _load(
    path: Path, identity: dict[str, Any], ready: Callable[[NDArray[np.uint8]], ApproximateSearch]
) -> tuple[ApproximateSearch, int] | None:
    """Read an index from the cache; ``None``, said if it was there, if it cannot be used."""
    if not path.exists():
        return None
    try:
        with open_regular(path) as file:
            # Another user's file may hold anything, with a digest to match.
            if hasattr(os, "getuid") and os.fstat(file.fileno()).st_uid != os.getuid():
                raise ValueError("it belongs to another user")
            content = file.read()
        line, end, index = content[:_MAX_HEADER].partition(b"\n")
        header = parse_json(line) if end else None
        if not isinstance(header, dict):
            raise ValueError("it has no header")
        payload = memoryview(content)[len(line) + 1 :]
        if hashlib.sha256(payload).hexdigest() != header.pop("sha256", None):
            raise ValueError("its bytes are not those that were written")
        if header != identity:
            raise ValueError("it is of other rows or settings")
        del index
        return ready(np.frombuffer(payload, dtype=np.uint8)), len(payload)
    except (LabelkitError, OSError, ValueError) as error:
        reason = error.problem if isinstance(error, LabelkitError) else str(error)
        current_progress().warning(f"{path} is damaged ({reason}); the index is built again")
        return None


def _keep(path: Path, identity: dict[str, Any], index: NDArray[np.uint8]) -> bool:
    """Write an index to the cache, whole or not at all."""
    payload = index.tobytes()

    def pieces() -> Iterator[bytes]:
        yield canonical_json({**identity, "sha256": hashlib.sha256(payload).hexdigest()}).encode() + b"\n"
        yield payload

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        commit_bytes(path, pieces())
    except (OSError, LabelkitError) as error:
        current_progress().warning(f"the index could not be kept and will be built again next time: {error}")
        return False
    return True


def _measured(
    path: Path, settings: dict[str, object], search: ApproximateSearch, gallery: StoredRows, metric: Metric
) -> Measured:
    """Compare with exact search, or read what was found when that was done; it is kept beside the index."""
    digest = hashlib.sha256(canonical_json(settings).encode()).hexdigest()
    record = path.with_name(f"{path.stem}-{digest[:16]}.json")
    try:
        values = read_record(record.parent, record.name, _MEASURED)
    except ValueError as error:
        values = None
        current_progress().warning(f"{error}; the recall is measured again")
    if values is not None:
        return Measured(**{key: values[key] for key in _MEASURED})
    found = measure(search, gallery, metric)
    try:
        commit_json(record, asdict(found))
    except (OSError, LabelkitError) as error:
        current_progress().message(f"could not note the recall of the index: {error}")
    return found


def measure(search: ApproximateSearch, gallery: NDArray[np.float32] | StoredRows, metric: Metric) -> Measured:
    """Compare with exact search on rows of the gallery drawn by chance, each without itself."""
    n = len(gallery)
    k = min(_SAMPLE_K, n - 1)
    rows = np.sort(keyed_generator(0, "index recall").permutation(n)[:_SAMPLE_ROWS])
    if k < 1:
        return Measured(1.0, 0, len(rows), 0.0, 0.0)
    exact = ExactSearch(gallery, metric=metric)
    sample = gallery[rows]
    best, _ = _others(exact, sample, rows, k)
    near, _ = _others(search, sample, rows, k)
    # Equally near rows are as good as those that exact search happens to list.
    last = best[:, -1:]
    hits = near <= last if metric == "l2" else near >= last
    times = [_milliseconds(one, sample[:_TIMED_ROWS], k) for one in (exact, search)]
    return Measured(round(float(hits.mean()), 4), k, len(rows), round(times[0], 4), round(times[1], 4))


def _others(
    search: Search, sample: NDArray[np.float32], rows: NDArray[np.int64], k: int
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """The k nearest rows of each row but itself; NaN and -1 where fewer are found."""
    scores, indices = search.search(sample, k + 1)
    itself = indices == rows[:, None]
    # Where it was not found itself, the last one is too many.
    itself[~itself.any(axis=1), -1] = True
    return scores[~itself].reshape(len(rows), k), indices[~itself].reshape(len(rows), k)


def _milliseconds(search: Search, sample: NDArray[np.float32], k: int) -> float:
    times = []
    for query in sample:
        begin = time.perf_counter()
        search.search(query[None], k)
        times.append(time.perf_counter() - begin)
    return 1000 * float(np.median(times))
