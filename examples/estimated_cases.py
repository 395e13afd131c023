"""How good are answers where nobody tells the number of classes, as in `labelkit start`?

    python examples/estimated_cases.py --index cases/grocery.h5 cases/cifar10.h5 cases/omniglot.h5 \
        --out examples/results/estimated_cases.json

Each case keeps 2, 5 or 20 labels a class, in all classes of a store, in nine tenths, or in half of them. Then `discover
categories` estimates the number of classes, and `discover answer` names all other images. Accuracy is All, Old and New
by one-to-one matching. Beside it: scikit-learn's logistic regression on rows of length 1 (inverse regularization 10),
which names classes with labels only. Given too: how many classes were found, and how many of them are new.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import sys
import tempfile
import warnings
from pathlib import Path

import labelkit
import numpy as np
from answer_cases import Rows, draw, read_rows
from labelkit.metrics.clustering import cluster_accuracy
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression


def by_regression(features: NDArray[np.float32], labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """Name each row by logistic regression, (n,)."""
    rows = features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit = LogisticRegression(C=10, max_iter=1000).fit(rows[labels >= 0], labels[labels >= 0])
    return np.asarray(fit.predict(rows), dtype=np.int64)


def one_case(rows: Rows, folder: Path, per_class: int, share: float, seed: int) -> dict[str, float]:
    """Estimate, answer and score; shares in [0, 1]."""
    labels = draw(rows.truth, per_class, share, seed)
    open_rows, table = labels < 0, folder / "known.csv"
    known = "".join(f"{rows.ids[row]},{rows.names[labels[row]]}\n" for row in np.flatnonzero(~open_rows))
    table.write_text(f"path,label\n{known}")
    given = {"index": rows.index, "labels": table, "own_labels": False, "seed": seed, "overwrite": True}
    labelkit.discover.categories(levels=2, result="groups", **given)
    labelkit.discover.answer(grouping="groups", csv=folder / "answers.csv", **given)
    with labelkit.open_store(rows.index) as store:
        arrays = store.result("answer").arrays
    is_new = np.asarray(arrays["new_classes"], dtype=bool)
    old = np.isin(np.arange(len(rows.names)), labels[~open_rows])
    found: dict[str, float] = {"classes": len(rows.names), "found": len(is_new), "new": int(is_new.sum())}
    named = {"answer": np.asarray(arrays["group_ids"]), "logistic regression": by_regression(rows.features, labels)}
    for way, ids in named.items():
        scores = cluster_accuracy(rows.truth[open_rows], ids[open_rows], old)
        found |= {f"{way}, all": scores.all_accuracy, f"{way}, old": scores.old_accuracy}
        if not old.all():
            found[f"{way}, new"] = scores.new_accuracy
    return found


def main() -> None:
    """Draw, estimate, answer, count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--index", type=Path, nargs="+", required=True, help="stores with labels of all images")
    parser.add_argument("--labels", type=int, nargs="+", default=[2, 5, 20], help="a class")
    parser.add_argument("--shares", type=float, nargs="+", default=[1.0, 0.9, 0.5], help="of the classes with labels")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=10)
    parser.add_argument("--out", type=Path, required=True, help="JSON to write")
    options = parser.parse_args()
    seeds = list(range(options.first_seed, options.first_seed + options.seeds))
    cases = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for path in options.index:
            index = folder / path.name
            index.write_bytes(path.read_bytes())
            rows = read_rows(index, None)
            most = int(np.bincount(rows.truth).min()) // 2
            for share in options.shares:
                for per_class in options.labels:
                    if per_class > most:
                        continue  # nothing would be left to answer
                    runs = [one_case(rows, folder, per_class, share, seed) for seed in seeds]
                    means = {key: statistics.mean(run[key] for run in runs) for key in runs[0]}
                    spreads = {key: statistics.pstdev(run[key] for run in runs) for key in runs[0]}
                    cases.append(
                        {"store": path.stem, "share": share, "labels": per_class, "mean": means, "spread": spreads}
                    )
                    shown = ", ".join(f"{key} {value:.3f}" for key, value in means.items())
                    print(f"{path.stem}, {per_class} labels in {share:.0%} of the classes: {shown}", flush=True)
    record = {"command": shlex.join(["python", *sys.argv]), "seeds": seeds, "cases": cases}
    options.out.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
