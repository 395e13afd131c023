"""Judge the features of a store by a vote of the nearest rows, and by a linear classifier trained on them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from labelkit.algorithms.feature_probes import knn_votes, linear_probe
from labelkit.config.evaluate import EvaluateKNNConfig
from labelkit.metrics.classification import per_class_accuracy, top_k_accuracy
from labelkit.stages.memory import Memory
from labelkit.stages.read.labeled_splits import LabeledSplits, open_labeled_splits
from labelkit.stages.result import Cell, SimpleResult, Table, jsonable
from labelkit.store.commit import canonical_json
from labelkit.store.results import write_result


def evaluate_knn(config: EvaluateKNNConfig) -> SimpleResult:
    """Accuracy of naming the class of each row of one split from the rows of another.

    All labels of the store are used, also those that training was not given: this measures features, it makes none.
    With ``--labels``, only those are known, and all other rows of the queries are asked for.

    Raises:
        StoreError: the store has no labels in one of the splits.
        ConfigError: no such split, or both are the same.
    """
    memory = Memory.of(config)
    splits = open_labeled_splits(
        config.index, config.gallery, config.queries, config.labels, memory, linear=config.linear
    )
    store, wanted, num_classes = splits.store, splits.query_labels, len(splits.class_names)
    by_k, votes = _votes(config, splits)
    first = dict(by_k[0])
    del first["k"]
    linear = _linear(config, splits) if config.linear else {}
    values: dict[str, object] = {
        "index": config.index,
        "gallery": {"split": config.gallery, "rows": len(splits.gallery)},
        "queries": {"split": config.queries, "rows": len(splits.queries)},
        "k": by_k[0]["k"],
        "temperature": config.temperature,
        **first,
        **linear,
        "by_k": by_k,
        "per_class": dict(
            zip(splits.class_names, per_class_accuracy(votes, wanted, num_classes).tolist(), strict=True)
        ),
    }
    made: tuple[Path, ...] = ()
    if config.result is not None:
        path = write_result(
            store,
            config.result,
            kind="evaluation",
            arrays={"metrics": canonical_json(jsonable(values | {"index": store.path.name}))},
            params={key: getattr(config, key) for key in ("gallery", "queries", "temperature", "linear", "seed")}
            | {"k": list(config.k)},
            stage="evaluate knn",
            overwrite=config.overwrite,
        )
        made = (path,)
    columns = [name.removesuffix("_accuracy").replace("_", " ") for name in (*first, *linear)]
    rows: list[list[Cell]] = []
    for entry in by_k:
        scores = [100 * value for key, value in entry.items() if key != "k"] + [100 * v for v in linear.values()]
        rows.append([config.gallery, config.queries, len(splits.queries), int(entry["k"]), *scores])
    table = Table("accuracy in %", ["gallery", "queries", "rows", "k", *columns], rows)
    return SimpleResult(values, made, (table,))


def _votes(config: EvaluateKNNConfig, splits: LabeledSplits) -> tuple[list[dict[str, float]], NDArray[np.float64]]:
    """Scores of each number of neighbors, and the votes (q, c) of the first one."""
    num_classes = len(splits.class_names)
    by_k: list[dict[str, float]] = []
    votes: list[NDArray[np.float64]] = []
    for k in config.k:
        found = knn_votes(
            splits.queries,
            splits.gallery,
            splits.gallery_labels,
            num_classes=num_classes,
            k=k,
            temperature=config.temperature,
        )
        votes = votes or [found]
        wanted = splits.query_labels
        entry: dict[str, float] = {"k": min(k, len(splits.gallery)), "knn_accuracy": top_k_accuracy(found, wanted)}
        if num_classes > 5:
            entry["knn_top5_accuracy"] = top_k_accuracy(found, wanted, 5)
        by_k.append(entry)
    return by_k, votes[0]


def _linear(config: EvaluateKNNConfig, splits: LabeledSplits) -> dict[str, float]:
    logits = linear_probe(
        splits.gallery[:],
        splits.gallery_labels,
        splits.queries[:],
        num_classes=len(splits.class_names),
        epochs=config.linear_epochs,
        seed=config.seed,
    )
    return {"linear_accuracy": top_k_accuracy(logits, splits.query_labels)}
