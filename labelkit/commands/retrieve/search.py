"""Search the rows of a store that pass the filters, exactly or with an ANN index that is built once and cached."""

import fnmatch
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelkit.algorithms.indexes import WIDTHS, ApproximateSearch, Kind, build_index, read_index
from labelkit.algorithms.neighbors import ExactSearch, Metric
from labelkit.algorithms.row_blocks import StoredRows
from labelkit.commands.common.apply import apply_to_rows
from labelkit.commands.common.embeddings import find_split_rows
from labelkit.commands.retrieve.options import RetrieveConfig
from labelkit.commands.retrieve.stored_index import CachedIndex, IndexQuality, cache_index, delete_index
from labelkit.data.keyed_random import keyed_generator
from labelkit.errors import ConfigError
from labelkit.formatting import percent
from labelkit.options.base import to_flag
from labelkit.options.memory import ProcessesConfig
from labelkit.progress import current_progress
from labelkit.store.embeddings import EmbeddingStore

_SAMPLE_ROWS, _SAMPLE_K, _TIMED_ROWS = 200, 10, 20
# Minimum recall, and the maximum factor by which the search width is increased to reach it.
_WANTED_RECALL, _WIDEST = 0.95, 16
# Number of rows fetched in addition to k if some may be filtered out.
_EXTRA = 50


Found = tuple[NDArray[np.float32], NDArray[np.int64]]
"""Scores and row numbers (q, k) of the k nearest rows of each query, as returned by ``ExactSearch.search``."""


def search_in_parts(
    rows: StoredRows, metric: Metric, config: ProcessesConfig, queries: NDArray[np.float32], k: int
) -> Found:
    """Search rows of a store exactly, in parts that one or several processes handle, and merge the results."""
    call = partial(_find_nearest, queries, k, metric)
    scores, indices, start = np.empty((len(queries), 0), np.float32), np.empty((len(queries), 0), np.int64), 0
    for near, places, count in apply_to_rows(call, rows, config, "searching", resumable=True):
        scores, indices = np.hstack([scores, near]), np.hstack([indices, places + start])
        start += count
        # of equal scores, the smaller row number comes first
        order = np.argsort(scores if metric == "l2" else -scores, axis=1, kind="stable")[:, :k]
        scores, indices = np.take_along_axis(scores, order, 1), np.take_along_axis(indices, order, 1)
    return scores, indices


def _find_nearest(
    queries: NDArray[np.float32], k: int, metric: Metric, rows: StoredRows
) -> tuple[NDArray[np.float32], NDArray[np.int64], int]:
    scores, indices = ExactSearch(rows, metric=metric).search(queries, min(k, len(rows)))
    return scores, indices, len(rows)


def load_or_build_index(
    store: EmbeddingStore, gallery: StoredRows, cached: CachedIndex, metric: Metric
) -> tuple[ApproximateSearch, CachedIndex]:
    """Load the index of a gallery from the cache; if it is missing or damaged, build, evaluate and cache it.

    Args:
        store: store of the gallery.
        gallery: (g, d) rows to search, in the order of the store.
        cached: the index, cached or to be built.
        metric: metric of the store.

    Raises:
        ConfigError: there are too few rows for this kind of index.
    """
    kind, progress = cached.kind, current_progress()
    if cached.measured is not None:
        try:
            search = ApproximateSearch(read_index(cached.path), gallery, metric=metric, width=cached.measured.width)
            _report_quality(kind, cached.measured)
            return search, cached
        except ValueError as error:
            progress.warning(f"{cached.path} is damaged ({error}), so the index is rebuilt")
            delete_index(cached.path)
    began = time.monotonic()
    try:
        index: Any = build_index(gallery, kind, metric=metric)
        search = ApproximateSearch(index, gallery, metric=metric)
    except ValueError as error:
        raise ConfigError(f"--search {kind}", f"{store.path}: {error}", "Use --search exact.") from error
    progress.message(f"built the {kind} index in {time.monotonic() - began:.1f} s")
    measured = measure_index_quality(search, gallery)
    while measured.recall < _WANTED_RECALL and 2 * search.width <= _WIDEST * WIDTHS[kind]:
        search.width *= 2
        measured = measure_index_quality(search, gallery)
    cache_index(store.path, index, cached.path, measured)
    _report_quality(kind, measured)
    return search, replace(cached, measured=measured, built=True)


def _report_quality(kind: Kind, measured: IndexQuality) -> None:
    found = f"the {kind} index finds {percent(measured.recall)}% of the {measured.k} nearest rows"
    if measured.recall < _WANTED_RECALL:
        current_progress().warning(f"{found}; for better results, pass --search exact")
    else:
        current_progress().message(
            f"{found} in {measured.index_ms:.2f} ms per query (exact search: {measured.exact_ms:.2f} ms)"
        )


def find_neighbors(
    search: Callable[[NDArray[np.float32], int], Found],
    queries: NDArray[np.float32],
    k: int,
    num_rows: int,
    is_wanted: Callable[[int, NDArray[np.int64], NDArray[np.float32]], NDArray[np.bool_]] | None,
) -> list[tuple[NDArray[np.int64], NDArray[np.float32]]]:
    """Find up to k gallery rows per query that satisfy a condition; return indices and scores, nearest first.

    The number of fetched rows is doubled until k of them satisfy the condition or the gallery is exhausted.

    Args:
        search: function that maps queries and k to their k nearest gallery rows.
        queries: (q, d).
        k: number of rows per query.
        num_rows: number of gallery rows.
        is_wanted: condition that maps query, indices and scores to a mask (m,); ``None``: no condition.
    """
    found: dict[int, tuple[NDArray[np.int64], NDArray[np.float32]]] = {}
    fetch = min(num_rows, k if is_wanted is None else k + _EXTRA)
    missing = list(range(len(queries)))
    while missing:
        scores, indices = search(queries[missing], fetch)
        still: list[int] = []
        for i, query in enumerate(missing):
            is_found = indices[i] >= 0
            rows, near = indices[i][is_found], scores[i][is_found]
            if is_wanted is not None:
                wanted = is_wanted(query, rows, near)
                rows, near = rows[wanted], near[wanted]
            if len(rows) < k and fetch < num_rows:
                still.append(query)
            found[query] = rows[:k], near[:k]
        missing, fetch = still, min(num_rows, 2 * fetch)
    return [found[query] for query in range(len(queries))]


def measure_index_quality(search: ApproximateSearch, gallery: StoredRows) -> IndexQuality:
    """Measure an index's speed and recall, relative to exact search, with random gallery rows as queries."""
    n = len(gallery)
    k = min(_SAMPLE_K, n - 1)
    rows = np.sort(keyed_generator(0, "index recall").permutation(n)[:_SAMPLE_ROWS])
    if k < 1:
        return IndexQuality(search.width, 1.0, 0, len(rows), 0.0, 0.0)
    exact = ExactSearch(gallery, metric=search.metric)
    sample = gallery[rows]
    best, _ = _search_others(exact, sample, rows, k)
    near, _ = _search_others(search, sample, rows, k)
    # rows that tie with the k-th nearest also count as hits
    last = best[:, -1:]
    hits = near <= last if search.metric == "l2" else near >= last
    times = []
    for one in (exact, search):
        seconds = []
        for query in sample[:_TIMED_ROWS]:
            begin = time.perf_counter()
            one.search(query[None], k)
            seconds.append(time.perf_counter() - begin)
        times.append(round(1000 * float(np.median(seconds)), 4))
    return IndexQuality(search.width, round(float(hits.mean()), 4), k, len(rows), *times)


def _search_others(
    search: ExactSearch | ApproximateSearch, sample: NDArray[np.float32], rows: NDArray[np.int64], k: int
) -> Found:
    """Return the k nearest other rows of each row; NaN and -1 if fewer are found."""
    scores, indices = search.search(sample, k + 1)
    itself = indices == rows[:, None]
    # if the search did not find the row itself, drop its last neighbor instead
    itself[~itself.any(axis=1), -1] = True
    return scores[~itself].reshape(len(rows), k), indices[~itself].reshape(len(rows), k)


def build_no_rows_error(store: EmbeddingStore, config: RetrieveConfig) -> ConfigError:
    """Build the error for filters that exclude all rows."""
    options = [to_flag(name) for name in ("label", "split", "path_pattern") if getattr(config, name) is not None]
    return ConfigError(" and ".join(options), f"no image of {store.path} passes the filters", "Relax these filters.")


def select_rows(store: EmbeddingStore, config: RetrieveConfig) -> NDArray[np.bool_]:
    """Return a mask (n,) of the rows of a store that pass the filters."""
    chosen = np.ones(store.n, dtype=np.bool_)
    if config.label is not None:
        unknown = [name for name in config.label if name not in store.class_names]
        if unknown or store.labels is None:
            known = ", ".join(store.class_names[:20]) + (", ..." if len(store.class_names) > 20 else "")
            problem = f"{store.path} has no class {(unknown or config.label)[0]!r} (it has: {known or 'none'})"
            raise ConfigError("--label", problem, "Choose one of these classes.")
        chosen &= np.isin(store.labels, [store.class_names.index(name) for name in config.label])
    if config.split is not None:
        chosen &= np.isin(np.arange(store.n), np.concatenate([find_split_rows(store, split) for split in config.split]))
    if config.path_pattern is not None:
        chosen &= [fnmatch.fnmatchcase(name, config.path_pattern) for name in store.sample_ids]
    return chosen
