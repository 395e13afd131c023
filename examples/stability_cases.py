"""Measure whether photos keep their labels when photos are added, on stores whose labels are all known.

    python examples/stability_cases.py --index grocery.h5 cifar10.h5 --out stability_cases.json

At first, a tenth of the images is omitted. The others are grouped by ``labelkit discover categories`` and predicted by
``discover answer``, with five labels per class in half of the classes. Then the same is done for all images with
``--previous``, as in ``labelkit start``. The columns show the fraction of unlabeled photos that keep their label, among
all photos and among those predicted with a confidence of at least 0.8; the number of new groups before and after; the
fraction of labels that would be kept without ``--previous``; and how many of the changed labels (in labeled classes)
were correct before and after.
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
from numpy.typing import NDArray
from predict_cases import import_rows

LEFT_OUT = 0.1
SHOWN = {
    "kept": "labels kept",
    "answered_kept": "of those answered",
    "kept_without_previous": "without --previous",
    "new_before": "new groups",
    "new_after": "after",
}


def answers(store: Path, table: Path, ids: list[str], **options: Any) -> dict[str, tuple[str, str, float]]:
    """Group the images and predict; return label, kind and confidence by id."""
    labelkit.discover.categories(index=store, labels=table, result="groups", overwrite=True, **options)
    labelkit.discover.answer(index=store, labels=table, grouping="groups", result="answer", overwrite=True)
    with labelkit.open_store(store) as opened:
        arrays = opened.result("answer").arrays
    kinds = [arrays["decision_names"][place] for place in arrays["decisions"]]
    named = [arrays["names"][group] for group in arrays["group_ids"]]
    return dict(zip(ids, zip(named, kinds, arrays["confidence"].tolist(), strict=True), strict=True))


def run_case(
    folder: Path, features: NDArray[np.float32], truth: NDArray[np.int64], names: list[str], seed: int
) -> dict[str, Any]:
    """Add a tenth of the rows, and compare the labels of the others before and after."""
    ids = [f"{row:06d}" for row in range(len(truth))]
    order = np.random.default_rng(2000 + seed).permutation(len(truth))
    first = np.sort(order[round(LEFT_OUT * len(order)) :])
    labels = np.full(len(truth), -1)
    labels[first] = draw(truth[first], 5, 0.5, seed)
    table = folder / "known.csv"
    table.write_text(
        "path,label\n" + "".join(f"{ids[row]},{names[labels[row]]}\n" for row in np.flatnonzero(labels + 1))
    )
    first_ids = [ids[row] for row in first]
    import_rows(folder / "first.h5", features[first], first_ids)
    for name in ("all", "alone"):
        import_rows(folder / f"{name}.h5", features, ids)
    before = answers(folder / "first.h5", table, first_ids)
    after = answers(folder / "all.h5", table, ids, previous=folder / "first.h5")
    alone = answers(folder / "alone.h5", table, ids)
    mine = [ids[row] for row in first if labels[row] < 0]
    sure = [name for name in mine if before[name][1] in ("known", "new")]

    def share(rows: list[str], other: dict[str, tuple[str, str, float]]) -> float | None:
        return statistics.mean(before[name][0] == other[name][0] for name in rows) if rows else None

    moved = [name for name in mine if before[name][0] != after[name][0]]
    true_name = {ids[row]: names[truth[row]] for row in range(len(truth))}
    groups = [{name for name, _, _ in found.values()} - set(names) for found in (before, after)]
    return {
        "seed": seed,
        "photos": len(first),
        "added": len(truth) - len(first),
        "kept": share(mine, after),
        "answered": len(sure),
        "answered_kept": share(sure, after),
        "kept_without_previous": share(mine, alone),
        "new_before": len(groups[0]),
        "new_after": len(groups[1]),
        "moved": len(moved),
        "moved_right_before": sum(before[name][0] == true_name[name] for name in moved),
        "moved_right_after": sum(after[name][0] == true_name[name] for name in moved),
    }


def main() -> None:
    """Run the cases and print a line for each store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--index", type=Path, nargs="*", default=[], help="stores with labels; default: digits")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if not options.index:
            labelkit.embed(dataset="digits", backbone="pixels", image_size=8, split="all", out=folder / "digits.h5")
        for index in options.index or [folder / "digits.h5"]:
            with labelkit.open_store(index) as store:
                features = np.asarray(store.embeddings, dtype=np.float32)
                truth, names = np.asarray(store.labels, dtype=np.int64), list(store.class_names)
            cases = []
            for seed in range(options.seeds):
                place = folder / f"{index.stem}-{seed}"
                place.mkdir()
                cases.append({"store": index.stem, **run_case(place, features, truth, names, seed)})
            rows += cases
            told = [
                f"{heading} {statistics.mean(values):.3g}"
                for key, heading in SHOWN.items()
                if (values := [case[key] for case in cases if case[key] is not None])
            ]
            print(f"{index.stem}: {', '.join(told)}", flush=True)
    if options.out is not None:
        words = [Path(word).name if word.endswith(".h5") else word for word in sys.argv[1:]]
        record = {
            "command": " ".join(["python examples/stability_cases.py", *words]),
            "seeds": options.seeds,
            "rows": rows,
        }
        options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
