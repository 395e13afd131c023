"""Discover classes in a store: how many there are, and which image belongs to which."""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray

from labelkit.algorithms.class_number import estimate_num_classes
from labelkit.config.stages import DiscoverCategoriesConfig, DiscoverHeadConfig
from labelkit.data.keyed_random import keyed_generator
from labelkit.errors import ConfigError, StoreError
from labelkit.stages.cluster import cluster_names, labeled_rows, most_clusters, semi_supervised_cluster
from labelkit.stages.indexes import check_features, split_rows, unit_rows
from labelkit.stages.progress import current_progress
from labelkit.stages.result import Cell, SimpleResult, Table
from labelkit.store.embeddings import EmbeddingStore, open_store
from labelkit.store.results import write_result


def discover_categories(config: DiscoverCategoriesConfig) -> SimpleResult:
    """Estimate the number of classes, then assign every row by semi-supervised k-means.

    The estimate is the K whose plain k-means puts the labeled rows best into their classes (GCD's released code);
    rows are scaled to length 1.

    Raises:
        StoreError: the store cannot be used.
        DatasetError: it has no labels that may be used.
        ConfigError: bounds that leave no choice.
    """
    store = open_store(config.index)
    rows = split_rows(store, config.split)
    labeled, labels = labeled_rows(store, rows, len(rows))
    features = unit_rows(check_features(store, rows))
    num_old = len(np.unique(labels))
    low = max(config.min_classes or 0, num_old, 2)
    most = most_clusters(labeled, labels)
    high = config.max_classes if config.max_classes is not None else min(most, max(low, min(1000, len(rows) // 10)))
    if config.min_classes is not None and config.min_classes < num_old:
        raise ConfigError(
            "--min-classes", f"{config.min_classes} is fewer than the {num_old} classes with labels", "Raise it."
        )
    if not low <= high <= most:
        raise ConfigError(
            "--min-classes" if low > most else "--max-classes",
            f"cannot search from {low} to {high} classes among {len(rows)} rows, {int(labeled.sum())} of them labeled",
            f"Choose it between {num_old} and {most}." if low > most else f"Choose it between {low} and {most}.",
        )
    started = time.monotonic()
    all_labels = np.full(len(rows), -1, dtype=np.int64)
    all_labels[labeled] = labels
    with current_progress().task("number of classes", total=None) as task:
        estimate = estimate_num_classes(
            features,
            all_labels,
            labeled,
            k_min=low,
            k_max=high,
            seed=config.seed,
            num_inits=config.num_inits,
            search=config.search,
            progress=lambda k, score: task.advance(1, classes=k, score=round(score, 4)),
        )
        cluster_ids, centroids, inertia, iterations, class_of_cluster = semi_supervised_cluster(
            features,
            labeled,
            labels,
            estimate.best,
            generator=keyed_generator(config.seed, "cluster"),
            num_inits=config.num_inits,
            max_iter=100,
            tol=1e-4,
        )
    seconds = time.monotonic() - started
    curve = [[int(k), float(score)] for k, score in sorted(estimate.curve)]
    return _write(
        store,
        config,
        rows,
        cluster_ids,
        class_of_cluster,
        stage="discover categories",
        default_name="categories",
        centroids=centroids,
        params={
            "min_classes": low,
            "max_classes": high,
            "search": config.search,
            "num_inits": config.num_inits,
            "seed": config.seed,
            "split": config.split,
            "num_classes": estimate.best,
            "curve": curve,
            "inertia": inertia,
            "iterations": iterations,
        },
        extra={"num_classes": estimate.best, "curve": curve, "searched": [low, high], "seconds": round(seconds, 2)},
        table=Table(
            "how many classes? accuracy of the labeled rows after k-means, in %",
            ["classes", "accuracy", ""],
            [[k, 100 * score, "best" if k == estimate.best else ""] for k, score in curve],
        ),
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
    logits = np.asarray(store.extras["logits"])
    outputs = logits.shape[1]
    # embed writes the columns of the old classes first, in class order; the others are anonymous
    old = np.flatnonzero(store.old_classes) if store.old_classes is not None else np.zeros(0, dtype=np.int64)
    class_of_output = np.full(outputs, -1, dtype=np.int64)
    class_of_output[: len(old)] = old
    cluster_ids = logits.argmax(axis=1).astype(np.int64)
    shifted = logits - logits.max(axis=1, keepdims=True)
    probabilities = np.exp(shifted / config.temperature)
    confidence = (1 / probabilities.sum(axis=1)).astype(np.float32)
    return _write(
        store,
        config,
        np.arange(store.n),
        cluster_ids,
        class_of_output,
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
    *,
    stage: str,
    default_name: str,
    params: dict[str, object],
    extra: dict[str, object],
    table: Table | None,
    centroids: NDArray[np.float32] | None = None,
    confidence: NDArray[np.float32] | None = None,
) -> SimpleResult:
    pseudo_labels = np.full(store.n, -1, dtype=np.int64)
    pseudo_labels[rows] = cluster_ids
    names = cluster_names(class_of_cluster, store.class_names)
    arrays: dict[str, NDArray[np.generic] | list[str]] = {
        "pseudo_labels": pseudo_labels,
        "names": names,
        "new_classes": (class_of_cluster < 0).astype(np.uint8),
    }
    if centroids is not None:
        arrays["centroids"] = centroids.astype(np.float32)
    if confidence is not None:
        arrays["confidence"] = confidence
    name = config.result or default_name
    path = write_result(
        store, name, kind="classes", arrays=arrays, params=params, stage=stage, overwrite=config.overwrite
    )
    sizes = np.bincount(cluster_ids, minlength=len(names))
    labeled = np.zeros(store.n, dtype=bool) if store.labeled is None else np.asarray(store.labeled, dtype=bool)
    with_label = np.bincount(pseudo_labels[labeled & (pseudo_labels >= 0)], minlength=len(names))
    cells: list[list[Cell]] = [
        [j, names[j], "new" if class_of_cluster[j] < 0 else "old", int(sizes[j]), int(with_label[j])]
        for j in range(len(names))
    ]
    values: dict[str, object] = {
        "index": config.index,
        "result": name,
        "path": path,
        **extra,
        "classes": [
            {"id": row[0], "name": row[1], "new": row[2] == "new", "images": row[3], "labeled": row[4]} for row in cells
        ],
    }
    tables = [] if table is None else [table]
    tables.append(Table("classes", ["id", "name", "kind", "images", "labeled"], cells))
    tables.append(Table("", ["made", "path"], [[name, path]]))
    return SimpleResult(values, (path,), tuple(tables))
