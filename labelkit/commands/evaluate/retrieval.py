"""Evaluate the embeddings of a store by retrieval of images of the same class."""

import os
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelkit.algorithms.clustering import kmeans
from labelkit.algorithms.row_blocks import StoredRows
from labelkit.commands.common.apply import apply_to_parts, check_ray_cluster
from labelkit.commands.common.embeddings import (
    check_nonzero_embeddings,
    find_split_rows,
    load_rows,
    load_rows_within_memory_limit,
    max_block_bytes,
    normalize_embeddings,
)
from labelkit.commands.common.labels import override_store_labels
from labelkit.commands.common.results import Cell, CommandResult, Table
from labelkit.commands.evaluate.options import EvaluateRetrievalConfig
from labelkit.data.datasets import resolve_split
from labelkit.data.keyed_random import keyed_generator
from labelkit.errors import ConfigError, Mismatch, StoreError
from labelkit.formatting import percent
from labelkit.metrics.retrieval import RetrievalScores, score_retrieval
from labelkit.progress import current_progress
from labelkit.store.embeddings import EmbeddingStore, open_store

# Block size without --max-memory; larger blocks are not faster.
_BLOCKS_BYTES = 1 << 30
_ROLES = ("query", "gallery")
_REMEDY = "Remove these images from the dataset, or embed with another model."


@dataclass(frozen=True)
class _LabeledRows:
    """Labeled rows (n,) of a store that are queries or gallery; ``labels`` index the classes of both stores."""

    store: EmbeddingStore
    what: str  # names of the splits, for display
    rows: NDArray[np.int64]
    labels: NDArray[np.int64]
    num_unlabeled: int  # number of rows without a label, which are excluded


def evaluate_retrieval(config: EvaluateRetrievalConfig) -> CommandResult:
    """Evaluate exact cosine retrieval within a store by Recall@K, MAP@R and R-precision, and k-means by NMI.

    Each image is a query for all others; or the images of one split or store are queries for those of another. Ties
    are scored by their expected value over random orders. Queries without another gallery image of their class are
    excluded. All labels of the store are used, including those that were hidden from training.

    Raises:
        StoreError: there are no labels, no class has two images, or an embedding is all zeros.
        Mismatch: the two stores were created with different models or preprocessing.
        ConfigError: a split does not exist, k is too large, or the Ray cluster cannot be reached.
    """
    check_ray_cluster(config.ray_address)
    store = override_store_labels(open_store(config.index), config.labels, config.label_column, min_found=0.5)
    names = list(store.class_names)
    query_side, gallery_side = _load_queries_and_gallery(store, names, config)
    same = query_side is gallery_side
    own_rows = _find_self_positions(query_side, gallery_side)
    available = len(gallery_side.rows) - int((own_rows >= 0).any())
    if max(config.k) > available:
        problem = f"{max(config.k)} hits were requested, but the gallery has only {available} images"
        raise ConfigError("-k", problem, f"Pass at most {available}.")
    features = load_rows(query_side.store, query_side.rows)
    check_nonzero_embeddings(query_side.store, query_side.rows, features, _REMEDY)
    found = features
    if not same:
        found = load_rows(gallery_side.store, gallery_side.rows)
        check_nonzero_embeddings(gallery_side.store, gallery_side.rows, found, _REMEDY)
    on_ray = config.ray_address is not None
    score = partial(
        score_retrieval,
        features,
        query_side.labels,
        gallery=None if same else found,
        gallery_labels=None if same else gallery_side.labels,
        own_rows=None if same else own_rows,
        ks=config.k,
        at_r=config.at_r,
        max_bytes=max_block_bytes(config, _BLOCKS_BYTES),
        num_threads=1 if on_ray else max(1, _num_threads() // config.processes),
    )
    if on_ray or config.processes > 1:
        scores = score(spread=partial(apply_to_parts, config=config, name="ranking", resumable=True))
    else:
        with current_progress().task("ranking", total=len(query_side.rows)) as task:
            scores = score(on_block=task.advance)
    if not len(scores.query_rows):
        problem = "no query has another image of its class in the gallery"
        raise StoreError(f"{store.path}:/labels", problem, "Choose other images with --split.")
    nmi = _compute_nmi(query_side, gallery_side, features, found, config)
    return _build_result(config, query_side, gallery_side, scores, nmi, names)


def _load_queries_and_gallery(
    store: EmbeddingStore, names: list[str], config: EvaluateRetrievalConfig
) -> tuple[_LabeledRows, _LabeledRows]:
    """Return the queries and the gallery (the same object if both are the same); add a second store's class names."""
    if config.gallery_index is not None:
        other = open_store(config.gallery_index)
        differing = other.differences(store)
        if differing:
            problem = f"was embedded differently from {store.path}: {', '.join(differing)} differ"
            raise Mismatch(str(other.path), problem, "Embed both stores with the same model.")
        names += [name for name in other.class_names if name not in set(names)]
        query_side = _load_labeled_rows(store, (config.queries or "all",), names, "--queries")
        return query_side, _load_labeled_rows(other, (config.gallery or "all",), names, "--gallery")
    if config.queries is not None and config.gallery is not None:
        queries, gallery = ((resolve_split(split, store.split_names),) for split in (config.queries, config.gallery))
    elif config.split == ("auto",) and set(_ROLES) <= set(store.split_names):
        queries, gallery = _ROLES[:1], _ROLES[1:]
        current_progress().message("images of split query search split gallery; use --split to choose other images")
    else:
        splits = config.split
        if splits == ("auto",):
            splits = ("test",) if "test" in store.split_names and len(store.rows("test")) else ("all",)
        side = _load_labeled_rows(store, splits, names, "--split")
        return side, side
    query_side = _load_labeled_rows(store, queries, names, "--queries")
    same = queries == gallery
    return query_side, query_side if same else _load_labeled_rows(store, gallery, names, "--gallery")


def _load_labeled_rows(store: EmbeddingStore, splits: tuple[str, ...], names: list[str], option: str) -> _LabeledRows:
    if store.metric != "cosine":
        problem = f"its embeddings use the metric {store.metric}, but retrieval scores require cosine"
        raise StoreError(str(store.path), problem, "Embed the images again, or import with --metric cosine.")
    what = " + ".join(splits)
    rows = np.unique(np.concatenate([find_split_rows(store, split, option=option) for split in splits]))
    known = np.zeros(len(rows), dtype=np.bool_) if store.labels is None else np.asarray(store.labels)[rows] >= 0
    if store.labels is None or not known.any():
        raise StoreError(f"{store.path}:/labels", f"no image of {what} has a label", "Embed a dataset with labels.")
    number = {name: i for i, name in enumerate(names)}
    numbers = np.array([number[name] for name in store.class_names], dtype=np.int64)
    num_unlabeled = int((~known).sum())
    if num_unlabeled:
        current_progress().warning(f"{num_unlabeled} images of {store.path} ({what}) have no label and are excluded")
    rows = rows[known]
    return _LabeledRows(store, what, rows, numbers[np.asarray(store.labels)[rows]], num_unlabeled)


def _find_self_positions(query_side: _LabeledRows, gallery_side: _LabeledRows) -> NDArray[np.int64]:
    """Return the position of each query in the gallery, -1 if it is not there.

    In another store, this is the row with the same image file and class.
    """
    if query_side.store.content_digest != gallery_side.store.content_digest:
        if not (query_side.store.has_images and gallery_side.store.has_images):
            return np.full(len(query_side.rows), -1, dtype=np.int64)
        keys, held_keys = (
            [(bytes(digest), label) for digest, label in zip(side.store.sha256[side.rows], side.labels, strict=True)]
            for side in (query_side, gallery_side)
        )
        places = {key: place for place, key in enumerate(held_keys)}
        return np.array([places.get(key, -1) for key in keys], dtype=np.int64)
    place = np.minimum(np.searchsorted(gallery_side.rows, query_side.rows), len(gallery_side.rows) - 1)
    return np.where(gallery_side.rows[place] == query_side.rows, place, -1)


def _num_threads() -> int:
    text = os.environ.get("OMP_NUM_THREADS", "")
    if text.isdecimal() and int(text) > 0:
        return int(text)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _compute_nmi(
    query_side: _LabeledRows,
    gallery_side: _LabeledRows,
    features: StoredRows,
    found: StoredRows,
    config: EvaluateRetrievalConfig,
) -> list[float]:
    """Return the NMI of k-means on all queries and gallery images, with one cluster per class, for each seed."""
    from sklearn.metrics import normalized_mutual_info_score

    if not config.nmi_seeds:
        return []
    labels = query_side.labels
    rows: NDArray[np.float32] | StoredRows
    if query_side is gallery_side:
        rows = load_rows_within_memory_limit(config, query_side.store, query_side.rows, normalize=True)
    else:
        # rows that are both query and gallery count once
        fresh = np.ones(len(gallery_side.rows), dtype=np.bool_)
        own = _find_self_positions(query_side, gallery_side)
        fresh[own[own >= 0]] = False
        others = found.subset(np.flatnonzero(fresh))
        rows = np.concatenate([normalize_embeddings(features.to_array()), normalize_embeddings(others.to_array())])
        labels = np.concatenate([labels, gallery_side.labels[fresh]])
    values = []
    with current_progress().task("k-means for NMI", total=config.nmi_seeds) as task:
        for seed in range(config.seed, config.seed + config.nmi_seeds):
            generator = keyed_generator(seed, "retrieval nmi")
            groups = kmeans(rows, len(np.unique(labels)), generator=generator, num_inits=1)
            values.append(float(normalized_mutual_info_score(labels, groups.cluster_ids)))
            task.advance(1, nmi=values[-1])
    return values


def _build_result(
    config: EvaluateRetrievalConfig,
    query_side: _LabeledRows,
    gallery_side: _LabeledRows,
    scores: RetrievalScores,
    nmi: list[float],
    names: list[str],
) -> CommandResult:
    values: dict[str, Any] = {
        "index": config.index,
        "protocol": "self" if query_side is gallery_side else "query-gallery",
        "queries": {"store": query_side.store.path, "splits": query_side.what, "rows": len(query_side.rows)},
        "gallery": {"store": gallery_side.store.path, "splits": gallery_side.what, "rows": len(gallery_side.rows)},
        "n_queries": len(scores.query_rows),
        "n_lone": scores.num_lone,
        "n_tied": int(scores.tied.sum()),
        "n_unlabeled": query_side.num_unlabeled + (gallery_side.num_unlabeled if query_side is not gallery_side else 0),
        "n_classes": len(np.unique(scores.labels)),
        "recall": {str(k): value for k, value in scores.recall_at.items()},
        "map_at_r": scores.map_at_r if config.at_r else None,
        "r_precision": scores.mean_r_precision if config.at_r else None,
        "nmi": float(np.mean(nmi)) if nmi else None,
        "nmi_of_seeds": nmi,
        "block_rows": scores.block_rows,
    }
    if config.per_class:
        values["per_class"] = _build_class_table(scores, names)
    at_r = ["MAP@R", "R-precision"] if config.at_r else []
    columns = [*(f"R@{k}" for k in config.k), *at_r]
    cells: list[Cell] = [percent(scores.recall_at[k]) for k in config.k]
    cells += [percent(scores.map_at_r), percent(scores.mean_r_precision)] if config.at_r else []
    cells += [percent(values["nmi"])] if nmi else []
    who = f"{query_side.what}, each image against the others"
    if query_side is not gallery_side:
        who = " against ".join(f"{side.what} of {side.store.path.name}" for side in (query_side, gallery_side))
    counts: list[Cell] = [values[f"n_{name}"] for name in ("queries", "classes", "lone", "tied")]
    tables = [
        Table(f"cosine retrieval in %: {who}", [*columns, *(["NMI"] if nmi else [])], [cells]),
        Table("", ["queries", "classes", "without a match", "tied at the first match"], [counts]),
    ]
    if config.per_class:
        shown: list[list[Cell]] = []
        for one in values["per_class"]:
            scored = [*one["recall"].values(), *(one[name] for name in ("map_at_r", "r_precision") if name in one)]
            shown.append([one["class"], one["queries"], *map(percent, scored)])
        tables.append(Table("mean per class in %", ["class", "queries", *columns], shown))
    return CommandResult(values, (), tuple(tables))


def _build_class_table(scores: RetrievalScores, names: list[str]) -> list[dict[str, Any]]:
    """Return the number of queries, recalls and scores at R of each class with queries."""
    found = []
    for label in np.unique(scores.labels):
        own = scores.labels == label
        recall = dict(zip(map(str, scores.ks), scores.recall[own].mean(axis=0).tolist(), strict=True))
        entry: dict[str, Any] = {"class": names[label], "queries": int(own.sum()), "recall": recall}
        if scores.average_precision is not None and scores.r_precision is not None:
            entry["map_at_r"] = float(scores.average_precision[own].mean())
            entry["r_precision"] = float(scores.r_precision[own].mean())
        found.append(entry)
    return found
