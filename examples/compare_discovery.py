r"""Compare category-discovery methods on one split over several seeds; prints a table and writes it as JSON.

    python examples/compare_discovery.py --dataset digits --seeds 5 --out examples/results/digits_discovery.json
    python examples/compare_discovery.py --rows alignment --seeds 5 --out grid.json --plot grid.png
    python examples/compare_discovery.py --rows methods --dataset cifar10 --max-per-class 400 \
        --start runs/start -- --preset cifar10_cpu

Everything goes through the command line: networks are trained with the data set's presets, pixels or the features of
--start are embedded and clustered. Accuracy v2 in percent, on the unlabeled images of the training split and, where the
set has one, on the test split: mean and standard deviation over seeds. Cost is in seconds of CPU time, which a busy
machine does not change much.
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
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

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


class Commands:
    """Runs labelkit's commands on one data set.

    Args:
        folder: for stores and runs.
        data: options that say which images.
        extra: further options of every ``labelkit train``.
        has_test: the data set has a split ``test``.
    """

    def __init__(self, folder: Path, data: list[str], extra: list[str], *, has_test: bool) -> None:
        self.folder = folder
        self.data = data
        self.extra = extra
        self.has_test = has_test

    def run(self, *words: object) -> tuple[dict[str, Any], float]:
        """Run one command with --json; returns what it printed and the CPU seconds it took."""
        command = [sys.executable, "-m", "labelkit", *map(str, words), "--json"]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        with tempfile.TemporaryFile() as printed, tempfile.TemporaryFile() as said:
            process = subprocess.Popen(command, stdout=printed, stderr=said, env=environment)
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            printed.seek(0)
            said.seek(0)
            if process.returncode != 0:
                raise SystemExit(f"{' '.join(command)}\n{said.read().decode()}")
            return json.loads(printed.read()), usage.ru_utime + usage.ru_stime

    def score(self, index: Path, result: str) -> dict[str, float]:
        """Accuracies of a result on the unlabeled training images and on the test images."""
        scores = {}
        for split in ("train", "test") if self.has_test else ("all",):
            words = ("--index", index, "--results", result, "--split", split, "--bootstrap", 0)
            answer, _ = self.run("evaluate", "clustering", *words)
            prefix = "test_" if split == "test" else ""
            scores |= {f"{prefix}{part}": 100 * answer["scores"][0][f"{part}_accuracy"] for part in PARTS}
        return scores

    def embed(self, out: Path, *network: object) -> None:
        """Embed the images, with the test split if there is one."""
        split = ("--split", "all") if self.has_test else ()
        self.run("embed", *self.data, *split, *network, "--out", out, "--overwrite")

    def cluster(self, index: Path, classes: int, algorithm: str, seed: int) -> dict[str, Any]:
        """Cluster a store and score the result."""
        name = f"{algorithm}-{seed}"
        words = ("--index", index, "--num-clusters", classes, "--seed", seed, "--result", name, "--overwrite")
        _, seconds = self.run("cluster", algorithm, *words)
        return self.score(index, name) | {"cpu_seconds": seconds}

    def train(self, name: str, method: list[str], seed: int, classes: int) -> dict[str, Any]:
        """Train one method with one seed, embed, and score what it says; what --keep holds is not done again."""
        out = self.folder / f"{name}-{seed}".translate(str.maketrans("", "", " ,."))
        kept, index = out.with_suffix(".json"), out.with_suffix(".h5")
        if kept.exists():
            scores: dict[str, Any] = json.loads(kept.read_text())
            return scores
        cost = {}
        if not (out / "summary.json").exists():
            words = ["train", *method, *self.data, "--seed", seed, "--threads", 1, "--out", out, *self.extra]
            _, seconds = self.run(*words, *(["--resume"] if out.exists() else []))
            cost = {"cpu_seconds": seconds}
        self.embed(index, "--checkpoint", out)
        if method[0] == "gcd":
            scores = self.cluster(index, classes, "ss-kmeans", seed)
            del scores["cpu_seconds"]
        else:
            self.run("discover", "head", "--index", index, "--overwrite")
            scores = self.score(index, "head")
        scores |= {**cost, "seed": seed, "diagnostics": diagnostics(out / "metrics.jsonl")}
        kept.write_text(json.dumps(scores))
        return scores


def diagnostics(path: Path, last: int = 10) -> dict[str, float]:
    """Mean over the last logged steps of the energies, update sizes and entropies of the aligned blocks."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    steps = [line for line in lines if any(key.startswith("diag/block") for key in line)][-last:]
    names = sorted({key for line in steps for key in line if key.startswith("diag/block")})
    return {name.removeprefix("diag/"): statistics.mean(line[name] for line in steps) for name in names}


def draw(path: Path, rows: dict[str, dict[str, Any]], title: str) -> None:
    """One bar per row and part, with its standard deviation and a dot per seed."""
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


def summarize(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean and standard deviation of every number, over the runs of a row that have it."""
    names = sorted({key for run in runs for key, value in run.items() if isinstance(value, float)})
    columns = {name: [run[name] for run in runs if name in run] for name in names}
    spread = {
        name: {"mean": statistics.mean(values), "sd": statistics.stdev(values) if len(values) > 1 else 0.0}
        for name, values in columns.items()
    }
    return {**spread, "runs": runs}


def main() -> None:
    """Run everything and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="digits")
    parser.add_argument("--data-root", default="data")
    parser.add_argument("--max-per-class", type=int, default=None, help="use only a part of each class")
    parser.add_argument("--classes", type=int, default=10, help="classes in all")
    parser.add_argument("--pixels", type=int, default=8, help="side of the image whose pixels are clustered")
    parser.add_argument("--start", type=Path, default=None, help="run whose backbone all networks start from")
    parser.add_argument("--backbone", default="vit_nano_p8_32", help="the backbone of --start")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time, one thread each")
    parser.add_argument("--rows", choices=sorted(ROWS), default="updates", help="what to compare")
    parser.add_argument("--keep", type=Path, default=None, help="keep runs here; a stopped comparison goes on")
    parser.add_argument("--plot", type=Path, default=None, help="PNG to draw (needs matplotlib)")
    parser.add_argument("--out", type=Path, default=None, help="JSON file to write")
    parser.add_argument("extra", nargs="*", help="further options of `labelkit train`, after --")
    options = parser.parse_args()
    data = ["--dataset", options.dataset, "--data-root", options.data_root]
    if options.max_per_class is not None:
        data += ["--max-per-class", str(options.max_per_class)]
    extra = options.extra + (["--init-from", str(options.start)] if options.start else [])

    results: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        has_test = options.dataset in ("cifar10", "cifar100")
        folder = options.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        commands = Commands(folder, data, extra, has_test=has_test)
        networks: dict[str, list[object]] = {PIXELS: ["--backbone", PIXELS, "--image-size", options.pixels]}
        if options.start is not None:
            weights = max(options.start.glob("checkpoints/step-*/model.safetensors"))
            networks["features at the start"] = ["--backbone", options.backbone, "--weights", weights]
        for features, network in networks.items():
            index = commands.folder / f"{features.replace(' ', '-')}.h5"
            commands.embed(index, *network, "--label-split", "gcd")
            for seed in range(options.seeds):
                for algorithm in ("k-means", "ss-kmeans"):
                    score = commands.cluster(index, options.classes, algorithm, seed)
                    results.setdefault(f"{algorithm} on {features}", []).append(score | {"seed": seed})
        trained = ROWS[options.rows]
        jobs = [(name, seed) for seed in range(options.seeds) for name in trained]
        with ThreadPoolExecutor(options.jobs) as pool:
            done = pool.map(lambda job: commands.train(job[0], trained[job[0]], job[1], options.classes), jobs)
            for (name, seed), scores in zip(jobs, done, strict=True):
                results.setdefault(name, []).append(scores)
                print(f"{name}, seed {seed}: All {scores['all']:.1f}", file=sys.stderr, flush=True)

    rows = {name: summarize(runs) for name, runs in results.items()}
    columns = list(PARTS) + ([f"test_{part}" for part in PARTS] if has_test else [])
    heads = [column.replace("test_", "test ").title() for column in columns]
    print(f"| {options.dataset}, {options.seeds} seeds | {' | '.join(heads)} | CPU seconds |")
    print("|---" * (len(columns) + 2) + "|")
    for name, row in rows.items():
        cells = [f"{row[column]['mean']:.1f} ± {row[column]['sd']:.1f}" for column in columns]
        cost = f"{row['cpu_seconds']['mean']:.0f}" if "cpu_seconds" in row else "-"
        print(f"| {name} | {' | '.join(cells)} | {cost} |")
    if options.out is not None:
        record = {
            "command": "python " + " ".join(sys.argv),
            "dataset": options.dataset,
            "seeds": list(range(options.seeds)),
            "versions": {name: version(name) for name in ("labelkit", "torch", "numpy", "scikit-learn")},
            "python": platform.python_version(),
            "options": options.extra,
            "start": (options.start / "config.yaml").read_text() if options.start else None,
            "results": rows,
        }
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(record, indent=1) + "\n")
    if options.plot is not None:
        draw(options.plot, rows, f"{options.dataset}, {options.seeds} seeds")


if __name__ == "__main__":
    main()
