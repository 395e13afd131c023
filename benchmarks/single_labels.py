"""Measure how far one label in a new group reaches, compared with logistic regression on the same labels.

    python -m benchmarks.single_labels grocery=grocery.h5 omniglot=omniglot.h5 [--photos 600] [--groups 4]

The sets are those of ``benchmarks.answer_table``. Half of the classes have labels at first. The most typical image of
each of the largest groups without labels is then labeled, and all labels are predicted again. Draws in which these
images belong to classes with labels say nothing and are left out. The columns are percentages of unlabeled images:

    all, named      correct, of all images, and of the classes with one label
    alike           the same two, if the own group counts equally for all classes
    lr, lrd         the same two with logistic regression on normalized embeddings, alone and times diffusion
"""

import sys
import warnings
from unittest.mock import patch

import numpy as np
from labelkit.algorithms import few_label_classifier
from threadpoolctl import threadpool_limits

from benchmarks.answer_table import Floats, Ints, draw, read_set, right, rule, simple_rules
from benchmarks.corrections import make_parser

COLUMNS = ("all", "named", "alike", "named", "lr", "named", "lrd", "named")


def scores(rows: Floats, truth: Ints, labeled: Ints, groups: int) -> list[float] | None:
    """Return the columns of one draw, or ``None`` if no class was named."""
    guess = rule(rows, truth, labeled, "auto")[0]
    free = np.setdiff1d(np.arange(len(truth)), labeled)
    found, sizes = np.unique(guess[free][guess[free] < 0], return_counts=True)
    named: list[int] = []
    for group in found[np.argsort(-sizes, kind="stable")][:groups]:
        members = free[guess[free] == group]
        typical = int(members[np.argmax(rows[members] @ rows[members].mean(axis=0))])
        if truth[typical] not in truth[[*labeled, *named]]:
            named.append(typical)
    if not named:
        return None
    every = np.concatenate([labeled, named])
    rest = np.setdiff1d(free, named)
    new, of_named = np.setdiff1d(truth, truth[every]), rest[np.isin(truth[rest], truth[named])]

    def shares(predictions: Ints) -> list[float]:
        hits = right(predictions, truth, new)
        return [100 * float(hits[some].mean()) for some in (rest, of_named)]

    cells = shares(rule(rows, truth, every, "auto")[0])
    with patch.object(few_label_classifier, "_ENOUGH_LABELS", 0.0):
        cells += shares(rule(rows, truth, every, "auto")[0])
    return cells + [share for simple in simple_rules(rows, every, truth[every]) for share in shares(simple)]


def main() -> None:
    """Print a line for each set and number of labels."""
    parser = make_parser(__doc__, num_classes=0)
    parser.set_defaults(photos=600)
    parser.add_argument("--groups", type=int, default=4)
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    sys.stdout.write(f"{'set':12s} labels draws " + " ".join(f"{name:>6s}" for name in COLUMNS) + "\n")
    lines = []
    for name, rows, truth in map(read_set, asked.sets):
        for count in asked.labels_per_class:
            cells = []
            for number in range(asked.first_draw, asked.first_draw + asked.draws):
                places, labeled = draw(truth, asked.photos, count, 0.5, [number, count, 50], asked.num_classes)
                found = scores(rows[places], truth[places], labeled, asked.groups)
                cells += [] if found is None else [found]
            if cells:
                lines.append(np.mean(cells, axis=0))
                shown = " ".join(f"{value:6.1f}" for value in lines[-1])
                sys.stdout.write(f"{name:12s} {count:6d} {len(cells):5d} {shown}\n")
                sys.stdout.flush()
    sys.stdout.write(f"{'mean':12s} {'':6s} {'':5s} " + " ".join(f"{value:6.1f}" for value in np.mean(lines, 0)) + "\n")


if __name__ == "__main__":
    with threadpool_limits(1):
        main()
