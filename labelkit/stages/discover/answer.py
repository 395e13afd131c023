"""Answer for every unlabeled image: known class, new group, or unsure, with a calibrated confidence.

The confidence is the softmax, at a fitted temperature, of how near the image is to the mean of its group and of the
others. One temperature is all that some twenty labels can bear, and a probability is what ``--min-confidence`` asks
for. Conformal prediction bounds errors without trusting the softmax, but only for classes with labels, since nothing
true is known of new ones: it is offered as a second condition (``--coverage``).

Scores come from the features also for the groups of a classifier: its logits on labeled rows are those of training
rows, so that no temperature could be fitted to them; and on digits the features order its errors better.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from labelkit.algorithms.calibration import (
    Reliability,
    conformal_threshold,
    fit_temperature,
    group_means,
    group_scores,
    named_probability,
    reliability,
    risk_coverage,
    softmax,
)
from labelkit.config.discover import DiscoverAnswerConfig
from labelkit.errors import ConfigError, DatasetError, StoreError
from labelkit.stages.discover.grouping import group_first, read_grouping
from labelkit.stages.discover.held_out import Evidence, Grouping, given_label_evidence, hidden_label_evidence
from labelkit.stages.new_files import check_new_file
from labelkit.stages.progress import current_progress
from labelkit.stages.read.given_labels import GivenLabels, labeled_array, labels_to_use
from labelkit.stages.result import Cell, SimpleResult, Table, jsonable
from labelkit.store.commit import commit_bytes
from labelkit.store.embeddings import EmbeddingStore, open_store
from labelkit.store.results import write_result

DECISIONS = ("known", "new", "unsure", "given", "left out")
"""What ``decisions`` of the result holds, by number: given = has a label; left out = not in the grouping."""

KNOWN, NEW, UNSURE, GIVEN, LEFT_OUT = range(len(DECISIONS))

UNCALIBRATED_TEMPERATURE = 0.1
"""What the methods train with; the comparison before calibration."""

_BLOCK_ROWS = 1 << 15
_FEW_LABELS = 10


@dataclass(frozen=True)
class _Confidences:
    """Of all rows of a grouping, each (n,)."""

    confidence: NDArray[np.float64]
    margin: NDArray[np.float64]
    runner_up: NDArray[np.int64]
    uncalibrated: NDArray[np.float64]
    is_single: NDArray[np.bool_]


@dataclass(frozen=True)
class _Calibration:
    """Temperature and conformal threshold with what they rest on."""

    evidence: Evidence
    temperature: float
    threshold: float | None
    before: Reliability
    after: Reliability


def answer_images(config: DiscoverAnswerConfig) -> SimpleResult:
    """Answer for every unlabeled row of a grouping, and write result and table.

    Raises:
        StoreError: the store or the grouping cannot be used.
        DatasetError: no labels to calibrate with.
        ConfigError: files that would be overwritten.
    """
    store = open_store(config.index)
    name = config.result or "answer"
    table_path = config.csv or store.path.with_name(f"{store.path.stem}.{name}.csv")
    _check_outputs(config, store, table_path)
    grouped = group_first(config, config.num_clusters) if config.num_clusters is not None else ()
    grouping, given = read_grouping(store, config)
    usable = given.labels
    unlabeled = usable < 0
    if not unlabeled.any():
        raise StoreError(
            str(store.path),
            "every row that is grouped has a label: nothing is left to answer",
            "Embed images without labels too.",
        )
    is_new = grouping.class_of_group[grouping.group_ids] < 0
    new_share = float(is_new[unlabeled].mean())
    evidence, calibration_rows = _evidence(config, store, grouping, given, new_share)
    calibration = _calibrate(evidence, config.coverage)
    found = _confidences(grouping, calibration)
    sure = found.confidence >= config.min_confidence
    if config.coverage is not None:
        sure &= found.is_single
    decisions = np.where(sure, np.where(is_new, NEW, KNOWN), UNSURE)
    decisions[~unlabeled] = GIVEN
    trained = _network_saw_labels(store)
    _say(config, calibration, trained, found.confidence[unlabeled], decisions[unlabeled])
    counts = {DECISIONS[kind]: int((decisions == kind).sum()) for kind in (KNOWN, NEW, UNSURE)}
    summary = _summary(config, calibration, grouping, new_share, trained)
    text = _csv_text(store, grouping, found, decisions, np.flatnonzero(unlabeled))
    arrays = _arrays(store, grouping, found, decisions, calibration_rows, usable)
    arrays |= labeled_array(store, grouping.rows, given)
    arrays["metrics"] = jsonable({"counts": counts, "calibration": summary})  # type: ignore[assignment]  # an object, as metrics may be
    path = _write_result(config, store, name, arrays, grouping, given, calibration)
    commit_bytes(table_path, text)
    made = [path, table_path, *grouped]
    if config.plot is not None:
        from labelkit.stages.pictures.plots import write_reliability_plot  # matplotlib takes a second to load

        curves = {"before calibration": calibration.before, "after": calibration.after}
        made.append(write_reliability_plot(config.plot, curves, title="on the labels calibrated with"))
    cells = _group_cells(grouping, found, decisions, unlabeled)
    values: dict[str, object] = {
        "index": config.index,
        "result": name,
        "path": path,
        "csv": table_path,
        "plot": config.plot,
        "grouping": {"result": grouping.name, "stage": grouping.stage, "groups": len(grouping.names)},
        "rows": int(unlabeled.sum()),
        "min_confidence": config.min_confidence,
        "counts": counts,
        "calibration": summary,
        "groups": [{"name": c[0], "kind": c[1], "images": c[2], "sure": c[3], "mean_confidence": c[4]} for c in cells],
    }
    return SimpleResult(values, tuple(made), _tables(counts, cells, calibration))


def _evidence(
    config: DiscoverAnswerConfig, store: EmbeddingStore, grouping: Grouping, given: GivenLabels, new_share: float
) -> tuple[Evidence, NDArray[np.bool_]]:
    """Return how often the grouping is right, and which of its rows that was learned from beside those with labels.

    Raises:
        DatasetError: no labels to calibrate with.
    """
    usable = given.labels
    if config.calibration_labels is not None:
        fresh = _given_labels(config.calibration_labels, store, grouping, usable < 0, given.class_names)
        return given_label_evidence(grouping, fresh), fresh >= 0
    if not (usable >= 0).any():
        raise DatasetError(
            given.where,
            "has no labels that may be used, and a confidence cannot be calibrated without any",
            "Embed a data set with labels, pass some with --labels, or give some with --calibration-labels FILE.",
        )
    hidden = hidden_label_evidence(
        grouping,
        usable,
        new_share=new_share,
        share=config.calibration_share,
        num_rounds=config.calibration_rounds,
        seed=config.seed,
    )
    if hidden is None:
        raise DatasetError(
            str(store.path),
            "no class has two labels, so that none can be hidden and looked for",
            "Label more images, or give labels of other images with --calibration-labels FILE.",
        )
    return hidden, np.zeros(len(grouping.rows), dtype=bool)


def _write_result(
    config: DiscoverAnswerConfig,
    store: EmbeddingStore,
    name: str,
    arrays: dict[str, NDArray[np.generic] | list[str]],
    grouping: Grouping,
    given: GivenLabels,
    calibration: _Calibration,
) -> Path:
    """Write the answer beside the store, with the options and what follows from them."""
    params = {
        key: value
        for key, value in config.to_yaml_dict(operational=False).items()
        if key not in ("calibration_labels", "labels", "max_memory")
    }
    params |= {"labels": given.source} if given.source else {}
    params |= {"grouping": grouping.name, "temperature": calibration.temperature}
    return write_result(
        store,
        name,
        kind="answers",
        arrays=arrays,
        params=params,
        stage="discover answer",
        overwrite=config.overwrite,
    )


def _check_outputs(config: DiscoverAnswerConfig, store: EmbeddingStore, table_path: Path) -> None:
    """Refuse to write over the store, or over a table without being asked.

    Raises:
        ConfigError: one of them would happen.
    """
    for option, path in (("--csv", table_path), ("--plot", config.plot)):
        if path is None:
            continue
        if path.resolve() == store.path.resolve() or path.suffix == ".h5":
            raise ConfigError(option, f"{path} is a store, or named like one", "Choose another name.")
        if not path.absolute().parent.is_dir():
            raise ConfigError(option, f"the folder {path.parent} does not exist", "Make it first.")
        if path.is_dir():
            raise ConfigError(option, f"{path} is a folder", "Name a file.")
    if config.plot is not None and config.plot.resolve() == table_path.resolve():
        raise ConfigError("--plot", f"{config.plot} is also the table", "Choose another name.")
    if config.plot is not None:
        check_new_file(config.plot, overwrite=config.overwrite, option="--plot")
    if table_path.exists() and not config.overwrite:
        raise ConfigError(
            "--csv",
            f"{table_path} already exists",
            "Pass --overwrite to replace it, another --csv, or another name with --result.",
        )


def _given_labels(
    path: Path,
    store: EmbeddingStore,
    grouping: Grouping,
    unlabeled: NDArray[np.bool_],
    class_names: Sequence[str],
) -> NDArray[np.int64]:
    """Labels of a file or result for the rows of a grouping, -1 = none; classes not known yet get further numbers.

    Raises:
        DatasetError: images the store does not have, or none that it has no label for.
    """
    given = labels_to_use(path, store, grouping.rows)
    number = {text: label for label, text in enumerate(class_names)}
    numbers = np.array([number.setdefault(text, len(number)) for text in given.class_names], dtype=np.int64)
    fresh = given.labeled & unlabeled
    labels = np.full(len(grouping.rows), -1, dtype=np.int64)
    labels[fresh] = numbers[given.labels[fresh]]
    trained = int((given.labeled & ~unlabeled).sum())
    if trained:
        current_progress().warning(f"{path}: {trained} images left out, since training could use their label")
    if not fresh.any():
        raise DatasetError(str(path), "training could use the label of every image", "Label other images.")
    return labels


def _calibrate(evidence: Evidence, coverage: float | None) -> _Calibration:
    scores, named, correct, weights = evidence.scores, evidence.named, evidence.correct, evidence.weights
    temperature = fit_temperature(scores, named, correct, weights=weights)
    before, after = (
        reliability(named_probability(scores, named, value).confidence, correct, weights=weights)
        for value in (UNCALIBRATED_TEMPERATURE, temperature)
    )
    threshold = None
    if coverage is not None:
        old = evidence.own >= 0
        if not old.any():
            raise DatasetError("--coverage", "no label of a known class to calibrate with", "Label such images.")
        probabilities = softmax(scores[old], temperature)
        nonconformity = 1 - probabilities[np.arange(int(old.sum())), evidence.own[old]]
        amounts = weights[old] / weights[old].sum() * _distinct(evidence, old)
        threshold = conformal_threshold(nonconformity, coverage, weights=amounts)
    return _Calibration(evidence, temperature, threshold, before, after)


def _confidences(grouping: Grouping, calibration: _Calibration) -> _Confidences:
    """Score all rows, block by block."""
    means = group_means(grouping.features, grouping.group_ids, len(grouping.names))
    parts: list[tuple[NDArray[np.generic], ...]] = []
    for start in range(0, len(grouping.rows), _BLOCK_ROWS):
        block = slice(start, start + _BLOCK_ROWS)
        scores, named = group_scores(grouping.features[block], means), grouping.group_ids[block]
        found = named_probability(scores, named, calibration.temperature)
        uncalibrated = named_probability(scores, named, UNCALIBRATED_TEMPERATURE).confidence
        single = np.ones(len(named), dtype=bool)
        if calibration.threshold is not None:
            candidates = softmax(scores, calibration.temperature) >= 1 - calibration.threshold
            single = (candidates.sum(axis=1) == 1) & candidates[np.arange(len(named)), named]
        parts.append((found.confidence, found.margin, found.runner_up, uncalibrated, single))
    return _Confidences(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _network_saw_labels(store: EmbeddingStore) -> Literal["yes", "no", "unknown"]:
    """Whether the network that made the features was trained with the labels, as far as a store tells."""
    if "logits" in store.extras:
        return "yes"
    source = store.model.source
    return "no" if source == "pixels" or source.startswith("random:") else "unknown"


def _say(
    config: DiscoverAnswerConfig,
    calibration: _Calibration,
    trained: str,
    confidence: NDArray[np.float64],
    decisions: NDArray[np.int64],
) -> None:
    """Warn of what the numbers cannot show."""
    progress = current_progress()
    if config.calibration_labels is None and trained == "yes":
        progress.warning(
            "the network was trained with the labels that are hidden here, so that their images look easier than "
            "others: confidences are likely too high. Label a few other images and pass --calibration-labels FILE"
        )
    num_labels = calibration.evidence.num_labels
    if num_labels < _FEW_LABELS:
        progress.warning(f"calibrated on {num_labels} labels only: take the confidences as rough")
    if calibration.threshold == np.inf:
        progress.warning(
            f"too few labels for --coverage {config.coverage}: every group stays possible, so that all is unsure"
        )
    elif (decisions == UNSURE).all():
        progress.warning(
            f"every image is unsure; the largest confidence is {confidence.max():.2f}: lower --min-confidence"
        )


def _distinct(evidence: Evidence, chosen: NDArray[np.bool_]) -> float:
    """Labels behind some rows of the evidence."""
    return evidence.num_labels * float(chosen.mean())


def _summary(
    config: DiscoverAnswerConfig, calibration: _Calibration, grouping: Grouping, new_share: float, trained: str
) -> dict[str, object]:
    evidence = calibration.evidence
    hidden = config.calibration_labels is None
    tested_new = bool((evidence.own < 0).any())
    if hidden:
        source = "labels of the store, hidden from repeated semi-supervised clusterings of the features"
        held_out = "the clusterings"
        new_means = (
            "classes hidden whole: how often their images share one new group; their features may be easier than those "
            "of classes that are really new"
        )
    else:
        source = "labels given for images without one"
        held_out = "network and grouping"
        new_means = "images of classes no group is named by: how often they share one new group"
    return {
        "method": "temperature scaling" + ("" if config.coverage is None else " and split conformal prediction"),
        "source": source,
        "held_out_from": held_out,
        "network_saw_labels": trained if hidden else "no",
        "grouping_is_the_one_tested": not hidden,
        "labels": evidence.num_labels,
        "rows": len(evidence.named),
        "rows_of_known_classes": int((evidence.own >= 0).sum()),
        "rows_of_new_classes": int((evidence.own < 0).sum()),
        "rounds": config.calibration_rounds if hidden else None,
        "share": config.calibration_share if hidden else None,
        "new_share": new_share,
        "confidence_of_new_groups": new_means if tested_new else "not tested: the temperature of the known classes",
        "accuracy_known": evidence.accuracy(new=False),
        "accuracy_new": evidence.accuracy(new=True),
        "temperature": calibration.temperature,
        "uncalibrated_temperature": UNCALIBRATED_TEMPERATURE,
        "before": calibration.before.to_dict(),
        "after": calibration.after.to_dict(),
        "aurc": risk_coverage(
            named_probability(evidence.scores, evidence.named, calibration.temperature).confidence, evidence.correct
        ).aurc,
        "coverage": config.coverage,
        "conformal_threshold": calibration.threshold,
    }


def _csv_text(
    store: EmbeddingStore,
    grouping: Grouping,
    found: _Confidences,
    decisions: NDArray[np.int64],
    order: NDArray[np.int64],
) -> bytes:
    """The table for people; an unsure image keeps its best guess."""
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["path", "label_or_group", "kind", "confidence", "margin", "runner_up"])
    for place in order:
        second = int(found.runner_up[place])
        writer.writerow(
            [
                store.sample_ids[int(grouping.rows[place])],
                grouping.names[int(grouping.group_ids[place])],
                DECISIONS[int(decisions[place])],
                f"{found.confidence[place]:.4f}",
                f"{found.margin[place]:.4f}",
                grouping.names[second] if second >= 0 else "",
            ]
        )
    # Bytes of a file name that are no text become backslash escapes.
    return buffer.getvalue().encode("utf-8", "backslashreplace")


def _arrays(
    store: EmbeddingStore,
    grouping: Grouping,
    found: _Confidences,
    decisions: NDArray[np.int64],
    calibration_rows: NDArray[np.bool_],
    usable: NDArray[np.int64],
) -> dict[str, NDArray[np.generic] | list[str]]:
    """Columns of the result; a row with a label belongs to the group of its class, with certainty."""

    def full(values: NDArray[np.generic], fill: float, dtype: type[np.generic]) -> NDArray[np.generic]:
        column = np.full(store.n, fill, dtype=dtype)
        column[grouping.rows] = values
        return column

    group_ids = grouping.group_ids.copy()
    for group, label in enumerate(grouping.class_of_group):
        if label >= 0:
            group_ids[usable == label] = group
    is_given = decisions == GIVEN
    return {
        "pseudo_labels": full(np.where(decisions == UNSURE, -1, group_ids), -1, np.int64),
        "group_ids": full(group_ids, -1, np.int64),
        "confidence": full(np.where(is_given, 1, found.confidence), 0, np.float32),
        "uncalibrated_confidence": full(np.where(is_given, 1, found.uncalibrated), 0, np.float32),
        "margin": full(np.where(is_given, 1, found.margin), 0, np.float32),
        "decisions": full(decisions, LEFT_OUT, np.uint8),
        "decision_names": list(DECISIONS),
        "calibration_rows": full(calibration_rows, 0, np.uint8),
        "names": grouping.names,
        "new_classes": (grouping.class_of_group < 0).astype(np.uint8),
    }


def _group_cells(
    grouping: Grouping, found: _Confidences, decisions: NDArray[np.int64], unlabeled: NDArray[np.bool_]
) -> list[list[Cell]]:
    cells: list[list[Cell]] = []
    for group, name in enumerate(grouping.names):
        mine = unlabeled & (grouping.group_ids == group)
        kind = "new" if grouping.class_of_group[group] < 0 else "known"
        mean = float(found.confidence[mine].mean()) if mine.any() else float("nan")
        cells.append([name, kind, int(mine.sum()), int((decisions[mine] != UNSURE).sum()), mean])
    return cells


def _tables(counts: dict[str, int], cells: list[list[Cell]], calibration: _Calibration) -> tuple[Table, ...]:
    evidence = calibration.evidence
    checked: list[Cell] = [
        evidence.num_labels,
        100 * evidence.accuracy(new=False),
        100 * evidence.accuracy(new=True),
        calibration.temperature,
        calibration.before.ece,
        calibration.after.ece,
    ]
    return (
        Table("groups of the unlabeled images", ["group", "kind", "images", "sure", "mean confidence"], cells),
        Table(
            "calibration",
            ["labels", "known right %", "new right %", "temperature", "ECE before", "ECE after"],
            [checked],
        ),
        Table("answers", list(counts), [list(counts.values())]),
    )
