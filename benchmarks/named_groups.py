"""Measure how labels for all images of new groups affect the other images, compared with logistic regression.

    python -m benchmarks.named_groups grocery=grocery.h5 omniglot=omniglot.h5 [--photos 900] [--groups 4]

The sets are those of ``benchmarks.answer_table``. Two thirds of the classes have labels at first. The largest groups
without labels are then labeled completely with the true classes, as by a person who names groups, and all labels are
predicted again.
The columns are percentages of the images that are unlabeled at the end and whose class had labels from the start:

    before, after   correct before and after the groups are labeled
    plain           correct after that, if these labels count like all others
    lr, lr after    correct with logistic regression on normalized embeddings, before and after
    classes         number of classes estimated before, after, plain, and their true number
"""

import sys
import tempfile
import warnings
from pathlib import Path
from unittest.mock import patch

import numpy as np
from labelkit.commands.discover import label_weights
from labelkit.progress import Progress, use_progress

from benchmarks.answer_table import Floats, Ints, draw, read_set
from benchmarks.corrections import logistic_accuracy, make_parser, predict, right, write_unlabeled

COLUMNS = ("before", "after", "plain", "lr", "lr after")


def scores(rows: Floats, truth: Ints, labeled: Ints, groups: int) -> tuple[list[float], list[int]]:
    """Return the columns of one draw, and the numbers of classes."""
    with tempfile.TemporaryDirectory() as folder, use_progress(Progress()):
        index = Path(folder, "rows.h5")
        write_unlabeled(index, rows, truth)
        first = {int(row): int(truth[row]) for row in labeled}
        before = predict(index, first, "before", None)
        ids, names = np.asarray(before["group_ids"]), np.array(before["names"])
        sizes = np.bincount(ids, minlength=len(names)) * np.char.startswith(names.astype(str), "new-")
        largest = [group for group in np.argsort(-sizes, kind="stable")[:groups] if sizes[group]]
        named = np.setdiff1d(np.flatnonzero(np.isin(ids, largest)), labeled)
        every = first | {int(row): int(truth[row]) for row in named}
        after = predict(index, every, "after", None)
        with patch.object(label_weights, "_NEIGHBORS", len(truth)):  # too many to recognize any group
            plain = predict(index, every, "plain", None)
    rest = np.setdiff1d(np.flatnonzero(np.isin(truth, truth[labeled])), list(every))
    found = [right(arrays, truth)[rest].mean() for arrays in (before, after, plain)]
    found += [logistic_accuracy(rows, truth, list(known), rest) for known in (first, every)]
    classes = [len(np.unique(arrays["group_ids"])) for arrays in (before, after, plain)]
    return [100 * float(value) for value in found], [*classes, len(np.unique(truth))]


def main() -> None:
    """Print a line for each set and number of labels."""
    parser = make_parser(__doc__, num_classes=24)
    parser.add_argument("--groups", type=int, default=4)
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    sys.stdout.write(f"{'set':12s} labels " + " ".join(f"{name:>8s}" for name in COLUMNS) + "  classes\n")
    lines = []
    for name, rows, truth in map(read_set, asked.sets):
        for count in asked.labels_per_class:
            cells, numbers = [], []
            for number in range(asked.first_draw, asked.first_draw + asked.draws):
                places, labeled = draw(truth, asked.photos, count, 2 / 3, [number], asked.num_classes)
                found, classes = scores(rows[places], truth[places], labeled, asked.groups)
                cells.append(found)
                numbers.append(classes)
            lines.append(np.mean(cells, axis=0))
            shown = " ".join(f"{value:.0f}" for value in np.mean(numbers, axis=0))
            sys.stdout.write(
                f"{name:12s} {count:6d} " + " ".join(f"{value:8.1f}" for value in lines[-1]) + f"  {shown}\n"
            )
            sys.stdout.flush()
    sys.stdout.write(f"{'mean':12s} {'':6s} " + " ".join(f"{value:8.1f}" for value in np.mean(lines, axis=0)) + "\n")


if __name__ == "__main__":
    main()
