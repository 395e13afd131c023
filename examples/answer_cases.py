"""Compare the predictions of `discover answer` with simple classifiers, on a store whose labels are all known.

    python examples/answer_cases.py --out examples/results/answer_cases_digits.json
    python examples/answer_cases.py --index photos.h5 --out cases.json
    python examples/answer_cases.py --count cases.json other_cases.json

Each case keeps the labels of 2, 5 or 20 images per class, in all classes or in half of them, and predicts all other
images with ``labelkit discover answer --num-clusters`` (the true number of classes). The baselines use the same
features and labels: scikit-learn's logistic regression and label spreading if all classes have labels, and published
semi-supervised k-means if half of them do. If some classes have no labels, the accuracy is All, after one-to-one
matching. The last columns show the fraction of images predicted with a given confidence, and how many of these
predictions are correct. Without ``--index``, the features are the pixels of the digits. With ``--truth``, the classes
come from a table, such as the kinds of the products in a store. ``--count`` runs no experiment: from existing result
files, it computes how often the best baseline was beaten, how often confidences were met, and the error of the expected
accuracy.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import labelkit
import numpy as np
from labelkit.commands.common.labels import choose_usable_labels
from labelkit.metrics.clustering import cluster_accuracy
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.semi_supervised import LabelSpreading

LABELS_PER_CLASS = (2, 5, 20)
SHARES = (1.0, 0.5)
LIMITS = (0.5, 0.8, 0.95)
PEERS = ("logistic regression", "logistic regression, unit rows", "label spreading", "ss-kmeans")


def draw(truth: NDArray[np.int64], per_class: int, share: float, seed: int) -> NDArray[np.int64]:
    """Return labels for a random subset of the images of some classes; -1: unlabeled."""
    rng = np.random.default_rng(seed)
    classes = np.unique(truth)
    labels = np.full(len(truth), -1)
    for label in np.sort(rng.permutation(classes)[: round(share * len(classes))]):
        rows = rng.permutation(np.flatnonzero(truth == label))[:per_class]
        labels[rows] = label
    return labels


def accuracy_of_peers(
    features: NDArray[np.float32], truth: NDArray[np.int64], labels: NDArray[np.int64]
) -> dict[str, float]:
    """Return the accuracies of scikit-learn's classifiers on the unlabeled images."""
    known = labels >= 0
    unit = features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)
    found = {}
    for name, rows in (("logistic regression", features), ("logistic regression, unit rows", unit)):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The number of unique classes")
            fitted = LogisticRegression(max_iter=2000).fit(rows[known], labels[known])
        found[name] = float((fitted.predict(rows[~known]) == truth[~known]).mean())
    spread = LabelSpreading(kernel="knn", n_neighbors=7, alpha=0.2, max_iter=100).fit(unit, labels)
    found["label spreading"] = float((spread.transduction_[~known] == truth[~known]).mean())
    return found


@dataclass(frozen=True)
class Rows:
    """A store with the class of every row, from which the cases are drawn."""

    index: Path
    ids: list[str]
    features: NDArray[np.float32]
    truth: NDArray[np.int64]
    names: list[str]


def read_rows(index: Path, truth: Path | None) -> Rows:
    """Read a store; the classes come from a table ``path,label`` if one is given, otherwise from the store."""
    with labelkit.open_store(index) as store:
        labels, names = np.asarray(store.labels, dtype=np.int64), list(store.class_names)
        if truth is not None:
            given = choose_usable_labels(truth, store, np.arange(store.n, dtype=np.int64), own_labels=False)
            labels, names = given.labels, list(given.class_names)
        if (labels < 0).any():
            sys.exit(f"{truth or index}: {int((labels < 0).sum())} images have no label; all images need one")
        kept = np.unique(labels)
        features = np.asarray(store.embeddings, dtype=np.float32)
        numbers = np.searchsorted(kept, labels).astype(np.int64)
        return Rows(index, list(store.ids), features, numbers, [names[label] for label in kept])


def run_case(rows: Rows, folder: Path, per_class: int, share: float, seed: int) -> dict[str, Any]:
    """Predict the labels of one case and score the predictions."""
    index, ids, features, truth, names = rows.index, rows.ids, rows.features, rows.truth, rows.names
    labels = draw(truth, per_class, share, seed)
    unlabeled = labels < 0
    table = folder / "known.csv"
    lines = [f"{ids[row]},{names[labels[row]]}\n" for row in np.flatnonzero(~unlabeled)]
    table.write_text("path,label\n" + "".join(lines))
    num_classes = len(np.unique(truth))
    started = time.perf_counter()
    made = labelkit.discover.answer(
        index=index, labels=table, own_labels=False, num_clusters=num_classes, min_confidence=0.0,
        csv=folder / "answers.csv", seed=seed, overwrite=True,
    )  # fmt: skip
    seconds = time.perf_counter() - started
    with labelkit.open_store(index) as store:
        arrays = store.result("answer").arrays
    named, confidence = np.asarray(arrays["group_ids"]), np.asarray(arrays["confidence"])
    is_new = np.asarray(arrays["new_classes"], dtype=bool)
    class_of_group = np.array(
        [-1 if new else names.index(name) for name, new in zip(arrays["names"], is_new, strict=True)]
    )
    row: dict[str, Any] = {"labels": per_class, "share": share, "seed": seed, "seconds": round(seconds, 2)}
    row["classifier"] = made["calibration"]["classifier"]
    old_classes = np.isin(np.arange(len(names)), labels[~unlabeled])
    scores = cluster_accuracy(truth[unlabeled], named[unlabeled], old_classes)
    if share == 1:
        right = class_of_group[named] == truth
        row |= {"ours": float(right[unlabeled].mean()), **accuracy_of_peers(features, truth, labels)}
    else:
        labelkit.cluster.ss_kmeans(
            index=index,
            labels=table,
            own_labels=False,
            num_clusters=num_classes,
            exchange=False,
            seed=seed,
            overwrite=True,
        )
        with labelkit.open_store(index) as store:
            groups = np.asarray(store.result("ss-kmeans").arrays["cluster_ids"])
        peer = cluster_accuracy(truth[unlabeled], groups[unlabeled], old_classes)
        row |= {"ours": scores.all_accuracy, "ours old": scores.old_accuracy, "ours new": scores.new_accuracy}
        row["ss-kmeans"] = peer.all_accuracy
        matched = scores.mapping
        right = np.where(is_new[named], (matched[named] == truth) & ~old_classes[truth], class_of_group[named] == truth)
    row["named right"] = float(right[unlabeled].mean())
    row["expected right"] = made["expected_right"]
    for limit in LIMITS:
        sure = unlabeled & (confidence >= limit)
        row[f"answered at {limit}"] = float(sure.sum() / unlabeled.sum())
        row[f"right at {limit}"] = float(right[sure].mean()) if sure.any() else None
    return row


def count(files: list[Path]) -> None:
    """Print statistics over the cases in several files."""
    cases = [(file, row) for file in files for row in json.loads(file.read_text())["rows"]]
    for share in sorted({row["share"] for _, row in cases}, reverse=True):
        chosen = [(file, row) for file, row in cases if row["share"] == share]
        draws: dict[tuple[Path, int], list[dict[str, Any]]] = {}
        for file, row in chosen:
            draws.setdefault((file, row["labels"]), []).append(row)
        gains = []
        for rows in draws.values():
            means = {key: statistics.mean(row[key] for row in rows) for key in ("ours", *PEERS) if key in rows[0]}
            gains.append(100 * (means.pop("ours") - max(means.values())))
        held = [row[f"right at {x}"] >= x for _, row in chosen for x in LIMITS if row[f"right at {x}"] is not None]
        off = [100 * abs(row["expected right"] - row["named right"]) for _, row in chosen]
        answered = statistics.mean(row["answered at 0.8"] for _, row in chosen)
        print(
            f"labels in {share:.0%} of the classes: ahead of the best peer in {sum(gain > 0 for gain in gains)} of "
            f"{len(gains)} cases, by {statistics.mean(gains):.1f} points in the mean ({min(gains):.1f} to "
            f"{max(gains):.1f}); confidences held in {sum(held)} of {len(held)}; {answered:.1%} answered at 0.8; "
            f"the expected share was {statistics.median(off):.0f} points off in the median"
        )


def main() -> None:
    """Run the cases and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--index", type=Path, help="store with labels of all images; default: pixels of the digits")
    parser.add_argument("--truth", type=Path, help="table path,label with the classes; default: labels of the store")
    parser.add_argument("--labels-per-class", type=int, nargs="+", default=LABELS_PER_CLASS)
    parser.add_argument("--shares", type=float, nargs="+", default=SHARES, help="fractions of classes with labels")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--count", type=Path, nargs="+", metavar="FILE", help="print statistics of files from --out")
    options = parser.parse_args()
    if options.count:
        return count(options.count)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        index = folder / "cases.h5"
        if options.index is None:
            labelkit.embed(dataset="digits", backbone="pixels", image_size=8, split="all", out=index)
        else:
            with labelkit.open_store(options.index):
                index.write_bytes(options.index.read_bytes())
        stored = read_rows(index, options.truth)
        for share in options.shares:
            for per_class in options.labels_per_class:
                cases = [run_case(stored, folder, per_class, share, seed) for seed in range(options.seeds)]
                rows += cases
                peers = [
                    key for key in cases[0] if key in ("ss-kmeans", "label spreading") or key.startswith("logistic")
                ]
                shown = [f"{key} {100 * statistics.mean(case[key] for case in cases):.1f}" for key in ("ours", *peers)]
                print(f"{per_class} labels in {share:.0%} of the classes: {', '.join(shown)}", flush=True)
    if options.out is not None:
        record = {"command": "python " + " ".join(sys.argv), "seeds": options.seeds, "rows": rows}
        options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
