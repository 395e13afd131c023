"""Compare heads trained on a store with predictions from the unchanged embeddings, on the cases of ``answer_cases.py``.

    python examples/head_cases.py --index grocery.h5 --peers examples/results/grocery_answer_cases.json --out heads.json

Each case keeps the labels of 2, 5 or 20 images per class, in all classes or in half of them, drawn as in
``answer_cases.py``, and trains heads with ``labelkit train METHOD --index``: softmax and freematch if all classes have
labels, simgcd and gcd in both cases. The predictions of the head's classifier are scored on all other images. gcd has
no classifier, so it is scored by semi-supervised k-means on its features. If some classes have no labels, groups are
matched to classes one to one. With ``--row-views on off``, each head is trained both on the stored views of the images
and on augmented embeddings. With ``--peers``, the results of logistic regression, label spreading, semi-supervised
k-means and ``discover answer`` on the unchanged embeddings are added for the same draws. With ``--answer``, ``discover
answer`` is also run on the embeddings of each head. Without ``--index``, the embeddings are the pixels of the digits.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import labelkit
import numpy as np
from answer_cases import LABELS_PER_CLASS, SHARES, Rows, draw, read_rows
from labelkit.metrics.clustering import cluster_accuracy
from labelkit.store.embeddings import open_store
from labelkit.store.plans import EmbeddingPlan
from labelkit.store.writing import write_imported_store
from numpy.typing import NDArray

CLASSIFIERS = ("softmax", "freematch")
DISCOVERERS = ("simgcd", "gcd")
PEERS = ("logistic regression", "label spreading", "ss-kmeans", "ours")


def without_splits(index: Path, out: Path) -> None:
    """Copy a store without its splits: the cases draw from all rows, but training would exclude a test split."""
    store = open_store(index)
    assert store.labels is not None
    plan = EmbeddingPlan(
        sample_ids=store.sample_ids,
        model=store.model,
        dim=store.dim,
        batch_size=1,
        metric=store.metric,
        created_by=store.created_by,
        labels=store.labels,
        labeled=np.ones(store.n, dtype=np.bool_),
        class_names=store.class_names,
        old_classes=np.isin(np.arange(len(store.class_names)), store.labels),
    )
    write_imported_store(
        out,
        plan,
        embeddings=np.asarray(store.embeddings),
        order=np.arange(store.n, dtype=np.int64),
        images=None,
        recipe={"without_splits": store.content_digest},
    )


def heads_of(share: float, asked: list[str]) -> list[str]:
    """Return the methods that can train when this fraction of the classes has labels."""
    return [name for name in asked if share == 1 or name in DISCOVERERS]


def train(method: str, rows: Rows, known: Path, folder: Path, seed: int, options: dict[str, Any]) -> Path:
    """Train a head on all rows, some of which are labeled in the table; return the store of its embeddings."""
    run, made = folder / "run", folder / f"{method}.h5"
    counts = {"num_classes": len(rows.names)}
    with contextlib.redirect_stderr(io.StringIO()):
        getattr(labelkit.train, method.replace("-", "_"))(
            index=rows.index, labels=known, label_split="none", split="all", seed=seed, out=run, overwrite=True,
            **counts, **options,
        )  # fmt: skip
        labelkit.embed(index=rows.index, checkpoint=run, out=made, overwrite=True)
    return made


def named_by(made: Path, truth: NDArray[np.int64], labels: NDArray[np.int64], known: Path, seed: int) -> Any:
    """Return the head's prediction for every row: a class, or a group if classes have no labels."""
    with labelkit.open_store(made) as store:
        logits = store.extras.get("logits")
        if logits is not None:
            columns = np.asarray(logits).argmax(axis=1)
            old = np.unique(labels[labels >= 0])
            # old classes come first in ascending order, followed by unnamed groups
            names = np.concatenate([old, len(old) + np.arange(logits.shape[1] - len(old)) + truth.max() + 1])
            return names[columns]
    with contextlib.redirect_stderr(io.StringIO()):
        labelkit.cluster.ss_kmeans(
            index=made, labels=known, own_labels=False, num_clusters=int(truth.max()) + 1, exchange=False, seed=seed,
            overwrite=True,
        )  # fmt: skip
    with labelkit.open_store(made) as store:
        return np.asarray(store.result("ss-kmeans").arrays["cluster_ids"])


def score(truth: NDArray[np.int64], found: NDArray[np.int64], labels: NDArray[np.int64], share: float) -> float:
    """Return the accuracy on unlabeled rows: of class names if all classes have labels, otherwise after matching."""
    unlabeled = labels < 0
    if share == 1 and found.max() <= truth.max():
        return float((found == truth)[unlabeled].mean())
    old = np.isin(np.arange(truth.max() + 1), labels[~unlabeled])
    _, numbers = np.unique(found, return_inverse=True)
    return float(cluster_accuracy(truth[unlabeled], numbers[unlabeled], old).all_accuracy)


def answered(made: Path, rows: Rows, known: Path, folder: Path, share: float, seed: int, labels: Any) -> float:
    """Return the accuracy of ``discover answer`` on the embeddings of the head."""
    with contextlib.redirect_stderr(io.StringIO()):
        labelkit.discover.answer(
            index=made, labels=known, own_labels=False, num_clusters=len(rows.names), min_confidence=0.0,
            csv=folder / "answers.csv", seed=seed, overwrite=True,
        )  # fmt: skip
    with labelkit.open_store(made) as store:
        arrays = store.result("answer").arrays
    group = np.asarray(arrays["group_ids"])
    place = {name: number for number, name in enumerate(rows.names)}
    pairs = zip(arrays["names"], np.asarray(arrays["new_classes"], dtype=bool), strict=True)
    last = len(rows.names)
    classes = np.array([last + k if new else place[name] for k, (name, new) in enumerate(pairs)])
    return score(rows.truth, classes[group], labels, share)


def run_case(rows: Rows, folder: Path, per_class: int, share: float, seed: int, asked: argparse.Namespace) -> Any:
    """Train and score the heads of one case."""
    labels = draw(rows.truth, per_class, share, seed)
    known = folder / "known.csv"
    lines = [f"{rows.ids[row]},{rows.names[labels[row]]}\n" for row in np.flatnonzero(labels >= 0)]
    known.write_text("path,label\n" + "".join(lines))
    row: dict[str, Any] = {"labels": per_class, "share": share, "seed": seed}
    options = dict(setting.split("=", 1) for setting in asked.set)
    for method, views in itertools.product(heads_of(share, asked.methods), asked.row_views or [None]):
        name = method if views is None else f"{method}, views {views}"
        started = time.perf_counter()
        made = train(method, rows, known, folder, seed, options | ({} if views is None else {"row_views": views}))
        row[f"{name} seconds"] = round(time.perf_counter() - started, 2)
        row[name] = score(rows.truth, named_by(made, rows.truth, labels, known, seed), labels, share)
        if asked.answer:
            row[f"answer on {name}"] = answered(made, rows, known, folder, share, seed, labels)
    return row


def main() -> None:
    """Run the cases and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--index", type=Path, help="store with labels of all images; default: pixels of the digits")
    parser.add_argument("--labels-per-class", type=int, nargs="+", default=LABELS_PER_CLASS)
    parser.add_argument("--shares", type=float, nargs="+", default=SHARES, help="fractions of classes with labels")
    parser.add_argument("--seeds", type=int, nargs="+", default=(0, 1, 2))
    parser.add_argument("--methods", nargs="+", default=[*CLASSIFIERS, *DISCOVERERS])
    parser.add_argument("--row-views", nargs="+", choices=["on", "off"], help="the store has only the split train")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="additional options of training")
    parser.add_argument("--answer", action="store_true", help="also run `discover answer` on the heads' embeddings")
    parser.add_argument("--peers", type=Path, help="JSON file of answer_cases.py for the same store")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    asked = parser.parse_args()
    peers = {} if asked.peers is None else json.loads(asked.peers.read_text())
    beside = {(row["share"], row["labels"], row["seed"]): row for row in peers.get("rows", [])}
    cases: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        index = folder / "cases.h5"
        if asked.index is None:
            labelkit.embed(dataset="digits", backbone="pixels", image_size=8, split="all", out=index)
        elif asked.row_views:
            index = asked.index  # a copy would have no views
        else:
            without_splits(asked.index, index)
        rows = read_rows(index, None)
        for share in asked.shares:
            for per_class in asked.labels_per_class:
                found = []
                for seed in asked.seeds:
                    case = run_case(rows, folder, per_class, share, seed, asked)
                    peer = beside.get((share, per_class, seed), {})
                    found.append(case | {key: peer[key] for key in PEERS if key in peer})
                cases += found
                keys = [key for key in found[0] if key not in ("labels", "share", "seed")]
                means = {key: statistics.mean(case[key] for case in found) for key in keys}
                shown = [f"{key} {value if 'seconds' in key else 100 * value:.1f}" for key, value in means.items()]
                print(f"{per_class} labels in {share:.0%} of the classes: {', '.join(shown)}", flush=True)
                if asked.out is not None:
                    words = [Path(word).name if Path(word).is_absolute() else word for word in sys.argv]
                    record = {"command": "python " + " ".join(words), "rows": cases}
                    asked.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
