"""Discover classes in a store: how many there are, and which image belongs to which."""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray

from labelkit.algorithms.clustering import kmeans
from labelkit.algorithms.row_blocks import StoredRows, parts_of
from labelkit.config.discover import DiscoverCategoriesConfig, DiscoverHeadConfig
from labelkit.data.keyed_random import keyed_generator
from labelkit.errors import StoreError
from labelkit.stages.discover.class_number import judge_class_number
from labelkit.stages.group.cluster import semi_supervised_cluster
from labelkit.stages.group.stable_ids import Groups, lasting_ids, read_earlier
from labelkit.stages.memory import Memory, class_number_bytes
from labelkit.stages.new_files import check_new_file
from labelkit.stages.progress import current_progress
from labelkit.stages.read.given_labels import GivenLabels, labeled_array, labels_to_use
from labelkit.stages.read.rows import split_rows
from labelkit.stages.result import Cell, SimpleResult, Table
from labelkit.store.embeddings import EmbeddingStore, open_store
from labelkit.store.results import write_result

# Blocks of logits, in both precisions.
_BLOCK_BYTES = 48 << 20


def discover_categories(config: DiscoverCategoriesConfig) -> SimpleResult:
    """Choose the number of classes, then assign every row: by semi-supervised k-means, without labels by k-means.

    Rows are scaled to length 1.

    Raises:
        StoreError: the store cannot be used.
        DatasetError: it has no labels that may be used, and the criterion needs some.
        ConfigError: bounds that leave no choice, or nowhere to draw.
    """
    if config.plot is not None:
        check_new_file(config.plot, overwrite=config.overwrite, option="--plot")
    store = open_store(config.index)
    rows = split_rows(store, config.split)
    given = labels_to_use(config.labels, store, rows)
    labels = given.labels
    earlier = read_earlier(config, config.result or "categories")
    features = _features(config, store, rows)
    started = time.monotonic()
    judgement = judge_class_number(config, given.where, given.class_names, features, labels)
    for note in judgement.notes:
        current_progress().message(note)
    num_classes = judgement.choice.best
    generator = keyed_generator(config.seed, "cluster")
    labeled = labels >= 0
    with current_progress().task(f"assigning rows to {num_classes} classes", total=None):
        if labeled.any():
            cluster_ids, centroids, inertia, iterations, class_of_cluster = semi_supervised_cluster(
                features,
                labeled,
                labels[labeled],
                num_classes,
                generator=generator,
                num_inits=config.num_inits,
                max_iter=100,
                tol=1e-4,
            )
        else:
            found = kmeans(features, num_classes, generator=generator, num_inits=config.num_inits)
            cluster_ids, inertia, iterations = found.cluster_ids, found.inertia, found.num_iterations
            centroids = found.centroids.astype(np.float32)
            class_of_cluster = np.full(num_classes, -1, dtype=np.int64)
    seconds = time.monotonic() - started
    evidence = judgement.to_json()
    result = _write(
        store,
        config,
        rows,
        cluster_ids,
        class_of_cluster,
        given,
        earlier,
        stage="discover categories",
        default_name="categories",
        centroids=centroids,
        params={
            "criterion": config.criterion,
            "min_classes": judgement.searched[0],
            "max_classes": judgement.searched[1],
            "search": config.search,
            "num_draws": config.num_draws,
            "max_rows": config.max_rows,
            "num_inits": config.num_inits,
            "seed": config.seed,
            "split": config.split,
            "inertia": inertia,
            "iterations": iterations,
            **({"labels": given.source} if given.source else {}),
            **evidence,
        },
        extra={**evidence, "seconds": round(seconds, 2)},
        table=judgement.table(),
    )
    if config.plot is None:
        return result
    from labelkit.stages.pictures.plots import write_class_number_plot  # matplotlib loads only where something is drawn

    plot = write_class_number_plot(config.plot, judgement.choice)
    return SimpleResult({**result.values, "plot": plot}, (*result.paths, plot), result.shown)


def _features(config: DiscoverCategoriesConfig, store: EmbeddingStore, rows: NDArray[np.int64]) -> StoredRows:
    used = min(len(rows), config.max_rows) if config.search == "path" else len(rows)
    most = config.max_classes or min(1000, max(2, used // 10))
    whole = 0 if config.search == "path" else 3 * 4 * len(rows) * store.dim
    beside = class_number_bytes(len(rows), used, store.dim, most, config.num_inits) + whole
    remedy = "lower --max-rows or --max-classes"
    return Memory.of(config).rows(
        store, rows, beside=beside, what="choosing the number of classes", unit=True, remedy=remedy
    )


def discover_head(config: DiscoverHeadConfig) -> SimpleResult:
    """Assign every row to the class of its largest stored logit.

    Raises:
        StoreError: the store has no logits.
    """
    store = open_store(config.index)
    if "logits" not in store.extras:
        raise StoreError(
            f"{store.path}:/logits",
            "is not there: the model had no classifier, or embed ran with --no-logits",
            "Embed with the checkpoint of a method that trains a classifier, or use `labelkit discover categories`.",
        )
    logits = store.extras["logits"]
    outputs = logits.shape[1]
    Memory.of(config).require(160 * store.n + _BLOCK_BYTES, f"classes of {store.n:,} rows")
    # embed writes the columns of the old classes first, in class order; the others are anonymous
    old = np.flatnonzero(store.old_classes) if store.old_classes is not None else np.zeros(0, dtype=np.int64)
    class_of_output = np.full(outputs, -1, dtype=np.int64)
    class_of_output[: len(old)] = old
    cluster_ids, confidence = np.empty(store.n, dtype=np.int64), np.empty(store.n, dtype=np.float32)
    for where, part in parts_of(StoredRows(logits, in_blocks=True)):
        cluster_ids[where] = part.argmax(axis=1)
        shifted = part - part.max(axis=1, keepdims=True)
        confidence[where] = 1 / np.exp(shifted / config.temperature).sum(axis=1)
    return _write(
        store,
        config,
        np.arange(store.n),
        cluster_ids,
        class_of_output,
        labels_to_use(None, store, np.arange(store.n, dtype=np.int64)),
        read_earlier(config, config.result or "head"),
        stage="discover head",
        default_name="head",
        confidence=confidence,
        params={"num_classes": outputs, "temperature": config.temperature},
        extra={"num_classes": outputs},
        table=None,
    )


def _write(
    store: EmbeddingStore,
    config: DiscoverCategoriesConfig | DiscoverHeadConfig,
    rows: NDArray[np.int64],
    cluster_ids: NDArray[np.int64],
    class_of_cluster: NDArray[np.int64],
    given: GivenLabels,
    earlier: Groups | None,
    *,
    stage: str,
    default_name: str,
    params: dict[str, object],
    extra: dict[str, object],
    table: Table | None,
    centroids: NDArray[np.float32] | None = None,
    confidence: NDArray[np.float32] | None = None,
) -> SimpleResult:
    classes = [given.class_names[label] if label >= 0 else None for label in class_of_cluster.tolist()]
    lasting = lasting_ids(
        earlier, store, rows, cluster_ids, len(classes), keep_overlap=config.keep_overlap, classes=classes
    )
    pseudo_labels = np.full(store.n, -1, dtype=np.int64)
    pseudo_labels[rows] = lasting.ids[cluster_ids]
    names, is_new = lasting.names(class_of_cluster, given.class_names), lasting.new_classes(class_of_cluster)
    arrays: dict[str, NDArray[np.generic] | list[str]] = {
        "pseudo_labels": pseudo_labels,
        "names": names,
        "new_classes": is_new.astype(np.uint8),
        **lasting.arrays(),
        **labeled_array(store, rows, given),
    }
    if centroids is not None:
        arrays["centroids"] = lasting.place(centroids.astype(np.float32))
    if confidence is not None:
        arrays["confidence"] = confidence
    name = config.result or default_name
    path = write_result(
        store,
        name,
        kind="classes",
        arrays=arrays,
        params={**params, **lasting.params()},
        stage=stage,
        overwrite=config.overwrite,
    )
    found = pseudo_labels[rows]
    sizes = np.bincount(found, minlength=len(names))
    with_label = np.bincount(found[given.labeled], minlength=len(names))
    cells: list[list[Cell]] = [
        [j, names[j], "new" if is_new[j] else "old", int(sizes[j]), int(with_label[j])]
        for j in np.flatnonzero(~lasting.retired).tolist()
    ]
    values: dict[str, object] = {
        "index": config.index,
        "result": name,
        "path": path,
        **extra,
        **lasting.to_json(),
        "classes": [
            {"id": row[0], "name": row[1], "new": row[2] == "new", "images": row[3], "labeled": row[4]} for row in cells
        ],
    }
    tables = [] if table is None else [table]
    tables.append(Table("classes", ["id", "name", "kind", "images", "labeled"], cells))
    return SimpleResult(values, (path,), tuple(tables))
