"""How far can the three-way answer be trusted? Digits with 20 labels in 5 of 10 classes, over several seeds.

    python examples/answer_digits.py --seeds 3 --out examples/results/digits_answers.json

For each seed: train FlipClass on 20 labels, embed, cluster with the labels, answer with confidences, and compare with
the truth of the images that neither training nor calibration had labels of. Calibrated on labels hidden in turn,
and on 50 more labels drawn at random (the mean of several draws). ``--pixels`` leaves training out.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

import numpy as np
from labelkit.config.cluster import SSKMeansConfig
from labelkit.config.discover import DiscoverAnswerConfig
from labelkit.config.embed import EmbedConfig
from labelkit.config.evaluate import EvaluateAnswerConfig
from labelkit.config.methods.flipclass import FlipClassConfig
from labelkit.config.presets import resolve
from labelkit.stages.discover.answer import answer_images
from labelkit.stages.embed.images import embed_images
from labelkit.stages.evaluate.answers import evaluate_answer
from labelkit.stages.group.cluster import cluster_store
from labelkit.stages.train.run import train_method
from labelkit.store.embeddings import open_store

LABELS = {"label_split": "gcd", "label_ratio": 0.0223}  # 20 of the 901 images of digits 0 to 4


def make_store(folder: Path, seed: int, pixels: bool) -> Path:
    """Embed the digits by a network trained on 20 labels, or as they are."""
    index = folder / f"digits-{seed}.h5"
    if pixels:
        options = {"backbone": "pixels", "image_size": 8, **LABELS}
        embed_images(EmbedConfig(out=index, split_seed=seed, **options))
    else:
        run = folder / f"run-{seed}"
        overrides = {**LABELS, "split_seed": seed, "seed": seed, "out": run}
        train_method(
            resolve(FlipClassConfig, preset=None, dataset="digits", config_file=None, overrides=overrides).config
        )
        embed_images(EmbedConfig(out=index, checkpoint=run))
    cluster_store(SSKMeansConfig(index=index, num_clusters=10))
    return index


def score(index: Path, given: int, draw: int) -> dict[str, object]:
    """Answer and evaluate once, with ``given`` more labels for calibration (0 = hide the store's own)."""
    options: dict[str, object] = {}
    if given:
        store = open_store(index)
        assert store.labels is not None
        unlabeled = np.flatnonzero(~np.asarray(store.labeled, dtype=bool))
        rows = np.random.default_rng(draw).choice(unlabeled, given, replace=False)
        lines = [f"{store.sample_ids[row]},{store.class_names[store.labels[row]]}" for row in rows]
        checked = index.with_suffix(".given.csv")
        checked.write_text("path,label\n" + "\n".join(lines) + "\n")
        options["calibration_labels"] = checked
    answer_images(DiscoverAnswerConfig(index=index, grouping="ss-kmeans", overwrite=True, **options))
    return evaluate_answer(EvaluateAnswerConfig(index=index)).to_json()


def main() -> None:
    """Run everything and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--draws", type=int, default=5, help="draws of the given labels")
    parser.add_argument("--pixels", action="store_true", help="embed pixels instead of training")
    parser.add_argument("--out", type=Path, default=None, help="JSON file to write")
    options = parser.parse_args()
    columns = {
        "ECE before": lambda e: e["before"]["ece"],
        "ECE after": lambda e: e["after"]["ece"],
        "answered": lambda e: e["answered_share"],
        "known right": lambda e: e["accuracy_known_answers"],
        "new right": lambda e: e["accuracy_new_answers"],
        "AURC": lambda e: e["aurc"],
    }
    found: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for seed in range(options.seeds):
            index = make_store(Path(scratch), seed, options.pixels)
            for name, given in (("hidden labels", 0), ("50 given labels", 50)):
                scores = [score(index, given, draw) for draw in range(options.draws if given else 1)]
                for column, read in columns.items():
                    values = [value for value in map(read, scores) if value is not None and value == value]
                    if values:  # where nothing is answered, nothing of it is right or wrong
                        found.setdefault(name, {}).setdefault(column, []).append(statistics.mean(values))
    print("| calibrated on | " + " | ".join(columns) + " |")
    print("|---" * (len(columns) + 1) + "|")
    for name, row in found.items():
        shown = [row.get(column, []) for column in columns]
        cells = [f"{np.mean(v):.3f} ± {np.std(v, ddof=1):.3f}" if len(v) > 1 else "" for v in shown]
        print(f"| {name} | {' | '.join(cells)} |")
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        record = {"command": "python " + " ".join(sys.argv), "seeds": options.seeds, "results": found}
        options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
