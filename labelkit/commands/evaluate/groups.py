"""Evaluate the clusterings of a store against its labels."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelkit.commands.common.embeddings import find_split_rows
from labelkit.commands.common.labels import choose_usable_labels
from labelkit.commands.common.results import Cell, CommandResult, Table
from labelkit.commands.evaluate.options import EvaluateClusteringConfig
from labelkit.data.keyed_random import keyed_generator
from labelkit.errors import StoreError
from labelkit.formatting import percent, percent_range
from labelkit.metrics.clustering import accuracy_intervals, cluster_accuracy, score_other_protocols
from labelkit.progress import current_progress
from labelkit.store.embeddings import EmbeddingStore, open_store
from labelkit.store.results import Result, list_results, read_result

_NO_SPLIT = "(no split)"
_PROTOCOL = "v2"
# unknown if it is not recorded which classes had labels
_OF_OLD_CLASSES = ("old_accuracy", "old_as_wrong_old", "old_as_new", "num_old_samples", "num_new_samples")


def evaluate_clustering(config: EvaluateClusteringConfig) -> CommandResult:
    """Evaluate the groupings of a store against its labels by clustering accuracy, NMI, AMI and ARI.

    Accuracy is reported for all, old and new classes (All/Old/New) with confidence intervals and types of errors.

    By default, images whose labels were available for training are excluded, as in all published results; each split
    is scored separately. For the intervals, see :func:`accuracy_intervals`: images are resampled, while the clusters
    and their matching are fixed.

    Raises:
        StoreError: the store has no labels, or no grouping.
    """
    store = open_store(config.index)
    truth, class_names = _read_true_labels(store, config)
    scored: list[dict[str, Any]] = []
    groupings = _list_groupings(store, config)
    # rows whose labels were available to any of the results or in training, so that all results are scored on the same
    used = np.zeros(store.n, dtype=bool)
    for mask in (store.labeled, *(_labeled_mask(result) for result, _ in groupings)):
        if mask is not None:
            used |= np.asarray(mask, dtype=bool)
    held_out = config.rows == "unlabeled"
    if config.rows == "auto" and used.any():
        unfair = [result.name for result, _ in groupings if _used_labels(result)]
        must_score = len(unfair) == len(groupings) or bool(unfair and config.results)
        held_out = must_score or bool(((truth >= 0) & ~used).any())
        if unfair and not held_out:
            problem = "not scored, since no label was hidden; pass the true labels of further images as --labels"
            current_progress().message(f"{', '.join(unfair)}: {problem}")
            # the others were made without labels, so they can be scored on all
            groupings = [(result, ids) for result, ids in groupings if result.name not in unfair]
    counted = (truth >= 0) & ~used if held_out else truth >= 0
    for result, ids in groupings:
        old_classes = _old_classes(store, result, truth, len(class_names))
        scored += [
            _score_grouping(class_names, config, result, ids, truth, split, rows[ids[rows] >= 0], old_classes)
            for split, rows in _select_rows(store, config, counted).items()
            if (ids[rows] >= 0).any()
        ]
    if not scored:
        others = "Pass the true labels of further images as --labels, or --rows all to score all labeled images."
        problem = "no image has both a group and a label" + (" that was hidden from training" if held_out else "")
        raise StoreError(str(store.path), problem, others if held_out else "Check --split.")
    values: dict[str, object] = {
        "index": config.index,
        "protocol": _PROTOCOL,
        "rows": config.rows,
        "bootstrap": {"resamples": config.bootstrap, "level": 0.95, "seed": config.seed},
        "scores": scored,
    }
    return CommandResult(values, (), tuple(_build_tables(config, scored, held_out=held_out)))


def _read_true_labels(
    store: EmbeddingStore, config: EvaluateClusteringConfig
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    rows, own = np.arange(store.n, dtype=np.int64), config.labels is None
    given = choose_usable_labels(
        config.labels, store, rows, label_column=config.label_column, own_labels=own, min_found=0.5
    )
    truth = given.truth if own else given.labels
    if not (truth >= 0).any():
        where = f"{store.path}:/labels" if own else given.where
        raise StoreError(
            where, "there are no labels to compare the groups with", "Embed a dataset with labels, or pass --labels."
        )
    return truth, given.class_names


def _labeled_mask(result: Result) -> NDArray[np.bool_] | None:
    """Return a mask (n,) of the images whose labels were used; ``None``: at most the store's own usable labels."""
    if "sources" in result.arrays:  # of discover snowball and lmcs, which may draw or hide labels of the store
        return np.asarray(result.arrays["sources"]) == result.arrays["source_names"].index("given")
    labeled = result.arrays.get("labeled")
    return None if labeled is None else np.asarray(labeled, dtype=bool)


def _used_labels(result: Result) -> bool:
    """Return whether labels were used for a result; those of k-means have no known classes."""
    known_classes = not np.all(result.arrays.get("new_classes", True))
    return known_classes or _labeled_mask(result) is not None


def _old_classes(
    store: EmbeddingStore, result: Result, truth: NDArray[np.int64], num_classes: int
) -> NDArray[np.bool_] | None:
    """Return a mask (c,) of the classes of which labels were used; ``None`` if unknown."""
    given = _labeled_mask(result)
    if store.old_classes is None and given is None:
        return None
    old = np.zeros(num_classes, dtype=bool)
    if store.old_classes is not None:
        old[: len(store.class_names)] = store.old_classes
    if given is not None:
        used = truth[given]
        old[used[used >= 0]] = True
    return old


def _score_grouping(
    class_names: tuple[str, ...],
    config: EvaluateClusteringConfig,
    result: Result,
    ids: NDArray[np.int64],
    truth: NDArray[np.int64],
    split: str,
    rows: NDArray[np.int64],
    known_old: NDArray[np.bool_] | None,
) -> dict[str, Any]:
    labels, clusters = truth[rows], ids[rows]
    old_classes = np.ones(len(class_names), dtype=bool) if known_old is None else known_old
    from sklearn import metrics

    accuracy = cluster_accuracy(labels, clusters, old_classes)
    intervals: dict[str, tuple[float, float]] | None = None
    if config.bootstrap:
        generator = keyed_generator(config.seed, f"bootstrap {split}")  # so that equal groupings have equal intervals
        intervals = accuracy_intervals(accuracy, old_classes, num_resamples=config.bootstrap, generator=generator)
        if known_old is None:
            intervals["old"] = (np.nan, np.nan)
    right = accuracy.mapping[clusters] == labels
    sizes, hits = (np.bincount(of, minlength=len(class_names)) for of in (labels, labels[right]))
    names = result.arrays.get("names")
    return {
        "result": result.name,
        "stage": result.stage,
        "split": split,
        "rows": len(rows),
        "nmi": float(metrics.normalized_mutual_info_score(labels, clusters)),
        "ami": float(metrics.adjusted_mutual_info_score(labels, clusters)),
        "ari": float(metrics.adjusted_rand_score(labels, clusters)),
        **accuracy.to_dict(),
        **(dict.fromkeys(_OF_OLD_CLASSES) if known_old is None else {}),
        "other_protocols": {
            protocol: {
                group: None if np.isnan(share) or (group == "old" and known_old is None) else share
                for group, share in shares.items()
            }
            for protocol, shares in score_other_protocols(accuracy, old_classes).items()
        },
        "intervals": intervals,
        "per_class": [
            {
                "class": class_names[label],
                "old": None if known_old is None else bool(known_old[label]),
                "images": int(sizes[label]),
                "accuracy": float(hits[label] / sizes[label]),
            }
            for label in np.flatnonzero(sizes)
        ],
        "cluster_names": list(names) if names is not None else None,
    }


def _build_tables(config: EvaluateClusteringConfig, scored: list[dict[str, Any]], *, held_out: bool) -> list[Table]:
    def rows(kept: Callable[[dict[str, Any]], Sequence[Cell]]) -> list[list[Cell]]:
        return [[one["result"], one["split"], *kept(one)] for one in scored]

    def shares(one: dict[str, Any], *names: str) -> list[Cell]:
        return [None if one[name] is None else percent(one[name]) for name in names]

    which = "images whose labels were hidden from training" if held_out else "all labeled images"
    knows_old = any(one["old_accuracy"] is not None for one in scored)  # otherwise, All says everything
    groups = ["all", "old", "new"] if knows_old else ["all"]
    accuracies, headers = [f"{group}_accuracy" for group in groups], [group.capitalize() for group in groups]
    columns = ["result", "split", "rows", *headers, "NMI", "ARI", "clusters"]
    cells = rows(lambda one: [one["rows"], *shares(one, *accuracies), one["nmi"], one["ari"], one["used_clusters"]])
    tables = [Table(f"accuracy {_PROTOCOL} in %, on {which}", columns, cells)]
    if config.bootstrap:
        title = f"95% confidence intervals in %: {config.bootstrap} resamples of the images, same clusters and matching"
        ranges = rows(
            lambda one: [
                None if np.isnan(low) else percent_range(low, high)
                for low, high in (one["intervals"][group] for group in groups)
            ]
        )
        tables.append(Table(title, ["result", "split", *headers], ranges))
    if knows_old:
        tables.append(
            Table(
                "errors in % of old or new images, by the kind of the predicted class",
                ["result", "split", "old as wrong old", "old as new", "new as wrong new", "new as old"],
                rows(lambda one: shares(one, "old_as_wrong_old", "old_as_new", "new_as_wrong_new", "new_as_old")),
            )
        )
    return tables


def _list_groupings(store: EmbeddingStore, config: EvaluateClusteringConfig) -> list[tuple[Result, NDArray[np.int64]]]:
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
            # only confident images have groups here, so the scores would not be comparable to those of full groupings
            continue
        ids = result.group_ids(best_guess=False)
        if ids is not None:
            found.append((result, ids))
        elif config.results:
            problem = "does not group images"
            raise StoreError(result.where, problem, "Choose a result of `labelkit cluster` or `labelkit discover`.")
    if found:
        return found
    problem = "has no result that groups its images"
    remedy = "Run `labelkit cluster` or `labelkit discover` on this store first."
    if unusable:
        problem = f"its results cannot be used: {', '.join(unusable)}"
        remedy = "Recreate these results with --overwrite."
    raise StoreError(str(store.path), problem, remedy)


def _select_rows(
    store: EmbeddingStore, config: EvaluateClusteringConfig, keep: NDArray[np.bool_]
) -> dict[str, NDArray[np.int64]]:
    """Return, for each split to score, its rows in the mask ``keep``."""
    if config.split != "all" or not store.split_names or store.splits is None:
        chosen = find_split_rows(store, config.split)
        return {config.split: chosen[keep[chosen]]}
    parts = {name: np.asarray(store.rows(name), dtype=np.int64) for name in store.split_names}
    parts[_NO_SPLIT] = np.flatnonzero(store.splits < 0)
    return {name: rows[keep[rows]] for name, rows in parts.items() if keep[rows].any()}
