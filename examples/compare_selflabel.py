"""Compare SeLa's features and clusters with untrained and plain ones over several seeds; a table, JSON, a plot.

    python examples/compare_selflabel.py --dataset digits --seeds 5 --out examples/results/digits_selflabel.json
    python examples/compare_selflabel.py --dataset cifar10 --data-root data --preset cifar10_cpu --seeds 1 \
        --max-per-class 1000 --plot cifar10.png

Everything goes through the command line. Features are judged by a vote of the 10 nearest training images on held-out
ones (a fifth of each class where a set has no test split), in percent. Groups are those of the training images: NMI and
purity (share of images with the most frequent class of their group) against the truth; k-means has as many groups as a
head has clusters, and once as many as there are classes, which also gives an accuracy after one-to-one matching.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path

COLUMNS = {"knn": "kNN", "linear": "linear", "accuracy": "accuracy", "nmi": "NMI", "purity": "purity"}
PERCENT = {"knn", "linear", "accuracy", "purity"}


def labelkit(*words: object) -> dict[str, object]:
    """Run one command with --json and return what it printed."""
    command = [sys.executable, "-m", "labelkit", *map(str, words), "--json"]
    done = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}, check=False
    )
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


def purity(index: Path, result: str) -> float:
    """Share of training images that have the most frequent class of their group."""
    import numpy as np
    from labelkit.metrics.clustering import majority_accuracy
    from labelkit.store.embeddings import open_store
    from labelkit.store.results import read_result

    store = open_store(index)
    groups = np.asarray(read_result(store, result).arrays["cluster_ids"])
    rows = groups >= 0
    return majority_accuracy(np.asarray(store.labels)[rows], groups[rows])


def judge(index: Path) -> dict[str, float]:
    """Features of a store: kNN and linear accuracy on its test split."""
    answer = labelkit("evaluate", "knn", "--index", index, "-k", 10, "--temperature", 0.1, "--linear")
    return {"knn": answer["knn_accuracy"], "linear": answer["linear_accuracy"]}  # type: ignore[dict-item] # JSON


def cluster(index: Path, num_clusters: int, seed: int, *, matched: bool) -> dict[str, float]:
    """k-means of the training images; the accuracy only where there are as many groups as classes."""
    name = f"k{num_clusters}-{seed}"
    labelkit(
        *("cluster", "k-means", "--index", index, "--num-clusters", num_clusters, "--split", "train"),
        *("--seed", seed, "--result", name, "--overwrite"),
    )
    answer = labelkit("evaluate", "clustering", "--index", index, "--results", name, "--rows", "all", "--bootstrap", 0)
    score = answer["scores"][0]  # type: ignore[index] # JSON
    found = {"nmi": score["nmi"], "purity": purity(index, name)}
    return found | ({"accuracy": score["all_accuracy"]} if matched else {})


def judge_and_cluster(index: Path, options: argparse.Namespace, clusters: int, seed: int, name: str) -> dict[str, dict]:  # type: ignore[type-arg] # JSON
    """Rows of the table for one store."""
    rows = {name: judge(index)}
    for number in sorted({options.classes, clusters}):
        rows[f"k-means ({number}) on {name}"] = cluster(index, number, seed, matched=number == options.classes)
    return rows


def one_seed(folder: Path, options: argparse.Namespace, seed: int) -> tuple[dict[str, dict], list[dict]]:  # type: ignore[type-arg] # JSON
    """Train once; rows of the table, and the metrics of each epoch."""
    data = ["--dataset", options.dataset, "--data-root", options.data_root]
    if options.max_per_class is not None:
        data += ["--max-per-class", options.max_per_class]
    run = folder / f"run-{seed}"
    preset = ["--preset", options.preset] if options.preset else []
    words = ["train", "sela", *data, *preset, "--seed", seed, "--threads", 1, "--out", run, *options.extra]
    if not (run / "summary.json").exists():
        labelkit(*words, *(["--resume"] if run.exists() else []))
    trained = json.loads((run / "summary.json").read_text())["metrics"]
    config = json.loads(subprocess_config(words))
    clusters = int(config["num_clusters"][0])
    held_out = ["--holdout", config["holdout"]] if config["holdout"] else []

    def to(name: str) -> list[object]:
        return ["--out", folder / f"{name}-{seed}.h5", "--overwrite"]

    labelkit("embed", *data, "--checkpoint", run, "--split", "all", *to("sela"))
    random = ["--backbone", config["backbone"], "--random-weights", "--seed", seed, "--label-split", "none"]
    size = ["--image-size", config["image_size"]] if config["image_size"] else []
    labelkit("embed", *data, *random, *size, *held_out, "--split", "all", *to("random"))
    rows = judge_and_cluster(folder / f"random-{seed}.h5", options, clusters, seed, "untrained network")
    rows |= judge_and_cluster(folder / f"sela-{seed}.h5", options, clusters, seed, "sela")
    names = {"nmi": "nmi", "purity": "majority_accuracy"}
    rows[f"sela's heads ({clusters})"] = {to: trained[name] for to, name in names.items()}  # type: ignore[index] # JSON
    pixels = ["--backbone", "pixels", "--image-size", options.pixels, "--label-split", "none"]
    labelkit("embed", *data, *pixels, *held_out, "--split", "all", *to("pixels"))
    rows |= judge_and_cluster(folder / f"pixels-{seed}.h5", options, clusters, seed, "pixels")
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return rows, [line for line in lines if "kind" not in line]


def subprocess_config(words: Sequence[object]) -> str:
    """What a training command runs with, as JSON."""
    return json.dumps(labelkit("config", *words)["config"])


def draw(path: Path, histories: list[list[dict]], rows: dict[str, dict], title: str) -> None:  # type: ignore[type-arg] # JSON
    """KNN accuracy of each epoch, a line per seed; untrained network and pixels as levels."""
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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dataset", default="digits")
    parser.add_argument("--data-root", default="data")
    parser.add_argument("--preset", default=None, help="preset of `labelkit train sela`; default: the data set's")
    parser.add_argument("--max-per-class", type=int, default=None, help="use a part: so many images of each class")
    parser.add_argument("--classes", type=int, default=10, help="classes of the data set")
    parser.add_argument("--pixels", type=int, default=None, help="side of the pixel rows (digits: 8, others: 32)")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=2, help="seeds at a time, one thread each")
    parser.add_argument("--keep", type=Path, default=None, help="keep runs here; a stopped comparison goes on")
    parser.add_argument("--plot", type=Path, default=None, help="PNG to draw")
    parser.add_argument("--out", type=Path, default=None, help="JSON file to write")
    parser.add_argument("extra", nargs="*", help="further options of `labelkit train sela`, after --")
    options = parser.parse_args()
    options.pixels = options.pixels or (8 if options.dataset == "digits" else 32)

    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(options.jobs) as pool:
        folder = options.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        done = list(pool.map(lambda seed: one_seed(folder, options, seed), range(options.seeds)))
    rows: dict[str, dict] = {}  # type: ignore[type-arg] # JSON
    for name in done[0][0]:
        runs = [found[name] for found, _ in done]
        rows[name] = {"runs": runs}
        for column in COLUMNS:
            values = [(100 if column in PERCENT else 1) * run[column] for run in runs if column in run]
            if values:
                sd = statistics.stdev(values) if len(values) > 1 else 0.0
                rows[name][column] = {"mean": statistics.mean(values), "sd": sd}
    print(f"| {options.dataset}, {options.seeds} seeds | {' | '.join(COLUMNS.values())} |")
    print("|---" * (len(COLUMNS) + 1) + "|")
    for name, row in rows.items():
        shown = []
        for column in COLUMNS:
            digits = 1 if column in PERCENT else 3
            stats = row.get(column)
            shown.append(f"{stats['mean']:.{digits}f} ± {stats['sd']:.{digits}f}" if stats else "")
        print(f"| {name} | {' | '.join(shown)} |")
    if options.out is not None:
        record = {
            "command": "python " + " ".join(sys.argv),
            "dataset": options.dataset,
            "seeds": list(range(options.seeds)),
            "versions": {name: version(name) for name in ("labelkit", "torch", "numpy", "scikit-learn")},
            "python": platform.python_version(),
            "options": options.extra,
            "results": rows,
            "epochs": [history for _, history in done],
        }
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(record, indent=1) + "\n")
    if options.plot is not None:
        draw(options.plot, [history for _, history in done], rows, f"{options.dataset}, {options.seeds} seeds")


if __name__ == "__main__":
    main()
