"""Answer for every unlabeled image: known class, new group, or unsure, with a calibrated confidence.

Classes with labels are told apart by a classifier, other images go to groups, and both flow between near images
(``classify``). The confidence is calibrated on labels that the answers were made without (``held_out``,
``confidence``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelkit.algorithms.calibration import risk_coverage
from labelkit.config.discover import DiscoverAnswerConfig
from labelkit.data.keyed_random import keyed_generator
from labelkit.errors import DatasetError, StoreError
from labelkit.percent import percent
from labelkit.stages.discover.calibrate import Calibration, calibrate, evidence_confidences
from labelkit.stages.discover.classify import Recipe, RowJudge, choose_recipe, classifier_shares
from labelkit.stages.discover.confidence import Confidences, Temperatures, confidences
from labelkit.stages.discover.grouping import GroupedRows, group_first, read_grouping
from labelkit.stages.discover.held_out import Grouping, Looks, given_label_evidence, hidden_label_looks
from labelkit.stages.discover.many_rows import answer_rest, merged, merged_rows
from labelkit.stages.discover.rule import AnswerRule
from labelkit.stages.new_files import check_output
from labelkit.stages.progress import current_progress
from labelkit.stages.read.given_labels import GivenLabels, labeled_array, labels_to_use, network_saw_labels
from labelkit.stages.result import Cell, SimpleResult, Table, jsonable
from labelkit.store.commit import commit_bytes
from labelkit.store.csv_table import csv_bytes
from labelkit.store.embeddings import EmbeddingStore, open_store
from labelkit.store.results import check_new_result, free_name, write_result

DECISIONS = ("known", "new", "unsure", "given", "left out")
"""What ``decisions`` of the result holds, by number: given = has a label; left out = not in the grouping."""

KNOWN, NEW, UNSURE, GIVEN, LEFT_OUT = range(len(DECISIONS))

_FEW_LABELS = 10
_NO_PARAMETERS = ("calibration_labels", "labels")

_MOST_NEW = 0.95
"""Share of the images that groups alone can say to be of new classes."""


@dataclass(frozen=True)
class _Answers:
    """What rows are called, and what that rests on.

    Attributes:
        found: names and confidences of the rows, which are n.
        expected: (n, 2) float64 in [0, 1], chances to be right that add up to the ends of the range of how many are.
        calibration: on labels that were hidden or given.
        calibration_rows: (n,) bool, rows whose given label it used.
        recipe: how classes were told apart.
        recipe_scores: share of hidden labels that each recipe named rightly.
        new_share: of the unlabeled rows, those taken to be of new classes.
        rule: that answers for other images; its shares are of the rows answered together.
    """

    found: Confidences
    expected: NDArray[np.float64]
    calibration: Calibration
    calibration_rows: NDArray[np.bool_]
    recipe: Recipe
    recipe_scores: dict[str, float]
    new_share: float
    rule: AnswerRule


def answer_images(config: DiscoverAnswerConfig) -> SimpleResult:
    """Answer for every unlabeled row of a grouping, and write result and table.

    Raises:
        StoreError: the store or the grouping cannot be used.
        DatasetError: no labels to calibrate with.
        ConfigError: files that would be overwritten.
    """
    store = open_store(config.index)
    name = config.result or ("answer" if config.overwrite else free_name(store, "answer"))
    table_path = config.csv or store.path.with_name(f"{store.path.stem}.{name}.csv")
    check_output(config, table_path, "csv", "--csv", "--result")
    check_new_result(store, name, overwrite=config.overwrite, kind="answers")
    grouped = group_first(config, config.num_clusters) if config.num_clusters is not None else ()
    read = read_grouping(store, config)
    grouping, given, rows = read.grouping, read.given, read.rows
    unlabeled = given.labels < 0
    if not unlabeled.any():
        raise StoreError(
            str(store.path),
            "every row that is grouped has a label: nothing is left to answer",
            "Embed images without labels too.",
        )
    answers = _answer_all(config, store, read)
    found = answers.found
    sure = found.confidence >= config.min_confidence
    if config.coverage is not None:
        sure &= found.is_single
    decisions = np.where(sure, np.where(grouping.class_of_group[found.named] < 0, NEW, KNOWN), UNSURE)
    decisions[~unlabeled] = GIVEN
    # of labels that were given to calibrate on, those that the network was trained with are left out
    saw = "no" if config.calibration_labels is not None else network_saw_labels(store, rows, given.labels)
    _say(config, answers, saw, found.confidence[unlabeled], decisions[unlabeled])
    counts = {DECISIONS[kind]: int((decisions == kind).sum()) for kind in (KNOWN, NEW, UNSURE)}
    summary = _summary(config, answers, saw)
    expected = None
    if saw != "yes":
        expected = dict(zip(("from", "to"), answers.expected[unlabeled].mean(axis=0).tolist(), strict=True))
    metrics = {"counts": counts, "expected_right": expected, "calibration": summary}
    arrays = _arrays(store, grouping, rows, answers, decisions, given.labels)
    if expected is None:
        del arrays["expected_low"], arrays["expected_high"]
    arrays |= labeled_array(store, rows, given)
    path = _write(config, store, name, {**arrays, "metrics": jsonable(metrics)}, grouping, given.source, answers)
    commit_bytes(table_path, _csv_text(store, grouping, rows, found, decisions, np.flatnonzero(unlabeled)))
    made = [path, table_path, *grouped]
    if config.plot is not None:
        from labelkit.stages.pictures.plots import write_reliability_plot  # matplotlib takes a second to load

        curves = {"before calibration": answers.calibration.before, "after": answers.calibration.after}
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
        "expected_right": expected,
        "calibration": summary,
        "groups": [{"name": c[0], "kind": c[1], "images": c[2], "sure": c[3], "mean_confidence": c[4]} for c in cells],
    }
    return SimpleResult(values, tuple(made), _tables(counts, expected, cells, answers.calibration))


def _answer_all(config: DiscoverAnswerConfig, store: EmbeddingStore, read: GroupedRows) -> _Answers:
    """Name all rows: some together, and the others by what these say.

    Raises:
        DatasetError: no labels to calibrate with.
        StoreError: rows that are not finite.
    """
    places = read.places
    given = replace(read.given, labels=read.given.labels[places], truth=read.given.truth[places])
    answers = _answer(config, store, read.grouping, given)
    others = np.ones(len(read.rows), dtype=bool)
    others[places] = False
    if not others.any():
        return answers
    current_progress().message(f"{len(places):,} of {len(read.rows):,} rows answered together, the others by these")
    used, known = int(given.labeled.sum()), int(read.given.labeled.sum())
    if used < known:
        current_progress().warning(f"{used:,} of {known:,} labels are learned from: raise --max-rows to use more")

    made = answers.calibration
    arrays = {**answers.rule.arrays(), "new_classes": read.grouping.class_of_group < 0}
    rule = AnswerRule.of_arrays(arrays, {"temperature": made.known, "temperature_new": made.new})
    assert rule is not None
    assert rule.temperatures is not None
    sides = [Temperatures(end.known, end.new, rule.temperatures.threshold) for end in (made.lower, made.upper)]
    rest = answer_rest(store, read.rows[others], read.grouping.features, rule, sides)
    return replace(
        answers,
        found=merged(places, answers.found, rest.found),
        expected=merged_rows(places, answers.expected, rest.expected),
        calibration_rows=merged_rows(places, answers.calibration_rows, np.zeros(int(others.sum()), dtype=bool)),
    )


def _answer(config: DiscoverAnswerConfig, store: EmbeddingStore, grouping: Grouping, given: GivenLabels) -> _Answers:
    """Name the rows of a grouping together, and calibrate on labels that this is done without.

    Raises:
        DatasetError: no labels to calibrate with.
    """
    labels, unlabeled = given.labels, given.labels < 0
    if unlabeled.all() and config.calibration_labels is None:
        raise DatasetError(
            given.where,
            "has no labels that may be used, and a confidence cannot be calibrated without any",
            "Embed a data set with labels, pass some with --labels, or give some with --calibration-labels FILE.",
        )
    judge = RowJudge(grouping.features, labels)
    generator = keyed_generator(config.seed, "answer-recipe")
    usual, *others = classifier_shares(labels)
    recipe, scores = choose_recipe(judge, labels, generator, usual)
    looks: Looks | None = None
    if config.calibration_labels is None:
        looks = hidden_label_looks(
            judge,
            [recipe, *(replace(recipe, group_share=share) for share in others)],
            grouping,
            labels,
            share=config.calibration_share,
            num_rounds=config.calibration_rounds,
            seed=config.seed,
        )
        if looks is None:
            raise DatasetError(
                str(store.path),
                "no class has two labels, so that none can be hidden and looked for",
                "Label more images, or give labels of other images with --calibration-labels FILE.",
            )
        recipe = looks.recipe
    shares = judge.shares(labels, recipe, grouping.group_ids, grouping.class_of_group)
    new_share = _new_share(grouping, shares, unlabeled)
    calibration_rows = np.zeros(len(grouping.rows), dtype=bool)
    if looks is not None:
        evidence = looks.finish(new_share)
    else:
        assert config.calibration_labels is not None
        fresh = _given_labels(config.calibration_labels, store, grouping, unlabeled, given.class_names)
        calibration_rows = fresh >= 0
        evidence = given_label_evidence(grouping, shares, fresh)
    calibration = calibrate(evidence, config.coverage)
    found = confidences(shares, grouping.class_of_group, calibration)
    temperatures = Temperatures(calibration.known, calibration.new, calibration.threshold)
    rule = judge.rule(labels, recipe, grouping.group_ids, grouping.class_of_group, shares)
    rule = replace(rule, unit_rows=grouping.unit_rows, temperatures=temperatures)
    ends = [
        confidences(shares, grouping.class_of_group, side).confidence for side in (calibration.lower, calibration.upper)
    ]
    expected = np.stack(ends, axis=1)
    return _Answers(found, expected, calibration, calibration_rows, recipe, scores, new_share, rule)


def _new_share(grouping: Grouping, shares: NDArray[np.float64], unlabeled: NDArray[np.bool_]) -> float:
    """Share of the unlabeled rows taken to be of new classes.

    That of the rows named by a new group, or what the new groups would have if all were equally large, if that is more:
    which images are called known by mistake is not known, but that there are some shows in the groups.
    """
    is_new = grouping.class_of_group < 0
    named = float(is_new[shares.argmax(axis=1)][unlabeled].mean())
    share = float(is_new[grouping.in_use].mean())
    return max(named, min(_MOST_NEW, share * len(unlabeled) / int(unlabeled.sum())))


def _write(
    config: DiscoverAnswerConfig,
    store: EmbeddingStore,
    name: str,
    arrays: dict[str, Any],
    grouping: Grouping,
    source: dict[str, object],
    answers: _Answers,
) -> Path:
    """Write the result."""
    options = config.to_yaml_dict(operational=False).items()
    params = {key: value for key, value in options if key not in _NO_PARAMETERS}
    return write_result(
        store,
        name,
        kind="answers",
        arrays=arrays,
        params={
            **params,
            **({"labels": source} if source else {}),
            "grouping": grouping.name,
            "recipe": str(answers.recipe),
            "temperature": answers.calibration.known,
            "temperature_new": answers.calibration.new,
        },
        stage="discover answer",
        overwrite=config.overwrite,
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
    given = labels_to_use(path, store, grouping.rows, own_labels=False)
    number = {text: label for label, text in enumerate(class_names)}
    numbers = np.array([number.setdefault(text, len(number)) for text in given.class_names], dtype=np.int64)
    fresh = given.labeled & unlabeled & ~store.trained_rows()[grouping.rows]
    labels = np.full(len(grouping.rows), -1, dtype=np.int64)
    labels[fresh] = numbers[given.labels[fresh]]
    trained = int((given.labeled & ~fresh).sum())
    if trained:
        current_progress().warning(f"{path}: {trained} images left out, since training could use their label")
    if not fresh.any():
        raise DatasetError(str(path), "training could use the label of every image", "Label other images.")
    return labels


def _say(
    config: DiscoverAnswerConfig,
    answers: _Answers,
    saw: str,
    confidence: NDArray[np.float64],
    decisions: NDArray[np.int64],
) -> None:
    """Warn of what the numbers cannot show."""
    progress, calibration = current_progress(), answers.calibration
    if (decisions == GIVEN).any():
        share = percent(answers.recipe.group_share)
        progress.message(f"classes told apart by groups and {answers.recipe}; the classifier has {share} % of the say")
    if saw == "yes":
        progress.warning(
            "the network was trained with the labels that are hidden here, so that their images look easier than "
            "others: confidences are likely too high, and how many answers are right cannot be expected. Label a few "
            "other images and pass --calibration-labels FILE"
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


def _summary(config: DiscoverAnswerConfig, answers: _Answers, saw: str) -> dict[str, object]:
    calibration = answers.calibration
    evidence = calibration.evidence
    hidden = config.calibration_labels is None
    tested_new = bool((evidence.own < 0).any())
    if hidden:
        source = "labels of the store, hidden in turn from classifier, groups and spreading"
        held_out = "classifier, groups and spreading"
        new_means = (
            "classes hidden whole: how often their images share one new group; their features may be easier than those "
            "of classes that are really new"
        )
    else:
        source = "labels given for images without one"
        held_out = "network, classifier and groups"
        new_means = "images of classes no group is named by: how often they share one new group"
    return {
        "method": "temperature scaling" + ("" if config.coverage is None else " and split conformal prediction"),
        "source": source,
        "held_out_from": held_out,
        "network_saw_labels": saw,
        "grouping_is_the_one_tested": not hidden,
        "labels": evidence.num_labels,
        "rows": len(evidence.named),
        "rows_of_known_classes": int((evidence.own >= 0).sum()),
        "rows_of_new_classes": int((evidence.own < 0).sum()),
        "rounds": config.calibration_rounds if hidden else None,
        "share": config.calibration_share if hidden else None,
        "new_share": answers.new_share,
        "confidence_of_new_groups": new_means if tested_new else "not tested: the temperature of the known classes",
        "accuracy_known": evidence.accuracy(new=False),
        "accuracy_new": evidence.accuracy(new=True),
        "temperature": calibration.known,
        "temperature_new": calibration.new,
        "classifier": str(answers.recipe),
        "classifier_share": answers.recipe.group_share,
        "classifier_scores": [{"classifier": name, "right": right} for name, right in answers.recipe_scores.items()],
        "before": calibration.before.to_dict(),
        "after": calibration.after.to_dict(),
        "aurc": risk_coverage(evidence_confidences(calibration), evidence.correct).aurc,
        "coverage": config.coverage,
        "conformal_threshold": calibration.threshold,
    }


def _csv_text(
    store: EmbeddingStore,
    grouping: Grouping,
    rows: NDArray[np.int64],
    found: Confidences,
    decisions: NDArray[np.int64],
    order: NDArray[np.int64],
) -> bytes:
    """The table for people; an unsure image keeps its best guess. Rows are those of the store that are answered."""
    lines = []
    for place in order:
        second = int(found.runner_up[place])
        lines.append(
            [
                store.sample_ids[int(rows[place])],
                grouping.names[int(found.named[place])],
                DECISIONS[int(decisions[place])],
                f"{found.confidence[place]:.4f}",
                f"{found.margin[place]:.4f}",
                grouping.names[second] if second >= 0 else "",
            ]
        )
    return csv_bytes(["path", "label_or_group", "kind", "confidence", "margin", "runner_up"], lines)


def _arrays(
    store: EmbeddingStore,
    grouping: Grouping,
    rows: NDArray[np.int64],
    answers: _Answers,
    decisions: NDArray[np.int64],
    usable: NDArray[np.int64],
) -> dict[str, NDArray[np.generic] | list[str]]:
    """Columns of the result; a row with a label belongs to the group of its class, with certainty."""

    def full(values: NDArray[np.generic], fill: float, dtype: type[np.generic]) -> NDArray[np.generic]:
        column = np.full(store.n, fill, dtype=dtype)
        column[rows] = values
        return column

    found, group_ids, rule = answers.found, answers.found.named.copy(), answers.rule
    if len(grouping.rows) < len(rows):
        rule = replace(rule, rows=grouping.rows)
    else:
        shares = np.zeros((store.n, rule.shares.shape[1]), dtype=np.float32)
        shares[rows] = rule.shares
        rule = replace(rule, shares=shares)
    for group, label in enumerate(grouping.class_of_group):
        if label >= 0:
            group_ids[usable == label] = group
    is_given = decisions == GIVEN
    return {
        **grouping.levels,
        "pseudo_labels": full(np.where(decisions == UNSURE, -1, group_ids), -1, np.int64),
        "group_ids": full(group_ids, -1, np.int64),
        "confidence": full(np.where(is_given, 1, found.confidence), 0, np.float32),
        "expected_low": full(np.where(is_given, 1, answers.expected[:, 0]), 0, np.float32),
        "expected_high": full(np.where(is_given, 1, answers.expected[:, 1]), 0, np.float32),
        "uncalibrated_confidence": full(np.where(is_given, 1, found.uncalibrated), 0, np.float32),
        "margin": full(np.where(is_given, 1, found.margin), 0, np.float32),
        "decisions": full(decisions, LEFT_OUT, np.uint8),
        "decision_names": list(DECISIONS),
        "calibration_rows": full(answers.calibration_rows, 0, np.uint8),
        "names": grouping.names,
        "new_classes": (grouping.class_of_group < 0).astype(np.uint8),
        **rule.arrays(),
    }


def _group_cells(
    grouping: Grouping, found: Confidences, decisions: NDArray[np.int64], unlabeled: NDArray[np.bool_]
) -> list[list[Cell]]:
    cells: list[list[Cell]] = []
    for group, name in enumerate(grouping.names):
        mine = unlabeled & (found.named == group)
        kind = "new" if grouping.class_of_group[group] < 0 else "known"
        mean = float(found.confidence[mine].mean()) if mine.any() else float("nan")
        cells.append([name, kind, int(mine.sum()), int((decisions[mine] != UNSURE).sum()), mean])
    return cells


def _tables(
    counts: dict[str, int], expected: dict[str, float] | None, cells: list[list[Cell]], calibration: Calibration
) -> tuple[Table, ...]:
    evidence = calibration.evidence
    checked: list[Cell] = [
        evidence.num_labels,
        percent(evidence.accuracy(new=False)),
        percent(evidence.accuracy(new=True)),
        calibration.known,
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
        Table(
            "answers",
            [*counts, *(() if expected is None else ("expected right %, from", "to"))],
            [[*counts.values(), *(percent(share) for share in (expected or {}).values())]],
        ),
    )
