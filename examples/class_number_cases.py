"""Is the number of classes right, and does its interval hold? Cases cut from stores whose labels are all known.

    python examples/class_number_cases.py --choose grocery.h5 cifar10.h5 omniglot-a.h5 \
        --report kinds=grocery.h5:kinds.csv omniglot-b.h5 camvid.h5 digits --out class_number_cases.json

A case is some of the classes of a store (2, 5, 10, ... or all), equally large or cut to a long tail, with labels in
none, a third, half or all of them: 20 labels in all, or 5, 20 or 50 % of each class. Each store is for choosing the
method or for reporting, never both. A store is PATH, or NAME=PATH:TABLE with classes from a table ``path,label``, and
rows that are not in it are left out; ``digits`` are the pixels of the digits.

The lines say how often the interval holds the true number, its width (high / low, the median), and the median of
|log(estimate / truth)|: for ours, for each of its two kinds of evidence alone, with ``--rivals`` for the published
estimate (needs labels) and for k-means judged by silhouette and stability (does not), on the same rows.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import labelkit
import numpy as np
from labelkit.algorithms.class_number import LABEL_FREE, choose_num_classes, class_numbers
from labelkit.algorithms.class_number_belief import believe_num_classes
from labelkit.algorithms.over_clustering import estimate_num_classes
from labelkit.stages.read.given_labels import labels_to_use
from numpy.typing import NDArray
from sklearn.datasets import load_digits

CLASS_COUNTS = (2, 5, 10, 20, 40, 80)
MOST_ROWS = 1500
SHARES = (0.0, 0.34, 0.5, 1.0)
LABELS = ("20", "5 %", "20 %", "50 %")
NOISE = "noise"


@dataclass(frozen=True)
class Rows:
    """Rows of a store, of length 1, and the class of each."""

    name: str
    x: NDArray[np.float32]
    truth: NDArray[np.int64]


def read(word: str) -> Rows:
    """Read ``digits``, PATH or NAME=PATH[:TABLE]."""
    name, _, rest = word.rpartition("=")
    path, _, table = rest.partition(":")
    if rest == "digits":
        digits = load_digits()
        x, truth = digits.data, digits.target
    else:
        with labelkit.open_store(Path(path)) as store:
            x, truth = np.asarray(store.embeddings), np.asarray(store.labels)
            if table:
                truth = labels_to_use(Path(table), store, np.arange(store.n, dtype=np.int64), own_labels=False).labels
    x = np.asarray(x, dtype=np.float32)
    unit = x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)
    known = truth >= 0
    return Rows(name or Path(path).stem, unit[known], np.unique(truth[known], return_inverse=True)[1])


def cut(rows: Rows, num_classes: int, tail: bool, rng: np.random.Generator) -> Rows:
    """Take some classes: equally many rows of each, or down to a tenth of that."""
    chosen = []
    for place, label in enumerate(rng.permutation(rows.truth.max() + 1)[:num_classes]):
        members = rng.permutation(np.flatnonzero(rows.truth == label))[: MOST_ROWS // num_classes]
        kept = max(5, int(len(members) * 0.1 ** (place / max(1, num_classes - 1)))) if tail else len(members)
        chosen.append(members[:kept])
    places = np.concatenate(chosen)
    return Rows(rows.name, rows.x[places], rows.truth[places])


def draw_labels(truth: NDArray[np.int64], share: float, amount: str, rng: np.random.Generator) -> NDArray[np.int64]:
    """Labels of some rows of some classes, -1 = none."""
    labels = np.full(len(truth), -1)
    classes = np.unique(truth)
    if share == 0:
        return labels
    labeled = rng.permutation(classes)[: max(2, round(share * len(classes)))]
    if amount == "20":
        drawn = rng.permutation(np.flatnonzero(np.isin(truth, labeled)))[:20]
        labels[drawn] = truth[drawn]
        return labels
    for label in labeled:
        members = rng.permutation(np.flatnonzero(truth == label))
        labels[members[: max(2, round(float(amount.removesuffix(" %")) / 100 * len(members)))]] = label
    return labels


def cases(sets: list[Rows], seed: int) -> Iterator[tuple[dict[str, Any], Rows, NDArray[np.int64]]]:
    """Yield what each case is, its rows and its labels."""
    for place, rows in enumerate(sets):
        total = int(rows.truth.max()) + 1
        for num_classes in sorted({*(count for count in CLASS_COUNTS if count < total), total}):
            for tail in (False, True):
                rng = np.random.default_rng([seed, place, num_classes, tail])
                part = cut(rows, num_classes, tail, rng)
                for share in SHARES:
                    for amount in LABELS if share else ("none",):
                        labels = draw_labels(part.truth, share, amount, rng)
                        about = {"set": rows.name, "classes": num_classes, "tail": tail, "share": share}
                        yield {**about, "labels": amount, "rows": len(part.x)}, part, labels


def rivals(x: NDArray[np.float32], labels: NDArray[np.int64], high: int) -> dict[str, Any]:
    """The published estimate where there are labels, else k-means judged by silhouette and stability."""
    least = max(2, len(np.unique(labels[labels >= 0])))
    if (labels >= 0).any():
        found = estimate_num_classes(x, labels, labels >= 0, k_min=least, k_max=high, seed=0, num_inits=1)
        return {"published": found.num_classes}
    judged = choose_num_classes(x, class_numbers(2, min(high, len(x) // 10)), LABEL_FREE, num_draws=3)
    return {"k-means": judged.best, "k-means interval": [judged.low, judged.high]}


def judge(part: Rows, labels: NDArray[np.int64], *, with_rivals: bool) -> dict[str, Any]:
    """Estimate, interval and seconds of one case."""
    least = max(2, len(np.unique(labels[labels >= 0])))
    high = max(least + 1, len(part.x) // 3)
    started = time.perf_counter()
    found = believe_num_classes(
        part.x, labels, class_numbers(least, high), generator=np.random.default_rng(0)
    )  # fmt: skip
    row: dict[str, Any] = {"ours": found.best, "interval": [found.low, found.high]}
    row["seconds"] = round(time.perf_counter() - started, 2)
    row |= {f"by {curve.name}": curve.best for curve in found.criteria}
    return row | (rivals(part.x, labels, high) if with_rivals else {})


def summary(rows: list[dict[str, Any]]) -> str:
    """Cover, width and error of all columns that every row has."""
    truth = np.array([row["classes"] for row in rows], dtype=float)
    ends = np.array([row["interval"] for row in rows], dtype=float)
    held = ((ends[:, 0] <= truth) & (truth <= ends[:, 1])).mean()
    text = f"{len(rows)} cases: interval holds {held:.0%}, width {np.median(ends[:, 1] / ends[:, 0]):.1f}; error"
    for name in ("ours", "by share", "by density", "published", "k-means"):
        if all(name in row for row in rows):
            error = np.abs(np.log(np.array([row[name] for row in rows]) / truth))
            text += f" {name} {np.median(error):.2f}"
    if all("k-means interval" in row for row in rows):
        ends = np.array([row["k-means interval"] for row in rows], dtype=float)
        text += f" (its interval holds {((ends[:, 0] <= truth) & (truth <= ends[:, 1])).mean():.0%})"
    return text


def main() -> None:
    """Run the cases, print a line for each kind of labels, and write all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--choose", nargs="*", default=[], help="stores that the method was chosen on")
    parser.add_argument("--report", nargs="*", default=["digits"], help="stores that it was not chosen on")
    parser.add_argument("--rivals", action="store_true", help="also the published estimate and k-means; takes longer")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    options = parser.parse_args()
    record: dict[str, Any] = {"command": "python " + " ".join(sys.argv), "seeds": options.seeds}
    for half in ("choose", "report"):
        sets = [read(word) for word in getattr(options, half)]
        found = []
        for seed in range(options.seeds):
            for about, part, labels in cases(sets, seed):
                found.append({**about, "seed": seed, **judge(part, labels, with_rivals=options.rivals)})
        record[half] = found
        for share in SHARES:
            for amount in LABELS if share else ("none",):
                rows = [row for row in found if row["share"] == share and row["labels"] == amount]
                if rows:
                    print(f"{half}: labels in {share:.0%} of the classes ({amount}): {summary(rows)}", flush=True)
    rng = np.random.default_rng(0)
    record[NOISE] = []
    for dim in (16, 64, 384):
        x = rng.normal(size=(1000, dim)).astype(np.float32)
        part = Rows(NOISE, x / np.linalg.norm(x, axis=1, keepdims=True), np.zeros(1000, dtype=np.int64))
        row = judge(part, np.full(1000, -1), with_rivals=False)
        record[NOISE].append({"dim": dim, **row})
        print(f"noise of {dim} dimensions: {row['ours']}, interval {row['interval'][0]} to {row['interval'][1]}")
    if options.out is not None:
        options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
