"""Compare the accuracy of `discover answer` with logistic regression on the same features and labels.

    python -m benchmarks.answer_table cifar10=cifar10.h5 kinds=grocery.h5:kinds.csv [--photos 600] [--draws 3]

A set is a store, optionally with a table ``path,label`` of classes to use instead of the labels in the store.
``examples/case_stores.py`` creates such stores. Each draw selects random images, labels some of them in some of the
classes, and predicts the others. The columns are percentages of these:

    lr      logistic regression on normalized embeddings
    lrd     the same, multiplied by label diffusion over the ten nearest neighbors
    rule    `discover categories` and `discover answer` as called by `start`; groups are scored after the best
            one-to-one matching with the classes without a label
    best    the most likely class with labels according to ``rule``; images of other classes count as errors
    said    predictions expected to be correct
    sure    predictions with a confidence of .8 or more, and how many of these are correct
    found   fraction of draws in which groups without a label were found
    held    fraction of these in which the interval for the number of classes contains the true number

With ``--random-labels``, the same number of labels is drawn without balancing the classes: some get one label or none.
``--first-draw 100`` draws other images and labels than those used to develop the rule.
"""

import argparse
import csv
import sys
import tempfile
import warnings
from pathlib import Path, PurePath

import labelkit
import numpy as np
from labelkit.algorithms.label_propagation import build_neighbor_graph
from labelkit.commands.discover.options import DiscoverAnswerConfig, DiscoverCategoriesConfig
from labelkit.commands.table import all_commands
from labelkit.progress import Progress, use_progress
from labelkit.store.embeddings import open_store
from labelkit.store.results import read_result
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits

from benchmarks.made_stores import write_store

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]


def read_set(text: str) -> tuple[str, Floats, Ints]:
    """Return the name, unit rows and classes of ``NAME=STORE[:TABLE]``, without the rows that have no class."""
    name, _, place = text.partition("=")
    path, _, table = place.partition(":")
    with labelkit.open_store(path) as store:
        rows, ids = np.asarray(store.embeddings[:], dtype=np.float32), list(store.ids)
        labels, names = store.labels, store.class_names
    if table:
        with Path(table).open(newline="") as lines:
            known = {PurePath(row["path"]).name: row["label"] for row in csv.DictReader(lines)}
        texts = [known.get(PurePath(one).name, "") for one in ids]
    else:
        assert labels is not None, path
        texts = [names[label] if label >= 0 else "" for label in labels]
    there = np.array([bool(one) for one in texts])
    classes = np.unique(np.array(texts)[there], return_inverse=True)[1].astype(np.int64)
    rows = rows[there]
    return name, rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12), classes


def draw(
    truth: Ints,
    most: int,
    per_class: float,
    share: float,
    seed: list[int],
    num_classes: int = 0,
    tail: float = 1.0,
    *,
    even: bool = True,
) -> tuple[Ints, Ints]:
    """Draw rows and those of them that are labeled; classes with fewer than two further rows are excluded.

    ``num_classes`` classes are drawn (0: all); ``tail`` is the ratio of the rarest to the most frequent class. If
    ``even``, ``per_class`` labels are drawn per class; otherwise, as many in total from all rows of the classes with
    labels.
    """
    random = np.random.default_rng(seed)
    order = random.permutation(len(truth))
    if num_classes or tail < 1:
        kept = random.permutation(np.unique(truth))[: num_classes or None]
        shares = tail ** (np.arange(len(kept)) / max(len(kept) - 1, 1))
        mine = [order[truth[order] == label] for label in kept]
        largest = min(len(rows) / one for rows, one in zip(mine, shares, strict=True))
        taken = [rows[: round(largest * one)] for rows, one in zip(mine, shares, strict=True)]
        order = random.permutation(np.concatenate(taken))
    places = np.sort(order[:most])
    sizes = np.bincount(truth[places])
    places = places[sizes[truth[places]] >= per_class + 2]
    classes = np.unique(truth[places])
    old = random.choice(classes, max(2, round(share * len(classes))), replace=False)
    if not even:
        of_old = np.flatnonzero(np.isin(truth[places], old))
        return places, random.choice(of_old, round(per_class * len(old)), replace=False)
    labeled = [random.choice(np.flatnonzero(truth[places] == label), int(per_class), replace=False) for label in old]
    return places, np.concatenate(labeled)


def simple_rules(rows: Floats, labeled: Ints, labels: Ints) -> tuple[Ints, Ints]:
    """Return the predictions of logistic regression for each row, alone and multiplied by diffusion."""
    classes, own = np.unique(labels, return_inverse=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain = LogisticRegression(C=30, max_iter=500).fit(rows[labeled], own).predict_proba(rows)
    seeds = np.zeros_like(plain)
    seeds[labeled, own] = 1
    flow, graph = seeds, build_neighbor_graph(rows)
    for _ in range(30):
        flow = 0.9 * (graph @ flow) + 0.1 * seeds
    flow = flow / (flow.sum(axis=0) + 1e-12)
    flow /= flow.sum(axis=1, keepdims=True) + 1e-12
    return classes[plain.argmax(axis=1)], classes[(plain * (flow + 1e-3)).argmax(axis=1)]


def rule(
    rows: Floats, truth: Ints, labeled: Ints, new_classes: str
) -> tuple[Ints, Doubles, Doubles, Ints | None, list[int]]:
    """Return prediction, confidence, probability and best labeled class of each row; groups are -2, -3, ...

    The last value is the interval for the number of classes.
    """
    known = np.zeros(len(truth), dtype=bool)
    known[labeled] = True
    with tempfile.TemporaryDirectory() as folder, use_progress(Progress()):
        index = Path(folder, "rows.h5")
        write_store(index, truth, rows.shape[1], lambda start, stop: rows[start:stop], labeled=known)
        groups = DiscoverCategoriesConfig(index=index, result="groups", new_classes=new_classes)
        answer = DiscoverAnswerConfig(index=index, result="answer", grouping="groups")
        for config in (groups, answer):
            fault = all_commands()[config.command].run(config)[1]
            if fault is not None:
                raise fault
        arrays = read_result(open_store(index), "answer").arrays
        interval = read_result(open_store(index), "groups").params["interval"]
        names = [
            int(name.removeprefix("class-")) if name.startswith("class-") else -2 - i
            for i, name in enumerate(arrays["names"])
        ]
        with Path(folder, "rows.answer.csv").open(newline="") as lines:
            table = {int(line["path"][:7]): line for line in csv.DictReader(lines)}
    best = None
    ends = [np.asarray(arrays[name]) for name in ("expected", "expected_low", "expected_high") if name in arrays]
    expected = np.mean(ends, axis=0) if ends else np.full(len(truth), np.nan)  # missing if nothing was checked
    if "best_class" in table[next(iter(table))]:
        best = np.array(
            [int(table[i]["best_class"].removeprefix("class-")) if i in table else truth[i] for i in range(len(truth))]
        )
    return np.array(names)[np.asarray(arrays["group_ids"])], np.asarray(arrays["confidence"]), expected, best, interval


def right(guess: Ints, truth: Ints, new: Ints) -> NDArray[np.bool_]:
    """Return which rows are predicted correctly."""
    hits = guess == truth
    groups = np.unique(guess[guess < 0])
    if len(groups) and len(new):
        counts = np.array([[((guess == group) & (truth == label)).sum() for label in new] for group in groups])
        for group, label in zip(*linear_sum_assignment(-counts), strict=True):
            hits |= (guess == groups[group]) & (truth == new[label])
    return hits


def main() -> None:
    """Print one line for each set, number of labels, and fraction of classes with labels."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.answer_table")
    parser.add_argument("sets", nargs="+", metavar="NAME=STORE[:TABLE]")
    parser.add_argument(
        "--labels-per-class", type=float, nargs="+", default=[2, 5, 10], help="may be fractional if random"
    )
    parser.add_argument("--labeled-share", type=float, nargs="+", default=[1.0, 0.9, 0.5])
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--first-draw", type=int, default=0)
    parser.add_argument("--photos", type=int, default=600)
    parser.add_argument("--num-classes", type=int, default=0, help="number of randomly drawn classes; 0: all")
    parser.add_argument("--tail", type=float, default=1.0, help="ratio of the rarest to the most frequent class")
    parser.add_argument("--random-labels", action="store_true", help="draw labels from all classes together")
    parser.add_argument("--new-classes", default="auto", help="see `discover categories`")
    asked = parser.parse_args()
    if not asked.random_labels and not all(count >= 1 and count == int(count) for count in asked.labels_per_class):
        parser.error("without --random-labels, --labels-per-class must be integers >= 1")
    sys.stdout.write("set       labels share    lr   lrd  rule  best   new  said  sure right found held\n")
    for name, rows, truth in map(read_set, asked.sets):
        for per_class in asked.labels_per_class:
            for share in asked.labeled_share:
                cells, sure, held = [], [], []
                for number in range(asked.first_draw, asked.first_draw + asked.draws):
                    places, labeled = draw(
                        truth,
                        asked.photos,
                        per_class,
                        share,
                        [number, round(100 * per_class) if per_class < 1 else int(per_class), round(100 * share)],
                        asked.num_classes,
                        asked.tail,
                        even=not asked.random_labels,
                    )
                    x, y = rows[places], truth[places]
                    left = np.setdiff1d(np.arange(len(y)), labeled)
                    new = np.setdiff1d(y, y[labeled])
                    guesses, (named, confidence, expected, best, (low, high)) = (
                        simple_rules(x, labeled, y[labeled]),
                        rule(x, y, labeled, asked.new_classes),
                    )
                    hits = right(named, y, new)[left]
                    simple = [100 * (guess == y)[left].mean() for guess in guesses]
                    told = np.nan if best is None else 100 * (best == y)[left].mean()
                    count = len(np.unique(named[named < 0]))
                    cells.append([*simple, 100 * hits.mean(), told, count, 100 * expected[left].mean(), count > 0])
                    held += [low <= len(np.unique(y)) <= high] if count else []
                    sure.append([len(left), (confidence[left] >= 0.8).sum(), hits[confidence[left] >= 0.8].sum()])
                lr, lrd, mine, told, count, said, found = np.mean(cells, axis=0)
                rest, answered, good = np.sum(sure, axis=0)
                sys.stdout.write(
                    f"{name:9} {per_class:6g} {share:5.2f} {lr:5.1f} {lrd:5.1f} {mine:5.1f} {told:5.1f} {count:5.1f} "
                    f"{said:5.1f} {100 * answered / rest:5.1f} {100 * good / max(answered, 1):5.1f} {found:5.2f} "
                    f"{np.mean(held) if held else np.nan:4.2f}\n"
                )
                sys.stdout.flush()


if __name__ == "__main__":
    with threadpool_limits(1):
        main()
