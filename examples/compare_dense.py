"""Compare features of patches by the terms that trained them (CoTAP), over several seeds; a table and JSON.

    python examples/compare_dense.py --seeds 3 --out examples/results/scenes_dense.json

On generated scenes and objects, everything through the command line: stage 1 (alignment, from scratch), then from the
stage 1 of each seed the rows of the paper's ablation (presets ``scene_objects_*``). Judged on images that were not
trained on: a linear segmentation head and groups of patches without labels (mean IoU in %), and the class of an object
image by its 20 nearest training images (%); beside them pixels and an untrained network of the same kind.
"""

from __future__ import annotations

import argparse
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import comparison

ROWS = {
    "1: image alignment": "row1",
    "2: patch alignment": "row2",
    "3: both": "row3",
    "4: 1 + image concentration": "row4",
    "5: 2 + CoTAP": "row5",
    "6: all but the filter": "row6",
    "7: all": "row7",
    "7 with BCE for CoTAP": "bce",
}
COLUMNS = {"linear": "linear mIoU", "clusters": "cluster mIoU", "knn": "kNN"}


def judge_patches(seed: int, samples: int, *network: object) -> dict[str, float]:
    """Score patches on scenes, in percent."""
    words = [*network, "--dataset", "scenes", "--seeds", 1, "--seed", seed]
    segmented, _ = comparison.run("evaluate", "segmentation", *words, "--no-augment", "--samples", samples)
    grouped, _ = comparison.run("evaluate", "patch-clusters", *words)
    return {"linear": 100 * segmented["mean_iou"]["mean"], "clusters": 100 * grouped["mean_iou"]["mean"]}


def judge(folder: Path, name: str, seed: int, samples: int, *network: object) -> dict[str, float]:
    """Score patches on scenes and images on objects, in percent."""
    found = judge_patches(seed, samples, *network)
    store = folder / f"{name}.h5"
    comparison.run("embed", *network, "--dataset", "scene_objects", "--split", "all", "--out", store, "--overwrite")
    voted, _ = comparison.run("evaluate", "knn", "--index", store, "-k", 20, "--queries", "val")
    return found | {"knn": 100 * voted["knn_accuracy"]}


def main() -> None:
    """Run everything and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    comparison.add_options(parser, seeds=3)
    parser.set_defaults(dataset="scene_objects")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS), help="what to train")
    parser.add_argument("--samples", type=int, default=6000, help="images that a segmentation head is trained on")
    options = parser.parse_args()
    data = comparison.data_words(options)
    with comparison.run_folder(options) as folder, ThreadPoolExecutor(options.jobs) as pool:

        def first(seed: int) -> dict[str, Any]:
            run = folder / f"stage1-{seed}"
            words = ["cotap", *data, "--preset", "scene_objects_stage1", "--seed", seed, *options.extra]
            return scored("stage 1", seed, run, words)

        def second(row: str, seed: int) -> dict[str, Any]:
            run = folder / f"{ROWS[row]}-{seed}"
            start = ["--init-from", folder / f"stage1-{seed}", "--seed", seed]
            return scored(row, seed, run, ["cotap", *data, "--preset", f"scene_objects_{ROWS[row]}", *start])

        def scored(row: str, seed: int, run: Path, words: list[Any]) -> dict[str, Any]:
            summary = comparison.train(run, *words)
            cost = {key: summary[key] for key in ("cpu_seconds",) if key in summary}
            return {"seed": seed} | judge(folder, run.name, seed, options.samples, "--checkpoint", run) | cost

        def untrained(seed: int) -> dict[str, Any]:
            network = ["--backbone", "vit_micro_p8_64", "--random-weights"]
            return {"seed": seed} | judge(folder, f"untrained-{seed}", seed, options.samples, *network)

        def pixels(seed: int) -> dict[str, Any]:
            return {"seed": seed} | judge_patches(seed, options.samples, "--backbone", "pixels")

        seeds = range(options.seeds)
        runs = {"pixels": list(pool.map(pixels, seeds)), "untrained network": list(pool.map(untrained, seeds))}
        runs["stage 1"] = list(pool.map(first, seeds))
        # seeds last, so that a stopped comparison has all rows
        cells = [(row, seed) for seed, row in product(seeds, options.rows)]
        made = dict(zip(cells, pool.map(lambda cell: second(*cell), cells), strict=True))
        runs |= {row: [made[row, seed] for seed in seeds] for row in options.rows}
    results = {row: comparison.summarize(found) for row, found in runs.items()}
    print(f"{options.seeds} seeds, %")
    print(f"| | {' | '.join(COLUMNS.values())} | CPU s |")
    print("|---|---|---|---|---|")
    for row, found in results.items():
        cost = f"{found['cpu_seconds']['mean']:.0f}" if "cpu_seconds" in found else ""
        print(f"| {row} | {' | '.join(comparison.shown(found.get(key)) for key in COLUMNS)} | {cost} |")
    comparison.write_record(options, results=results)


if __name__ == "__main__":
    main()
