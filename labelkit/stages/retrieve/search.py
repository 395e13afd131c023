"""Search the rows of a store, exactly or by an index that is built once and kept in the user's cache."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from labelkit.algorithms.indexes import (
    ApproximateSearch,
    HNSWRecipe,
    IVFPQRecipe,
    default_pq_bytes,
)
from labelkit.algorithms.neighbor_scores import Metric
from labelkit.algorithms.neighbors import ExactSearch
from labelkit.algorithms.row_blocks import StoredRows
from labelkit.config.retrieve import RetrieveConfig
from labelkit.data.keyed_random import keyed_generator
from labelkit.errors import ConfigError, LabelkitError
from labelkit.percent import percent
from labelkit.reading import read_record
from labelkit.stages.memory import has_room
from labelkit.stages.progress import current_progress
from labelkit.stages.retrieve.kept_index import Found, IndexPlan, KeptIndex, Kind, discard, kept_index, look_up
from labelkit.store.commit import canonical_json, commit_json
from labelkit.store.embeddings import EmbeddingStore

_MEASURED: dict[str, type] = {"recall": float, "k": int, "rows": int, "exact_ms": float, "index_ms": float}
_SAMPLE_ROWS, _SAMPLE_K, _TIMED_ROWS = 200, 10, 20
_WANTED_RECALL = 0.95
# Graphs of fewer rows are built faster, lists of fewer rows are not.
_BLOCK_ROWS = {"hnsw": 1_000_000, "ivfpq": 10_000_000}
# With ``auto``, a search becomes so many times as wide at most, where it finds fewer.
_WIDEST = 16
# If fewer rows than this pass a filter, looking at each of them is as quick as any index, and exact.
_FEW_ROWS = 20_000
# Numbers of queries that a row is compared with in the time that it takes to add it to an index: 0.2 to 0.5 ms for a
# graph, and a fraction of it for compressed rows, against some 0.2 ns for each number.
_NUMBERS_PER_ADDED_ROW = 1_000_000
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
        kind: of index.
        search: looks rows up.
        kept: where it is.
        num_rows: that it has.
        recipe: how it is built and searched.
        measured: how good it is.
    """

    kind: Kind
    search: ApproximateSearch
    kept: KeptIndex
    num_rows: int
    recipe: dict[str, object]
    measured: Measured

    @property
    def origin(self) -> str:
        """Where it came from, in words."""
        if not self.kept.built_rows:
            return "from the cache"
        if self.kept.built_rows == self.num_rows:
            return "built now"
        return f"extended by {self.kept.built_rows:,} rows"

    def to_json(self) -> dict[str, object]:
        """Return what a program may want to know."""
        return {
            "kind": self.kind,
            "path": self.kept.path,
            "files": len(self.kept.pieces),
            "built": self.kept.built_rows == self.num_rows,
            "added_rows": self.kept.built_rows,
            "bytes": self.kept.size_bytes,
            "recipe": self.recipe,
            "measured": asdict(self.measured),
        }


def few_rows(num_rows: int) -> bool:
    """Whether so few rows are left by a filter that no index is needed."""
    return num_rows <= _FEW_ROWS


@dataclass(frozen=True)
class PlannedIndex:
    """An index that is wanted.

    Attributes:
        plan: of it.
        found: what the cache has of it.
    """

    plan: IndexPlan
    found: Found


def planned_index(gallery: StoredRows, metric: Metric, config: RetrieveConfig, num_queries: int) -> PlannedIndex | None:
    """Return the index to be used; with ``auto`` the first kind that fits, said with the reason, or ``None``: none.

    Args:
        gallery: (g, d) rows that can be found.
        metric: of them.
        config: asked for, not ``exact``.
        num_queries: that will be looked up now.
    """
    num_rows, dim = gallery.shape
    told = f"{num_rows:,} rows of {dim} numbers"
    is_auto = config.search == "auto"
    progress = current_progress()
    if is_auto and few_rows(num_rows):
        progress.message(f"--search auto: exact, since {told} are soon compared")
        return None
    kinds: tuple[Kind, ...] = ("hnsw", "ivfpq")
    needed: list[str] = []
    for kind in kinds:
        if config.search not in ("auto", kind):
            continue
        recipe, block_rows = _recipe(kind, dim, config), config.index_block_rows or _BLOCK_ROWS[kind]
        # each file that is built takes memory of its own
        plan = IndexPlan(kind, metric, recipe, block_rows, at_once=num_rows if config.max_memory is None else 1)
        found = look_up(gallery, plan)
        planned = PlannedIndex(plan, found)
        num_bytes = index_bytes(recipe, num_rows, dim)
        size = f"{num_bytes / 2**20:,.0f} MiB"
        if not is_auto:
            if few_rows(num_rows) and found.missing:
                progress.message(f"--search {kind}: {told} are soon compared exactly too; --search auto chooses")
            return planned
        if has_room(config, num_bytes):
            if found.missing * _NUMBERS_PER_ADDED_ROW > num_queries * num_rows * dim:
                asked = "1 query" if num_queries == 1 else f"{num_queries:,} queries"
                progress.message(
                    f"--search auto: exact, since {asked} among {told} take less time than adding "
                    f"{found.missing:,} rows to an index; --search {kind} makes one for later"
                )
                return None
            within = "" if config.max_memory is None else f" within --max-memory {config.max_memory}"
            reasons = "; ".join([*needed, f"{kind} takes {size}"])
            progress.message(f"--search auto: {kind} for {told}{within} ({reasons})")
            return planned
        needed.append(f"{kind} would take {size}")
    progress.message(f"--search auto: exact for {told} within --max-memory {config.max_memory} ({'; '.join(needed)})")
    return None


def index_bytes(recipe: HNSWRecipe | IVFPQRecipe, num_rows: int, dim: int) -> int:
    """What the finished index of so many rows takes."""
    per_row = (
        4 * dim + 10 * recipe.num_links
        if isinstance(recipe, HNSWRecipe)
        else (recipe.num_bytes or default_pq_bytes(dim)) + 8
    )
    return per_row * num_rows


def indexed_search(
    store: EmbeddingStore, gallery: StoredRows, planned: PlannedIndex, config: RetrieveConfig
) -> FoundIndex:
    """Extend or build an index where that is needed, keep it in the cache, and measure it.

    Args:
        store: whose rows they are.
        gallery: (g, d) rows that can be found, in the order of the index.
        planned: the index.
        config: how it is searched.

    Raises:
        ConfigError: the settings do not fit these rows.
    """
    plan, progress = planned.plan, current_progress()
    kind, metric = plan.kind, plan.metric
    width = config.search_width or (128 if kind == "hnsw" else 32)
    try:
        kept = kept_index(store.path, gallery, plan, planned.found.blocks)
        try:
            search = _ready(kept, gallery, metric, width, config)
        except ValueError as error:
            if kept.path is None:
                raise
            progress.warning(f"{kept.path} is damaged ({error}); the index is built again")
            for piece in kept.pieces:
                if isinstance(piece, Path):
                    discard(piece)
            kept = kept_index(store.path, gallery, plan, look_up(gallery, plan, reorder=False).blocks)
            search = _ready(kept, gallery, metric, width, config)
    except ValueError as error:
        remedy = "Use --search exact, or other settings of the index."
        raise ConfigError(f"--search {kind}", f"{store.path}: {error}", remedy) from error
    widest = width if config.search != "auto" or config.search_width else _WIDEST * width
    while True:
        settings = {"width": width, "rescore": config.rescore, "pieces": list(kept.names)}
        measured = _measured(kept.path, settings, search, gallery, metric)
        if measured.recall >= _WANTED_RECALL or width >= widest:
            break
        width *= 2
        search.widen(width)
    found = f"finds {percent(measured.recall)} % of the {measured.k} nearest rows"
    if measured.recall < _WANTED_RECALL:
        progress.warning(
            f"the {kind} index {found}; "
            "raise --search-width" + (" or --rescore" if kind == "ivfpq" else "") + ", or use --search exact"
        )
    elif config.search == "auto":
        progress.message(
            f"the {kind} index {found} with --search-width {width}, in {measured.index_ms:.2f} ms a query; "
            f"exact search takes {measured.exact_ms:.2f} ms"
        )
    told = {**asdict(plan.recipe), "block_rows": plan.block_rows, "width": width, "rescore": config.rescore}
    return FoundIndex(kind, search, kept, len(gallery), told, measured)


def _ready(
    kept: KeptIndex, gallery: StoredRows, metric: Metric, width: int, config: RetrieveConfig
) -> ApproximateSearch:
    return ApproximateSearch(kept.pieces, gallery, metric=metric, width=width, num_rescored=config.rescore)


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


def _recipe(kind: Kind, dim: int, config: RetrieveConfig) -> HNSWRecipe | IVFPQRecipe:
    if kind == "hnsw":
        return HNSWRecipe(num_links=config.hnsw_links, build_width=config.hnsw_build_width)
    return IVFPQRecipe(num_lists=config.ivf_lists, num_bytes=config.pq_bytes or default_pq_bytes(dim))


def _measured(
    path: Path | None, settings: dict[str, object], search: ApproximateSearch, gallery: StoredRows, metric: Metric
) -> Measured:
    """Compare with exact search, or read what was found when that was done; it is kept beside the index."""
    if path is None:
        return measure(search, gallery, metric)
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
