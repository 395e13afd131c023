"""Measure whether heads trained without labels, or with labels of other classes, improve retrieval and clustering.

    python examples/label_free_heads.py --index grocery.h5 --out heads.json

Heads are trained with ``labelkit train METHOD --index`` and applied with ``labelkit embed --index``. Without labels
(sela, and san in mode unsupervised), they are trained and scored on all images. With labels (san), they are trained on
the first half of the classes, and scored on the same number of classes at the end. The scores are R@1, the fraction of
images whose nearest neighbor among all others has the same class, and NMI of spherical k-means with as many groups as
there are classes. The baselines are the unchanged embeddings, and the embeddings minus their mean, with which a head
starts. With ``--row-views on off``, heads are trained both on the stored views and on augmented embeddings. Without
``--index``, the embeddings are the pixels of the digits.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import statistics
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import labelkit
import numpy as np
from answer_cases import Rows, read_rows
from head_cases import without_splits
from labelkit.algorithms.clustering import kmeans
from labelkit.metrics.retrieval import score_retrieval
from numpy.typing import NDArray
from sklearn.metrics import normalized_mutual_info_score

WITHOUT: dict[str, Mapping[str, Any]] = {"sela": {}, "san": {"mode": "unsupervised"}}
"""Heads that use no labels, with their options."""

TASKS = ("no labels", "labels of half of the classes")


def trained(method: str, index: Path, folder: Path, seed: int, options: Mapping[str, Any]) -> NDArray[np.float32]:
    """Train a head, and return its embeddings of the rows."""
    run, made = folder / "run", folder / "made.h5"
    with contextlib.redirect_stderr(io.StringIO()):
        getattr(labelkit.train, method)(index=index, split="all", seed=seed, out=run, overwrite=True, **options)
        labelkit.embed(index=index, checkpoint=run, out=made, overwrite=True)
    with labelkit.open_store(made) as store:
        return np.asarray(store.embeddings, dtype=np.float32)


def scores(features: NDArray[np.float32], truth: NDArray[np.int64], seed: int) -> dict[str, float]:
    """Return R@1 and NMI of embeddings."""
    _, classes = np.unique(truth, return_inverse=True)
    generator = np.random.default_rng(seed)
    num_classes = int(classes.max()) + 1
    groups = kmeans(features, num_classes, generator=generator, num_inits=3, spherical=True).cluster_ids
    nmi = float(normalized_mutual_info_score(classes, groups))
    return {"recall_at_1": score_retrieval(features, classes, at_r=False).recall_at[1], "nmi": nmi}


def run_seed(rows: Rows, folder: Path, seed: int, asked: argparse.Namespace) -> list[dict[str, Any]]:
    """Train and score the heads with one seed."""
    unit = rows.features / np.linalg.norm(rows.features, axis=1, keepdims=True)
    found: dict[tuple[str, str], NDArray[np.float32]] = {}
    for task in TASKS:
        found[task, "as they are"] = unit
        found[task, "less their mean"] = unit - unit.mean(axis=0)
    # classes per batch: as many as have labels, up to the preset's eight
    some = {"holdout_classes": "half", "label_split": "given", "batch_size": 5 * min(8, len(rows.names) // 2)}
    for views in asked.row_views or ["auto"]:
        name = "" if views == "auto" else {"on": ", on views", "off": ", on changed rows"}[views]
        for method, options in WITHOUT.items():
            made = trained(method, rows.index, folder, seed, {**options, "label_split": "none", "row_views": views})
            found[TASKS[0], method + name] = made
        found[TASKS[1], f"san{name}"] = trained("san", rows.index, folder, seed, {**some, "row_views": views})
    others = rows.truth >= (len(rows.names) + 1) // 2
    cases = []
    for (task, kind), features in found.items():
        judged = np.ones_like(others) if task == TASKS[0] else others
        judgement = scores(features[judged], rows.truth[judged], seed)
        cases.append({"task": task, "rows": kind, "seed": seed, **judgement})
    return cases


def main() -> None:
    """Run the seeds and print the means."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--index", type=Path, help="store with labels of all images; default: pixels of the digits")
    parser.add_argument("--seeds", type=int, nargs="+", default=(0, 1, 2))
    parser.add_argument("--row-views", nargs="+", choices=["on", "off"], help="the store has only the split train")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        index = folder / "cases.h5"
        if asked.index is None:
            labelkit.embed(
                dataset="digits", backbone="pixels", image_size=8, label_split="given", split="all", out=index
            )
        elif asked.row_views:
            index = asked.index  # a copy would have no views
        else:
            without_splits(asked.index, index)
        rows = read_rows(index, None)
        cases = [case for seed in asked.seeds for case in run_seed(rows, folder, seed, asked)]
    for task, kind in dict.fromkeys((case["task"], case["rows"]) for case in cases):
        alike = [case for case in cases if (case["task"], case["rows"]) == (task, kind)]
        recall, nmi = (100 * statistics.mean(case[key] for case in alike) for key in ("recall_at_1", "nmi"))
        print(f"{task}, {kind}: R@1 {recall:.1f}, NMI {nmi:.1f}")
    if asked.out is not None:
        words = [Path(word).name if Path(word).is_absolute() else word for word in sys.argv]
        asked.out.write_text(json.dumps({"command": "python " + " ".join(words), "rows": cases}, indent=1) + "\n")


if __name__ == "__main__":
    main()
