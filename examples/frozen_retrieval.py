"""Measure retrieval with frozen features, unchanged and transformed, on stores whose labels are all known.

    python examples/frozen_retrieval.py --index grocery.h5 cifar10.h5 --out examples/results/frozen_features.json

A store is given as PATH, or as NAME=PATH:TABLE with classes from a table with columns ``path,label``. The embeddings
are used unchanged, projected onto 128 principal components, and whitened (128 and 32 components). Each variant is
scored by ``labelkit evaluate retrieval`` (cosine, every image is a query), in %.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import labelkit
import numpy as np
from numpy.typing import NDArray
from predict_cases import import_rows

WAYS = ("as they are", "128 directions", "128 whitened", "32 whitened")
SCORES = {"recall_at_1": "R@1", "map_at_r": "MAP@R", "r_precision": "R-precision"}


def changed(rows: NDArray[np.float32], way: str) -> NDArray[np.float32]:
    """Transform embeddings in one of the ways."""
    if way == "as they are":
        return rows
    unit = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    unit = unit - unit.mean(axis=0)
    _, values, directions = np.linalg.svd(unit, full_matrices=False)
    count = min(int(way.split()[0]), int((values > 1e-6 * values[0]).sum()))
    places = unit @ directions[:count].T
    return (places / values[:count] if way.endswith("whitened") else places).astype(np.float32)


def main() -> None:
    """Score every store in every way, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--index", nargs="*", default=[], help="stores; default: pixels of the digits")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if not options.index:
            labelkit.embed(dataset="digits", backbone="pixels", image_size=8, split="all", out=folder / "digits.h5")
        for word in options.index or [str(folder / "digits.h5")]:
            called, _, place = word.rpartition("=")
            path, _, table = place.partition(":")
            with labelkit.open_store(Path(path)) as store:
                features = np.asarray(store.embeddings, dtype=np.float32)
                ids = list(store.sample_ids)
                classes = [store.class_names[label] for label in np.asarray(store.labels)]
            truth = folder / "truth.csv"
            given = "".join(f"{sample},{label}\n" for sample, label in zip(ids, classes, strict=True))
            truth.write_text("path,label\n" + given if not table else Path(table).read_text())
            for way in WAYS:
                import_rows(folder / "rows.h5", changed(features, way), ids)
                index = folder / "rows.h5"
                made = labelkit.evaluate.retrieval(index=index, labels=truth, split=("all",), k=(1,), nmi_seeds=0)
                found = made.values
                row = {"store": called or Path(path).stem, "rows": way, "images": len(ids)}
                scores = {"recall_at_1": found["recall"]["1"], **found}
                rows.append(row | {key: 100 * float(scores[key]) for key in SCORES})
                told = ", ".join(f"{heading} {rows[-1][key]:.1f}" for key, heading in SCORES.items())
                print(f"{rows[-1]['store']}, {way}: {told}", flush=True)
    if options.out is not None:
        command = " ".join(["python examples/frozen_retrieval.py", *sys.argv[1:]])
        options.out.write_text(json.dumps({"command": command, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
