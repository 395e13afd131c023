r"""Compare the features learned by siamese methods with untrained features and pixels; print a table and write JSON.

    python examples/compare_siamese.py --seeds 5 --out examples/results/digits_siamese.json
    python examples/compare_siamese.py --methods dino ibot --dataset cifar10 --max-per-class 200 --seeds 3 \
        --out examples/results/cifar10_crops_siamese.json -- --preset cifar10_cpu

All steps run through the command line, with the preset of the dataset or the options after ``--``. Features are scored
on held-out images (a fifth of each class if there is no test split) by a vote among the 10 nearest training images and
by a linear classifier. The accuracies (%) are means and standard deviations over seeds, which determine weights and
views. The cost is CPU time.
"""

from __future__ import annotations

import argparse
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import comparison
from compare_selflabel import judge

LOSSES = ("simclr", "moco", "simsiam", "barlow-twins")
COLUMNS = ("knn", "linear")


def embedded(folder: Path, name: str, data: list[str], network: list[object]) -> dict[str, float]:
    """Embed all images with a network, and score the features."""
    index = folder / f"{name}.h5"
    comparison.run("embed", *data, *network, "--split", "all", "--out", index, "--overwrite")
    return judge(index)


def one_seed(folder: Path, options: argparse.Namespace, seed: int) -> dict[str, dict[str, float]]:
    """Train and score all rows with one seed."""
    data = comparison.data_words(options)
    config = comparison.run("config", "train", options.methods[0], *data, *options.extra)[0]["config"]
    plain: list[object] = ["--label-split", "none"]
    plain += ["--holdout", config["holdout"]] if config["holdout"] else []
    size = ["--image-size", config["image_size"]] if config["image_size"] else []
    pixels = ["--backbone", "pixels", "--image-size", options.pixels]
    untrained = ["--backbone", config["backbone"], "--random-weights", "--seed", seed, *size]
    rows = {
        "pixels": embedded(folder, f"pixels-{seed}", data, pixels + plain),
        "untrained network": embedded(folder, f"untrained-{seed}", data, untrained + plain),
    }
    for name, words in trainings(options.methods):
        run = folder / f"{name}-{seed}"
        summary = comparison.train(run, *words, *data, "--seed", seed, *options.extra)
        rows[name] = embedded(folder, f"{name}-{seed}", data, ["--checkpoint", run])
        rows[name] |= {key: summary[key] for key in ("cpu_seconds",) if key in summary}
    return rows


def trainings(methods: list[str]) -> list[tuple[str, list[str]]]:
    """Return the row names with their methods and options: one row for each loss of ``siamese``."""
    found: list[tuple[str, list[str]]] = []
    for method in methods:
        of_losses = [(loss, [method, "--loss", loss]) for loss in LOSSES]
        found += of_losses if method == "siamese" else [(method, [method])]
    return found


def main() -> None:
    """Run everything and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    comparison.add_options(parser)
    parser.add_argument("--pixels", type=int, default=8, help="image size for pixels")
    parser.add_argument("--methods", nargs="+", default=["siamese"], help="siamese, dino, ibot (siamese)")
    options = parser.parse_args()
    with comparison.run_folder(options, *options.methods) as folder, ThreadPoolExecutor(options.jobs) as pool:
        done = list(pool.map(lambda seed: one_seed(folder, options, seed), range(options.seeds)))
    rows: dict[str, dict[str, Any]] = {name: comparison.summarize([found[name] for found in done]) for name in done[0]}
    print(f"| {options.dataset}, {options.seeds} seeds | {' | '.join(COLUMNS)} | CPU s |")
    print("|---" * (len(COLUMNS) + 2) + "|")
    for name, row in rows.items():
        cost = f"{row['cpu_seconds']['mean']:.0f}" if "cpu_seconds" in row else ""
        print(f"| {name} | {' | '.join(comparison.shown(row[column]) for column in COLUMNS)} | {cost} |")
    comparison.write_record(options, results=rows)


if __name__ == "__main__":
    main()
