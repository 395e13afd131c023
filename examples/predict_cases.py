"""Compare predictions for photos outside a store with those for photos inside it, on stores with known labels.

    python examples/predict_cases.py --index photos.h5 --out cases.json

Some images are held out. With a few labels per class, in all classes or in half of them, the others are predicted by
``labelkit discover answer --num-clusters`` (the true number of classes), and the held-out images by ``labelkit
predict``. The baselines for the held-out images are joint predictions for all images in one store, and scikit-learn's
logistic regression on the labeled images, whose confidence is its largest probability and which cannot predict new
classes. If some classes have no labels, the accuracy is All, after one-to-one matching; a prediction is correct if it
is the class or the new group matched with it. Without ``--index``, the features are the pixels of the digits.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import labelkit
import numpy as np
from answer_cases import draw
from labelkit.metrics.clustering import cluster_accuracy
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

LIMITS = (0.5, 0.8, 0.95)
KINDS = ("predict", "in the store", "logistic regression")


def import_rows(path: Path, features: NDArray[np.float32], ids: list[str]) -> None:
    """Create a store of rows."""
    source = path.with_suffix(".npz")
    np.savez(source, embeddings=features, ids=np.array(ids))
    labelkit.import_(source=source, model="cases", out=path, overwrite=True)


def score(
    truth: NDArray[np.int64], named: NDArray[np.int64], confidence: NDArray[np.float64], old: NDArray[np.bool_]
) -> dict[str, float | None]:
    """Score predictions; ``named`` contains class indices, and numbers from the number of classes for new groups."""
    found = cluster_accuracy(truth, named, old)
    is_old = old[truth]
    matched = np.array([found.mapping[name] for name in named]) if not old.all() else named
    right = np.where(named < len(old), named == truth, (matched == truth) & ~is_old)
    row: dict[str, float | None] = {
        "all": float(right.mean()) if old.all() else found.all_accuracy,
        "classes with labels": float((named == truth)[is_old].mean()),
        "others": None if old.all() else found.new_accuracy,
    }
    for limit in LIMITS:
        sure = confidence >= limit
        row[f"answered at {limit}"] = float(sure.mean())
        row[f"right at {limit}"] = float(right[sure].mean()) if sure.any() else None
    row["confidence minus right"] = float(confidence.mean() - right.mean())
    return row


def numbers(labels: list[str], kinds: NDArray[np.bool_], names: list[str]) -> NDArray[np.int64]:
    """Return the class index of each prediction; new groups are numbered after the classes."""
    groups: dict[str, int] = {}
    return np.array(
        [
            groups.setdefault(label, len(names) + len(groups)) if is_new else names.index(label)
            for label, is_new in zip(labels, kinds, strict=True)
        ]
    )


def run_case(
    folder: Path,
    features: NDArray[np.float32],
    truth: NDArray[np.int64],
    names: list[str],
    per_class: int,
    share: float,
    held_out: int,
    seed: int,
) -> dict[str, Any]:
    """Hold rows out, and predict their labels with three methods."""
    ids = [f"{row:06d}" for row in range(len(truth))]
    held = np.sort(np.random.default_rng(1000 + seed).permutation(len(truth))[:held_out])
    kept = np.setdiff1d(np.arange(len(truth)), held)
    labels = np.full(len(truth), -1)
    labels[kept] = draw(truth[kept], per_class, share, seed)
    known = np.flatnonzero(labels >= 0)
    table = folder / "known.csv"
    table.write_text("path,label\n" + "".join(f"{ids[row]},{names[labels[row]]}\n" for row in known))
    old = np.isin(np.arange(len(names)), labels[known])
    for name, rows in (("kept", kept), ("held", held), ("all", np.arange(len(truth)))):
        import_rows(folder / f"{name}.h5", features[rows], [ids[row] for row in rows])
        results = folder / f"{name}.h5.results"
        for path in results.iterdir() if results.is_dir() else ():
            path.unlink()
    for name in ("kept", "all"):
        labelkit.discover.answer(
            index=folder / f"{name}.h5", labels=table, num_clusters=len(names), min_confidence=0.0,
            csv=folder / "answers.csv", seed=seed, overwrite=True,
        )  # fmt: skip
    told = labelkit.predict(new=(folder / "held.h5",), from_=folder / "kept.h5").values["images"]
    is_new = np.array([line["kind"] == "new" for line in told])
    predicted = numbers([line["label"] for line in told], is_new, names)
    found = {"predict": score(truth[held], predicted, np.array([line["confidence"] for line in told]), old)}
    with labelkit.open_store(folder / "all.h5") as store:
        arrays = store.result("answer").arrays
    groups = np.asarray(arrays["group_ids"])[held]
    inside = numbers(
        [arrays["names"][group] for group in groups], np.asarray(arrays["new_classes"], dtype=bool)[groups], names
    )
    found["in the store"] = score(truth[held], inside, np.asarray(arrays["confidence"])[held], old)
    fitted = LogisticRegression(max_iter=2000).fit(features[known], labels[known])
    chances = fitted.predict_proba(features[held])
    peer = fitted.classes_[chances.argmax(axis=1)]
    found["logistic regression"] = score(truth[held], peer, chances.max(axis=1), old)
    return {"labels": per_class, "share": share, "seed": seed, **found}


def main() -> None:
    """Run the cases and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--index", type=Path, help="store with labels of all images; default: pixels of the digits")
    parser.add_argument("--labels-per-class", type=int, nargs="+", default=[5])
    parser.add_argument("--shares", type=float, nargs="+", default=[0.5, 1.0], help="fractions of classes with labels")
    parser.add_argument("--held-out", type=int, default=500, help="number of held-out rows")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        index = options.index or folder / "digits.h5"
        if options.index is None:
            labelkit.embed(dataset="digits", backbone="pixels", image_size=8, split="all", out=index)
        with labelkit.open_store(index) as store:
            features = np.asarray(store.embeddings, dtype=np.float32)
            truth, names = np.asarray(store.labels, dtype=np.int64), list(store.class_names)
        for share in options.shares:
            for count in options.labels_per_class:
                cases = [
                    run_case(folder, features, truth, names, count, share, options.held_out, seed)
                    for seed in range(options.seeds)
                ]
                rows += cases
                for kind in KINDS:
                    told = [
                        f"{key} {100 * statistics.mean(values):.1f}"
                        for key in cases[0][kind]
                        if (values := [case[kind][key] for case in cases if case[kind][key] is not None])
                    ]
                    print(f"{count} labels in {share:.0%} of the classes, {kind}: {', '.join(told)}", flush=True)
    if options.out is not None:
        record = {"command": "python " + " ".join(sys.argv), "seeds": options.seeds, "rows": rows}
        options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
