"""Measure the results of repeated runs of ``labelkit start``, with the folder names as true classes.

    python examples/start_rounds.py --photos grocery --out grocery_start_rounds.json

The photographs are copied under meaningless names, and a tenth of them is held back for the last run. Then
``labelkit start`` is run

1. without labels,
2. with 40 labels in 20 classes, drawn at random,
3. and 4. with true labels for the 20 photos suggested in ``next.csv`` each time,
5. with the photos that were held back.

With ``--no-labels``, the second run is left out, and the photos suggested in ``next.csv`` are labeled four times.

For each run, the table shows the CPU time, the estimated number of classes and its range, the fraction of unlabeled
photos with the correct label, how many are predicted with a confidence of at least 0.8 and how many of these are
correct, and the fraction of unlabeled photos that keep the label of the previous run (not counting photos whose group
has been named since). A new group counts as the class that it is matched with one to one. The baselines are
scikit-learn's logistic regression on the same features and labels, and the third and fourth run with randomly selected
photos. The class of a photo is the name of its folder.
"""

from __future__ import annotations

import argparse
import csv
import json
import resource
import shutil
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import labelkit
import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from sklearn.linear_model import LogisticRegression

GIVEN, CLASSES = 40, 20
LIMIT = 0.8
SUFFIXES = {".jpg", ".jpeg", ".png"}

Table = dict[str, tuple[str, str, float]]


def copy_photos(source: Path, folder: Path, limit: int | None, seed: int) -> dict[str, str]:
    """Copy the photos under meaningless names, in random order; return the class of each name."""
    paths = sorted(path for path in source.rglob("*") if path.suffix.lower() in SUFFIXES)
    order = np.random.default_rng(seed).permutation(len(paths))[:limit]
    folder.mkdir()
    truth = {}
    for number, place in enumerate(order.tolist()):
        name = f"IMG_{number:05d}{paths[place].suffix.lower()}"
        shutil.copyfile(paths[place], folder / name)
        truth[name] = paths[place].parent.name
    return truth


def read_table(path: Path) -> Table:
    """Return label, kind and confidence by path."""
    with path.open(newline="") as lines:
        return {
            row["path"]: (row["label"], row["kind"], float(row["confidence"] or 0)) for row in csv.DictReader(lines)
        }


def right_by_matching(truth: dict[str, str], found: dict[str, str], named: set[str]) -> dict[str, bool]:
    """Return whether each label is correct: a class by its name, a new group by the class matched with it."""
    groups = sorted({label for label in found.values() if label not in named})
    classes = sorted(set(truth.values()) - named)
    counts = np.zeros((len(groups), len(classes)))
    places = ({name: place for place, name in enumerate(groups)}, {name: place for place, name in enumerate(classes)})
    for path, label in found.items():
        if label in places[0] and truth[path] in places[1]:
            counts[places[0][label], places[1][truth[path]]] += 1
    pairs = zip(*linear_sum_assignment(-counts), strict=True)
    meaning = {groups[row]: classes[column] for row, column in pairs}
    return {path: meaning.get(label, label) == truth[path] for path, label in found.items()}


def scored(truth: dict[str, str], table: Table, given: dict[str, str], before: Table | None) -> dict[str, Any]:
    """Compare a table of ``start`` with the true labels, and with the previous table."""
    named = set(given.values())
    free = {path: label for path, (label, _, _) in table.items() if path not in given}
    right = right_by_matching({path: truth[path] for path in table}, free, named)
    answered = [path for path in free if table[path][1] in ("known", "new") and table[path][2] >= LIMIT]
    result: dict[str, Any] = {
        "photos": len(table),
        "labels": len(given),
        "named_classes": len(named),
        "right": sum(right.values()) / len(right),
        "answered": len(answered),
        "answered_right": sum(right[path] for path in answered),
        "kept": None,
    }
    if before is not None:
        same = [path for path in free if path in before and (truth[path] not in named or before[path][0] in named)]
        result["kept"] = sum(before[path][0] == free[path] for path in same) / len(same)
    return result


def peer(store: Path, truth: dict[str, str], given: dict[str, str]) -> dict[str, Any]:
    """Score logistic regression on the same features and labels."""
    with labelkit.open_store(store) as opened:
        ids, rows = list(opened.ids), np.asarray(opened.embeddings, dtype=np.float32)
    rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    known = np.array([name in given for name in ids])
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The number of unique classes")
        names = [given[name] for name in np.array(ids)[known]]
        fitted = LogisticRegression(C=30, max_iter=2000).fit(rows[known], names)
    chances: NDArray[np.float64] = fitted.predict_proba(rows[~known])
    true = np.array([truth[name] for name, is_known in zip(ids, known, strict=True) if not is_known])
    right = fitted.classes_[chances.argmax(1)] == true
    sure = chances.max(1) >= LIMIT
    return {"right": float(right.mean()), "answered": int(sure.sum()), "answered_right": int(right[sure].sum())}


def run_start(photos: Path, out: Path, given: dict[str, str], seed: int) -> float:
    """Run ``start`` in this process; return the CPU seconds, including those of child processes."""
    options: dict[str, Any] = {}
    if given:
        table = out.with_suffix(".csv")
        table.write_text("path,label\n" + "".join(f"{path},{label}\n" for path, label in given.items()))
        options["labels"] = table
    before = _cpu()
    labelkit.start(photos=photos, out=out, seed=seed, **options)
    return _cpu() - before


def _cpu() -> float:
    return time.process_time() + sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])


def asked_for(out: Path, truth: dict[str, str]) -> dict[str, str]:
    """Label the photos in ``next.csv`` with their true labels."""
    with (out / "next.csv").open(newline="") as lines:
        return {row["path"]: truth[row["path"]] for row in csv.DictReader(lines)}


def first_labels(names: list[str], truth: dict[str, str], rng: np.random.Generator) -> dict[str, str]:
    """Select two labels in each of 20 classes."""
    classes = sorted({truth[name] for name in names})
    given = {}
    for label in rng.permutation(classes)[:CLASSES]:
        mine = [name for name in names if truth[name] == label]
        for place in rng.permutation(len(mine))[: GIVEN // CLASSES].tolist():
            given[mine[place]] = str(label)
    return given


def run_seed(source: Path, limit: int | None, seed: int, *, with_labels: bool) -> list[dict[str, Any]]:
    """Run all rounds with one seed."""
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        photos, held, out = folder / "photos", folder / "held", folder / "made"
        truth = copy_photos(source, photos, limit, seed)
        rng = np.random.default_rng(1000 + seed)
        order = [sorted(truth)[place] for place in rng.permutation(len(truth))]
        later, names = order[: len(order) // 10], sorted(order[len(order) // 10 :])
        held.mkdir()
        for path in later:
            (photos / path).rename(held / path)
        given: dict[str, str] = {}
        before: Table | None = None

        def call(words: str, out: Path, given: dict[str, str], before: Table | None) -> Table:
            seconds = run_start(photos, out, given, seed)
            table = read_table(out / "labels.csv")
            groups = json.loads((out / "start.json").read_text())["steps"]["groups"]["values"]
            row = {"seed": seed, "call": words, "cpu_seconds": round(seconds), "classes": groups["num_classes"]}
            row |= {"low": groups["interval"][0], "high": groups["interval"][1], **scored(truth, table, given, before)}
            row["peer"] = peer(out / "photos.h5", truth, given) if given else None
            rows.append(row)
            show(row)
            return table

        before = call("no labels", out, given, before)
        if with_labels:
            given = first_labels(names, truth, rng)
            before = call("40 labels", out, given, before)
        rounds = (20, 40) if with_labels else (20, 40, 60, 80)
        chance = dict(given)
        chance_out = folder / "chance"
        shutil.copytree(out, chance_out)
        chance_before = before
        for number in rounds:
            given |= asked_for(out, truth)
            before = call(f"{number} more, asked for", out, given, before)
        for number in rounds:
            free = [path for path in names if path not in chance]
            chance |= {free[place]: truth[free[place]] for place in rng.permutation(len(free))[:20].tolist()}
            chance_before = call(f"{number} more, by chance", chance_out, chance, chance_before)
        for path in later:
            (held / path).rename(photos / path)
        call("a tenth more photos", out, given, before)
    return rows


def show(row: dict[str, Any]) -> None:
    """Print one line of the table."""
    kept = "" if row["kept"] is None else f", {row['kept']:.1%} keep their label"
    rival = row["peer"]
    told = (
        f"; logistic regression {rival['right']:.1%}, {rival['answered_right']} of {rival['answered']}" if rival else ""
    )
    print(
        f"seed {row['seed']}, {row['call']}: {row['classes']} classes ({row['low']} to {row['high']}), "
        f"{row['right']:.1%} right, {row['answered_right']} of {row['answered']} answered right{kept}{told}; "
        f"{row['cpu_seconds']} s of CPU",
        flush=True,
    )


def main() -> None:
    """Run all rounds with every seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=Path, required=True, help="folder with a subfolder per class")
    parser.add_argument("--limit", type=int, help="number of randomly selected photographs")
    parser.add_argument("--no-labels", action="store_true", help="skip the run with 40 labels; four rounds of 20")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    options = parser.parse_args()
    rows = [
        row
        for seed in range(options.seeds)
        for row in run_seed(options.photos, options.limit, seed, with_labels=not options.no_labels)
    ]
    if options.out is not None:
        words = [Path(word).name if "/" in word else word for word in sys.argv[1:]]
        record = {
            "command": " ".join(["python examples/start_rounds.py", *words]),
            "seeds": options.seeds,
            "rows": rows,
        }
        options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
