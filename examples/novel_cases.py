"""Measure how well `find novel` finds images of unlabeled classes, compared with simpler rankings.

    python examples/novel_cases.py --index cases/grocery.h5 cases/cifar10.h5 cases/omniglot.h5 \
        --out examples/results/novel_cases.json

The script uses labels of some classes in a store, makes predictions as `start` does (`discover categories`, `discover
answer`, without the number of classes), and ranks the unlabeled images by novelty.

In the setting "half of the classes", half of the classes have labels, and all images are available from the start. In
the setting "later images", nine tenths of the classes (but not all) are available at first, with some labels. Later, a
tenth of their images and three tenths (or `--left`) of the images of the other classes are added. Only these are
ranked, once with `--previous` and once without.

The script reports the AUROC of the ranking, and the fraction of images from unlabeled classes among the first 50 (or
fewer, if there are fewer). The baselines use the same features and labels: the distance to the nearest labeled image,
the distance to the nearest earlier image, one minus the largest probability of a logistic regression, and one minus the
confidence of the prediction. Earlier and later images are drawn at random from the same photos, so changes in lighting
or location over time are not measured. `find novel` was developed on other draws of groceries, CIFAR-10 and Omniglot;
patches of street scenes and digits were not used for development.
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
WAYS = ("find novel", "find novel, previous", "nearest label", "nearest earlier", "logistic regression", "confidence")
KINDS = ("half of the classes", "later images")
LATER = 0.1

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


def draw(
    truth: Ints, kind: str, per_class: int, left: float, generator: np.random.Generator
) -> tuple[Ints, Ints, Bools]:
    """Return the available rows, their labels (-1: unlabeled), and which came later (none in the first setting)."""
    classes = generator.permutation(np.unique(truth))
    known_share = 0.5 if kind == KINDS[0] else 0.9
    known = classes[: min(len(classes) - 1, round(known_share * len(classes)))]
    is_known = np.isin(truth, known)
    later = np.zeros(len(truth), dtype=bool)
    kept = np.ones(len(truth), dtype=bool)
    if kind == KINDS[1]:
        chances = generator.random(len(truth))
        later = ~is_known | (chances < LATER)
        kept = is_known | (chances < left)
    labels = np.full(len(truth), -1)
    for one in known:
        labels[generator.permutation(np.flatnonzero((truth == one) & ~later))[:per_class]] = one
    return np.flatnonzero(kept), labels[kept], later[kept]


def simple_orders(features: NDArray[np.float32], labels: Ints) -> dict[str, Floats]:
    """Return novelty scores of the baselines that use no groups, (n,) each; higher means more novel."""
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


def write_store(folder: Path, name: str, features: NDArray[np.float32], ids: list[str]) -> Path:
    """Create a store of rows and their ids."""
    rows, listed, index = folder / f"{name}.npy", folder / f"{name}.txt", folder / f"{name}.h5"
    np.save(rows, features)
    listed.write_text("\n".join(ids) + "\n")
    labelkit.import_(source=rows, ids=listed, model="features", out=index)
    return index


def novel_order(folder: Path, index: Path, ids: list[str], previous: Path | None) -> Floats:
    """Return the scores of `find novel` by id; -1 for images that it does not list."""
    out = folder / "novel.csv"
    labelkit.find.novel(index=index, out=out, num_images=len(ids), previous=previous, overwrite=True)
    with out.open(newline="") as lines:
        scores = {row["path"]: float(row["unlikeness"]) for row in csv.DictReader(lines)}
    return np.array([scores.get(one, -1.0) for one in ids])


def one_case(features: NDArray[np.float32], labels: Ints, is_new: Bools, later: Bools, seed: int) -> dict[str, float]:
    """Create a store of these rows, predict labels, and score all rankings."""
    orders = simple_orders(features, labels)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ids = [f"{row:06}.jpg" for row in range(len(labels))]
        known = "".join(f"{ids[row]},class{labels[row]}\n" for row in np.flatnonzero(labels >= 0))
        table = folder / "known.csv"
        table.write_text(f"path,label\n{known}")
        index = write_store(folder, "rows", features, ids)
        labelkit.discover.categories(index=index, labels=table, seed=seed)
        labelkit.discover.answer(index=index, labels=table, grouping="categories", seed=seed)
        orders["find novel"] = novel_order(folder, index, ids, None)
        if later.any():
            before = np.flatnonzero(~later)
            earlier = write_store(folder, "earlier", features[before], [ids[row] for row in before])
            orders["find novel, previous"] = novel_order(folder, index, ids, earlier)
            rows = features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)
            orders["nearest earlier"] = 1 - (rows @ rows[before].T).max(axis=1)
        with labelkit.open_store(index) as store:
            arrays = store.result("answer").arrays
        new_groups = np.asarray(arrays["new_classes"])
        orders["confidence"] = 1 - np.asarray(arrays["confidence"], dtype=np.float64)
    asked = later if later.any() else labels < 0
    count = int(is_new[asked].sum())
    found: dict[str, float] = {"images": int(asked.sum()), "new": count, "new groups": int(new_groups.sum())}
    for way, order in orders.items():
        first = np.argsort(-order[asked], kind="stable")[: min(FIRST, count)]
        found[f"{way}, AUROC"] = float(roc_auc_score(is_new[asked], order[asked]))
        found[f"{way}, first"] = float(is_new[asked][first].mean())
    return found


def main() -> None:
    """Draw cases, predict, rank, and score."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--index", type=Path, nargs="+", required=True, help="stores with labels of all images")
    parser.add_argument("--labels", type=int, nargs="+", default=[3, 10], help="labels per class")
    parser.add_argument("--left", type=float, default=0.3, help="fraction of the images of later classes to add")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--first-seed", type=int, default=2)
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
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
                    there, labels, later = draw(truth, kind, per_class, options.left, generator)
                    is_new = ~np.isin(truth[there], labels[labels >= 0])
                    runs.append(one_case(features[there], labels, is_new, later, seed))
                means = {key: statistics.mean(run[key] for run in runs) for key in runs[0]}
                spreads = {key: statistics.pstdev(run[key] for run in runs) for key in runs[0]}
                cases.append(
                    {"store": path.stem, "per class": per_class, "kind": kind, "mean": means, "spread": spreads}
                )
                shown = ", ".join(
                    f"{way} {means[f'{way}, AUROC']:.3f} {means[f'{way}, first']:.2f}"
                    for way in WAYS
                    if f"{way}, AUROC" in means
                )
                print(f"{path.stem}, {per_class} labels per class, {kind}: {shown}", flush=True)
    record = {"command": shlex.join(["python", *sys.argv]), "seeds": seeds, "left": options.left, "cases": cases}
    options.out.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
