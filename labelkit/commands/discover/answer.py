"""Predict a known class, a new group or "unsure" for every unlabeled image, with a calibrated confidence.

A classifier scores the labeled classes, clustering assigns the other images to groups, and both kinds of scores are
propagated between neighboring images (``few_label_classifier``). Confidence is calibrated on held-out labels
(``fit_calibration``).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelkit.algorithms.answer_rule import PredictionRule
from labelkit.algorithms.confidences import Predictions, calibrate_predictions, join_predictions, select_predictions
from labelkit.algorithms.few_label_classifier import CLASSIFIER, RefittableClassifier
from labelkit.algorithms.row_blocks import StoredRows, row_slices
from labelkit.commands.common.apply import apply_to_rows, check_ray_cluster
from labelkit.commands.common.embeddings import load_rows
from labelkit.commands.common.labels import (
    UsableLabels,
    build_labeled_mask,
    choose_usable_labels,
    was_trained_on_labels,
)
from labelkit.commands.common.outputs import check_output
from labelkit.commands.common.results import Cell, CommandResult, Table, to_json_types
from labelkit.commands.common.stored_predictions import DECISIONS, GIVEN, KNOWN, LEFT_OUT, NEW, UNSURE
from labelkit.commands.discover.calibrate import (
    Calibration,
    collect_held_out_evidence,
    collect_unused_label_evidence,
    fit_calibration,
)
from labelkit.commands.discover.grouping import GroupedRows, Grouping, read_grouping, run_discover_categories
from labelkit.commands.discover.label_weights import (
    LABEL_WEIGHTS,
    compute_label_weights,
    downweight_group_labels,
    surrounded_labels_message,
)
from labelkit.commands.discover.options import DiscoverAnswerConfig
from labelkit.errors import DatasetError, StoreError
from labelkit.formatting import percent
from labelkit.progress import current_progress
from labelkit.store.commit import commit_bytes
from labelkit.store.csv_table import csv_bytes
from labelkit.store.embeddings import EmbeddingStore, open_store
from labelkit.store.results import check_new_result, find_free_name, write_result

COLUMNS = (
    *("path", "label_or_group", "kind", "confidence", "margin", "runner_up"),
    *("best_class", "best_confidence", "group", "new_chance"),
)
"""CSV columns: the prediction, the runner-up, the best labeled class, and the image's group before classification."""

_FEW_LABELS = 10
_NO_PARAMETERS = ("calibration_labels", "labels", "previous", "previous_result", "ruled_out")

_MAX_NEW = 0.95
"""Upper limit on the fraction of images assumed to belong to new classes, unless a larger fraction is predicted to."""


@dataclass(frozen=True)
class _Predictions:
    """Predictions for n images, with their calibration.

    Attributes:
        found: predictions and confidences of the n images.
        expected: (n,) float64 in [0, 1], probability that each prediction is correct; its sum is the expected number
            of correct predictions.
        calibration: calibration on held-out labels or on ``--calibration-labels``.
        calibration_rows: (n,) bool, images whose ``--calibration-labels`` were used.
        new_share: fraction of the unlabeled images assumed to belong to new classes.
        rule: rule for predicting further images from the jointly predicted ones.
    """

    found: Predictions
    expected: NDArray[np.float64]
    calibration: Calibration
    calibration_rows: NDArray[np.bool_]
    new_share: float
    rule: PredictionRule


def predict_images(config: DiscoverAnswerConfig) -> CommandResult:
    """Predict a known class, a new group or ``unsure`` for every unlabeled image; write a result and a CSV table.

    Raises:
        StoreError: the store or the grouping cannot be used.
        DatasetError: there are no labels for calibration.
        ConfigError: files would be overwritten.
    """
    check_ray_cluster(config.ray_address)
    store = open_store(config.index)
    name = config.result or ("answer" if config.overwrite else find_free_name(store, "answer"))
    table_path = config.csv or store.path.with_name(f"{store.path.stem}.{name}.csv")
    check_output(config, table_path, "csv", "--csv", "--result")
    check_new_result(store, name, overwrite=config.overwrite, kind="answers")
    grouped = run_discover_categories(config, config.num_clusters) if config.num_clusters is not None else ()
    read = read_grouping(store, config)
    grouping, given, rows = read.grouping, read.given, read.rows
    unlabeled = given.labels < 0
    if not unlabeled.any():
        problem = "every grouped image already has a label, so there is nothing to predict"
        raise StoreError(str(store.path), problem, "Embed unlabeled images as well.")
    weights = None
    if config.previous is not None:
        weights = compute_label_weights(store, rows, given, config.previous, config.previous_result or "answer")
    answers, copies = _label_copies(store, read, _predict_all_rows(config, store, read, weights))
    found = answers.found
    has_evidence = answers.calibration.evidence.num_labels > 0
    sure = has_evidence & (found.confidence >= config.min_confidence)
    decisions = np.where(sure, np.where(grouping.class_of_group[found.group] < 0, NEW, KNOWN), UNSURE)
    decisions[copies] = KNOWN
    decisions[~unlabeled] = GIVEN
    # --calibration-labels are used only for images that the network was not trained on
    saw = "no" if config.calibration_labels is not None else was_trained_on_labels(store, rows, given.labels)
    _warn_of_limitations(answers, saw, found.confidence[unlabeled], decisions[unlabeled])
    counts = {DECISIONS[kind]: int((decisions == kind).sum()) for kind in (KNOWN, NEW, UNSURE)}
    summary = _summary(config, answers, saw)
    expected = None if saw == "yes" or not has_evidence else float(answers.expected[unlabeled].mean())
    metrics = {"counts": counts, "expected_right": expected, "calibration": summary}
    arrays = _arrays(store, read, answers, decisions)
    if expected is None:
        del arrays["expected"]
    arrays |= build_labeled_mask(store, rows, given)
    if weights is not None:
        column = np.ones(store.n, dtype=np.float32)
        column[rows] = weights
        arrays[LABEL_WEIGHTS] = column
    options = config.to_yaml_dict(operational=False).items()
    path = write_result(
        store,
        name,
        kind="answers",
        arrays={**arrays, "metrics": to_json_types(metrics)},  # type: ignore[dict-item]  # an object, as metrics may be
        params={
            **{key: value for key, value in options if key not in _NO_PARAMETERS},
            **({"labels": given.source} if given.source else {}),
            "grouping": grouping.name,
            "temperature": answers.calibration.cautious,
        },
        stage="discover answer",
        overwrite=config.overwrite,
    )
    commit_bytes(table_path, _csv_text(store, read, found, decisions))
    cells = _group_cells(grouping, found, decisions, unlabeled)
    values: dict[str, object] = {
        "index": config.index,
        "result": name,
        "path": path,
        "csv": table_path,
        "grouping": {"result": grouping.name, "stage": grouping.stage, "groups": len(grouping.names)},
        "rows": int(unlabeled.sum()),
        "min_confidence": config.min_confidence,
        "counts": counts,
        "expected_right": expected,
        "calibration": summary,
        "groups": [{"name": c[0], "kind": c[1], "images": c[2], "sure": c[3], "mean_confidence": c[4]} for c in cells],
    }
    return CommandResult(values, (path, table_path, *grouped), _tables(counts, expected, cells, answers.calibration))


def _predict_all_rows(
    config: DiscoverAnswerConfig, store: EmbeddingStore, read: GroupedRows, weights: NDArray[np.float64] | None
) -> _Predictions:
    """Predict a subset of the rows jointly, then the others from this subset, block by block."""
    places = read.places
    given = replace(read.given, labels=read.given.labels[places], truth=read.given.truth[places])
    answers = _predict_jointly(config, store, read.grouping, given, None if weights is None else weights[places])
    others = np.setdiff1d(np.arange(len(read.rows)), places)
    if not len(others):
        return answers
    progress = current_progress()
    progress.message(f"{len(places):,} of {len(read.rows):,} images are predicted jointly, the others from these")
    used, known = int(given.labeled.sum()), int(read.given.labeled.sum())
    if used < known:
        progress.warning(f"only {used:,} of {known:,} labels are used, to limit time and memory")
    # square roots of these features and of those of the grouping have already been taken
    rule = replace(answers.rule, square_roots=False)
    source = load_rows(store, read.rows[others], square_root=read.grouping.square_roots, in_blocks=True)
    numbers = store.dim + 8 * len(rule.class_of_group)
    predict = partial(_predict, rule, read.grouping.features, answers.calibration.likeliest, numbers)
    name = "images predicted from the others"
    found = list(apply_to_rows(predict, source, config, name, values_per_row=numbers, resumable=True))
    parts = [answers.found, *(Predictions(*columns) for *columns, _ in found)]
    expected = [answers.expected, *(chances for *_, chances in found)]
    order = np.argsort(np.concatenate([places, others]))
    calibrated = np.concatenate([answers.calibration_rows, np.zeros(len(others), dtype=bool)])
    return replace(
        answers,
        found=select_predictions(join_predictions(parts), order),
        expected=np.concatenate(expected)[order],
        calibration_rows=calibrated[order],
    )


def _label_copies(
    store: EmbeddingStore, read: GroupedRows, answers: _Predictions
) -> tuple[_Predictions, NDArray[np.bool_]]:
    """Assign its label to every exact copy of a labeled file; return the predictions and a mask (n,) of the copies."""
    labels, copies = read.given.labels, np.zeros(len(read.rows), dtype=bool)
    if not store.has_images:
        return answers, copies
    digests = np.ascontiguousarray(store.sha256[read.rows])
    starts = digests[:, :8].copy().view(np.uint64).ravel()
    labels_of: dict[bytes, set[int]] = {}
    for place in np.flatnonzero(labels >= 0):
        labels_of.setdefault(digests[place].tobytes(), set()).add(int(labels[place]))
    group = np.full(len(labels), -1)
    for place in np.flatnonzero((labels < 0) & np.isin(starts, starts[labels >= 0])):
        given = labels_of.get(digests[place].tobytes(), set())
        if len(given) == 1:  # conflicting labels of one file are ignored
            group[place] = np.flatnonzero(read.grouping.class_of_group == min(given))[0]
    copies = group >= 0
    found = answers.found
    values: dict[str, Any] = {"group": group, "best_class": group, "runner_up": -1, "new_chance": 0.0}
    values |= dict.fromkeys(("confidence", "margin", "best_confidence", "uncalibrated"), 1.0)
    found = replace(found, **{name: np.where(copies, value, getattr(found, name)) for name, value in values.items()})
    return replace(answers, found=found, expected=np.where(copies, 1.0, answers.expected)), copies


def _predict(
    rule: PredictionRule, stored: NDArray[np.float32], likeliest: float, numbers_per_row: int, rows: StoredRows
) -> tuple[NDArray[Any], ...]:
    """Predict rows from stored rows; return the fields of ``Predictions`` and the correctness probabilities (m,)."""
    assert rule.temperature is not None
    parts, expected = [], []
    for block in row_slices(len(rows), numbers_per_row):
        probabilities = rule.predict_probabilities(rows[block], stored)
        parts.append(calibrate_predictions(probabilities, rule.class_of_group, rule.temperature))
        expected.append(calibrate_predictions(probabilities, rule.class_of_group, likeliest).confidence)
    return (*vars(join_predictions(parts)).values(), np.concatenate(expected))


def _predict_jointly(
    config: DiscoverAnswerConfig,
    store: EmbeddingStore,
    grouping: Grouping,
    given: UsableLabels,
    weights: NDArray[np.float64] | None,
) -> _Predictions:
    """Predict the rows of a grouping jointly, and calibrate on labels that the predictions do not use."""
    labels, unlabeled = given.labels, given.labels < 0
    if unlabeled.all() and config.calibration_labels is None:
        raise DatasetError(
            given.where,
            "has no usable labels, so confidence cannot be calibrated",
            "Embed a dataset with labels, or pass --labels FILE or --calibration-labels FILE.",
        )
    whole = downweight_group_labels(grouping.features, labels)
    if few := int((whole < 1).sum()):
        current_progress().message(surrounded_labels_message(few))
        weights = whole if weights is None else weights * whole
    classifier = RefittableClassifier(grouping.features, labels, weights)
    class_of_group, weight = grouping.class_of_group, grouping.group_weight
    probabilities = classifier.fit_and_predict(labels, grouping.group_ids, class_of_group, group_weight=weight)
    new_share = _estimate_new_fraction(grouping, probabilities, labels)
    calibration_rows = np.zeros(len(grouping.rows), dtype=bool)
    if config.calibration_labels is None:
        ids, options = grouping.group_ids, {"min_size": grouping.min_size, "seed": config.seed}
        evidence = collect_held_out_evidence(
            classifier, labels, ids, class_of_group, new_share, group_weight=weight, **options
        )
    else:
        fresh = _given_labels(config.calibration_labels, store, grouping, unlabeled, given.class_names)
        calibration_rows = fresh >= 0
        evidence = collect_unused_label_evidence(probabilities, class_of_group, fresh)
    calibration = fit_calibration(evidence)
    found, likeliest = (
        calibrate_predictions(probabilities, class_of_group, temperature, grouping.ruled_out)
        for temperature in (calibration.cautious, calibration.likeliest)
    )
    rule = classifier.build_rule(labels, grouping.group_ids, class_of_group, probabilities, group_weight=weight)
    rule = replace(
        rule, unit_rows=grouping.unit_rows, square_roots=grouping.square_roots, temperature=calibration.cautious
    )
    return _Predictions(found, likeliest.confidence, calibration, calibration_rows, new_share, rule)


def _estimate_new_fraction(grouping: Grouping, probabilities: NDArray[np.float64], labels: NDArray[np.int64]) -> float:
    """Estimate the fraction of unlabeled rows that belong to new classes.

    Returns the larger of two estimates: the fraction predicted as new, and the fraction estimated when the groups were
    formed or, if the user set the number of classes, the fraction in new groups if all groups were equally large.
    """
    unlabeled, is_new = labels < 0, grouping.class_of_group < 0
    named = float(is_new[probabilities.argmax(axis=1)][unlabeled].mean())
    share = grouping.new_share
    if share is None:
        in_use = np.bincount(grouping.group_ids, minlength=len(is_new)) > 0
        share = float(is_new[in_use].mean()) * len(unlabeled) / int(unlabeled.sum())
    return max(named, min(_MAX_NEW, share))


def _given_labels(
    path: Path, store: EmbeddingStore, grouping: Grouping, unlabeled: NDArray[np.bool_], class_names: Sequence[str]
) -> NDArray[np.int64]:
    """Return the labels in a file or result for the rows of a grouping, -1 = none; further classes get new numbers.

    Raises:
        DatasetError: images are not in the store, or all labeled images may have been used for training.
    """
    given = choose_usable_labels(path, store, grouping.rows, own_labels=False)
    number = {text: label for label, text in enumerate(class_names)}
    numbers = np.array([number.setdefault(text, len(number)) for text in given.class_names], dtype=np.int64)
    fresh = given.labeled & unlabeled & ~store.trained_rows()[grouping.rows]
    trained = int((given.labeled & ~fresh).sum())
    if trained:
        current_progress().warning(f"{path}: {trained} images are ignored, since training may have used their labels")
    if not fresh.any():
        problem = "all labeled images in this file may have been used for training"
        raise DatasetError(str(path), problem, "Add labels for images that were not used for training.")
    return np.where(fresh, numbers[given.labels], -1)


def _warn_of_limitations(
    answers: _Predictions, saw: str, confidence: NDArray[np.float64], decisions: NDArray[np.int64]
) -> None:
    progress = current_progress()
    if saw == "yes":
        progress.warning(
            "the network was trained on the labels held out for calibration, so these images are easier than others: "
            "confidences are likely too high, and the number of correct predictions cannot be estimated. Label a "
            "few other images and pass them as --calibration-labels FILE"
        )
    num_labels = answers.calibration.evidence.num_labels
    if not num_labels:
        progress.warning(
            "no class has two labels, so confidence cannot be calibrated and every prediction is unsure. Label a "
            "second image of some classes"
        )
    elif num_labels < _FEW_LABELS:
        progress.warning(f"confidences are imprecise: only {num_labels} labels were available for calibration")
    if num_labels and (decisions == UNSURE).all():
        progress.warning(
            f"every prediction is unsure (the highest confidence is {confidence.max():.2f}). Label more images, or "
            "lower --min-confidence"
        )


def _summary(config: DiscoverAnswerConfig, answers: _Predictions, saw: str) -> dict[str, object]:
    calibration, evidence = answers.calibration, answers.calibration.evidence
    source = "labels given for unlabeled images"
    if config.calibration_labels is None:
        source = "labels hidden in turn from classifier, groups and spreading"
    return {
        "method": "temperature scaling" if evidence.num_labels else "usual temperature",
        "source": source if evidence.num_labels else "none: no class has two labels",
        "network_saw_labels": saw,
        "labels": evidence.num_labels,
        "rows": len(evidence.predicted_groups),
        "rows_of_new_classes": int(evidence.of_new.sum()),
        "new_share": answers.new_share,
        "accuracy_known": evidence.accuracy(new=False),
        "accuracy_new": evidence.accuracy(new=True),
        "temperature": calibration.cautious,
        "classifier": CLASSIFIER,
        "flow": answers.rule.alpha,
        "before": None if calibration.before is None else calibration.before.to_dict(),
        "after": None if calibration.after is None else calibration.after.to_dict(),
        "aurc": calibration.aurc,
    }


def _csv_text(store: EmbeddingStore, read: GroupedRows, found: Predictions, decisions: NDArray[np.int64]) -> bytes:
    """Return the predictions as CSV; for an unsure image, the table shows the best guess."""
    names = [*read.grouping.names, ""]  # -1: none
    lines = (
        [
            store.sample_ids[int(read.rows[place])],
            names[int(found.group[place])],
            DECISIONS[int(decisions[place])],
            f"{found.confidence[place]:.4f}",
            f"{found.margin[place]:.4f}",
            names[int(found.runner_up[place])],
            names[int(found.best_class[place])],
            f"{found.best_confidence[place]:.4f}",
            names[int(read.group_ids[place])],
            f"{found.new_chance[place]:.4f}",
        ]
        for place in np.flatnonzero(decisions != GIVEN)
    )
    return csv_bytes(COLUMNS, lines)


def _arrays(
    store: EmbeddingStore, read: GroupedRows, answers: _Predictions, decisions: NDArray[np.int64]
) -> dict[str, NDArray[np.generic] | list[str]]:
    """Return the arrays of the result; a labeled image is in the group of its class, with confidence 1."""
    rows, grouping = read.rows, read.grouping

    def full(values: NDArray[Any], fill: float, dtype: type[np.generic]) -> NDArray[np.generic]:
        column = np.full(store.n, fill, dtype=dtype)
        column[rows] = values
        return column

    found, rule = answers.found, answers.rule
    group_ids, best = found.group.copy(), found.best_class.copy()
    if len(grouping.rows) < len(rows):
        rule = replace(rule, rows=grouping.rows)
    else:
        probabilities = np.zeros((store.n, rule.probabilities.shape[1]), dtype=np.float32)
        probabilities[rows] = rule.probabilities
        rule = replace(rule, probabilities=probabilities)
    for group, label in enumerate(grouping.class_of_group):
        if label >= 0:
            own = read.given.labels == label
            group_ids[own] = best[own] = group
    is_given = decisions == GIVEN
    return {
        "pseudo_labels": full(np.where(decisions == UNSURE, -1, group_ids), -1, np.int64),
        "group_ids": full(group_ids, -1, np.int64),
        "confidence": full(np.where(is_given, 1, found.confidence), 0, np.float32),
        "expected": full(np.where(is_given, 1, answers.expected), 0, np.float32),
        "best_class": full(best, -1, np.int64),
        "best_confidence": full(np.where(is_given, 1, found.best_confidence), 0, np.float32),
        "new_chance": full(np.where(is_given, 0, found.new_chance), 0, np.float32),
        "grouped_ids": full(read.group_ids, -1, np.int64),
        "uncalibrated_confidence": full(np.where(is_given, 1, found.uncalibrated), 0, np.float32),
        "margin": full(np.where(is_given, 1, found.margin), 0, np.float32),
        "decisions": full(decisions, LEFT_OUT, np.uint8),
        "decision_names": list(DECISIONS),
        "calibration_rows": full(answers.calibration_rows, 0, np.uint8),
        "names": grouping.names,
        "new_classes": (grouping.class_of_group < 0).astype(np.uint8),
        **rule.to_arrays(),
    }


def _group_cells(
    grouping: Grouping, found: Predictions, decisions: NDArray[np.int64], unlabeled: NDArray[np.bool_]
) -> list[list[Cell]]:
    cells: list[list[Cell]] = []
    for group, name in enumerate(grouping.names):
        mine = unlabeled & (found.group == group)
        kind = "new" if grouping.class_of_group[group] < 0 else "known"
        mean = float(found.confidence[mine].mean()) if mine.any() else float("nan")
        cells.append([name, kind, int(mine.sum()), int((decisions[mine] != UNSURE).sum()), mean])
    return cells


def _tables(
    counts: dict[str, int], expected: float | None, cells: list[list[Cell]], calibration: Calibration
) -> tuple[Table, ...]:
    evidence = calibration.evidence
    checked: dict[str, Cell] = {
        "labels": evidence.num_labels,
        "known right %": percent(evidence.accuracy(new=False)),
        "new right %": percent(evidence.accuracy(new=True)),
        "temperature": calibration.cautious,
        "ECE before": None if calibration.before is None else calibration.before.ece,
        "ECE after": None if calibration.after is None else calibration.after.ece,
    }
    total: dict[str, Cell] = {**counts, **({} if expected is None else {"expected right %": percent(expected)})}
    return (
        Table("groups of the unlabeled images", ["group", "kind", "images", "sure", "mean confidence"], cells),
        Table.from_row("calibration", checked),
        Table.from_row("answers", total),
    )
