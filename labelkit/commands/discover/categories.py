"""Discover classes in a store: estimate their number, and assign each image to one of them."""

import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from labelkit.algorithms.hierarchy import build_hierarchy
from labelkit.algorithms.row_blocks import StoredRows, iterate_blocks
from labelkit.commands.common.embeddings import find_split_rows, is_nonnegative, load_rows, mention_splits
from labelkit.commands.common.labels import (
    UsableLabels,
    build_labeled_mask,
    choose_usable_labels,
    read_usable_labels,
    was_trained_on_labels,
)
from labelkit.commands.common.results import Cell, CommandResult, Table
from labelkit.commands.common.stable_ids import StoredGroups, assign_stable_ids, read_previous_groups
from labelkit.commands.discover.label_weights import compute_label_weights, drop_low_weight_labels
from labelkit.commands.discover.num_classes import choose_num_classes
from labelkit.commands.discover.options import DiscoverCategoriesConfig, DiscoverHeadConfig
from labelkit.data.keyed_random import keyed_generator
from labelkit.errors import StoreError
from labelkit.progress import current_progress
from labelkit.store.embeddings import EmbeddingStore, open_store
from labelkit.store.results import check_new_result, write_result

_PARAMETERS = ("criterion", "seed", "split", "min_size")


@dataclass(frozen=True)
class _Classes:
    """Discovered classes of n images.

    Attributes:
        ids: (n,) int64, class id of each image.
        labels: (k,) int64, label of each class, -1 = new class.
        centroids: (k, d), if available.
        confidence: (n,) float32, if available.
    """

    ids: NDArray[np.int64]
    labels: NDArray[np.int64]
    centroids: NDArray[np.floating] | None = None
    confidence: NDArray[np.float32] | None = None


def discover_categories(config: DiscoverCategoriesConfig) -> CommandResult:
    """Discover classes by cutting a hierarchy of normalized embeddings into the given or estimated number of groups.

    Raises:
        StoreError: the store cannot be used.
        DatasetError: the store has no usable labels, but the criterion requires some.
        ConfigError: the bounds exclude every number, or there are more classes than rows.
    """
    store = open_store(config.index)
    rows = find_split_rows(store, config.split)
    mention_splits(config, store)
    given = read_usable_labels(config, store, rows)
    labels = given.labels
    params = {name: getattr(config, name) for name in _PARAMETERS}
    # recorded so that other commands can recreate the groups
    params |= {"grouping": "tree"} | ({} if config.num_classes is None else {"num_classes": config.num_classes})
    _check_name(config, store, params)
    earlier = read_previous_groups(config, config.result or "categories")
    # building the hierarchy reads the rows only a few times; k-means reads them until it converges
    in_blocks = config.criterion != "published"
    features = load_rows(store, rows, normalize=True, in_blocks=in_blocks)
    # square roots improve the hierarchy, but not the test for classes without labels
    roots = in_blocks and is_nonnegative(store)
    grouped = load_rows(store, rows, normalize=True, square_root=True, in_blocks=True) if roots else features
    started = time.monotonic()
    drawn = labels
    if config.previous is not None and config.previous_answers is not None:
        weights = compute_label_weights(store, rows, given, config.previous, config.previous_answers)
        drawn = drop_low_weight_labels(labels, weights)
    with current_progress().task("hierarchical clustering", total=None):
        tree = build_hierarchy(grouped, drawn, generator=keyed_generator(config.seed, "cluster"))
    judgement = choose_num_classes(config, given.where, features, drawn, tree)
    for note in judgement.notes:
        current_progress().message(note)
    if config.num_classes is None and was_trained_on_labels(store, rows, labels) == "yes":
        current_progress().warning(
            "the network was trained on labels of these classes and separates them better than new classes, so there "
            "are probably more classes than estimated"
        )
    ids, count = tree.cut(max(judgement.choice.best, tree.min_groups), min_size=config.min_size)
    corrected = (labels >= 0) & (drawn < 0)
    ids[corrected] = np.searchsorted(tree.labels, labels[corrected])
    # groups that contained only corrected images are now empty; groups of labeled classes come first and keep their ids
    used, ids = np.unique(ids, return_inverse=True)
    count = len(used)
    seconds = time.monotonic() - started
    if count < judgement.choice.best:
        current_progress().message(
            f"found {count} classes instead of {judgement.choice.best}: all other groups have fewer than "
            f"{config.min_size} images (--min-size)"
        )
    of_class = np.concatenate([tree.labels, np.full(count - len(tree.labels), -1, dtype=np.int64)])
    evidence = judgement.to_json()
    params |= {"min_classes": judgement.searched[0], "max_classes": judgement.searched[1]}
    params |= ({"labels": given.source} if given.source else {}) | evidence
    found = _Classes(ids, of_class, _means(features, ids, count))
    extra = {**evidence, "seconds": round(seconds, 2)}
    return _write(store, config, rows, found, given, earlier, params=params, extra=extra, table=judgement.table())


def _means(features: StoredRows, ids: NDArray[np.int64], count: int) -> NDArray[np.float64]:
    """Return the centroids (k, d) of the groups; no group may be empty."""
    sums = np.zeros((count, features.shape[1]))
    for where, part in iterate_blocks(features):
        np.add.at(sums, ids[where], part.astype(np.float64))
    return np.asarray(sums / np.bincount(ids, minlength=count)[:, None])


def _check_name(
    config: DiscoverCategoriesConfig | DiscoverHeadConfig, store: EmbeddingStore, params: dict[str, object]
) -> None:
    name, stage = config.result or config.command[1], " ".join(config.command)
    check_new_result(store, name, overwrite=config.overwrite, kind="classes", stage=stage, params=params)


def classify_by_logits(config: DiscoverHeadConfig) -> CommandResult:
    """Assign each image of a store to the class with the largest of its stored logits.

    Raises:
        StoreError: the store has no logits.
    """
    store = open_store(config.index)
    if not store.has_logits:
        raise StoreError(
            f"{store.path}:/logits",
            "is missing: the model has no classifier, its classes differ from the labels here, or embed was run with "
            "--no-logits",
            "Embed the training set with a checkpoint of a method that has a classifier, or use `labelkit discover "
            "categories`.",
        )
    _check_name(config, store, {"temperature": config.temperature})
    logits = store.extras["logits"]
    outputs = logits.shape[1]
    # the first columns are the old classes, in class order; the other columns have no names
    old = np.flatnonzero(store.old_classes) if store.old_classes is not None else np.zeros(0, dtype=np.int64)
    class_of_output = np.full(outputs, -1, dtype=np.int64)
    class_of_output[: len(old)] = old
    cluster_ids, confidence = np.empty(store.n, dtype=np.int64), np.empty(store.n, dtype=np.float32)
    for where, part in iterate_blocks(StoredRows(logits, in_blocks=True)):
        cluster_ids[where] = part.argmax(axis=1)
        shifted = part - part.max(axis=1, keepdims=True)
        confidence[where] = 1 / np.exp(shifted / config.temperature).sum(axis=1)
    rows, found = np.arange(store.n), _Classes(cluster_ids, class_of_output, confidence=confidence)
    given, earlier = choose_usable_labels(None, store, rows), read_previous_groups(config, config.result or "head")
    extra: dict[str, object] = {"num_classes": outputs}
    params = {**extra, "temperature": config.temperature}
    return _write(store, config, rows, found, given, earlier, params=params, extra=extra, table=None)


def _write(
    store: EmbeddingStore,
    config: DiscoverCategoriesConfig | DiscoverHeadConfig,
    rows: NDArray[np.int64],
    found: _Classes,
    given: UsableLabels,
    earlier: StoredGroups | None,
    *,
    params: dict[str, object],
    extra: dict[str, object],
    table: Table | None,
) -> CommandResult:
    """Reuse the class ids of an earlier run, write the classes next to the store, and return the command's result."""
    classes = [given.class_names[label] if label >= 0 else None for label in found.labels.tolist()]
    lasting = assign_stable_ids(earlier, store, rows, found.ids, len(classes), classes=classes)
    pseudo_labels = np.full(store.n, -1, dtype=np.int64)
    pseudo_labels[rows] = lasting.ids[found.ids]
    names, is_new = lasting.name_ids(found.labels, given.class_names), lasting.new_class_mask(found.labels)
    arrays: dict[str, NDArray[np.generic] | list[str]] = {
        "pseudo_labels": pseudo_labels,
        "names": names,
        "new_classes": is_new.astype(np.uint8),
        **lasting.result_arrays(),
        **build_labeled_mask(store, rows, given),
    }
    if found.centroids is not None:
        arrays["centroids"] = lasting.values_by_id(found.centroids.astype(np.float32))
    if found.confidence is not None:
        arrays["confidence"] = found.confidence
    name, stage = config.result or config.command[1], " ".join(config.command)
    params = params | lasting.result_params()
    path = write_result(
        store, name, kind="classes", arrays=arrays, params=params, stage=stage, overwrite=config.overwrite
    )
    sizes = np.bincount(pseudo_labels[rows], minlength=len(names))
    with_label = np.bincount(pseudo_labels[rows][given.labeled], minlength=len(names))
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
    classes_table = Table("classes", ["id", "name", "kind", "images", "labeled"], cells)
    return CommandResult(values, (path,), (classes_table,) if table is None else (table, classes_table))
