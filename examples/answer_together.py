r"""How many rows have to be answered together, so that the others are answered as well by the rule of these?

    labelkit embed --dataset cifar10/train --backbone auto --max-per-class 2000 --out cifar10_20000.h5
    python examples/answer_together.py --index cifar10_20000.h5 --seeds 3 \
        --out examples/results/cifar10_answer_together.json

Each case keeps the labels of 5 or 50 images a class, in all classes or in half of them, groups all rows by ``labelkit
discover categories --num-classes`` (the true number), and answers by ``labelkit discover answer`` with ``--max-rows``
of several sizes; the largest is that of the store: all rows together. Accuracy is All by one-to-one matching of the
images without a label. ``right at 0.8`` is the share right among those that are answered at the default confidence.
With labels in all classes, the simplest classifiers of the same rows stand beside it: scikit-learn's logistic
regression, and the nearest mean.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import labelkit
import numpy as np
from answer_cases import Rows, draw, read_rows
from labelkit.metrics.clustering import cluster_accuracy
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

LABELS_PER_CLASS = (5, 50)
SHARES = (1.0, 0.5)
SIZES = (1_000, 2_000, 5_000, 10_000)
LIMIT = 0.8


def accuracy_of_peers(rows: Rows, labels: NDArray[np.int64]) -> dict[str, float]:
    """Accuracy of the simplest classifiers on the images without a label, all in rows of length 1."""
    known = labels >= 0
    unit = rows.features / np.maximum(np.linalg.norm(rows.features, axis=1, keepdims=True), 1e-12)
    fitted = LogisticRegression(max_iter=2000).fit(unit[known], labels[known])
    means = np.stack([unit[labels == label].mean(axis=0) for label in range(len(rows.names))])
    nearest = (unit @ (means / np.linalg.norm(means, axis=1, keepdims=True)).T).argmax(axis=1)
    found = {"logistic regression": fitted.predict(unit[~known]), "nearest mean": nearest[~known]}
    return {name: float((answers == rows.truth[~known]).mean()) for name, answers in found.items()}


def run_case(rows: Rows, folder: Path, per_class: int, share: float, seed: int) -> list[dict[str, Any]]:
    """Answer one case with each number of rows together, and score it."""
    labels = draw(rows.truth, per_class, share, seed)
    unlabeled = labels < 0
    table = folder / "known.csv"
    lines = [f"{rows.ids[row]},{rows.names[labels[row]]}\n" for row in np.flatnonzero(~unlabeled)]
    table.write_text("path,label\n" + "".join(lines))
    peers = accuracy_of_peers(rows, labels) if share == 1 else {"logistic regression": None, "nearest mean": None}
    old = np.isin(np.arange(len(rows.names)), labels[~unlabeled])
    given: dict[str, Any] = {"index": rows.index, "labels": table, "own_labels": False, "seed": seed, "overwrite": True}
    labelkit.discover.categories(num_classes=len(rows.names), result="groups", **given)
    found = []
    for size in (*(size for size in SIZES if size < len(labels)), len(labels)):
        started, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF).ru_utime
        made = labelkit.discover.answer(grouping="groups", max_rows=size, csv=folder / "answers.csv", **given)
        seconds = time.perf_counter() - started
        cpu = resource.getrusage(resource.RUSAGE_SELF).ru_utime - before
        with labelkit.open_store(rows.index) as store:
            arrays = store.result("answer").arrays
        named, confidence = np.asarray(arrays["group_ids"]), np.asarray(arrays["confidence"])
        scores = cluster_accuracy(rows.truth[unlabeled], named[unlabeled], old)
        sure = unlabeled & (confidence >= LIMIT)
        # a name or number of a group that means the class of the image
        right = scores.mapping[named] == rows.truth
        row = {"labels": per_class, "share": share, "seed": seed, "together": size}
        row |= {"seconds": round(seconds, 1), "cpu_seconds": round(cpu, 1)}
        accuracies = {"all": scores.all_accuracy, "old": scores.old_accuracy, "new": scores.new_accuracy}
        # without new classes there is no such number
        row |= {name: None if np.isnan(value) else value for name, value in accuracies.items()}
        row |= {f"answered at {LIMIT}": float(sure.sum() / unlabeled.sum())}
        row[f"right at {LIMIT}"] = float(right[sure].mean()) if sure.any() else None
        row |= peers
        row |= {f"expected {end}": made["expected_right"][end] for end in ("from", "to")}
        print(json.dumps(row), flush=True)
        found.append(row)
    return found


def main() -> None:
    """Run all cases and write them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--index", type=Path, required=True, help="store whose labels are all known")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, required=True, help="JSON to write")
    options = parser.parse_args()
    rows = read_rows(options.index, None)
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(options.seeds):
            for share in SHARES:
                for per_class in LABELS_PER_CLASS:
                    found += run_case(rows, Path(folder), per_class, share, seed)
    command = (
        f"python examples/answer_together.py --index {options.index.name} --seeds {options.seeds} --out {options.out}"
    )
    options.out.write_text(json.dumps({"command": command, "seeds": options.seeds, "rows": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
