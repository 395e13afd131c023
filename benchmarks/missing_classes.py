"""Measure how large unlabeled classes must be for the test of `discover categories` to detect them.

    python -m benchmarks.missing_classes cifar10=cifar10.h5 groceries=grocery.h5 clothes=clothes.h5 [--draws 5]

The sets are those of ``benchmarks.answer_table``; a number of images and classes of each set is drawn once. In each
draw, classes are left unlabeled until they have a given number of images in total (excess images of the last class are
removed). Some images of each other class are labeled. For each set, number of labels and size, a line shows the
percentage of unlabeled images that belong to unlabeled classes; its estimate from distances (``NewClassShare.share``,
not clipped) with the standard deviation over draws; and in how many draws such classes were found. Size 0: all classes
are labeled.
"""

import argparse
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from labelkit.algorithms import unlabeled_classes
from labelkit.commands.discover.options import DiscoverCategoriesConfig
from labelkit.commands.table import all_commands
from labelkit.progress import Progress, use_progress
from labelkit.store.embeddings import open_store

from benchmarks.answer_table import Floats, Ints, read_set
from benchmarks.made_stores import write_store


def draw(truth: Ints, size: int, per_class: int, seed: int) -> tuple[Ints, Ints]:
    """Return the positions of the images of a draw, and their labels; -1: unlabeled."""
    random = np.random.default_rng([seed, size, per_class])
    labels = np.full(len(truth), -1)
    kept: list[Ints] = []
    left = size
    for one in random.permutation(np.unique(truth)):
        rows = random.permutation(np.flatnonzero(truth == one))
        if left > 0:
            rows = rows[:left]
            left -= len(rows)
        else:
            labels[rows[:per_class]] = one
        kept.append(rows)
    places = np.sort(np.concatenate(kept))
    return places, labels[places]


def is_found(rows: Floats, truth: Ints, labels: Ints) -> tuple[bool, float]:
    """Return whether `discover categories` finds unlabeled classes, and its estimate of their fraction."""
    with tempfile.TemporaryDirectory() as folder, use_progress(Progress()):
        index, table = Path(folder, "rows.h5"), Path(folder, "labels.csv")
        none = np.zeros(len(truth), dtype=bool)
        write_store(index, truth, rows.shape[1], lambda start, stop: rows[start:stop], labeled=none)
        ids = open_store(index).sample_ids
        lines = [f"{ids[row]},class-{labels[row]}\n" for row in np.flatnonzero(labels >= 0).tolist()]
        table.write_text("path,label\n" + "".join(lines))
        config = DiscoverCategoriesConfig(index=index, labels=table, own_labels=False)
        estimates: list[float] = []
        whole = unlabeled_classes.estimate_new_share

        def kept(*given: Any, **options: Any) -> unlabeled_classes.NewClassShare:
            near = whole(*given, **options)
            estimates.append(near.share)
            return near

        with patch.object(unlabeled_classes, "estimate_new_share", kept):
            result, fault = all_commands()[config.command].run(config)
    if fault is not None:
        raise fault
    number = result.values["num_classes"]
    assert isinstance(number, int)
    return number > len(np.unique(labels[labels >= 0])), estimates[0]


def main() -> None:
    """Print a line for each set, number of labels and size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="+", help="NAME=STORE[:TABLE]")
    parser.add_argument("--labels-per-class", type=int, nargs="+", default=[3, 8])
    parser.add_argument("--sizes", type=int, nargs="+", default=[0, 10, 20, 40, 80, 160, 350])
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--photos", type=int, default=700, help="images drawn from a set")
    parser.add_argument("--num-classes", type=int, default=20, help="maximum number of classes drawn from a set")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    sys.stdout.write(f"{'set':10s} labels  size  share     estimate  found\n")
    for name, all_rows, all_classes in map(read_set, asked.sets):
        random = np.random.default_rng(0)
        kept = random.permutation(np.unique(all_classes))[: asked.num_classes]
        some = random.permutation(np.flatnonzero(np.isin(all_classes, kept)))[: asked.photos]
        rows, truth = all_rows[some], all_classes[some]
        for count in asked.labels_per_class:
            for size in asked.sizes:
                shares, estimates, found = [], [], 0
                for seed in range(asked.draws):
                    places, labels = draw(truth, size, count, seed)
                    shares.append(100 * size / (labels < 0).sum())
                    is_new, estimate = is_found(rows[places], truth[places], labels)
                    found += is_new
                    estimates.append(100 * estimate)
                said = f"{np.mean(estimates):6.1f} ± {np.std(estimates, ddof=1):4.1f}"
                line = f"{name:10s} {count:6d} {size:5d} {np.mean(shares):6.1f} {said} {found:3d} of {asked.draws}\n"
                sys.stdout.write(line)
                sys.stdout.flush()


if __name__ == "__main__":
    main()
