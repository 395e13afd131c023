"""Labels of a store in rounds: the initial labels, and labels added from a file or from predictions."""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelkit.commands.common.label_files import LabelFileImages, find_labels_result, read_csv_labels
from labelkit.commands.common.labels import choose_usable_labels, find_misspelled_class
from labelkit.commands.common.stored_predictions import read_stored_predictions
from labelkit.data.datasets import natural_sort_key
from labelkit.data.tables import match_known_spelling
from labelkit.errors import ConfigError, DatasetError, StoreError
from labelkit.files import sha256_file
from labelkit.formatting import join_first_few
from labelkit.progress import current_progress
from labelkit.store.embeddings import EmbeddingStore
from labelkit.store.results import find_newest_name, list_results, read_result
from labelkit.studio.label.options import LabelConfig

_SHOWN = 10


@dataclass(frozen=True)
class StoreLabels:
    """Labels of all images of a store, with the round in which each label was added.

    Attributes:
        labels: (n,) int64, -1 = none.
        class_names: name of class i.
        rounds: (n,) int64 round in which the label was added, 0 = from the store, -1 = none.
        round: number of the last round.
        source: the result they come from; empty for the store's own labels.
        confidence: (n,) float64 in [0, 1], confidence of labels that are predictions and of unsure predictions;
            NaN for other images. ``None`` without predictions.
    """

    labels: NDArray[np.int64]
    class_names: tuple[str, ...]
    rounds: NDArray[np.int64]
    round: int
    source: dict[str, object]
    confidence: NDArray[np.float64] | None = None


def initial_labels(config: LabelConfig, store: EmbeddingStore) -> StoreLabels:
    """Return the initial labels: those of an earlier result, or those of the store that training may use.

    Of a group named in the browser, only the most typical images are labeled.
    """
    rows = np.arange(store.n, dtype=np.int64)
    if config.labels is None:
        given = choose_usable_labels(None, store, rows)
        labels = given.labels if config.own_labels else np.full(store.n, -1, dtype=np.int64)
        return StoreLabels(labels, given.class_names, np.where(labels >= 0, 0, -1), 0, {})
    result = find_labels_result(config.labels, store)
    if result is None:
        problem = f"{config.labels} is not a result of {store.path}"
        raise ConfigError("--labels", problem, "Pass a file with --from, or an earlier result with --labels.")
    given = choose_usable_labels(config.labels, store, rows)
    rounds, last = result.arrays.get("label_rounds"), result.params.get("round")
    if rounds is None or len(rounds) != store.n or not isinstance(last, int):
        problem = "does not record the rounds of its labels"
        raise StoreError(str(result.path), problem, "Pass a result created by `labelkit label`.")
    labels, label_rounds = given.labels, np.asarray(rounds, dtype=np.int64)
    label_rounds = np.where(labels >= 0, label_rounds, -1)
    return StoreLabels(labels, given.class_names, label_rounds, last, given.source)


def add_predictions(name: str, labels: Path | None, store: EmbeddingStore, base: StoreLabels) -> StoreLabels:
    """Add the predictions of a result for unlabeled images to the labels, for export.

    Without ``labels`` (a result of `label`), the labels on which the predictions are based are also added. With it,
    images rejected there remain unlabeled.

    Raises:
        ConfigError: the result contains no predictions.
    """
    newest = find_newest_name(list_results(store), "answer")
    result = read_result(store, newest if name == "newest" else name)
    if name != newest and re.fullmatch(r"answer(-\d+)?", name):
        told = f"{store.path}: {newest} is newer than {name}; to export the newest, pass --predictions newest"
        current_progress().warning(told)
    if result.kind != "answers":
        there = ", ".join(other for other in list_results(store) if read_result(store, other).kind == "answers")
        problem = f"result {name!r} contains no predictions (it was created by {result.stage})"
        remedy = f"Pass one of these: {there}." if there else "Run `labelkit discover answer` first."
        raise ConfigError("--predictions", problem, remedy)
    found = read_stored_predictions(result)
    written = (base.labels < 0) & np.isin(found.kinds, ("known", "new") if labels else ("given", "known", "new"))
    texts = np.array(found.labels, dtype=object)
    if labels is not None and (source := find_labels_result(labels, store)) is not None:
        written &= ~np.asarray(source.arrays.get("rejected", np.zeros(store.n)), dtype=bool)
    names = (*base.class_names, *sorted(set(texts[written]) - set(base.class_names), key=natural_sort_key))
    number = {text: label for label, text in enumerate(names)}
    merged = base.labels.copy()
    merged[written] = [number[text] for text in texts[written]]
    predicted = written & np.isin(found.kinds, ("known", "new"))
    unsure = (merged < 0) & np.isin(found.kinds, ("unsure",))
    told = f"{predicted.sum()} predictions are exported as labels; {unsure.sum()} unsure images remain unlabeled"
    if (found.confidence[unsure] < float(result.params.get("min_confidence", 0))).any():
        told += ". To export them too, run `labelkit start` or `labelkit discover answer` again with --min-confidence 0"
    current_progress().message(told)
    confidence = np.where(predicted | unsure, found.confidence, np.nan)
    return replace(base, labels=merged, class_names=names, confidence=confidence)


def drop_unused_classes(final: StoreLabels) -> StoreLabels:
    """Remove classes without labels, unless labels came from the store.

    Otherwise, the classes of the store may be folders that are not named after classes.
    """
    if (final.rounds == 0).any():
        return final
    used, labels = np.unique(final.labels[final.labels >= 0], return_inverse=True)
    renumbered = final.labels.copy()
    renumbered[final.labels >= 0] = labels
    return replace(final, labels=renumbered, class_names=tuple(final.class_names[label] for label in used.tolist()))


def add_labels(
    config: LabelConfig, path: Path, store: EmbeddingStore, base: StoreLabels
) -> tuple[StoreLabels, dict[str, Any]]:
    """Add labels from a CSV to existing labels; return the merged labels and a summary of the changes.

    Raises:
        DatasetError: images already have another label, and no option specifies which label to keep.
    """
    placed = read_csv_labels(path, LabelFileImages.from_store(store), config.label_column)
    texts = match_known_spelling(placed, base.class_names)
    fresh = sorted(set(texts.values()) - set(base.class_names), key=natural_sort_key)
    slips: dict[str, str] = {}
    for name in fresh:
        near = find_misspelled_class(name, base.class_names)
        near = near or find_misspelled_class(name, (other for other in fresh if other not in slips))
        if near is not None:
            slips[name] = near
            current_progress().warning(
                f"{path}: the new class {name!r} resembles {near!r}; if they are the same, correct the file and run "
                "the command again with --overwrite"
            )
    names = (*base.class_names, *fresh)
    number = {name: label for label, name in enumerate(names)}
    labels, rounds = base.labels.copy(), base.rounds.copy()
    conflicts: list[dict[str, str]] = []
    added = confirmed = 0
    for row, text in texts.items():
        old, new = int(labels[row]), number[text]
        if old == new:
            confirmed += 1
            continue
        if old >= 0:
            conflicts.append({"path": store.sample_ids[row], "old": names[old], "new": text})
            if config.conflicts == "old":
                continue
        else:
            added += 1
        labels[row], rounds[row] = new, base.round + 1
    if conflicts and config.conflicts == "error":
        pairs = (f"{one['path']}: {one['old']!r}, but {one['new']!r} here" for one in conflicts)
        shown = join_first_few(pairs, _SHOWN, "\n  ")
        problem = f"{len(conflicts)} images already have another label\n  {shown}\n"
        remedy = "Pass --conflicts new to use the new labels, or --conflicts old to keep the old labels."
        raise DatasetError(str(path), problem, remedy)
    told = {
        "round": base.round + 1,
        "by": config.by,
        "csv_sha256": sha256_file(path),
        "base": base.source or ("store" if config.own_labels else "none"),
        "labels_before": int((base.labels >= 0).sum()),
        "added": added,
        "confirmed": confirmed,
        "conflict_rule": config.conflicts,
        "conflicts": conflicts,
        "new_classes": fresh,
        "similar_names": slips,
    }
    return StoreLabels(labels, names, rounds, base.round + 1, {}), told
