"""Evaluate a classifier on images that it was not trained on, by its output in a store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelkit.algorithms.matching import contingency
from labelkit.commands.common.embeddings import split_rows
from labelkit.commands.common.outputs import check_result_name, store_scores
from labelkit.commands.common.results import Cell, SimpleResult, Table
from labelkit.commands.evaluate.options import EvaluateClassificationConfig
from labelkit.data.keyed_random import keyed_generator
from labelkit.errors import ConfigError, StoreError
from labelkit.formatting import percent, percent_range
from labelkit.metrics.classification import (
    per_class_accuracy,
    share_interval,
    shot_groups,
    top_k_accuracy,
)
from labelkit.progress import current_progress
from labelkit.store.embeddings import EmbeddingStore, open_store

_HELD_OUT_SPLITS = ("test", "val", "valid", "validation")
_CONFUSIONS_SHOWN = 10


@dataclass(frozen=True)
class _Scored:
    """Scores of some images of a store, with columns in the order of its classes.

    Attributes:
        split: split of the images.
        scores: (n, c) float32; -inf where the classifier has no column.
        labels: (n,) int64 in [0, c).
        train_counts: (c,) int64, number of training images of each class.
        class_names: names of the c classes.
    """

    split: str
    scores: NDArray[np.float32]
    labels: NDArray[np.int64]
    train_counts: NDArray[np.int64]
    class_names: tuple[str, ...]


def evaluate_classification(config: EvaluateClassificationConfig) -> SimpleResult:
    """Evaluate a classifier's accuracy on all images, on classes grouped by number of training images, and per class.

    Intervals are from resampled images; they do not include variation between trainings.

    Raises:
        ConfigError: there is no such split.
        StoreError: there is nothing to score.
    """
    store = open_store(config.index)
    check_result_name(config, store, "evaluation", groups="auto", seen_only=False)
    scored = _scored(store, config)
    num_classes = len(scored.class_names)
    _warn_of_unseen(scored)
    predictions = scored.scores.argmax(axis=1)
    matrix = contingency(scored.labels, predictions, num_clusters=num_classes, num_classes=num_classes)
    per_class = per_class_accuracy(predictions, scored.labels, num_classes)
    groups = shot_groups(scored.train_counts)
    values: dict[str, Any] = {
        "source": str(store.path),
        "split": scored.split,
        "scores": _group_scores(scored, groups, per_class, config),
        "groups": {name: [scored.class_names[i] for i in classes] for name, classes in groups.items()},
        "classes_without_training_image": [scored.class_names[i] for i in np.flatnonzero(scored.train_counts == 0)],
        "bootstrap": {"resamples": config.bootstrap, "level": 0.95, "seed": config.seed},
        "per_class": [
            {
                "class": name,
                "train_images": int(scored.train_counts[i]),
                "images": int(matrix[i].sum()),
                "accuracy": float(per_class[i]),
            }
            for i, name in enumerate(scored.class_names)
        ],
        "confusions": _confusions(matrix, scored.class_names),
    }
    made = store_scores(config, store, values, {"split": scored.split, "groups": "auto", "seen_only": False})
    return SimpleResult(values, made, _tables(config, values))


def _warn_of_unseen(scored: _Scored) -> None:
    """Warn about classes without a training image."""
    unseen = np.flatnonzero(scored.train_counts == 0)
    if len(unseen):
        names = ", ".join(scored.class_names[i] for i in unseen[:5])
        current_progress().warning(
            f"{len(unseen)} classes had no training images ({names}{', ...' if len(unseen) > 5 else ''}), but can "
            "still be predicted"
        )


def _group_scores(
    scored: _Scored,
    groups: Mapping[str, NDArray[np.int64]],
    per_class: NDArray[np.float64],
    config: EvaluateClassificationConfig,
) -> list[dict[str, Any]]:
    """Score all images, and those of each group of classes with images; intervals contain 95 % of the resamples."""
    labels, scores = scored.labels, scored.scores
    right = scores.argmax(axis=1) == labels
    num_classes = len(scored.class_names)
    found = []
    for name in ("all", *groups):
        mask = np.isin(labels, groups[name]) if name in groups else np.ones(len(labels), dtype=bool)
        classes = groups.get(name, np.flatnonzero(np.bincount(labels, minlength=num_classes)))
        count, hits = int(mask.sum()), int(right[mask].sum())
        if not count:
            continue
        interval = None
        if config.bootstrap:
            generator = keyed_generator(config.seed, f"bootstrap {name}")
            interval = share_interval(hits, count, num_resamples=config.bootstrap, generator=generator)
        top5 = top_k_accuracy(scores[mask], labels[mask], 5) if num_classes > 5 else None
        balanced = float(np.nanmean(per_class[classes]))
        found.append(
            {
                "classes": name,
                "num_classes": len(classes),
                "images": count,
                "accuracy": hits / count,
                "interval": interval,
                "top5_accuracy": top5,
                "balanced_accuracy": balanced,
            }
        )
    return found


def _tables(config: EvaluateClassificationConfig, values: Mapping[str, Any]) -> tuple[Table, ...]:
    scores: list[list[Cell]] = [
        [
            *(entry[key] for key in ("classes", "num_classes", "images")),
            percent(entry["accuracy"]),
            None if entry["interval"] is None else percent_range(*entry["interval"]),
            None if entry["top5_accuracy"] is None else percent(entry["top5_accuracy"]),
            percent(entry["balanced_accuracy"]),
        ]
        for entry in values["scores"]
    ]
    tables = [
        Table(
            f"accuracy in % on split {values['split']}; balanced: mean over classes",
            ["classes", "number", "images", "top 1", "95 % interval", "top 5", "balanced"],
            scores,
        )
    ]
    if values["confusions"]:
        shown: list[list[Cell]] = [list(entry.values()) for entry in values["confusions"]]
        tables.append(Table("taken for another class most often", ["true class", "named", "images"], shown))
    if config.per_class:
        table: list[list[Cell]] = [
            [one["class"], one["train_images"], one["images"], percent(one["accuracy"])] for one in values["per_class"]
        ]
        tables.append(Table("each class in %", ["class", "training images", "images", "accuracy"], table))
    return tuple(tables)


def _confusions(matrix: NDArray[np.int64], class_names: tuple[str, ...]) -> list[dict[str, object]]:
    """Return the largest off-diagonal counts."""
    wrong = matrix.copy()
    np.fill_diagonal(wrong, 0)
    order = np.argsort(-wrong, axis=None, kind="stable")[:_CONFUSIONS_SHOWN]
    pairs = [divmod(int(cell), len(wrong)) for cell in order]
    return [
        {"true": class_names[i], "named": class_names[j], "images": int(wrong[i, j])} for i, j in pairs if wrong[i, j]
    ]


def _scored(store: EmbeddingStore, config: EvaluateClassificationConfig) -> _Scored:
    if store.labels is None or not store.class_names:
        raise StoreError(
            f"{store.path}:/labels", "there are no labels to compare the groups with", "Embed a data set with labels."
        )
    if "logits" not in store.extras:
        raise StoreError(
            str(store.path),
            "contains no classifier logits",
            "Embed with the --checkpoint of a classifier, without --no-logits.",
        )
    split = config.split
    if split == "auto":
        split = next((name for name in _HELD_OUT_SPLITS if name in store.split_names), "")
    if not split:
        problem = f"{store.path} has neither a test nor a val split"
        raise ConfigError("--split", problem, "Choose one of these splits, or all.")
    rows = split_rows(store, split)
    known = np.asarray(store.labels, dtype=np.int64)
    rows = rows[known[rows] >= 0]
    if not len(rows):
        raise StoreError(f"{store.path}:/labels", f"no image in split {split} has a label", "Choose another --split.")
    num_classes = len(store.class_names)
    labeled = np.zeros(store.n, dtype=bool) if store.labeled is None else np.asarray(store.labeled, dtype=bool)
    old = np.ones(num_classes, bool) if store.old_classes is None else np.asarray(store.old_classes, bool)
    # the order of `labelkit embed`: labeled classes ascending, then the others
    columns = np.concatenate([np.flatnonzero(old), np.flatnonzero(~old)])
    outputs = np.asarray(store.extras["logits"], dtype=np.float32)[rows]
    scores = np.full((len(rows), num_classes), -np.inf, dtype=np.float32)
    count = min(num_classes, outputs.shape[1])  # further outputs have no class
    scores[:, columns[:count]] = outputs[:, :count]
    return _Scored(split, scores, known[rows], np.bincount(known[labeled], minlength=num_classes), store.class_names)
