"""Measure how many planted label errors `find mislabeled` finds, compared with simpler methods.

    python examples/mislabeled_cases.py --index cases/grocery.h5 cases/cifar10.h5 digits.h5 \
        --out examples/results/mislabeled_cases.json

The script takes labels of some images of each class in a store, replaces one in twenty with a wrong label (a random
class, or one of the three nearest classes, which people confuse), and ranks all labels by doubt. It reports the average
precision of the ranking, the precision among the first N labels, where N is the number of wrong labels, and the labels
listed as doubtful. The baselines are the margin between the distances to the nearest image of the labeled class and of
another class, and the probability that a logistic regression trained on the other four fifths of the labels gives to
the label (as in confident learning). A label that only one image has is ranked last by all methods. `find mislabeled`
was developed with seeds 0 to 3; the default seeds are different.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import sys
import warnings
from pathlib import Path

import labelkit
import numpy as np
from labelkit.algorithms.label_errors import score_label_errors
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score

WRONG, MAX, FOLDS, STRENGTH = 0.05, 2000, 5, 100
WAYS = ("find mislabeled", "nearest", "logistic regression")

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


def directions(rows: NDArray[np.float32]) -> Floats:
    """Center the rows, and normalize them to unit length."""
    moved = rows.astype(np.float64) - rows.mean(axis=0)
    return np.asarray(moved / np.maximum(np.linalg.norm(moved, axis=1, keepdims=True), 1e-12))


def by_nearest(rows: Floats, labels: Ints) -> Floats:
    """Return how much nearer the nearest image of another class is than that of the labeled class."""
    cosines = rows @ rows.T
    np.fill_diagonal(cosines, -1)
    own = labels[:, None] == labels[None]
    return np.asarray(np.where(own, -1, cosines).max(axis=1) - np.where(own, cosines, -1).max(axis=1))


def by_regression(rows: Floats, labels: Ints, generator: np.random.Generator) -> Floats:
    """Return the probability of each label by a classifier trained on the other folds; lower is more doubtful."""
    folds = np.empty(len(labels), dtype=np.int64)
    for one in np.unique(labels):
        mine = generator.permutation(np.flatnonzero(labels == one))
        folds[mine] = np.arange(len(mine)) % FOLDS
    left = np.zeros(len(labels))
    for fold in range(FOLDS):
        out = folds == fold
        if not out.any():
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fit = LogisticRegression(C=STRENGTH, max_iter=100).fit(rows[~out], labels[~out])
        shares = np.zeros((int(out.sum()), labels.max() + 1))
        shares[:, fit.classes_] = fit.predict_proba(rows[out])
        left[out] = shares[np.arange(len(shares)), labels[out]]
    return -left


def planted(rows: Floats, truth: Ints, kind: str, generator: np.random.Generator) -> Ints:
    """Return the labels with some errors."""
    labels, count = truth.copy(), truth.max() + 1
    wrong = generator.permutation(len(truth))[: max(3, round(WRONG * len(truth)))]
    if kind == "at random":
        labels[wrong] = (truth[wrong] + generator.integers(1, count, len(wrong))) % count
        return labels
    means = np.stack([rows[truth == one].mean(axis=0) for one in range(count)])
    near = means @ means.T
    np.fill_diagonal(near, -np.inf)
    order = np.argsort(-near, axis=1)[:, : min(3, count - 1)]
    labels[wrong] = order[truth[wrong], generator.integers(0, order.shape[1], len(wrong))]
    return labels


def one_case(
    features: NDArray[np.float32], every: Ints, per_class: int | None, kind: str, seed: int
) -> dict[str, float]:
    """Plant wrong labels, and search for them with all methods; return fractions in [0, 1]."""
    generator = np.random.default_rng(seed)
    chosen = np.concatenate(
        [generator.permutation(np.flatnonzero(every == one))[:per_class] for one in np.unique(every)]
    )
    chosen = generator.permutation(chosen)[:MAX]
    truth = np.unique(every[chosen], return_inverse=True)[1].astype(np.int64)
    rows = directions(features[chosen])
    labels = planted(rows, truth, kind, generator)
    # a class may have lost its only label
    labels, truth = np.unique(labels, return_inverse=True)[1].astype(np.int64), np.where(labels == truth, 0, 1)
    doubts = score_label_errors(features[chosen], labels)
    orders = {
        "find mislabeled": np.nan_to_num(doubts.score),
        "nearest": by_nearest(rows, labels),
        "logistic regression": by_regression(rows, labels, generator),
    }
    found: dict[str, float] = {"labels": len(labels), "wrong": int(truth.sum())}
    alone = np.bincount(labels)[labels] == 1  # no method can check these
    for name, order in orders.items():
        order = np.where(alone, order.min() - 1, order)
        first = np.argsort(-order, kind="stable")[: int(truth.sum())]
        found |= {
            f"{name}, precision": float(average_precision_score(truth, order)),
            f"{name}, first": truth[first].mean(),
        }
    listed = truth[doubts.most_doubtful()]
    return found | {
        "listed": len(listed),
        "listed right": float(listed.sum()),
        "found": float(listed.sum() / truth.sum()),
    }


def main() -> None:
    """Plant errors, search, and count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--index", type=Path, nargs="+", required=True, help="stores with labels of all images")
    parser.add_argument("--labels", type=int, nargs="+", default=[2, 5, 20, 0], help="per class (0: all, up to 2,000)")
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--first-seed", type=int, default=4)
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    options = parser.parse_args()
    cases = []
    for path in options.index:
        store = labelkit.open_store(path)
        known = np.flatnonzero(np.asarray(store.labels) >= 0)
        features, every = np.asarray(store.embeddings, dtype=np.float32)[known], np.asarray(store.labels)[known]
        for per_class in options.labels:
            for kind in ("at random", "confused"):
                seeds = range(options.first_seed, options.first_seed + options.seeds)
                runs = [one_case(features, every, per_class or None, kind, seed) for seed in seeds]
                means = {key: statistics.mean(float(run[key]) for run in runs) for key in runs[0]}
                spreads = {key: statistics.pstdev(float(run[key]) for run in runs) for key in runs[0]}
                cases.append(
                    {"store": path.stem, "per class": per_class or None, "kind": kind, "mean": means, "spread": spreads}
                )
                shown = ", ".join(f"{way} {100 * means[f'{way}, precision']:.1f}" for way in WAYS)
                print(f"{path.stem}, {per_class or 'all'} per class, {kind}: {shown}", flush=True)
    record = {"command": shlex.join(["python", *sys.argv]), "seeds": list(seeds), "wrong": WRONG, "cases": cases}
    options.out.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
