"""Measure what each part of the `discover answer` rule contributes: the same draws with one part removed at a time.

    python -m benchmarks.answer_parts cifar10=cifar10.h5 kinds=grocery.h5:kinds.csv [--parts "label spreading" ...]

The draws are those of ``benchmarks.answer_table``. The columns are percentages of the unlabeled images, averaged over
sets and numbers of labels; the first line shows the complete rule, and the others the difference from it:

    all, half   correct predictions if all classes have labels, and if half of the classes do
    off         difference between the expected and the actual percentage of correct predictions
    sure        predictions with a confidence of .8 or more
    right       percentage of these that are correct
    found       draws in which groups without a label were found, if all classes have labels and if half do
"""

import argparse
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
from labelkit.algorithms import few_label_classifier, hierarchy, unlabeled_classes
from labelkit.commands.discover import answer, calibrate, categories, grouping
from threadpoolctl import threadpool_limits

from benchmarks.answer_table import draw, read_set, right, rule

Values = dict[str, Any]


def _as_if_all_labels_were_used(evidence: calibrate.CalibrationEvidence) -> calibrate.Calibration:
    return _calibrate(replace(evidence, more_labels=1.0))


_calibrate: Callable[[calibrate.CalibrationEvidence], calibrate.Calibration] = calibrate.fit_calibration
PARTS: dict[str, list[tuple[Any, Values]]] = {
    "": [],
    "label diffusion": [(few_label_classifier, {"_DIFFUSION_POWER": 0.0})],
    "label spreading": [(few_label_classifier, {"ALPHA": 0.0})],
    "weight of the own group": [(few_label_classifier, {"OWN_GROUP": 1.0})],
    "square roots": [(one, {"is_nonnegative": lambda store: False}) for one in (categories, grouping)],
    "within-class scaling": [(hierarchy, {"_within_class_scales": lambda places, labels: None})],
    "moves to neighbors": [(hierarchy, {"_STEPS": 0})],
    "weight of groups": [(unlabeled_classes, {"_MIN_WEIGHT": 1.0})],
    "second division into folds": [(unlabeled_classes, {"_REPEATS": 1})],
    "caution": [(calibrate, {"_CAUTION": 0.0})],
    "factor for all labels": [(answer, {"calibrate": _as_if_all_labels_were_used})],
}


def main() -> None:
    """Print one line for each part."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.answer_parts")
    parser.add_argument("sets", nargs="+", metavar="NAME=STORE[:TABLE]")
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--labels-per-class", type=int, nargs="+", default=[2, 5, 10])
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--first-draw", type=int, default=0)
    parser.add_argument("--photos", type=int, default=600)
    asked = parser.parse_args()
    sets = [read_set(text) for text in asked.sets]
    sys.stdout.write("without                       all   half    off   sure  right  found\n")
    before = np.zeros(7)
    for name in ["", *(part for part in asked.parts if part)]:
        with ExitStack() as stack:
            for module, values in PARTS[name]:
                stack.enter_context(patch.multiple(module, **values))
            found = _measure(sets, asked)
        shown = found if not name else found - before
        before = before if name else found
        all_labeled, half, off, sure, good, found_all, found_half = shown
        sys.stdout.write(
            f"{name or '(nothing)':26} {all_labeled:6.1f} {half:6.1f} {off:6.1f} {sure:6.1f} {good:6.1f} "
            f"{found_all:5.2f}/{found_half:.2f}\n"
        )
        sys.stdout.flush()


def _measure(sets: list[tuple[str, Any, Any]], asked: argparse.Namespace) -> Any:
    """Return the values of the columns, (7,)."""
    cells: dict[float, list[list[float]]] = {1.0: [], 0.5: []}
    for _, rows, truth in sets:
        for per_class in asked.labels_per_class:
            for share, mine in cells.items():
                for number in range(asked.first_draw, asked.first_draw + asked.draws):
                    seed = [number, per_class, round(100 * share)]
                    places, labeled = draw(truth, asked.photos, per_class, share, seed)
                    x, y = rows[places], truth[places]
                    left = np.setdiff1d(np.arange(len(y)), labeled)
                    named, confidence, expected, _, _ = rule(x, y, labeled, "auto")
                    hits = right(named, y, np.setdiff1d(y, y[labeled]))[left]
                    sure = confidence[left] >= 0.8
                    off = abs(expected[left].mean() - hits.mean())
                    mine.append(
                        [hits.mean(), off, sure.mean(), (hits & sure).mean(), (named[left] < 0).any()]  # type: ignore[list-item]
                    )
    means = {share: np.mean(mine, axis=0) for share, mine in cells.items()}
    both = np.mean([*cells[1.0], *cells[0.5]], axis=0)
    shown = 100 * np.array([means[1.0][0], means[0.5][0], both[1], both[2], both[3] / max(both[2], 1e-12)])
    return np.array([*shown, means[1.0][4], means[0.5][4]])


if __name__ == "__main__":
    with threadpool_limits(1):
        main()
