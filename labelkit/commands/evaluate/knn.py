"""Judge the features of a store by a vote of the nearest rows, and by a linear classifier trained on them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from labelkit.algorithms.feature_probes import knn_votes, linear_probe
from labelkit.algorithms.projection import mapped_rows, principal_map
from labelkit.algorithms.row_blocks import StoredRows
from labelkit.commands.common.labeled_splits import LabeledSplits, choose_labeled_splits
from labelkit.commands.common.outputs import check_kept_result, keep_scores
from labelkit.commands.common.results import Cell, SimpleResult, Table
from labelkit.commands.evaluate.options import EvaluateKNNConfig
from labelkit.errors import ConfigError
from labelkit.formatting import percent
from labelkit.metrics.classification import per_class_accuracy, top_k_accuracy
from labelkit.progress import current_progress
from labelkit.store.embeddings import open_store

# Passes of the training of --linear.
_LINEAR_EPOCHS = 100


def evaluate_knn(config: EvaluateKNNConfig) -> SimpleResult:
    """Accuracy of naming the class of each row of one split from the rows of another.

    All labels of the store are used, also those that training was not given: this measures features, it makes none.
    With ``--labels``, only those are known, and all other rows of the queries are asked for. A row has no vote on
    itself: where both splits are the same, or the store has none, each row is named by all others (leave-one-out).

    Raises:
        StoreError: the store has no labels in one of the splits.
        ConfigError: no such split, or a single row or a linear classifier where both are the same.
    """
    store = open_store(config.index)
    check_kept_result(
        config, store, "evaluation", k=list(config.k), pca=config.pca, linear=config.linear, seed=config.seed
    )
    splits = choose_labeled_splits(
        store,
        config.gallery,
        config.queries,
        config.labels,
        label_column=config.label_column,
        leave_one_out=True,
    )
    gallery, queries = splits.names
    if splits.leave_one_out:
        _begin_leave_one_out(config, splits)
    store, wanted, num_classes = splits.store, splits.query_labels, len(splits.class_names)
    by_k, votes = _votes(config, splits)
    linear = _linear(config, splits) if config.linear else {}
    first = dict(by_k[0])
    del first["k"]
    values: dict[str, object] = {
        "index": config.index,
        "gallery": {"split": gallery, "rows": len(splits.gallery)},
        "queries": {"split": queries, "rows": len(splits.queries)},
        "leave_one_out": splits.leave_one_out,
        "k": by_k[0]["k"],
        "temperature": config.temperature,
        "pca": config.pca,
        **first,
        **linear,
        "by_k": by_k,
        "per_class": dict(
            zip(splits.class_names, per_class_accuracy(votes, wanted, num_classes).tolist(), strict=True)
        ),
    }
    columns = [name.removesuffix("_accuracy").replace("_", " ") for name in (*first, *linear)]
    rows: list[list[Cell]] = []
    for entry in by_k:
        scores = [percent(value) for key, value in entry.items() if key != "k"]
        scores += [percent(value) for value in linear.values()]
        rows.append([gallery, queries, len(splits.queries), int(entry["k"]), *scores])
    voted = "" if config.pca is None else f", on {config.pca} principal components"
    title = f"accuracy in %{voted}" + (", each row by all others (leave-one-out)" if splits.leave_one_out else "")
    table = Table(title, ["gallery", "queries", "rows", "k", *columns], rows)
    params = {key: getattr(config, key) for key in ("temperature", "pca", "linear", "seed")}
    params |= {"gallery": gallery, "queries": queries, "k": list(config.k)}
    return SimpleResult(values, keep_scores(config, store, values, params), (table,))


def _begin_leave_one_out(config: EvaluateKNNConfig, splits: LabeledSplits) -> None:
    """Say that each row is named by all others, and refuse what cannot be asked for so.

    Raises:
        ConfigError: a single row, or a linear classifier, which would be trained on what it is asked for.
    """
    if config.linear:
        remedy = "Choose two splits with --gallery and --queries, or leave out --linear."
        raise ConfigError("--linear", "would train on the rows that it is asked for", remedy)
    if len(splits.gallery) < 2:
        raise ConfigError("--gallery", f"{splits.names[0]} has one row with a label, and no other to name it", "")
    reason = "the two splits are the same" if splits.store.split_names else f"{splits.store.path} has no splits"
    current_progress().message(f"{reason}: each row is named by all others (leave-one-out)")


def _votes(config: EvaluateKNNConfig, splits: LabeledSplits) -> tuple[list[dict[str, float]], NDArray[np.float64]]:
    """Scores of each number of neighbors, and the votes (q, c) of the first one."""
    num_classes = len(splits.class_names)
    queries: StoredRows | NDArray[np.float32] = splits.queries
    gallery: StoredRows | NDArray[np.float32] = splits.gallery
    if config.pca is not None:
        queries, gallery = _on_components(splits, config.pca)
    by_k: list[dict[str, float]] = []
    votes: list[NDArray[np.float64]] = []
    for k in config.k:
        found = knn_votes(
            queries,
            gallery,
            splits.gallery_labels,
            num_classes=num_classes,
            k=k,
            temperature=config.temperature,
            own=splits.own if (splits.own >= 0).any() else None,
        )
        votes = votes or [found]
        wanted = splits.query_labels
        most = len(splits.gallery) - int(splits.leave_one_out)
        entry: dict[str, float] = {"k": min(k, most), "knn_accuracy": top_k_accuracy(found, wanted)}
        if num_classes > 5:
            entry["knn_top5_accuracy"] = top_k_accuracy(found, wanted, 5)
        by_k.append(entry)
    return by_k, votes[0]


def _on_components(splits: LabeledSplits, count: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Queries and gallery on principal components of the gallery.

    Raises:
        ConfigError: rows have fewer numbers.
    """
    dim = splits.gallery.shape[1]
    if count > dim:
        raise ConfigError("--pca", f"{count} components of rows of {dim} numbers", f"Pass {dim} or fewer.")
    mean, directions = principal_map(splits.gallery, count)
    queries, gallery = (mapped_rows(side, mean, directions) for side in (splits.queries, splits.gallery))
    return queries, gallery


def _linear(config: EvaluateKNNConfig, splits: LabeledSplits) -> dict[str, float]:
    logits = linear_probe(
        splits.gallery,
        splits.gallery_labels,
        splits.queries,
        num_classes=len(splits.class_names),
        epochs=_LINEAR_EPOCHS,
        seed=config.seed,
    )
    return {"linear_accuracy": top_k_accuracy(logits, splits.query_labels)}
