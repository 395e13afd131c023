r"""Compare category-discovery methods on one split over several seeds; print a table and write it as JSON.

    python examples/compare_discovery.py --dataset digits --seeds 5 --out examples/results/digits_discovery.json
    python examples/compare_discovery.py --rows alignment --seeds 5 --out grid.json --plot grid.png
    python examples/compare_discovery.py --rows methods --dataset cifar10 --max-per-class 400 \
        --start runs/start -- --preset cifar10_cpu

All steps run through the command line: networks are trained with the presets of the dataset, and pixels or the features
of --start are embedded and clustered. The table shows the accuracy (v2, in %) on the unlabeled images of the training
split and, if there is one, on the test split, as mean and standard deviation over seeds. The cost is CPU time, which
varies little on a busy machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import comparison

FLIP = ["flipclass"]
ROWS = {
    "methods": {"gcd": ["gcd"], "simgcd": ["simgcd"], "flipclass": FLIP},
    "updates": {
        "gcd": ["gcd"],
        "simgcd": ["simgcd"],
        "weak teacher, strong student": [*FLIP, "--align-mode", "none"],
        "flipclass, key space": [*FLIP, "--update-space", "key"],
        "flipclass, token space": [*FLIP, "--update-space", "token"],
        "flipclass, literal Eq. 8": [*FLIP, "--update-space", "literal"],
    },
    "alignment": {
        "simgcd": ["simgcd"],
        "none": [*FLIP, "--align-mode", "none"],
        **{mode: [*FLIP, "--align-mode", mode] for mode in ("flip", "sda", "l2", "kld", "coral", "da", "fixmatch")},
    },
    "weights": {
        "gcd": ["gcd"],
        "simgcd": ["simgcd"],
        **{f"flipclass, {mode}": [*FLIP, "--align-mode", mode] for mode in ("none", "flip", "kld", "da")},
    },
    "ablations": {
        "none": [*FLIP, "--align-mode", "none"],
        "flip": FLIP,
        "weak student": [*FLIP, "--student-view", "weak"],
        "flip, token space": [*FLIP, "--update-space", "token"],
        "flip, no regularizer": [*FLIP, "--gamma-reg", "0"],
        "flip, last block": [*FLIP, "--align-blocks", "3"],
        "flip, step 1": [*FLIP, "--gamma-update", "1"],
        "flip, step 5": [*FLIP, "--gamma-update", "5"],
    },
}
PARTS = ("all", "old", "new")
PIXELS = "pixels"
FROZEN = "frozen features"


class Commands:
    """Run labelkit's commands on one dataset.

    Args:
        folder: where stores and runs are kept.
        data: options that select the images.
        extra: additional options of every ``labelkit train``.
        classes: total number of classes.
        has_test: whether the dataset has a split ``test``.
    """

    def __init__(self, folder: Path, data: list[str], extra: list[str], classes: int, *, has_test: bool) -> None:
        self.folder = folder
        self.data = data
        self.extra = extra
        self.classes = classes
        self.has_test = has_test

    def score(self, index: Path, result: str) -> dict[str, float]:
        """Return the accuracies of a result on the unlabeled training images and on the test images."""
        scores: dict[str, float] = {}
        for split in ("train", "test") if self.has_test else ("all",):
            words = ("--index", index, "--results", result, "--split", split, "--bootstrap", 0)
            answer, _ = comparison.run("evaluate", "clustering", *words)
            prefix = "test_" if split == "test" else ""
            scores |= {f"{prefix}{part}": 100 * answer["scores"][0][f"{part}_accuracy"] for part in PARTS}
        return scores

    def embed(self, out: Path, *network: object) -> None:
        """Embed the images, including any test split; an existing store, which would be the same, is reused."""
        if out.exists():
            return
        split = ("--split", "all") if self.has_test else ()
        comparison.run("embed", *self.data, *split, *network, "--out", out, "--overwrite")

    def cluster(self, index: Path, algorithm: str, seed: int) -> tuple[dict[str, float], float]:
        """Cluster a store; return the scores of the result, and the CPU seconds."""
        name = f"{algorithm}-{seed}"
        words = ("--index", index, "--num-clusters", self.classes, "--seed", seed, "--result", name, "--overwrite")
        _, seconds = comparison.run("cluster", algorithm, *words)
        return self.score(index, name), seconds

    def answer(self, index: Path, seed: int) -> tuple[dict[str, float], float]:
        """Run ``discover answer`` for all images of a store; return the scores and the CPU seconds."""
        words = ("--index", index, "--num-clusters", self.classes, "--min-confidence", 0, "--seed", seed, "--overwrite")
        _, seconds = comparison.run("discover", "answer", *words, "--csv", self.folder / "answers.csv")
        return self.score(index, "answer"), seconds

    def train(self, name: str, method: list[str], seed: int) -> dict[str, Any]:
        """Train one method with one seed, embed the images, and score its predictions."""
        out = self.folder / f"{name}-{seed}".translate(str.maketrans("", "", " ,."))
        summary = comparison.train(out, *method, *self.data, "--seed", seed, *self.extra)
        index = out.with_suffix(".h5")
        self.embed(index, "--checkpoint", out)
        if method[0] == "gcd":
            scores, _ = self.cluster(index, "ss-kmeans", seed)
        else:
            comparison.run("discover", "head", "--index", index, "--overwrite")
            scores = self.score(index, "head")
        cost = {key: summary[key] for key in ("cpu_seconds",) if key in summary}
        return {**scores, **cost, "seed": seed, "diagnostics": diagnostics(out / "metrics.jsonl")}


def diagnostics(path: Path, last: int = 10) -> dict[str, float]:
    """Return the energies, update sizes and entropies of the aligned blocks, averaged over the last logged steps."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    steps = [line for line in lines if any(key.startswith("diag/block") for key in line)][-last:]
    names = sorted({key for line in steps for key in line if key.startswith("diag/block")})
    return {name.removeprefix("diag/"): statistics.mean(line[name] for line in steps) for name in names}


def draw(path: Path, rows: dict[str, dict[str, Any]], title: str) -> None:
    """Plot a bar per row and score, with its standard deviation and a dot per seed."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 0.5 * len(rows) + 1.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for offset, part in enumerate(PARTS):
        for position, row in enumerate(rows.values()):
            y = position + 0.25 * (offset - 1)
            label = part.capitalize() if not position else None
            axes.barh(y, row[part]["mean"], 0.22, xerr=row[part]["sd"], color=f"C{offset}", label=label)
            values = [run[part] for run in row["runs"]]
            axes.plot(values, [y] * len(values), ".", color="black", markersize=3)
    axes.set_yticks(range(len(rows)), list(rows))
    axes.invert_yaxis()
    axes.set_xlabel("accuracy v2 on unlabeled images, %")
    axes.set_title(title)
    axes.legend()
    figure.savefig(path, dpi=120)


def has_test_split(options: argparse.Namespace) -> bool:
    """Return whether the dataset has test images to score."""
    from labelkit.data.registry import load_dataset

    return "test" in load_dataset(options.dataset, data_root=Path(options.data_root), download=False).split_names


def main() -> None:
    """Run everything and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    comparison.add_options(parser)
    parser.add_argument("--classes", type=int, default=10, help="total number of classes")
    parser.add_argument("--pixels", type=int, default=8, help="image size for clustering pixels")
    parser.add_argument("--start", type=Path, default=None, help="run whose backbone initializes all networks")
    parser.add_argument("--weights", type=Path, default=None, help="weights of --backbone that initialize all networks")
    parser.add_argument("--image-size", type=int, default=None, help="image size, with --weights")
    parser.add_argument("--backbone", default="vit_nano_p8_32", help="backbone of --start or --weights")
    parser.add_argument("--rows", choices=sorted(ROWS), default="updates", help="what to compare")
    options = parser.parse_args()
    extra = options.extra + (["--init-from", str(options.start)] if options.start else [])
    if options.weights:
        extra += ["--backbone", options.backbone, "--weights", options.weights, "--image-size", options.image_size]
    has_test = has_test_split(options)

    results: dict[str, list[dict[str, Any]]] = {}
    with comparison.run_folder(options, options.start) as folder:
        data = comparison.data_words(options)
        commands = Commands(folder, data, extra, options.classes, has_test=has_test)
        networks: dict[str, list[object]] = {PIXELS: ["--backbone", PIXELS, "--image-size", options.pixels]}
        if options.start is not None:
            weights = max(options.start.glob("checkpoints/step-*/model.safetensors"))
            networks["features at the start"] = ["--backbone", options.backbone, "--weights", weights]
        if options.weights is not None:
            networks[FROZEN] = extra[-6:]
        for features, network in networks.items():
            index = folder / f"{features.replace(' ', '-')}.h5"
            commands.embed(index, *network, "--label-split", "gcd")
            for seed in range(options.seeds):
                for algorithm in ("k-means", "ss-kmeans"):
                    scores, seconds = commands.cluster(index, algorithm, seed)
                    found = {**scores, "cpu_seconds": seconds, "seed": seed}
                    results.setdefault(f"{algorithm} on {features}", []).append(found)
                if features == FROZEN:
                    scores, seconds = commands.answer(index, seed)
                    found = {**scores, "cpu_seconds": seconds, "seed": seed}
                    results.setdefault(f"discover answer on {features}", []).append(found)
        trained = ROWS[options.rows]
        jobs = [(name, seed) for seed in range(options.seeds) for name in trained]
        with ThreadPoolExecutor(options.jobs) as pool:
            done = pool.map(lambda job: commands.train(job[0], trained[job[0]], job[1]), jobs)
            for (name, seed), scores in zip(jobs, done, strict=True):
                results.setdefault(name, []).append(scores)
                print(f"{name}, seed {seed}: All {scores['all']:.1f}", file=sys.stderr, flush=True)

    rows = {name: comparison.summarize(runs) for name, runs in results.items()}
    columns = list(PARTS) + ([f"test_{part}" for part in PARTS] if has_test else [])
    heads = [column.replace("test_", "test ").title() for column in columns]
    print(f"| {options.dataset}, {options.seeds} seeds | {' | '.join(heads)} | CPU seconds |")
    print("|---" * (len(columns) + 2) + "|")
    for name, row in rows.items():
        cells = [comparison.shown(row[column]) for column in columns]
        cost = f"{row['cpu_seconds']['mean']:.0f}" if "cpu_seconds" in row else "-"
        print(f"| {name} | {' | '.join(cells)} | {cost} |")
    start = (options.start / "config.yaml").read_text() if options.start else None
    comparison.write_record(options, start=start, results=rows)
    if options.plot is not None:
        draw(options.plot, rows, f"{options.dataset}, {options.seeds} seeds")


if __name__ == "__main__":
    main()
