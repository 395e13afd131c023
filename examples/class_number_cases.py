"""Is the number of classes right, and does its interval hold? Cases cut from stores whose labels are all known.

    python examples/class_number_cases.py --choose grocery.h5 cifar10.h5 omniglot-a.h5 \
        --report kinds=grocery.h5:kinds.csv omniglot-b.h5 camvid.h5 digits --out class_number_cases.json

A case is some of the classes of a store (2, 5, 10, ... or all), equally large or cut to a long tail, with labels in
none, a third, half or all of them: 20 labels in all, or 5, 20 or 50 % of each class. Each store is for choosing the
method or for reporting, never both. A store is PATH, or NAME=PATH:TABLE with classes from a table ``path,label``, and
rows that are not in it are left out; ``digits`` are the pixels of the digits.

The lines say how often the interval holds the true number, its width (high / low, the median), and the median of
|log(estimate / truth)|: for ours, for each of its two kinds of evidence alone, and, with labels, for GCD's published
search, from the classes with labels to a third or a tenth of the rows, with one start of k-means. These have no
interval. To compare, each gets [estimate / f, estimate * f], with the f that holds 90 % of the cases to choose on with
such labels.

Labels are drawn. Other cases show what comes of labels that are not: those of the largest classes, of classes
that are similar, or of the most typical images.
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
from labelkit.algorithms.class_number import class_numbers
from labelkit.algorithms.class_number_belief import believe_num_classes
from labelkit.algorithms.over_clustering import estimate_num_classes
from labelkit.stages.read.given_labels import labels_to_use
from numpy.typing import NDArray
from sklearn.datasets import load_digits

CLASS_COUNTS = (2, 5, 10, 20, 40, 80)
MOST_ROWS = 1500
BY_CHOICE = "labels that are chosen"
SHARES = (0.0, 0.34, 0.5, 1.0)
LABELS = ("20", "5 %", "20 %", "50 %")
PUBLISHED = {"published": 3, "published, to a tenth": 10}
NOISE = "noise"
CHOSEN = ("by chance", "largest classes", "similar classes", "typical images")
NO_ESTIMATE = ("ours", "set", "classes", "tail", "share", "labels", "rows", "seed", "interval", "seconds")


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


def choose_labels(part: Rows, how: str, rng: np.random.Generator) -> NDArray[np.int64]:
    """20 % of the labels of half of the classes, -1 = none: drawn, or as people choose them."""
    truth, classes = part.truth, np.unique(part.truth)
    means = np.stack([part.x[truth == label].mean(axis=0) for label in classes])
    order = rng.permutation(classes)
    if how == "largest classes":
        order = order[np.argsort(-np.bincount(truth)[order], kind="stable")]
    elif how == "similar classes":
        places = np.searchsorted(classes, order)
        order = order[np.argsort(np.square(means[places] - means[places[0]]).sum(axis=1), kind="stable")]
    labels = np.full(len(truth), -1)
    for label in order[: max(2, round(len(classes) / 2))]:
        members = rng.permutation(np.flatnonzero(truth == label))
        if how == "typical images":
            far = np.square(part.x[members] - means[np.searchsorted(classes, label)]).sum(axis=1)
            members = members[np.argsort(far, kind="stable")]
        labels[members[: max(2, round(0.2 * len(members)))]] = label
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


def judge(part: Rows, labels: NDArray[np.int64]) -> dict[str, Any]:
    """Estimate, interval and seconds of one case."""
    least = max(2, len(np.unique(labels[labels >= 0])))
    high = max(least + 1, len(part.x) // 3)
    started = time.process_time()
    found = believe_num_classes(
        part.x, labels, class_numbers(least, high), generator=np.random.default_rng(0)
    )  # fmt: skip
    row: dict[str, Any] = {"ours": found.best, "interval": [found.low, found.high]}
    row["seconds"] = round(time.process_time() - started, 2)
    return row | {f"by {curve.name}": curve.best for curve in found.criteria}


def published(part: Rows, labels: NDArray[np.int64]) -> dict[str, int]:
    """What GCD's search says of a case with labels."""
    known = labels >= 0
    if not known.any():
        return {}
    least = max(2, len(np.unique(labels[known])))
    return {
        name: estimate_num_classes(
            part.x, labels, known, k_min=least, k_max=max(least + 1, len(part.x) // share), num_inits=1
        ).best
        for name, share in PUBLISHED.items()
    }


def error(row: dict[str, Any], name: str) -> float:
    """|log(estimate / truth)|."""
    return float(abs(np.log(row[name] / row["classes"])))


def summary(choose: list[dict[str, Any]], report: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """How often intervals hold, their median width, and median errors: a row for each kind of labels and estimate.

    Estimates without an interval get [estimate / f, estimate * f] with the f that holds 90 % of the cases to choose on.
    """
    lines = []
    for share in SHARES:
        halves = {"choose": choose, "report": report}
        halves = {half: [row for row in rows if row["share"] == share] for half, rows in halves.items() if rows}
        every = [row for rows in halves.values() for row in rows]
        for name in ("ours", *(name for name in every[0] if name not in NO_ESTIMATE)):
            if not all(name in row for row in every):
                continue
            errors = {half: np.array([error(row, name) for row in rows]) for half, rows in halves.items()}
            line: dict[str, Any] = {"share": share, "name": name}
            for half, rows in halves.items():
                line[half] = {"cases": len(rows), "error": round(float(np.median(errors[half])), 3)}
                if name == "ours":
                    ends = np.array([row["interval"] for row in rows], dtype=float)
                    truth = np.array([row["classes"] for row in rows])
                    held = ((ends[:, 0] <= truth) & (truth <= ends[:, 1])).mean()
                    width = np.median(ends[:, 1] / ends[:, 0])
                elif choose:
                    reach = float(np.quantile(errors["choose"], 0.9))
                    held, width = (errors[half] <= reach + 1e-9).mean(), np.exp(2 * reach)
                else:
                    continue
                line[half] |= {"held": round(float(held), 3), "width": round(float(width), 2)}
            lines.append(line)
    return lines


def main() -> None:
    """Run the cases, print a line for each kind of labels, and write all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--choose", nargs="*", default=[], help="stores that the method was chosen on")
    parser.add_argument("--report", nargs="*", default=["digits"], help="stores that it was not chosen on")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    options = parser.parse_args()
    record: dict[str, Any] = {"command": "python " + " ".join(sys.argv), "seeds": options.seeds}
    for half in ("choose", "report"):
        sets = [read(word) for word in getattr(options, half)]
        record[half] = []
        for seed in range(options.seeds):
            for about, part, labels in cases(sets, seed):
                record[half].append({**about, "seed": seed} | judge(part, labels) | published(part, labels))
    record["summary"] = summary(record["choose"], record["report"])
    for line in record["summary"]:
        shown = [
            f"{half}, {found['cases']} cases: "
            + (f"holds {found['held']:.0%}, width {found['width']:.1f}, " if "held" in found else "")
            + f"error {found['error']:.2f}"
            for half, found in line.items()
            if isinstance(found, dict)
        ]
        print(f"labels in {line['share']:.0%} of the classes, {line['name']}: {'; '.join(shown)}")
    record[BY_CHOICE] = []
    for how in CHOSEN:
        rows = []
        for half in ("choose", "report"):
            for about, part, _ in cases([read(word) for word in getattr(options, half)], seed=0):
                if about["labels"] == "none" and about["classes"] > 3:
                    labels = choose_labels(part, how, np.random.default_rng([about["classes"], about["tail"]]))
                    rows.append({**about, "half": half, "labels": how, "share": 0.5, **judge(part, labels)})
        record[BY_CHOICE] += rows
        held = np.mean([row["interval"][0] <= row["classes"] <= row["interval"][1] for row in rows])
        low = np.mean([row["interval"][1] < row["classes"] for row in rows])
        width = np.median([row["interval"][1] / row["interval"][0] for row in rows])
        ratio = np.exp(np.median([np.log(row["ours"] / row["classes"]) for row in rows]))
        print(
            f"labels {how}, {len(rows)} cases: holds {held:.0%}, too low {low:.0%}, width {width:.1f}, "
            f"estimate / truth {ratio:.2f}"
        )
    rng = np.random.default_rng(0)
    record[NOISE] = []
    for dim in (16, 64, 384):
        x = rng.normal(size=(1000, dim)).astype(np.float32)
        part = Rows(NOISE, x / np.linalg.norm(x, axis=1, keepdims=True), np.zeros(1000, dtype=np.int64))
        row = judge(part, np.full(1000, -1))
        record[NOISE].append({"dim": dim, **row})
        print(f"noise of {dim} dimensions: {row['ours']}, interval {row['interval'][0]} to {row['interval'][1]}")
    if options.out is not None:
        options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
