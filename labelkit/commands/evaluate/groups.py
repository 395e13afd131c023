"""Score the groupings of a store against its labels."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelkit.algorithms.matching import match_clusters
from labelkit.commands.common.embeddings import split_rows
from labelkit.commands.common.labels import labels_to_use
from labelkit.commands.common.outputs import check_result_name, store_scores
from labelkit.commands.common.results import Cell, SimpleResult, Table
from labelkit.commands.evaluate.options import EvaluateClusteringConfig
from labelkit.data.keyed_random import keyed_generator
from labelkit.errors import StoreError
from labelkit.formatting import percent, percent_range
from labelkit.metrics.bootstrap import accuracy_intervals
from labelkit.metrics.clustering import (
    ClusterAccuracy,
    adjusted_mutual_information,
    adjusted_rand_index,
    cluster_accuracy,
    normalized_mutual_information,
)
from labelkit.progress import current_progress
from labelkit.store.embeddings import EmbeddingStore, open_store
from labelkit.store.results import Result, list_results, read_result

_GROUPINGS = ("pseudo_labels", "cluster_ids")
_NO_SPLIT = "(no split)"


def evaluate_clustering(config: EvaluateClusteringConfig) -> SimpleResult:
    """Evaluate the groupings of a store against its labels by clustering accuracy, NMI, AMI and ARI.

    Accuracy is All/Old/New with intervals; kinds of error are counted, too.

    Rows that training could use the label of are left out by default, as in all published numbers; each split is
    scored on its own. The intervals are those of :func:`accuracy_intervals`: rows are drawn again, clusters and
    their matching stay.

    Raises:
        StoreError: the store has no labels, or no grouping.
    """
    store = open_store(config.index)
    check_result_name(
        config,
        store,
        "evaluation",
        protocol=config.protocol,
        rows=config.rows,
        split=config.split,
        mapping_from=config.mapping_from,
    )
    truth, class_names = _truth(store, config)
    groupings = _groupings(store, config)
    scored = []
    for result, ids in groupings:
        old_classes = _old_classes(store, result, truth, len(class_names))
        mapping = _mapping(store, config, result, ids, truth, len(class_names))
        scored += [
            _score(class_names, config, result, ids, truth, split, rows[ids[rows] >= 0], old_classes, mapping)
            for split, rows in _rows(store, config, result, truth).items()
            if (ids[rows] >= 0).any()
        ]
    held_out = any(_held_out(store, config, result) for result, _ in groupings)
    if not scored:
        raise StoreError(
            str(store.path),
            "no image has both a group and a label" + (" that training could not use" if held_out else ""),
            "Pass --rows all to score all labeled images." if held_out else "Check --split.",
        )
    values: dict[str, object] = {
        "index": config.index,
        "protocol": config.protocol,
        "rows": config.rows,
        "mapping_from": config.mapping_from,
        "bootstrap": {"resamples": config.bootstrap, "level": 0.95, "seed": config.seed},
        "scores": [one.to_dict() for one in scored],
    }
    chosen = ("protocol", "rows", "split", "mapping_from", "bootstrap", "seed")
    params = {name: getattr(config, name) for name in chosen} | {"results": list(config.results)}
    made = store_scores(config, store, values, params)
    return SimpleResult(values, made, tuple(_tables(config, scored, held_out=held_out)))


@dataclass(frozen=True)
class _Scored:
    """One grouping on one split."""

    result: Result
    split: str
    rows: int
    accuracy: ClusterAccuracy
    nmi: float
    ami: float
    ari: float
    intervals: dict[str, tuple[float, float]] | None
    per_class: list[dict[str, Any]]

    @property
    def shown(self) -> list[Cell]:
        return [self.result.name, self.split]

    def accuracy_row(self) -> list[Cell]:
        score = self.accuracy
        accuracies = [percent(value) for value in (score.all_accuracy, score.old_accuracy, score.new_accuracy)]
        return [*self.shown, self.rows, *accuracies, self.nmi, self.ari, score.used_clusters]

    def error_row(self) -> list[Cell]:
        score = self.accuracy
        shares = (score.true_old, score.false_old, score.true_new, score.false_new)
        return [*self.shown, *(percent(share) for share in shares)]

    def to_dict(self) -> dict[str, object]:
        names = self.result.arrays.get("names")
        return {
            "result": self.result.name,
            "stage": self.result.stage,
            "split": self.split,
            "rows": self.rows,
            "nmi": self.nmi,
            "ami": self.ami,
            "ari": self.ari,
            **self.accuracy.to_dict(),
            "intervals": self.intervals,
            "per_class": self.per_class,
            "cluster_names": list(names) if names is not None else None,
        }


def _truth(store: EmbeddingStore, config: EvaluateClusteringConfig) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Return the labels to compare with, (n,) int64 with -1 = none, and the names of the classes.

    Raises:
        StoreError: there are none.
    """
    rows, own = np.arange(store.n, dtype=np.int64), config.labels is None
    given = labels_to_use(config.labels, store, rows, label_column=config.label_column, own_labels=own)
    truth = given.truth if config.labels is None else given.labels
    if not (truth >= 0).any():
        where = f"{store.path}:/labels" if config.labels is None else given.where
        raise StoreError(
            where, "there are no labels to compare the groups with", "Embed a data set with labels, or pass --labels."
        )
    return truth, given.class_names


def _used_labels(store: EmbeddingStore, result: Result) -> NDArray[np.bool_] | None:
    """(n,) rows whose label the result, or the training of the store, could use; None if nothing is known of that."""
    own = None if store.labeled is None else np.asarray(store.labeled, dtype=bool)
    given = result.arrays.get("labeled")
    if given is None:
        return own
    return np.asarray(given, dtype=bool) if own is None else np.asarray(given, dtype=bool) | own


def _old_classes(
    store: EmbeddingStore, result: Result, truth: NDArray[np.int64], num_classes: int
) -> NDArray[np.bool_]:
    """(c,) classes with labels that were used; all if nothing is known of that."""
    given = result.arrays.get("labeled")
    if store.old_classes is None and given is None:
        return np.ones(num_classes, dtype=bool)
    old = np.zeros(num_classes, dtype=bool)
    if store.old_classes is not None:
        old[: len(store.class_names)] = store.old_classes
    if given is not None:
        used = truth[np.asarray(given, dtype=bool)]
        old[used[used >= 0]] = True
    return old


def _mapping(
    store: EmbeddingStore,
    config: EvaluateClusteringConfig,
    result: Result,
    ids: NDArray[np.int64],
    truth: NDArray[np.int64],
    num_classes: int,
) -> NDArray[np.int64] | None:
    """(k,) class of each cluster by the rows of ``--mapping-from``, -1 for a cluster without any; ``None``: not asked.

    Raises:
        ConfigError: no such split.
        StoreError: none of its rows has both a group and a label.
    """
    if config.mapping_from is None:
        return None
    rows = split_rows(store, config.mapping_from, option="--mapping-from")
    rows = rows[_counted(store, config, result, truth)[rows] & (ids[rows] >= 0)]
    if not len(rows):
        held_out = _held_out(store, config, result)
        raise StoreError(
            str(store.path),
            f"no image of split {config.mapping_from} has both a group and a label"
            + (" that training could not use" if held_out else ""),
            "Pass --rows all to match by all labeled images." if held_out else "Choose another --mapping-from.",
        )
    matching = match_clusters(ids[rows], truth[rows], num_clusters=int(ids.max()) + 1, num_classes=num_classes)
    return matching.class_of_cluster


def _score(
    class_names: tuple[str, ...],
    config: EvaluateClusteringConfig,
    result: Result,
    ids: NDArray[np.int64],
    truth: NDArray[np.int64],
    split: str,
    rows: NDArray[np.int64],
    old_classes: NDArray[np.bool_],
    mapping: NDArray[np.int64] | None,
) -> _Scored:
    labels, clusters = truth[rows], ids[rows]
    accuracy = cluster_accuracy(labels, clusters, old_classes, protocol=config.protocol, mapping=mapping)
    intervals: dict[str, tuple[float, float]] | None = None
    if config.bootstrap:
        generator = keyed_generator(config.seed, f"bootstrap {split}")  # equal groupings, equal intervals
        found = accuracy_intervals(accuracy, old_classes, num_resamples=config.bootstrap, generator=generator)
        intervals = {"all": found.all_interval, "old": found.old_interval, "new": found.new_interval}
    return _Scored(
        result,
        split,
        len(rows),
        accuracy,
        normalized_mutual_information(labels, clusters),
        adjusted_mutual_information(labels, clusters),
        adjusted_rand_index(labels, clusters),
        intervals,
        _per_class(accuracy, labels, clusters, class_names, old_classes),
    )


def _tables(config: EvaluateClusteringConfig, scored: list[_Scored], *, held_out: bool) -> list[Table]:
    which = "rows whose labels training could not use" if held_out else "all labeled rows"
    if config.mapping_from is not None:
        which += f"; clusters matched with classes on split {config.mapping_from}"
    tables = [
        Table(
            f"accuracy {config.protocol} in %, over {which}",
            ["result", "split", "rows", "All", "Old", "New", "NMI", "ARI", "clusters"],
            [one.accuracy_row() for one in scored],
        ),
        Table(
            "errors in % of their group: wrong old class, taken for new; wrong new class, taken for old",
            ["result", "split", "TrueOld", "FalseOld", "TrueNew", "FalseNew"],
            [one.error_row() for one in scored],
        ),
    ]
    if config.bootstrap:
        title = f"95 % intervals in %: {config.bootstrap} bootstrap resamples of the rows, same clusters and matching"
        rows: list[list[Cell]] = [
            [*one.shown, *(_percent_range(interval) for interval in (one.intervals or {}).values())] for one in scored
        ]
        tables.insert(1, Table(title, ["result", "split", "All", "Old", "New"], rows))
    return tables


def _groupings(store: EmbeddingStore, config: EvaluateClusteringConfig) -> list[tuple[Result, NDArray[np.int64]]]:
    names = config.results or tuple(list_results(store))
    found: list[tuple[Result, NDArray[np.int64]]] = []
    unusable: list[str] = []
    for name in names:
        try:
            result = read_result(store, name)
        except StoreError as error:
            if config.results:
                raise
            current_progress().warning(str(error))
            unusable.append(name)
            continue
        if result.kind in ("answers", "discovered") and not config.results:
            # Unsure rows have no group there: they would stand beside groupings of all rows and seem better.
            continue
        key = next((key for key in _GROUPINGS if key in result.arrays), None)
        if key is not None:
            found.append((result, np.asarray(result.arrays[key], dtype=np.int64)))
        elif config.results:
            raise StoreError(result.where, "does not group the images", "Choose a result of cluster or discover.")
    if not found and unusable:
        problem = f"its results cannot be used: {', '.join(unusable)}"
        remedy = "Recreate them with --overwrite."
        raise StoreError(str(store.path), problem, remedy)
    if not found:
        raise StoreError(
            str(store.path),
            "has no result that groups its images",
            "Run `labelkit cluster` or `labelkit discover` on this store first.",
        )
    return found


def _held_out(store: EmbeddingStore, config: EvaluateClusteringConfig, result: Result) -> bool:
    """Return whether labeled rows are left out."""
    used = _used_labels(store, result)
    return used is not None and bool(used.any()) if config.rows == "auto" else config.rows == "unlabeled"


def _counted(
    store: EmbeddingStore, config: EvaluateClusteringConfig, result: Result, truth: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """(n,) rows that have a label, without those that ``--rows`` leaves out."""
    keep = truth >= 0
    used = _used_labels(store, result)
    return keep & ~used if used is not None and _held_out(store, config, result) else keep


def _rows(
    store: EmbeddingStore, config: EvaluateClusteringConfig, result: Result, truth: NDArray[np.int64]
) -> dict[str, NDArray[np.int64]]:
    """Rows to score by split."""
    keep = _counted(store, config, result, truth)
    if config.split != "all" or not store.split_names or store.splits is None:
        chosen = split_rows(store, config.split)
        return {config.split: chosen[keep[chosen]]}
    parts = {name: np.asarray(store.rows(name), dtype=np.int64) for name in store.split_names}
    parts[_NO_SPLIT] = np.flatnonzero(store.splits < 0)
    return {name: rows[keep[rows]] for name, rows in parts.items() if keep[rows].any()}


def _per_class(
    score: ClusterAccuracy,
    labels: NDArray[np.int64],
    clusters: NDArray[np.int64],
    class_names: tuple[str, ...],
    old_classes: NDArray[np.bool_],
) -> list[dict[str, Any]]:
    right = score.mapping[clusters] == labels
    sizes = np.bincount(labels, minlength=len(class_names))
    hits = np.bincount(labels[right], minlength=len(class_names))
    return [
        {
            "class": class_names[label],
            "old": bool(old_classes[label]),
            "images": int(sizes[label]),
            "accuracy": float(hits[label] / sizes[label]),
        }
        for label in np.flatnonzero(sizes)
    ]


def _percent_range(interval: tuple[float, float]) -> str | None:
    low, high = interval
    return None if math.isnan(low) else percent_range(low, high)
