"""Measure how corrected predictions affect the other images, compared with logistic regression on the same labels.

    python -m benchmarks.corrections cifar10=cifar10.h5 kinds=grocery.h5:kinds.csv [--photos 900] [--corrected 48]

The sets are those of ``benchmarks.answer_table``. All classes have labels. The most confident wrong predictions are
corrected, as by a person who goes through the page, and all labels are predicted again as in `start`, with the earlier
predictions. The columns are percentages of the images that are unlabeled at the end:

    before, after   correct before and after the corrections
    said            expected to be correct after them
    plain           correct after them, if the earlier predictions are not passed
    lr, lr after    correct with logistic regression on normalized embeddings, before and after
"""

import argparse
import sys
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from labelkit.commands.discover.options import DiscoverAnswerConfig, DiscoverCategoriesConfig
from labelkit.commands.table import all_commands
from labelkit.progress import Progress, use_progress
from labelkit.store.embeddings import open_store
from labelkit.store.results import read_result
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from benchmarks.answer_table import Floats, Ints, draw, read_set
from benchmarks.made_stores import write_store

COLUMNS = ("before", "after", "said", "plain", "lr", "lr after")


def predict(index: Path, labels: Mapping[int, int], result: str, previous: str | None) -> Mapping[str, Any]:
    """Return the arrays of the predictions from some labels, as computed by `start`."""
    ids, table = open_store(index).sample_ids, index.with_name(f"{result}.csv")
    table.write_text("path,label\n" + "".join(f"{ids[row]},class-{label}\n" for row, label in labels.items()))
    common: dict[str, Any] = {"index": index, "labels": table, "own_labels": False}
    earlier = {} if previous is None else {"previous": index, "previous_result": previous}
    grouped = {} if previous is None else {"previous": index, "previous_answers": previous}
    for config in (
        DiscoverCategoriesConfig(**common, result="groups", overwrite=True, **grouped),
        DiscoverAnswerConfig(**common, result=result, grouping="groups", **earlier),
    ):
        fault = all_commands()[config.command].run(config)[1]
        if fault is not None:
            raise fault
    return read_result(open_store(index), result).arrays


def right(arrays: Mapping[str, Any], truth: Ints) -> NDArray[np.bool_]:
    """Return which rows are predicted correctly."""
    names = np.array(
        [int(name.removeprefix("class-")) if name.startswith("class-") else -1 for name in arrays["names"]]
    )
    return np.asarray(names[np.asarray(arrays["group_ids"])] == truth)


def write_unlabeled(index: Path, rows: Floats, truth: Ints) -> None:
    """Write a store whose images have a class, but no labels."""
    none = np.zeros(len(truth), dtype=bool)
    write_store(index, truth, rows.shape[1], lambda start, stop: rows[start:stop], labeled=none)


def logistic_accuracy(rows: Floats, truth: Ints, known: list[int], rest: Ints) -> float:
    """Return the fraction of some rows that logistic regression on others predicts correctly."""
    model = LogisticRegression(C=30, max_iter=500).fit(rows[known], truth[known])
    return float((model.predict(rows[rest]) == truth[rest]).mean())


def make_parser(description: str | None, num_classes: int) -> argparse.ArgumentParser:
    """Return a parser of the options of both benchmarks."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="+", help="NAME=STORE[:TABLE]")
    parser.add_argument("--labels-per-class", type=int, nargs="+", default=[2, 5])
    parser.add_argument("--photos", type=int, default=900)
    parser.add_argument("--num-classes", type=int, default=num_classes, help="maximum number of randomly drawn classes")
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--first-draw", type=int, default=0)
    return parser


def scores(rows: Floats, truth: Ints, labeled: Ints, corrected: int) -> list[float]:
    """Return the columns of one draw."""
    with tempfile.TemporaryDirectory() as folder, use_progress(Progress()):
        index = Path(folder, "rows.h5")
        write_unlabeled(index, rows, truth)
        first = {int(row): int(truth[row]) for row in labeled}
        before = predict(index, first, "before", None)
        hits = right(before, truth)
        wrong = np.setdiff1d(np.flatnonzero(~hits), labeled)
        wrong = wrong[np.argsort(-np.asarray(before["confidence"])[wrong], kind="stable")][:corrected]
        every = first | {int(row): int(truth[row]) for row in wrong}
        after = predict(index, every, "after", "before")
        plain = predict(index, every, "plain", None)
    rest = np.setdiff1d(np.arange(len(truth)), list(every))
    found = [hits[rest].mean(), right(after, truth)[rest].mean(), np.asarray(after["expected"])[rest].mean()]
    found.append(right(plain, truth)[rest].mean())
    found += [logistic_accuracy(rows, truth, list(known), rest) for known in (first, every)]
    return [100 * float(value) for value in found]


def main() -> None:
    """Print a line for each set and number of labels."""
    parser = make_parser(__doc__, num_classes=12)
    parser.add_argument("--corrected", type=int, default=48)
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    sys.stdout.write(f"{'set':10s} labels " + " ".join(f"{name:>8s}" for name in COLUMNS) + "\n")
    lines = []
    for name, rows, truth in map(read_set, asked.sets):
        for count in asked.labels_per_class:
            cells = []
            for number in range(asked.first_draw, asked.first_draw + asked.draws):
                places, labeled = draw(truth, asked.photos, count, 1.0, [number], asked.num_classes)
                cells.append(scores(rows[places], truth[places], labeled, asked.corrected))
            lines.append(np.mean(cells, axis=0))
            sys.stdout.write(f"{name:10s} {count:6d} " + " ".join(f"{value:8.1f}" for value in lines[-1]) + "\n")
            sys.stdout.flush()
    sys.stdout.write(f"{'mean':10s} {'':6s} " + " ".join(f"{value:8.1f}" for value in np.mean(lines, axis=0)) + "\n")


if __name__ == "__main__":
    main()
