"""How well does `find novel` find images of classes that nobody has labeled, beside simpler orders?

    python examples/novel_cases.py --index cases/grocery.h5 cases/cifar10.h5 cases/omniglot.h5 \
        --out examples/results/novel_cases.json

Takes labels of some classes of a store and none of the others, makes answers as `start` does (`discover categories`,
`discover answer`; nobody tells the number of classes), and orders the images without a label by how new they look. In
the first case half of the classes have labels; in the second nine tenths (at least one has none), and of the others
three tenths of the images are there: a class that came later. Given are the AUROC of the order, and the share of images
of classes without labels among the first 50 (or as many as there are), which is what one looks at. Beside it, on the
same features and labels: the distance to the nearest labeled image, one minus the largest probability of a logistic
regression, and one minus the confidence of the answer. Seeds 0 and 1 chose how `find novel` looks; the default are
others.
"""

from __future__ import annotations

import argparse
import csv
import json
import shlex
import statistics
import sys
import tempfile
import warnings
from pathlib import Path

import labelkit
import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

FIRST = 50
WAYS = ("find novel", "nearest label", "logistic regression", "confidence")
#: name: share of the classes that have labels, share of the images of the others that are there
KINDS = {"half of the classes": (0.5, 1.0), "a later class": (0.9, 0.3)}

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


def draw(truth: Ints, kind: str, per_class: int, generator: np.random.Generator) -> tuple[Ints, Ints]:
    """Rows that are there, and their labels, -1 = none."""
    known_share, left = KINDS[kind]
    classes = generator.permutation(np.unique(truth))
    known = classes[: min(len(classes) - 1, round(known_share * len(classes)))]
    new = generator.permutation(np.flatnonzero(~np.isin(truth, known)))
    there = np.sort(np.concatenate([np.flatnonzero(np.isin(truth, known)), new[: round(left * len(new))]]))
    labels = np.full(len(there), -1)
    for one in known:
        rows = generator.permutation(np.flatnonzero(truth[there] == one))[:per_class]
        labels[rows] = one
    return there, labels


def simple_orders(features: NDArray[np.float32], labels: Ints) -> dict[str, Floats]:
    """How new each row looks without groups, (n,) each; the larger, the newer."""
    rows = features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)
    known = labels >= 0
    centered = 10 * (rows - rows.mean(axis=0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit = LogisticRegression(C=10, max_iter=300).fit(centered[known], labels[known])
    return {
        "nearest label": np.asarray(1 - (rows @ rows[known].T).max(axis=1), dtype=np.float64),
        "logistic regression": np.asarray(1 - fit.predict_proba(centered).max(axis=1), dtype=np.float64),
    }


def one_case(features: NDArray[np.float32], labels: Ints, is_new: NDArray[np.bool_], seed: int) -> dict[str, float]:
    """Make a store of these rows, answers for it, and all orders; score these."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        np.save(folder / "rows.npy", features)
        ids = [f"{row:06}.jpg" for row in range(len(labels))]
        (folder / "ids.txt").write_text("\n".join(ids) + "\n")
        known = "".join(f"{ids[row]},class{labels[row]}\n" for row in np.flatnonzero(labels >= 0))
        (folder / "known.csv").write_text(f"path,label\n{known}")
        index, table = folder / "rows.h5", folder / "known.csv"
        labelkit.import_(source=folder / "rows.npy", ids=folder / "ids.txt", model="features", out=index)
        labelkit.discover.categories(index=index, labels=table, levels=2, seed=seed)
        labelkit.discover.answer(index=index, labels=table, grouping="categories", seed=seed)
        out = folder / "novel.csv"
        labelkit.find.novel(index=index, out=out, num_images=len(labels))
        with out.open(newline="") as lines:
            scores = {row["path"]: float(row["score"]) for row in csv.DictReader(lines)}
        with labelkit.open_store(index) as store:
            arrays = store.result("answer").arrays
        confidence, new_groups = np.asarray(arrays["confidence"], dtype=np.float64), np.asarray(arrays["new_classes"])
    asked = labels < 0
    orders = simple_orders(features, labels)
    orders |= {"find novel": np.array([scores.get(one, -1.0) for one in ids]), "confidence": 1 - confidence}
    count = int(is_new[asked].sum())
    found: dict[str, float] = {"images": int(asked.sum()), "new": count, "new groups": int(new_groups.sum())}
    for way, order in orders.items():
        first = np.argsort(-order[asked], kind="stable")[: min(FIRST, count)]
        found[f"{way}, AUROC"] = float(roc_auc_score(is_new[asked], order[asked]))
        found[f"{way}, first"] = float(is_new[asked][first].mean())
    return found


def main() -> None:
    """Draw, answer, order, count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--index", type=Path, nargs="+", required=True, help="stores with labels of all images")
    parser.add_argument("--labels", type=int, nargs="+", default=[3, 10], help="a class")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--first-seed", type=int, default=2)
    parser.add_argument("--out", type=Path, required=True, help="JSON to write")
    options = parser.parse_args()
    seeds = list(range(options.first_seed, options.first_seed + options.seeds))
    cases = []
    for path in options.index:
        with labelkit.open_store(path) as store:
            features, truth = np.asarray(store.embeddings, dtype=np.float32), np.asarray(store.labels)
        for kind in KINDS:
            for per_class in options.labels:
                runs = []
                for seed in seeds:
                    generator = np.random.default_rng(seed)
                    there, labels = draw(truth, kind, per_class, generator)
                    is_new = ~np.isin(truth[there], labels[labels >= 0])
                    runs.append(one_case(features[there], labels, is_new, seed))
                means = {key: statistics.mean(run[key] for run in runs) for key in runs[0]}
                spreads = {key: statistics.pstdev(run[key] for run in runs) for key in runs[0]}
                cases.append(
                    {"store": path.stem, "per class": per_class, "kind": kind, "mean": means, "spread": spreads}
                )
                shown = ", ".join(f"{way} {means[f'{way}, AUROC']:.3f} {means[f'{way}, first']:.2f}" for way in WAYS)
                print(f"{path.stem}, {per_class} labels a class, {kind}: {shown}", flush=True)
    record = {"command": shlex.join(["python", *sys.argv]), "seeds": seeds, "cases": cases}
    options.out.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
