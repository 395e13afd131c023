"""Evaluate predictions against true classes, on images whose labels were not used for training or calibration.

Known classes are compared by name. New groups have no class names: they are matched one to one to the classes that have
no group, so as to maximize the number of correct images, as in category discovery.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labelkit.algorithms.calibration import reliability_curve, risk_coverage_curve
from labelkit.algorithms.matching import cross_tabulate, match_counts
from labelkit.commands.common.embeddings import find_split_rows, warn_of_newer_store
from labelkit.commands.common.labels import collect_class_names, override_store_labels
from labelkit.commands.common.results import Cell, CommandResult, Table
from labelkit.commands.common.stored_predictions import (
    DECISIONS,
    GIVEN,
    KNOWN,
    NEW,
    UNSURE,
    find_group_classes,
    read_answer,
)
from labelkit.commands.evaluate.options import EvaluateAnswerConfig
from labelkit.errors import StoreError
from labelkit.formatting import percent
from labelkit.store.embeddings import EmbeddingStore, open_store

_SHARES = (0.5, 0.8, 1.0)


def evaluate_predictions(config: EvaluateAnswerConfig) -> CommandResult:
    """Evaluate predictions: reliability before and after calibration, risk-coverage, and old versus new classes.

    Raises:
        StoreError: the store has no true labels for the predicted images, or the result does not contain predictions.
        ConfigError: the plot cannot be written, or already exists.
    """
    warn_of_newer_store(config.index)
    store = override_store_labels(open_store(config.index), config.labels, config.label_column, min_found=0.5)
    result = read_answer(store, config.answer)
    arrays = result.arrays
    rows, labels, kinds = _choose_evaluated_rows(store, arrays, config.split)
    class_names = collect_class_names(store, result)
    class_of_group = find_group_classes(store, result, class_names)
    groups = np.asarray(arrays["group_ids"], dtype=np.int64)[rows]
    matched = match_groups_to_classes(labels, groups, class_of_group)
    correct = matched[groups] == labels
    confidence = np.asarray(arrays["confidence"], dtype=np.float64)[rows]
    uncalibrated = np.asarray(arrays["uncalibrated_confidence"], dtype=np.float64)[rows]
    before, after = (reliability_curve(chances, correct) for chances in (uncalibrated, confidence))
    says_known = ~np.asarray(arrays["new_classes"], dtype=bool)[groups]
    of_kinds = {
        name: reliability_curve(confidence[selected], correct[selected]) if selected.any() else None
        for name, selected in (("known", says_known), ("new", ~says_known))
    }
    risk = risk_coverage_curve(confidence, correct)
    is_old, answered = np.isin(labels, class_of_group[class_of_group >= 0]), kinds != UNSURE
    values: dict[str, Any] = {
        "index": config.index,
        "answer": result.name,
        "rows": len(rows),
        "accuracy": _share(correct),
        "mean_confidence": float(confidence.mean()),
        "answered": int(answered.sum()),
        "answered_share": _share(answered),
        "accuracy_answered": _share(correct[answered]),
        "accuracy_known_answers": _share(correct[kinds == KNOWN]),
        "accuracy_new_answers": _share(correct[kinds == NEW]),
        "before": before.to_dict(),
        "after": after.to_dict(),
        **{f"after_{name}": None if found is None else found.to_dict() for name, found in of_kinds.items()},
        "aurc": risk.aurc,
        "accuracy_at_coverage": {f"{int(100 * value)}": risk.accuracy_at_coverage(value) for value in _SHARES},
        "class_of_group": [
            {"group": name, "class": class_names[label] if label >= 0 else None}
            for name, label in zip(arrays["names"], matched, strict=True)
        ],
        "outcomes": [
            _count_outcomes("class with labels", is_old, kinds, correct),
            _count_outcomes("class without labels", ~is_old, kinds, correct),
        ],
        "by_class": _score_classes(labels, groups, matched, class_names, arrays["names"]),
    }
    if config.plot is not None:
        from labelkit.commands.common.images.plots import write_reliability_plot  # matplotlib takes a second to load

        curves = {"before calibration": before, "after": after}
        title = f"{len(rows):,} images held out from calibration"
        write_reliability_plot(config.plot, curves, risk, title=title)
    return CommandResult(values, () if config.plot is None else (config.plot,), tuple(_build_tables(values)))


def _choose_evaluated_rows(
    store: EmbeddingStore, arrays: Mapping[str, Any], split: str
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the predicted rows that were not used for calibration, their true classes, and the decisions."""
    decisions = np.asarray(arrays["decisions"], dtype=np.int64)
    wanted = (decisions < GIVEN) & (np.asarray(arrays["calibration_rows"]) == 0)
    inside = np.zeros(store.n, dtype=bool)
    inside[find_split_rows(store, split)] = True
    truth = np.full(store.n, -1, dtype=np.int64) if store.labels is None else np.asarray(store.labels)
    rows = np.flatnonzero(wanted & inside & (truth >= 0))
    if not len(rows):
        problem = "no predicted image has a true label, apart from those used for calibration"
        raise StoreError(f"{store.path}:/labels", problem, "Embed a dataset with labels, or check --split.")
    return rows, truth[rows], decisions[rows]


def _share(values: NDArray[np.bool_]) -> float:
    return float(values.mean()) if len(values) else float("nan")


def _count_outcomes(
    name: str, chosen: NDArray[np.bool_], kinds: NDArray[np.int64], correct: NDArray[np.bool_]
) -> dict[str, Cell]:
    """Count the rows predicted as known, new or unsure, and the correct ones among each."""
    line: dict[str, Cell] = {"truth": name, "rows": int(chosen.sum())}
    for kind in (KNOWN, NEW, UNSURE):
        selected = chosen & (kinds == kind)
        line[DECISIONS[kind]] = int(selected.sum())
        line[f"{DECISIONS[kind]}_right"] = int(correct[selected].sum())
    return line


def _score_classes(
    labels: NDArray[np.int64],
    groups: NDArray[np.int64],
    matched: NDArray[np.int64],
    class_names: Sequence[str],
    group_names: Sequence[str],
) -> list[dict[str, Any]]:
    """Score each true class, the lowest recall first; ``confused_with`` is the most frequent wrong prediction."""
    predicted = matched[groups]
    lines: list[dict[str, Any]] = []
    for label in np.unique(labels):
        mine, named = labels == label, predicted == label
        wrong = Counter(groups[mine & ~named].tolist()).most_common(1)
        line = {"class": class_names[label], "images": int(mine.sum()), "recall": _share(named[mine])}
        line |= {"precision": _share(mine[named]), "confused_with": group_names[wrong[0][0]] if wrong else None}
        lines.append(line)
    return sorted(lines, key=itemgetter("recall"))


def _build_tables(values: Mapping[str, Any]) -> list[Table]:
    answers: list[Cell] = [values["rows"], percent(values["answered_share"]), percent(values["accuracy_answered"])]
    answers += [*map(percent, values["accuracy_at_coverage"].values()), values["aurc"]]
    of = [values[name] for name in ("before", "after", "after_known", "after_new")]
    errors: list[Cell] = [None if found is None else found["ece"] for found in of]
    filled = [entry for entry in values["after"]["bins"] if entry["count"]]
    return [
        Table(
            "predictions for images whose labels were not used for training or calibration (in %, except AURC)",
            ["images", "sure", "correct if sure", *(f"correct at {int(100 * v)}% coverage" for v in _SHARES), "AURC"],
            [answers],
        ),
        Table(
            "reliability, after calibration",
            ["confidence from", "to", "images", "mean confidence", "accuracy"],
            [[bin_["from"], bin_["to"], bin_["count"], bin_["confidence"], bin_["accuracy"]] for bin_ in filled],
        ),
        Table("expected calibration error", ["before", "after", "predicted known", "predicted new"], [errors]),
        Table(
            "outcomes by true class",
            ["truth", "images", "known", "correct", "new", "correct", "unsure", "correct"],
            [list(line.values()) for line in values["outcomes"]],
        ),
        Table(
            "true classes, the lowest recall first (%)",
            ["class", "images", "recall", "precision", "most often confused with"],
            [
                [percent(value) if key in ("recall", "precision") else value for key, value in line.items()]
                for line in values["by_class"]
            ],
        ),
    ]


def match_groups_to_classes(labels: ArrayLike, group_ids: ArrayLike, class_of_group: ArrayLike) -> NDArray[np.int64]:
    """Find the class of each group: its own class or, for a new group, the class to which it is matched.

    Args:
        labels: (n,) integers >= 0, the true classes.
        group_ids: (n,) integers in ``[0, k)``.
        class_of_group: (k,) integers, class of a known group, -1 = new.

    Returns:
        (k,) int64, -1 = new group without a match.

    Raises:
        ValueError: the shapes do not match, or an id is out of range.
    """
    classes, named = np.asarray(labels), np.asarray(class_of_group)
    known = named[named >= 0]
    num_classes = int(max(classes.max(), named.max())) + 1
    counts = cross_tabulate(group_ids, classes, num_clusters=len(named), num_classes=num_classes)
    result = named.astype(np.int64)
    new_groups = np.flatnonzero(named < 0)
    free = np.setdiff1d(np.arange(num_classes), known)
    if len(new_groups) and len(free):
        matched = match_counts(counts[np.ix_(new_groups, free)]).class_of_cluster
        result[new_groups[matched >= 0]] = free[matched[matched >= 0]]
    return result
