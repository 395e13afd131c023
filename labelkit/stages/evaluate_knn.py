"""Judge the features of a store by a vote of the nearest rows, and by a linear classifier trained on them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from labelkit.algorithms.feature_probes import knn_votes, linear_probe
from labelkit.config.stages import EvaluateKNNConfig
from labelkit.errors import ConfigError, StoreError
from labelkit.metrics.classification import per_class_accuracy, top_k_accuracy
from labelkit.stages.indexes import check_features, split_rows
from labelkit.stages.result import Cell, SimpleResult, Table, jsonable
from labelkit.store.commit import canonical_json
from labelkit.store.embeddings import EmbeddingStore, open_store
from labelkit.store.results import write_result


def evaluate_knn(config: EvaluateKNNConfig) -> SimpleResult:
    """Accuracy of naming the class of each row of one split from the rows of another.

    All labels of the store are used, also those that training was not given: this measures features, it makes none.

    Raises:
        StoreError: the store has no labels in one of the splits.
        ConfigError: no such split, or both are the same.
    """
    store = open_store(config.index)
    if config.gallery == config.queries:
        raise ConfigError(
            "--queries", f"{config.queries} is the gallery too, so each row would find itself", "Choose two splits."
        )
    gallery, queries = (_labeled_rows(store, split) for split in (config.gallery, config.queries))
    labels = np.asarray(store.labels, dtype=np.int64)
    features = {"gallery": check_features(store, gallery), "queries": check_features(store, queries)}
    if not features["gallery"].any():
        raise StoreError(f"{store.path}:/embeddings", f"all rows of {config.gallery} are zero", "Embed again.")
    num_classes = len(store.class_names)
    votes = knn_votes(
        features["queries"],
        features["gallery"],
        labels[gallery],
        num_classes=num_classes,
        k=config.k,
        temperature=config.temperature,
    )
    wanted = labels[queries]
    scores: dict[str, float] = {"knn_accuracy": top_k_accuracy(votes, wanted)}
    if num_classes > 5:
        scores["knn_top5_accuracy"] = top_k_accuracy(votes, wanted, 5)
    if config.linear:
        logits = linear_probe(
            features["gallery"],
            labels[gallery],
            features["queries"],
            num_classes=num_classes,
            epochs=config.linear_epochs,
            seed=config.seed,
        )
        scores["linear_accuracy"] = top_k_accuracy(logits, wanted)
    values: dict[str, object] = {
        "index": config.index,
        "gallery": {"split": config.gallery, "rows": len(gallery)},
        "queries": {"split": config.queries, "rows": len(queries)},
        "k": min(config.k, len(gallery)),
        "temperature": config.temperature,
        **scores,
        "per_class": dict(zip(store.class_names, per_class_accuracy(votes, wanted, num_classes).tolist(), strict=True)),
    }
    made: tuple[Path, ...] = ()
    if config.result is not None:
        path = write_result(
            store,
            config.result,
            kind="evaluation",
            arrays={"metrics": canonical_json(jsonable(values | {"index": store.path.name}))},
            params={key: getattr(config, key) for key in ("gallery", "queries", "k", "temperature", "linear", "seed")},
            stage="evaluate knn",
            overwrite=config.overwrite,
        )
        made = (path,)
    row: list[Cell] = [config.gallery, config.queries, len(queries), *(100 * value for value in scores.values())]
    columns = [name.removesuffix("_accuracy").replace("_", " ") for name in scores]
    table = Table("accuracy in %", ["gallery", "queries", "rows", *columns], [row])
    return SimpleResult(values, made, (table,))


def _labeled_rows(store: EmbeddingStore, split: str) -> NDArray[np.int64]:
    rows = split_rows(store, split)
    if store.labels is not None:
        rows = rows[np.asarray(store.labels)[rows] >= 0]
    if store.labels is None or not len(rows):
        raise StoreError(
            f"{store.path}:/labels", f"no row of split {split} has a label", "Embed a data set with labels."
        )
    return rows
