"""Judge the features of a store by a linear classifier: the protocol of published tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from labelkit.algorithms.feature_probes import linear_probe, logistic_regression
from labelkit.commands.common.labeled_splits import LabeledSplits, choose_labeled_splits
from labelkit.commands.common.outputs import check_kept_result, keep_scores
from labelkit.commands.common.results import Cell, SimpleResult, Table
from labelkit.commands.evaluate.dense import mean_and_spread, percent_and_spread
from labelkit.commands.evaluate.options import EvaluateLinearConfig
from labelkit.data.keyed_random import keyed_generator
from labelkit.formatting import percent
from labelkit.metrics.classification import per_class_accuracy, top_k_accuracy
from labelkit.progress import current_progress
from labelkit.store.embeddings import open_store

_SMALL: Final = 20_000
_LR: Final = {"sgd": 10.0, "adamw": 0.01}


def evaluate_linear(config: EvaluateLinearConfig) -> SimpleResult:
    """Accuracy of a linear classifier that is trained on the rows of one split and asked for those of another.

    All labels of the store are used, also those that training was not given: this measures features, it makes none.
    With ``--labels``, only those are known, and all other rows of the queries are asked for.

    Raises:
        StoreError: the store has no labels in one of the splits.
        ConfigError: no such split, or both are the same.
    """
    store = open_store(config.index)
    check_kept_result(config, store, "evaluation", gallery=config.gallery, queries=config.queries)
    splits = choose_labeled_splits(
        store, config.gallery, config.queries, config.labels, label_column=config.label_column
    )
    splits = _drawn(splits, config.max_gallery, config.seed)
    store = splits.store
    num_classes = len(splits.class_names)
    solver = config.solver
    if solver == "auto":
        solver = "lbfgs" if len(splits.gallery) <= _SMALL else "sgd"
    protocol: dict[str, object] = {
        "solver": solver,
        "gallery": config.gallery,
        "queries": config.queries,
        "rescale": config.rescale,
        "max_gallery": config.max_gallery,
    }
    outputs = _outputs(config, splits, num_classes, solver, protocol)
    top1 = mean_and_spread([top_k_accuracy(one, splits.query_labels) for one in outputs])
    top5 = None
    if num_classes > 5:
        top5 = mean_and_spread([top_k_accuracy(one, splits.query_labels, 5) for one in outputs])
    right = np.mean([per_class_accuracy(one, splits.query_labels, num_classes) for one in outputs], axis=0)
    per_class = dict(zip(splits.class_names, right.tolist(), strict=True))
    values: dict[str, object] = {
        "measured": f"linear classification of {config.queries} of {config.index}",
        "index": config.index,
        "gallery": {"split": config.gallery, "rows": len(splits.gallery)},
        "queries": {"split": config.queries, "rows": len(splits.queries)},
        "accuracy": top1,
        "top5_accuracy": top5,
        "per_class": per_class,
        "model": {"name": store.model.name, "weights_fingerprint": store.model.weights_fingerprint},
        "protocol": protocol,
    }
    params = {key: value for key, value in protocol.items() if key != "sweep"}
    made = keep_scores(config, store, values, params)
    best: list[Cell] = [percent_and_spread(top1), None if top5 is None else percent_and_spread(top5)]
    row: list[Cell] = [config.gallery, config.queries, len(splits.queries), solver, *best]
    tables = [Table("accuracy in %", ["gallery", "queries", "rows", "solver", "top 1", "top 5"], [row])]
    if config.per_class:
        rows: list[list[Cell]] = [[name, percent(value)] for name, value in per_class.items()]
        tables.append(Table("every class in %", ["class", "accuracy"], rows))
    return SimpleResult(values, made, tuple(tables))


def _outputs(
    config: EvaluateLinearConfig,
    splits: LabeledSplits,
    num_classes: int,
    solver: Literal["lbfgs", "sgd", "adamw"],
    protocol: dict[str, object],
) -> list[NDArray[Any]]:
    """Return the outputs for the queries, one array per training; the protocol gets what was chosen."""
    outputs: list[NDArray[Any]] = []
    with current_progress().task("train classifier", total=None):
        if solver == "lbfgs":
            l2, sweep = _choose_l2(config.l2, splits, num_classes, config.seed)
            outputs.append(
                logistic_regression(
                    splits.gallery, splits.gallery_labels, splits.queries, num_classes=num_classes, l2=l2
                )
            )
            protocol |= {"l2": l2, "sweep": sweep}
        else:
            seeds = range(config.seed, config.seed + config.seeds)
            outputs += [
                linear_probe(
                    splits.gallery,
                    splits.gallery_labels,
                    splits.queries,
                    num_classes=num_classes,
                    epochs=config.epochs,
                    lr=config.lr or _LR[solver],
                    batch_size=config.batch_size,
                    seed=seed,
                    optimizer=solver,
                    rescale=config.rescale,
                )
                for seed in seeds
            ]
            protocol |= {
                "lr": config.lr or _LR[solver],
                "epochs": config.epochs,
                "batch_size": config.batch_size,
                "seeds": list(seeds),
            }
    return outputs


def _drawn(splits: LabeledSplits, most: int | None, seed: int) -> LabeledSplits:
    """Leave out rows of the gallery at random until there are no more than asked for."""
    if most is None or len(splits.gallery) <= most:
        return splits
    kept = np.sort(keyed_generator(seed, "gallery of evaluate linear").choice(len(splits.gallery), most, replace=False))
    return replace(splits, gallery=splits.gallery.subset(kept), gallery_labels=splits.gallery_labels[kept])


def _choose_l2(
    penalties: Sequence[float], splits: LabeledSplits, num_classes: int, seed: int
) -> tuple[float, list[dict[str, float]]]:
    """Return the penalty of highest accuracy on a held-out fifth of the gallery, and all that were tried."""
    order = keyed_generator(seed, "choose l2").permutation(len(splits.gallery))
    cut = max(1, len(order) // 5)
    held, kept = order[:cut], order[cut:]
    if len(penalties) == 1 or not len(kept):
        return penalties[0], []
    tried = []
    for l2 in penalties:
        logits = logistic_regression(
            splits.gallery.subset(kept),
            splits.gallery_labels[kept],
            splits.gallery.subset(held),
            num_classes=num_classes,
            l2=l2,
        )
        tried.append({"l2": l2, "accuracy": top_k_accuracy(logits, splits.gallery_labels[held])})
    return max(tried, key=lambda entry: entry["accuracy"])["l2"], tried
