"""Groups of images on which predictions are based: those of an existing result, or of one created first."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelkit.algorithms.row_blocks import square_roots
from labelkit.commands.common.embeddings import is_nonnegative, load_finite_embeddings, normalize_embeddings
from labelkit.commands.common.label_files import LabelFileImages, find_images_by_path
from labelkit.commands.common.labels import UsableLabels, choose_usable_labels, collect_class_names, read_usable_labels
from labelkit.commands.common.stored_predictions import find_group_classes
from labelkit.commands.discover.categories import discover_categories
from labelkit.commands.discover.options import DiscoverAnswerConfig, DiscoverCategoriesConfig
from labelkit.data.keyed_random import keyed_generator
from labelkit.data.tables import read_labeled_rows
from labelkit.errors import StoreError
from labelkit.formatting import join_first_few
from labelkit.progress import current_progress
from labelkit.store.embeddings import EmbeddingStore
from labelkit.store.results import Result, list_results, read_result

#: Maximum number of randomly chosen rows that are predicted jointly; the others are predicted from these.
MAX_TOGETHER = 50_000
_PREFERRED = ("head", "categories", "ss-kmeans")
_SHOWN = 5


@dataclass(frozen=True)
class Grouping:
    """Groups of a store's images, each of which is either a labeled class or new.

    Attributes:
        name: name of the result.
        stage: command that created the result.
        rows: (n,) int64, rows of the store.
        features: (n, d) float32, as they were clustered.
        group_ids: (n,) int64 in ``[0, k)``, as in the result.
        class_of_group: (k,) int64, class of the store, -1 = new.
        names: names of the groups.
        min_size: minimum number of rows in a group without labels.
        unit_rows: whether the features are normalized embeddings.
        square_roots: whether the features are square roots of embeddings.
        group_weight: weight in (0, 1] of new groups relative to labeled classes, by the evidence for new classes.
        new_share: estimated fraction of unlabeled images in classes without labels; ``None`` if not estimated.
        ruled_out: (n, k) bool, groups not to predict for an image; ``None`` if there are none.
    """

    name: str
    stage: str
    rows: NDArray[np.int64]
    features: NDArray[np.float32]
    group_ids: NDArray[np.int64]
    class_of_group: NDArray[np.int64]
    names: list[str]
    min_size: int = 1
    unit_rows: bool = True
    square_roots: bool = False
    group_weight: float = 1.0
    new_share: float | None = None
    ruled_out: NDArray[np.bool_] | None = None


@dataclass(frozen=True)
class GroupedRows:
    """Rows of a store with their groups, and the representative subset that is predicted jointly.

    Attributes:
        grouping: groups of the m rows that are predicted jointly.
        places: (m,) int64, positions of these rows among all n.
        rows: (n,) int64, all grouped rows of the store.
        group_ids: (n,) int64, group of each row.
        given: usable labels of all n rows.
    """

    grouping: Grouping
    places: NDArray[np.int64]
    rows: NDArray[np.int64]
    group_ids: NDArray[np.int64]
    given: UsableLabels


def run_discover_categories(config: DiscoverAnswerConfig, num_clusters: int) -> tuple[Path, ...]:
    """Cluster the images of a store hierarchically, as ``labelkit discover categories --num-classes`` does.

    Returns:
        Path of the result, which is named ``config.grouping``.

    Raises:
        StoreError: the store has no usable labels, or already has a result with this name.
        ConfigError: there are more clusters than rows, or fewer than classes.
    """
    shared = ("index", "labels", "label_column", "own_labels", "seed", "overwrite")
    options: dict[str, Any] = {name: getattr(config, name) for name in shared}
    return discover_categories(
        DiscoverCategoriesConfig(num_classes=num_clusters, result=config.grouping, split="all", **options)
    ).paths


def read_grouping(store: EmbeddingStore, config: DiscoverAnswerConfig) -> GroupedRows:
    """Read the groups of a result and the labels of their rows; default: the labels that the result was created with.

    Raises:
        StoreError: the result does not exist, or has no class names.
        Mismatch: the result belongs to another version of the store.
    """
    result, ids = _grouped(store, config)
    rows = np.flatnonzero(ids >= 0)
    if not len(rows):
        raise StoreError(result.where, "assigns no images to groups", "Recreate the result from this store.")
    group_ids, params = ids[rows], result.params
    given, class_of_group = _labels(store, config, result, rows, group_ids)
    calibrating = np.zeros(len(rows), dtype=bool)
    if config.calibration_labels is not None and len(rows) > MAX_TOGETHER:
        calibrating = choose_usable_labels(config.calibration_labels, store, rows, own_labels=False).labeled
    names, ruled_out = list(result.arrays["names"]), None
    pairs = [] if config.ruled_out is None else _read_ruled_out(config.ruled_out, store, names)
    calibrating |= np.isin(rows, [row for row, _ in pairs])  # only jointly predicted rows respect what is ruled out
    places = choose_representative_rows(given.labels, calibrating, MAX_TOGETHER, config.seed)
    if pairs:
        every = np.zeros((store.n, len(names)), dtype=bool)
        every[tuple(np.array(pairs).T)] = True
        ruled_out = every[rows[places]]
    features, unit = load_finite_embeddings(store, rows[places]), params.get("normalize") is not False
    roots = unit and is_nonnegative(store)
    features = square_roots(features) if roots else features
    least, weight, share = (params.get(key) for key in ("min_size", "group_weight", "new_share"))
    grouping = Grouping(
        name=result.name,
        stage=result.stage,
        rows=rows[places],
        features=normalize_embeddings(features) if unit else features,
        group_ids=group_ids[places],
        class_of_group=class_of_group,
        names=names,
        min_size=least if isinstance(least, int) and least > 0 else 1,
        unit_rows=unit,
        square_roots=roots,
        group_weight=weight if isinstance(weight, float) and 0 < weight <= 1 else 1.0,
        new_share=share if isinstance(share, float) and 0 <= share <= 1 else None,
        ruled_out=ruled_out,
    )
    return GroupedRows(grouping, places, rows, group_ids, given)


def _read_ruled_out(path: Path, store: EmbeddingStore, names: list[str]) -> list[tuple[int, int]]:
    """Return (row, group) pairs that a CSV rules out; other images and names in it are ignored."""
    lines = [(name, text) for name, text, _ in read_labeled_rows(path) if text in names]
    places, _ = find_images_by_path(path, {name for name, _ in lines}, LabelFileImages.from_store(store))
    return [(places[name], names.index(text)) for name, text in lines if name in places]


def _grouped(store: EmbeddingStore, config: DiscoverAnswerConfig) -> tuple[Result, NDArray[np.int64]]:
    """Read the result with the groups, and the group (n,) of each row of the store, -1 = none."""
    there = list_results(store)
    name = config.grouping or next((name for name in _PREFERRED if name in there), None)
    if config.num_clusters is not None:
        name = config.grouping or "categories"
    if name is None:
        remedy = "Pass --num-clusters, or first run `labelkit discover categories` without --num-classes."
        if store.has_logits:
            remedy = "First run `labelkit discover head` on this store, or pass --num-clusters."
        if there:
            remedy += f" To use another result, pass it as --grouping (existing results: {', '.join(there)})."
        raise StoreError(str(store.path), f"has no result named {' or '.join(_PREFERRED)}", remedy)
    result = read_result(store, name)
    ids = result.group_ids(best_guess=False)
    if ids is None or result.kind == "answers" or "names" not in result.arrays or "new_classes" not in result.arrays:
        raise StoreError(
            result.where,
            "does not group the images into known and new classes",
            "Pass a result of `discover head`, `cluster ss-kmeans` or `discover categories` as --grouping.",
        )
    if config.grouping is None:
        current_progress().message(f"using the groups of result {name!r} ({result.stage})")
    return result, ids


def _labels(
    store: EmbeddingStore,
    config: DiscoverAnswerConfig,
    result: Result,
    rows: NDArray[np.int64],
    group_ids: NDArray[np.int64],
) -> tuple[UsableLabels, NDArray[np.int64]]:
    """Return the usable labels (by default, those of the result) and the class of each group, -1 = new."""
    given = read_usable_labels(config, store, rows)
    class_names = given.class_names
    class_names += tuple(name for name in collect_class_names(store, result) if name not in class_names)
    class_of_group = find_group_classes(store, result, class_names)
    labels, source = given.labels, given.source
    if config.labels is None and config.own_labels and "labeled" in result.arrays:
        # labeled rows are in the group of their class
        used = np.asarray(result.arrays["labeled"], dtype=bool)[rows]
        labels = np.where(used, class_of_group[group_ids], -1)
        source = dict(result.params.get("labels") or {})
    absent = [class_names[label] for label in np.setdiff1d(labels[labels >= 0], class_of_group)]
    if absent and (labels < 0).any():
        raise StoreError(
            result.where,
            f"has no groups for the classes {join_first_few(map(repr, absent), _SHOWN)}, which were "
            "first labeled after the result was created",
            f"Run `labelkit {result.stage} ... --overwrite` again with these labels.",
        )
    return replace(given, labels=labels, class_names=class_names, source=source), class_of_group


def choose_representative_rows(
    labels: NDArray[np.int64], calibrating: NDArray[np.bool_], max_rows: int, seed: int
) -> NDArray[np.int64]:
    """Choose at most ``max_rows`` representative rows, and return their sorted positions (m,).

    At most half of them are labeled (more if there are too few unlabeled rows), evenly among the classes; at most a
    quarter have a calibration label. The others are drawn from the unlabeled rows.

    Args:
        labels: (n,) class, -1 = none.
        calibrating: (n,) bool, whether a row has a calibration label.
        max_rows: maximum number of rows.
        seed: random seed.
    """
    if len(labels) <= max_rows:
        return np.arange(len(labels))
    order = keyed_generator(seed, "answer-rows").permutation(len(labels))
    known, fresh = order[labels[order] >= 0], order[calibrating[order]]
    turns = np.empty(len(known), dtype=np.int64)
    for label in np.unique(labels[known]):
        own = labels[known] == label
        turns[own] = np.arange(own.sum())
    known = known[np.argsort(turns, kind="stable")]
    taken = np.zeros(len(labels), dtype=bool)
    taken[known[: max(max_rows // 2, max_rows - int((labels < 0).sum()))]] = True
    taken[fresh[: max_rows // 4]] = True
    free = order[(labels[order] < 0) & ~taken[order]]
    taken[free[: max_rows - int(taken.sum())]] = True
    return np.flatnonzero(taken)
