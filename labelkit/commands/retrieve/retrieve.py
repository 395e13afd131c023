"""Find the images of a store that are most similar to a query."""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from labelkit.algorithms.neighbors import ExactSearch, Metric
from labelkit.algorithms.row_blocks import StoredRows
from labelkit.commands.common.embeddings import check_rows, find_zero_embeddings, fits_in_memory, load_rows
from labelkit.commands.common.images.read import make_pixel_reader, open_source_dataset, read_image_pixels
from labelkit.commands.common.labels import override_store_labels
from labelkit.commands.common.results import Cell, CommandResult, Table
from labelkit.commands.common.search_queries import (
    Queries,
    embed_query_images,
    find_class_name,
    is_store,
    list_query_images,
    load_other_store_queries,
    load_store_queries,
)
from labelkit.commands.common.stored_predictions import GIVEN
from labelkit.commands.retrieve.options import RetrieveConfig
from labelkit.commands.retrieve.search import (
    Found,
    build_no_rows_error,
    find_neighbors,
    load_or_build_index,
    search_in_parts,
    select_rows,
)
from labelkit.commands.retrieve.stored_index import CachedIndex, find_cached_index
from labelkit.data.datasets import ImageDataset
from labelkit.errors import ConfigError
from labelkit.options.shared import find_newest_store
from labelkit.progress import current_progress
from labelkit.store.commit import commit_bytes
from labelkit.store.csv_table import csv_bytes
from labelkit.store.embeddings import EmbeddingStore, open_store
from labelkit.store.results import find_newest_name, list_results, read_result

# Minimum cosine similarity of images that are regarded as the same picture.
DUPLICATE_COSINE = 1 - 1e-6
# Number of rows up to which exact search is as fast as any index.
_FEW_ROWS = 20_000

Duplicate = Literal["itself", "same file", "same picture"]


class _Hit(NamedTuple):
    row: int
    score: float
    duplicate: Duplicate | None


_Hits = list[list[_Hit]]  # per query


def retrieve_images(config: RetrieveConfig) -> CommandResult:
    """Find the images of a store nearest to each query: an image, a folder of images, or rows of a store.

    Images are embedded with the store's own model; other queries require no model.

    Raises:
        StoreError: the store or the query store cannot be used, or their models differ.
        DatasetError: the query is not an image.
        CheckpointError: the model of the store is not on this machine, or another model was passed.
        ConfigError: k exceeds the number of rows, no row passes the filters, or an output file exists.
    """
    if config.patch is not None or config.pixel is not None:
        from labelkit.commands.retrieve.patches import retrieve_patches  # only for this kind of query

        return retrieve_patches(config)
    images: ImageDataset | None = None
    if config.query is not None and not is_store(config.query):
        images = list_query_images(config.query, **config.listing_kwargs())
    store = override_store_labels(open_store(config.index), config.labels, config.label_column)
    if config.labels is None and find_newest_store(config.index.parent) is not None:
        store = _use_predictions(store)
    if config.k > store.n:
        raise ConfigError("-k", f"{config.k} hits were requested, but the store has only {store.n} images", "Lower -k.")
    rows = np.arange(store.n, dtype=np.int64)
    features = load_rows(store, rows, in_blocks=True)
    if store.metric == "cosine":
        zero = find_zero_embeddings(features)
        if zero.any():
            current_progress().warning(
                f"{int(zero.sum())} embeddings of {store.path} are all zeros and are never found"
            )
            features, rows = features.subset(np.flatnonzero(~zero)), rows[~zero]
    chosen = select_rows(store, config)[rows]
    if len(rows) and not chosen.any():
        raise build_no_rows_error(store, config)
    if images is not None:
        queries = embed_query_images(
            images, store, checkpoint=config.checkpoint, device=config.device, where=str(config.query)
        )
    elif config.query is not None:
        queries = load_other_store_queries(store, config.query)
    else:
        rows_asked = check_rows(store, config.query_rows or (), "--query-rows")
        queries = load_store_queries(store, np.asarray(rows_asked, dtype=np.int64), store, "--query-rows")
    if config.k > len(rows):
        problem = f"{config.k} hits were requested, but only {len(rows)} embeddings are nonzero"
        raise ConfigError("-k", problem, "Lower -k.")
    hits, index, seconds = _search(store, features, rows, chosen, queries, config)
    return _build_result(store, queries, hits, index, seconds, config)


def _search(
    store: EmbeddingStore,
    features: StoredRows,
    rows: NDArray[np.int64],
    chosen: NDArray[np.bool_],
    queries: Queries,
    config: RetrieveConfig,
) -> tuple[_Hits, CachedIndex | None, float]:
    """Return the hits per query, the index (if one was used), and the search time in seconds.

    ``features`` (g, d) are the gallery, ``rows`` (g,) its row numbers in the store, and ``chosen`` (g,) a mask of the
    rows that pass the filters.
    """
    metric: Metric = store.metric  # type: ignore[assignment] # checked when opened
    progress = current_progress()
    num_chosen = int(chosen.sum())
    if num_chosen < config.k:
        progress.warning(f"only {num_chosen} images pass the filters")
    found: CachedIndex | None = None
    filtered = num_chosen < len(rows)
    if config.search != "exact" and filtered and num_chosen <= _FEW_ROWS:
        progress.message(
            f"using exact search instead of {config.search}, since only {num_chosen} images pass the filters"
        )
    elif config.search != "exact":
        found = find_cached_index(store.path, features, config.search, metric)
    search: Callable[[NDArray[np.float32], int], Found]
    in_blocks = not fits_in_memory(config, 4 * len(rows) * store.dim)
    if found is not None:
        by_index, found = load_or_build_index(store, features.with_reading_mode(in_blocks=in_blocks), found, metric)
        search = by_index.search
    else:
        if filtered:
            features, rows, chosen = features.subset(np.flatnonzero(chosen)), rows[chosen], chosen[chosen]
            in_blocks = not fits_in_memory(config, 4 * len(rows) * store.dim)
        device = None if config.device == "auto" else choose_similarity_device(config.device)
        if config.processes > 1 or config.ray_address is not None:
            search = partial(search_in_parts, features, metric, config)
        else:
            search = ExactSearch(features.with_reading_mode(in_blocks=in_blocks), metric=metric, device=device).search

    def find_query_duplicates(
        query: int, indices: NDArray[np.int64], scores: NDArray[np.float32]
    ) -> list[NDArray[np.bool_]]:
        """Return masks (m,) of the hits that are the query itself, the same file, or the same picture."""
        found_rows = rows[indices]
        cosines: NDArray[np.floating] = scores
        same_file = np.zeros(len(indices), dtype=np.bool_)
        if queries.sha256 is not None and store.has_images:
            same_file = (store.sha256[found_rows] == queries.sha256[query]).all(axis=1)
        if metric != "cosine":
            one, others = queries.embeddings[query].astype(np.float64), features[indices].astype(np.float64)
            lengths = np.linalg.norm(others, axis=1) * np.linalg.norm(one)
            cosines = np.asarray(others @ one / np.maximum(lengths, 1e-300))
        return [found_rows == queries.rows[query], same_file, cosines >= DUPLICATE_COSINE]

    def is_wanted(query: int, indices: NDArray[np.int64], scores: NDArray[np.float32]) -> NDArray[np.bool_]:
        wanted = chosen[indices]
        if config.skip_duplicates:
            wanted = wanted & ~np.logical_or.reduce(find_query_duplicates(query, indices, scores))
        return wanted

    needs_choice = config.skip_duplicates or not chosen.all()
    k = min(config.k, int(chosen.sum()))
    begin = time.perf_counter()
    ranked = find_neighbors(search, queries.embeddings, k, len(rows), is_wanted if needs_choice else None)
    seconds = time.perf_counter() - begin
    hits = []
    for query, (indices, scores) in enumerate(ranked):
        kinds = np.select(
            find_query_duplicates(query, indices, scores), ["itself", "same file", "same picture"], ""
        ).tolist()
        listed = [
            _Hit(int(rows[index]), float(score), kind or None)
            for index, score, kind in zip(indices, scores, kinds, strict=True)
        ]
        if found is not None:  # of equal scores, the smaller row number comes first
            listed.sort(key=lambda hit: (hit.score if metric == "l2" else -hit.score, hit.row))
        hits.append(listed)
    return hits, found, seconds


def _build_result(
    store: EmbeddingStore,
    queries: Queries,
    hits: _Hits,
    index: CachedIndex | None,
    seconds: float,
    config: RetrieveConfig,
) -> CommandResult:
    listed: list[dict[str, object]] = []
    cells: list[list[Cell]] = []
    lines: list[tuple[object, ...]] = []
    for q, name in enumerate(queries.names):
        entries: list[dict[str, object]] = []
        for rank, hit in enumerate(hits[q], start=1):
            sample_id, label = store.sample_ids[hit.row], find_class_name(store, hit.row)
            entry = {"rank": rank, "sample_id": sample_id, "row": hit.row, "score": hit.score, "label": label}
            same_file = hit.duplicate in ("itself", "same file")
            entries.append({**entry, "same_file": same_file, "duplicate": hit.duplicate})
            cells.append([name, rank, sample_id, label, hit.score, hit.duplicate or ""])
            score = f"{hit.score:.9g}"
            lines.append((name, rank, sample_id, hit.row, label or "", score, hit.duplicate or ""))
        listed.append({"query": name, "label": queries.labels[q], "hits": entries})
    values: dict[str, object] = {
        "index": config.index,
        "metric": store.metric,
        "k": config.k,
        "model": store.model.name,
        "weights_fingerprint": store.model.weights_fingerprint,
        "search": {"kind": "exact"} if index is None else index.to_json(),
        "search_seconds": round(seconds, 6),
        "queries": listed,
        "skipped": [{"query": name, "reason": reason} for name, reason in queries.skipped],
    }
    made: list[Path] = []
    if config.csv is not None:
        commit_bytes(config.csv, csv_bytes(("query", "rank", "path", "row", "label", "score", "duplicate"), lines))
        values["csv"] = config.csv
        made.append(config.csv)
    if config.sheet is not None:
        _write_sheet(config.sheet, queries, store, open_source_dataset(store, config.dataset, config.data_root), hits)
        values["sheet"] = config.sheet
        made.append(config.sheet)
    score_name = {"cosine": "cosine", "l2": "distance", "dot": "product"}[store.metric]
    shown = [Table("", ["query", "rank", "image", "label", score_name, ""], cells)]
    if index is not None:
        measured = index.measured
        assert measured is not None
        title = f"{index.kind} compared with exact search, with {measured.sampled} rows of the store as queries"
        columns = (f"recall@{measured.k}", "ms/query", "exact ms/query", "MB", "index", "path")
        size, origin = round(index.size_bytes / 1e6, 3), "newly built" if index.built else "from the cache"
        place = index.path if index.path.exists() else "not cached"
        row: list[Cell] = [measured.recall, measured.index_ms, measured.exact_ms, size, origin, place]
        shown.append(Table(title, columns, [row]))
    return CommandResult(values, tuple(made), tuple(shown))


def _use_predictions(store: EmbeddingStore) -> EmbeddingStore:
    """Return the store with the newest predictions as labels, since its own may be names of folders by date."""
    names = list_results(store)
    newest = find_newest_name(names, "answer")
    result = read_result(store, newest) if newest in names else None
    if result is None or result.kind != "answers":
        return store
    current_progress().message(
        f"labels are the predictions of {newest}, including unsure ones; to use others, pass --labels"
    )
    decisions = np.asarray(result.arrays["decisions"])
    labels = np.asarray(result.arrays["group_ids"], dtype=np.int64)
    return store.relabeled(labels, decisions == GIVEN, result.arrays["names"])


def _write_sheet(path: Path, queries: Queries, store: EmbeddingStore, gallery: ImageDataset, hits: _Hits) -> Path:
    from labelkit.commands.common.images.contact_sheet import SheetCell, write_contact_sheet

    picture = make_pixel_reader(gallery)
    drawn: list[list[SheetCell]] = []
    for q, (name, query_label) in enumerate(zip(queries.names, queries.labels, strict=True)):
        images = queries.images
        pixels = picture(name) if images is None else read_image_pixels(images, int(queries.image_rows[q]))
        line = [SheetCell(pixels, (name, "query"), frame="query")]
        for rank, hit in enumerate(hits[q], start=1):
            sample_id, label = store.sample_ids[hit.row], find_class_name(store, hit.row)
            # hits can be judged only if the store has the query's class
            is_wrong = label is not None and query_label in store.class_names and query_label != label
            text = f"{rank}. {label} ({hit.score:.3f})" if label else f"{rank}. {hit.score:.3f}"
            line.append(SheetCell(picture(sample_id), (sample_id, text), frame="wrong" if is_wrong else "plain"))
        drawn.append(line)
    return write_contact_sheet(path, drawn)


def choose_similarity_device(device: str) -> str | None:
    """Return the PyTorch device for computing similarities; ``None`` for the CPU, which does not require PyTorch.

    Raises:
        ResourceError: the device does not exist.
    """
    if device == "cpu":
        return None
    from labelkit.training.compute_device import resolve_device

    found = resolve_device(device)
    return None if found.type == "cpu" else str(found)
