"""Compare strategies for choosing images to label, in rounds with true labels (digits: 10 to 100), over several seeds.

    python examples/suggest_labels.py --seeds 5 --out examples/results/digits_suggest.json
    python examples/suggest_labels.py --features grocery.h5 --per-round 40 --rounds 5 --out grocery_suggest.json

The features are pixels, those of FlipClass trained with 20 labels of the digits 0 to 4 (``--features flipclass``: one
training run with seed 0, whose labels are not counted), or those in a store whose labels are all known. After each
round, logistic regression and nearest-neighbor classification use the labels so far, on normalized features, to predict
all other images. The table also shows the fraction of classes that have a label.
"""

from __future__ import annotations

import argparse
import csv
import json
import shlex
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

import numpy as np
from labelkit.algorithms import knn
from labelkit.commands.embed.embed import embed_images
from labelkit.commands.suggest.options import SuggestConfig
from labelkit.commands.suggest.suggest import suggest_images
from labelkit.commands.train.run import train_method
from labelkit.methods.discovery.options import FlipClassConfig
from labelkit.options.embed import EmbedConfig
from labelkit.options.presets import resolve_config
from labelkit.store.embeddings import open_store
from labelkit.store.results import read_result
from labelkit.studio.label.label import label_images
from labelkit.studio.label.options import LabelConfig
from sklearn.linear_model import LogisticRegression

STRATEGIES = ("random", "k-center", "typical", "coverage", "uncertainty", "both")
FEW_LABELS = {"label_split": "gcd", "label_ratio": 0.0223, "split_seed": 0, "seed": 0}


def make_store(folder: Path, features: str) -> Path:
    """Embed the digits as pixels or with a network trained with 20 labels, or copy a store."""
    index = folder / f"{Path(features).stem}.h5"
    if features.endswith(".h5"):
        shutil.copyfile(features, index)
    elif features == "pixels":
        embed_images(EmbedConfig(out=index, backbone="pixels", image_size=8, label_split="none"))
    else:
        overrides = {**FEW_LABELS, "out": folder / "run"}
        config = resolve_config(FlipClassConfig, overrides=overrides).config
        train_method(config)
        embed_images(EmbedConfig(out=index, checkpoint=folder / "run"))
    return index


def answer(suggested: Path, truth: dict[str, str]) -> None:
    """Fill in the column ``label``, as an annotator would."""
    with suggested.open(newline="") as file:
        rows = list(csv.DictReader(file))
    with suggested.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys(), lineterminator="\n")
        writer.writeheader()
        writer.writerows({**row, "label": truth[row["path"]]} for row in rows)


def accuracies(rows: np.ndarray, labels: np.ndarray, known: np.ndarray) -> dict[str, float]:
    """Return the accuracies on all unlabeled rows of classifiers trained on the labeled ones."""
    asked = ~known
    network = LogisticRegression(C=100, max_iter=1000).fit(rows[known], labels[known])
    nearest = knn(rows[asked], rows[known], 1)[1][:, 0]
    return {
        "logistic regression": float((network.predict(rows[asked]) == labels[asked]).mean()),
        "nearest label": float((labels[known][nearest] == labels[asked]).mean()),
        "classes found": len(np.unique(labels[known])) / len(np.unique(labels)),
    }


def simulate(index: Path, strategy: str, seed: int, rounds: int, per_round: int) -> list[dict[str, float]]:
    """Repeatedly suggest, label and add labels; return the scores after each round."""
    store = open_store(index)
    truth = np.asarray(store.labels)
    names = {name: store.class_names[label] for name, label in zip(store.sample_ids, truth.tolist(), strict=True)}
    rows = np.asarray(store.embeddings, dtype=np.float32)
    rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    before: Path | None = None
    table, scores = index.with_name("next.csv"), []
    for number in range(1, rounds + 1):
        first = "coverage" if strategy == "both" else "random" if strategy == "uncertainty" else strategy
        suggest_images(
            SuggestConfig(
                index=index,
                out=table,
                overwrite=True,
                num_images=per_round,
                strategy=first if before is None else strategy,
                seed=1000 * seed + number,
                labels=before,
                own_labels=before is not None,
            )
        )
        answer(table, names)
        label_images(
            LabelConfig(
                index=index,
                from_=table,
                result=f"round-{number}",
                labels=before,
                own_labels=before is not None,
                overwrite=True,
            )
        )
        before = Path(f"round-{number}")
        known = read_result(store, f"round-{number}").arrays["labeled"]
        scores.append({"labels": int(known.sum()), **accuracies(rows, truth, known)})
    return scores


def main() -> None:
    """Run everything and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--features", default="pixels,flipclass", help="features or stores, comma-separated")
    parser.add_argument("--per-round", type=int, default=10, help="labels per round")
    parser.add_argument("--strategies", default=",".join(STRATEGIES), help="strategies, comma-separated")
    parser.add_argument("--out", type=Path, default=None, help="JSON file to write")
    options = parser.parse_args()
    names = [Path(word).name if word.endswith(".h5") else word for word in sys.argv[1:]]
    command = shlex.join(["python", "examples/suggest_labels.py", *names])
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for features in options.features.split(","):
            index = make_store(Path(folder), features)
            for strategy in options.strategies.split(","):
                runs = [
                    simulate(index, strategy, seed, options.rounds, options.per_round) for seed in range(options.seeds)
                ]
                for classifier in ("logistic regression", "nearest label", "classes found"):
                    found = [[100 * score[classifier] for score in run] for run in runs]
                    means = [statistics.mean(column) for column in zip(*found, strict=True)]
                    spread = [statistics.stdev(column) if len(runs) > 1 else 0.0 for column in zip(*found, strict=True)]
                    results.append(
                        {
                            "features": index.stem,
                            "strategy": strategy,
                            "classifier": classifier,
                            "labels": [score["labels"] for score in runs[0]],
                            "accuracy": [[round(value, 2) for value in run] for run in found],
                        }
                    )
                    shown = "  ".join(f"{mean:5.1f} ± {wide:3.1f}" for mean, wide in zip(means, spread, strict=True))
                    print(f"{index.stem:10} {strategy:12} {classifier:20} {shown}", flush=True)
    if options.out is not None:
        options.out.write_text(
            json.dumps({"command": command, "seeds": options.seeds, "runs": results}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
