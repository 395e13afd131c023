"""Evaluate a classifier on held-out images, from its logits in a store."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelkit.algorithms.matching import cross_tabulate
from labelkit.commands.common.embeddings import find_labeled_rows
from labelkit.commands.common.results import Cell, CommandResult, Table
from labelkit.commands.evaluate.options import EvaluateClassificationConfig
from labelkit.data.datasets import HELD_OUT_SPLITS
from labelkit.data.keyed_random import keyed_generator
from labelkit.errors import ConfigError, StoreError
from labelkit.formatting import percent, percent_range
from labelkit.metrics.classification import per_class_accuracy, proportion_interval, shot_groups, top_k_accuracy
from labelkit.progress import current_progress
from labelkit.store.embeddings import EmbeddingStore, open_store

_CONFUSIONS_SHOWN = 10


def evaluate_classification(config: EvaluateClassificationConfig) -> CommandResult:
    """Evaluate a classifier's accuracy on all images, on classes grouped by number of training images, and per class.

    Confidence intervals are from resampled images; they do not include the variation between training runs.

    Raises:
        ConfigError: the split does not exist.
        StoreError: the store has no logits, or no labels for the split.
    """
    store = open_store(config.index)
    split, rows = _choose_rows(store, config.split)
    labels, scores = np.asarray(store.labels, dtype=np.int64), _read_scores(store, rows)
    names, num_classes = store.class_names, len(store.class_names)
    trained = store.trained_rows() & (labels >= 0)
    if store.labeled is not None:
        trained &= np.asarray(store.labeled, dtype=bool)
    train_counts = np.bincount(labels[trained], minlength=num_classes) if trained.any() else None
    labels = labels[rows]
    # a store that contains only test images does not record the number of training images per class
    unseen = [] if train_counts is None else [names[i] for i in np.flatnonzero(train_counts == 0)]
    if unseen:
        current_progress().warning(
            f"{len(unseen)} classes had no training images ({', '.join(unseen[:5])}{', ...' if len(unseen) > 5 else ''}"
            "), but can still be predicted"
        )
    predictions = scores.argmax(axis=1)
    matrix = cross_tabulate(labels, predictions, num_clusters=num_classes, num_classes=num_classes)
    per_class = per_class_accuracy(predictions, labels, num_classes)
    groups = {} if train_counts is None else shot_groups(train_counts)
    wrong = matrix.copy()
    np.fill_diagonal(wrong, 0)
    most = np.argsort(-wrong, axis=None, kind="stable")[:_CONFUSIONS_SHOWN]
    values: dict[str, Any] = {
        "source": str(store.path),
        "split": split,
        "scores": _group_scores(config, scores, labels, groups, per_class),
        "groups": {name: [names[i] for i in classes] for name, classes in groups.items()},
        "classes_without_training_image": unseen,
        "bootstrap": {"resamples": config.bootstrap, "level": 0.95, "seed": config.seed},
        "per_class": [
            {
                "class": name,
                "train_images": None if train_counts is None else int(train_counts[i]),
                "images": int(matrix[i].sum()),
                "accuracy": float(per_class[i]),
            }
            for i, name in enumerate(names)
        ],
        "confusions": [
            {"true": names[i], "named": names[j], "images": int(wrong[i, j])}
            for i, j in zip(*np.unravel_index(most, wrong.shape), strict=True)
            if wrong[i, j]
        ],
    }
    return CommandResult(values, (), _tables(config, values))


def _choose_rows(store: EmbeddingStore, split: str) -> tuple[str, NDArray[np.int64]]:
    if store.labels is None or not store.class_names:
        raise StoreError(
            f"{store.path}:/labels", "there are no labels to compare the logits with", "Embed a dataset with labels."
        )
    if not store.has_logits:
        raise StoreError(
            str(store.path),
            "contains no classifier logits",
            "Embed with the --checkpoint of a classifier, without --no-logits.",
        )
    if split == "auto":
        split = next((name for name in HELD_OUT_SPLITS if name in store.split_names), "")
    if not split:
        problem = f"{store.path} has neither a test nor a val split"
        raise ConfigError("--split", problem, f"Choose one of: {', '.join((*store.split_names, 'all'))}.")
    return split, find_labeled_rows(store, split, remedy="Choose another --split.")


def _read_scores(store: EmbeddingStore, rows: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return logits (m, c) in the order of the store's classes; -inf for classes that the classifier does not have."""
    num_classes = len(store.class_names)
    old = np.ones(num_classes, bool) if store.old_classes is None else np.asarray(store.old_classes, bool)
    # the order in `labelkit embed`: old classes first, then the others
    columns = np.concatenate([np.flatnonzero(old), np.flatnonzero(~old)])
    outputs = np.asarray(store.extras["logits"], dtype=np.float32)[rows]
    scores = np.full((len(rows), num_classes), -np.inf, dtype=np.float32)
    count = min(num_classes, outputs.shape[1])  # further outputs belong to no class
    scores[:, columns[:count]] = outputs[:, :count]
    return scores


def _group_scores(
    config: EvaluateClassificationConfig,
    scores: NDArray[np.float32],
    labels: NDArray[np.int64],
    groups: Mapping[str, NDArray[np.int64]],
    per_class: NDArray[np.float64],
) -> list[dict[str, Any]]:
    """Compute accuracies over all images and over each non-empty group of classes, with 95% bootstrap intervals."""
    right = scores.argmax(axis=1) == labels
    found = []
    for name, classes in {"all": np.unique(labels), **groups}.items():
        mask = np.isin(labels, classes)
        count, hits = int(mask.sum()), int(right[mask].sum())
        if not count:
            continue
        interval = None
        if config.bootstrap:
            generator = keyed_generator(config.seed, f"bootstrap {name}")
            interval = proportion_interval(hits, count, num_resamples=config.bootstrap, generator=generator)
        found.append(
            {
                "classes": name,
                "num_classes": len(classes),
                "images": count,
                "accuracy": hits / count,
                "interval": interval,
                "top5_accuracy": top_k_accuracy(scores[mask], labels[mask], 5) if scores.shape[1] > 5 else None,
                "balanced_accuracy": float(np.nanmean(per_class[classes])),
            }
        )
    return found


def _tables(config: EvaluateClassificationConfig, values: Mapping[str, Any]) -> tuple[Table, ...]:
    scores: list[list[Cell]] = []
    for entry in values["scores"]:
        interval = None if entry["interval"] is None else percent_range(*entry["interval"])
        top5 = None if entry["top5_accuracy"] is None else percent(entry["top5_accuracy"])
        counts = [entry[key] for key in ("classes", "num_classes", "images")]
        scores.append([*counts, percent(entry["accuracy"]), interval, top5, percent(entry["balanced_accuracy"])])
    title = f"accuracy in % on split {values['split']} (balanced: mean over classes)"
    columns = ["classes", "number", "images", "top 1", "95% interval", "top 5", "balanced"]
    tables = [Table(title, columns, scores)]
    if values["confusions"]:
        shown: list[list[Cell]] = [list(entry.values()) for entry in values["confusions"]]
        tables.append(Table("most frequent confusions", ["true class", "predicted class", "images"], shown))
    if config.per_class:
        table: list[list[Cell]] = [
            [one["class"], one["train_images"], one["images"], percent(one["accuracy"])] for one in values["per_class"]
        ]
        tables.append(Table("accuracy per class in %", ["class", "training images", "images", "accuracy"], table))
    return tuple(tables)
