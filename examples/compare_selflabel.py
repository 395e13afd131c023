"""Compare SeLa's features and clusters with untrained features and pixels over several seeds; write table, JSON, plot.

    python examples/compare_selflabel.py --dataset digits --seeds 5 --out examples/results/digits_selflabel.json
    python examples/compare_selflabel.py --dataset cifar10 --data-root data --preset cifar10_cpu --seeds 1 \
        --max-per-class 1000 --plot cifar10.png

All steps run through the command line. Features are scored by the accuracy (%) of a vote among the 10 nearest training
images, on held-out images (a fifth of each class if there is no test split). Groups of the training images are compared
with the true classes by NMI and purity (the fraction of images with the most frequent class of their group). k-means is
run with as many groups as a head has clusters, and with as many as there are classes, for which the accuracy after
one-to-one matching is also shown.
"""

from __future__ import annotations

import argparse
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import comparison

# columns and their decimal places; all but NMI are in percent
COLUMNS = {"knn": 1, "linear": 1, "accuracy": 1, "nmi": 3, "purity": 1}


def purity(index: Path, result: str) -> float:
    """Return the fraction of training images with the most frequent class of their group."""
    import numpy as np
    from labelkit.metrics.clustering import majority_accuracy
    from labelkit.store.embeddings import open_store
    from labelkit.store.results import read_result

    store = open_store(index)
    groups = np.asarray(read_result(store, result).arrays["cluster_ids"])
    rows = groups >= 0
    return majority_accuracy(np.asarray(store.labels)[rows], groups[rows])


def judge(index: Path) -> dict[str, float]:
    """Return the kNN and linear accuracies of a store's features on its test split, in percent."""
    answer, _ = comparison.run("evaluate", "knn", "--index", index, "-k", 10, "--temperature", 0.1, "--linear")
    return {"knn": 100 * answer["knn_accuracy"], "linear": 100 * answer["linear_accuracy"]}


def cluster(index: Path, num_clusters: int, seed: int, *, matched: bool) -> dict[str, float]:
    """Run k-means on the training images; score the accuracy only if there are as many groups as classes."""
    name = f"k{num_clusters}-{seed}"
    words = ("--num-clusters", num_clusters, "--split", "train", "--seed", seed, "--result", name, "--overwrite")
    comparison.run("cluster", "k-means", "--index", index, *words)
    rows = ("--results", name, "--rows", "all", "--bootstrap", 0)
    score = comparison.run("evaluate", "clustering", "--index", index, *rows)[0]["scores"][0]
    found = {"nmi": score["nmi"], "purity": 100 * purity(index, name)}
    return found | ({"accuracy": 100 * score["all_accuracy"]} if matched else {})


def judge_and_cluster(index: Path, classes: int, clusters: int, seed: int, name: str) -> dict[str, dict[str, float]]:
    """Return the table rows of one store."""
    rows = {name: judge(index)}
    for number in sorted({classes, clusters}):
        rows[f"k-means ({number}) on {name}"] = cluster(index, number, seed, matched=number == classes)
    return rows


def one_seed(
    folder: Path, options: argparse.Namespace, seed: int
) -> tuple[dict[str, dict[str, float]], list[dict[str, Any]]]:
    """Train once; return the table rows and the metrics of each epoch."""
    data = comparison.data_words(options)
    run = folder / f"run-{seed}"
    preset = ["--preset", options.preset] if options.preset else []
    words = ["sela", *data, *preset, "--seed", seed, *options.extra]
    summary = comparison.train(run, *words)
    trained = summary["metrics"]
    config = comparison.run("config", "train", *words)[0]["config"]
    clusters = int(config["num_clusters"][0])
    held_out = ["--holdout", config["holdout"]] if config["holdout"] else []
    size = ["--image-size", config["image_size"]] if config["image_size"] else []
    plain = ["--label-split", "none", *held_out]
    networks = {
        "untrained network": ["--backbone", config["backbone"], "--random-weights", "--seed", seed, *size, *plain],
        "sela": ["--checkpoint", run],
        "pixels": ["--backbone", "pixels", "--image-size", options.pixels, *plain],
    }
    rows: dict[str, dict[str, float]] = {}
    for name, network in networks.items():
        index = folder / f"{name.replace(' ', '-')}-{seed}.h5"
        comparison.run("embed", *data, *network, "--split", "all", "--out", index, "--overwrite")
        rows |= judge_and_cluster(index, options.classes, clusters, seed, name)
    heads = {"nmi": trained["nmi"], "purity": 100 * trained["majority_accuracy"]}
    rows[f"sela's heads ({clusters})"] = heads
    rows["sela"] |= {key: summary[key] for key in ("cpu_seconds",) if key in summary}
    return rows, comparison.epochs(run)


def draw(path: Path, histories: list[list[dict[str, Any]]], rows: dict[str, dict[str, Any]], title: str) -> None:
    """Plot the kNN accuracy per epoch (a line per seed), with the untrained network and pixels as horizontal lines."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for seed, history in enumerate(histories):
        seen = [(line["epoch"] + 1, 100 * line["knn_accuracy"]) for line in history if "knn_accuracy" in line]
        axes.plot(*zip(*seen, strict=True), color="C0", alpha=0.7, label=None if seed else "sela")
    for number, name in enumerate(("untrained network", "pixels"), start=1):
        axes.axhline(rows[name]["knn"]["mean"], color=f"C{number}", linestyle="--", label=name)
    axes.set_xlabel("epoch")
    axes.set_ylabel("kNN accuracy on held-out images, %")
    axes.set_title(title)
    axes.legend()
    figure.savefig(path, dpi=120)


def main() -> None:
    """Run everything and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    comparison.add_options(parser)
    parser.add_argument("--preset", default=None, help="preset of `labelkit train sela`; default: the dataset's")
    parser.add_argument("--classes", type=int, default=10, help="classes of the dataset")
    parser.add_argument("--pixels", type=int, default=None, help="image size for pixels (digits: 8, others: 32)")
    options = parser.parse_args()
    options.pixels = options.pixels or (8 if options.dataset == "digits" else 32)

    with comparison.run_folder(options, options.preset) as folder, ThreadPoolExecutor(options.jobs) as pool:
        done = list(pool.map(lambda seed: one_seed(folder, options, seed), range(options.seeds)))
    rows = {name: comparison.summarize([found[name] for found, _ in done]) for name in done[0][0]}
    print(f"| {options.dataset}, {options.seeds} seeds | {' | '.join(COLUMNS)} | CPU s |")
    print("|---" * (len(COLUMNS) + 2) + "|")
    for name, row in rows.items():
        cells = [comparison.shown(row.get(column), digits) for column, digits in COLUMNS.items()]
        cost = f"{row['cpu_seconds']['mean']:.0f}" if "cpu_seconds" in row else ""
        print(f"| {name} | {' | '.join(cells)} | {cost} |")
    histories = [history for _, history in done]
    comparison.write_record(options, results=rows, epochs=histories)
    if options.plot is not None:
        draw(options.plot, histories, rows, f"{options.dataset}, {options.seeds} seeds")


if __name__ == "__main__":
    main()
