"""Compare category-discovery methods on one split over several seeds; prints a table and writes it as JSON.

    python examples/compare_discovery.py --dataset digits --seeds 5 --out examples/results/digits_discovery.json
    python examples/compare_discovery.py --rows alignment --seeds 5 --out grid.json --plot grid.png

Everything goes through the command line: pixels are embedded and clustered, networks are trained with the
data set's presets. Accuracy v2 on the unlabeled images, in percent: mean and standard deviation over seeds.
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
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path

ROWS = {
    "updates": {
        "gcd": ["gcd"],
        "simgcd": ["simgcd"],
        "weak teacher, strong student": ["flipclass", "--align-mode", "none"],
        "flipclass, key space": ["flipclass", "--update-space", "key"],
        "flipclass, token space": ["flipclass", "--update-space", "token"],
        "flipclass, literal Eq. 8": ["flipclass", "--update-space", "literal"],
    },
    "alignment": {
        "none": ["flipclass", "--align-mode", "none"],
        "weak student": ["flipclass", "--student-view", "weak"],
        **{
            mode: ["flipclass", "--align-mode", mode]
            for mode in ("flip", "sda", "l2", "kld", "coral", "da", "fixmatch")
        },
        "flip, no regularizer": ["flipclass", "--gamma-reg", "0"],
        "flip, beta auto": ["flipclass", "--beta", "auto"],
        "flip, last block": ["flipclass", "--align-blocks", "3"],
        "flip, step 1": ["flipclass", "--gamma-update", "1"],
    },
}
PARTS = ("all", "old", "new")


def labelkit(*words: object) -> dict[str, object]:
    """Run one command with --json and return what it printed."""
    command = [sys.executable, "-m", "labelkit", *map(str, words), "--json"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


def cluster_pixels(folder: Path, data: list[str], classes: int, seed: int) -> dict[str, dict[str, float]]:
    """k-means and semi-supervised k-means on the pixels themselves."""
    index = folder / "pixels.h5"
    scores = {}
    for algorithm in ("k-means", "ss-kmeans"):
        name = f"{algorithm}-{seed}"
        started = time.monotonic()
        labelkit("cluster", algorithm, "--index", index, "--num-clusters", classes, "--seed", seed, "--result", name)
        seconds = time.monotonic() - started
        answer = labelkit("evaluate", "clustering", "--index", index, "--results", name)
        score = answer["scores"][0]  # type: ignore[index] # JSON
        scores[f"{algorithm} on pixels"] = {f"{part}_accuracy": score[f"{part}_accuracy"] for part in PARTS} | {
            "seconds": seconds
        }
    return scores


def train(folder: Path, data: list[str], name: str, method: list[str], seed: int, extra: list[str]) -> dict[str, float]:
    """Train one method with one seed; metrics of the last epoch."""
    out = folder / f"{name}-{seed}".replace(" ", "_").replace(",", "").replace(".", "")
    words = ["train", *method, *data, "--seed", seed, "--threads", 1, "--out", out, *extra]
    answer = labelkit(*words)
    metrics = dict(answer["metrics"])  # type: ignore[call-overload] # JSON
    metrics["seconds"] = answer["seconds"]
    return metrics


def draw(path: Path, rows: dict[str, dict[str, object]], title: str) -> None:
    """One bar per row and part, with its standard deviation and a dot per seed."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 0.5 * len(rows) + 1.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for offset, part in enumerate(PARTS):
        for position, row in enumerate(rows.values()):
            y = position + 0.25 * (offset - 1)
            stats = row[part]
            axes.barh(
                y, stats["mean"], 0.22, xerr=stats["sd"], color=f"C{offset}", label=part if not position else None
            )  # type: ignore[index] # JSON
            values = [100 * run[f"{part}_accuracy"] for run in row["runs"]]  # type: ignore[attr-defined] # JSON
            axes.plot(values, [y] * len(values), ".", color="black", markersize=3)
    axes.set_yticks(range(len(rows)), list(rows))
    axes.invert_yaxis()
    axes.set_xlabel("accuracy v2 on unlabeled images, %")
    axes.set_title(title)
    axes.legend()
    figure.savefig(path, dpi=120)


def main() -> None:
    """Run everything and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dataset", default="digits")
    parser.add_argument("--data-root", default="data")
    parser.add_argument("--classes", type=int, default=10, help="classes in all")
    parser.add_argument("--pixels", type=int, default=8, help="side of the image whose pixels are clustered")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time, one thread each")
    parser.add_argument("--rows", choices=sorted(ROWS), default="updates", help="what to compare")
    parser.add_argument("--plot", type=Path, default=None, help="PNG to draw (needs matplotlib)")
    parser.add_argument("--out", type=Path, default=None, help="JSON file to write")
    parser.add_argument("extra", nargs="*", help="further options of `labelkit train`, after --")
    options = parser.parse_args()
    data = ["--dataset", options.dataset, "--data-root", options.data_root]

    results: dict[str, list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        pixels = ["--backbone", "pixels", "--image-size", options.pixels, "--label-split", "gcd"]
        labelkit("embed", *data, *pixels, "--out", folder / "pixels.h5")
        for seed in range(options.seeds):
            for name, score in cluster_pixels(folder, data, options.classes, seed).items():
                results.setdefault(name, []).append(score)
        trained = ROWS[options.rows]
        jobs = [(name, seed) for seed in range(options.seeds) for name in trained]
        with ThreadPoolExecutor(options.jobs) as pool:
            done = pool.map(lambda job: train(folder, data, job[0], trained[job[0]], job[1], options.extra), jobs)
            for (name, seed), metrics in zip(jobs, done, strict=True):
                results.setdefault(name, []).append(metrics)
                print(f"{name}, seed {seed}: All {100 * metrics['all_accuracy']:.1f}", file=sys.stderr, flush=True)

    rows = {}
    for name, runs in results.items():
        columns = {part: [100 * run[f"{part}_accuracy"] for run in runs] for part in PARTS}
        rows[name] = {
            **{
                part: {"mean": statistics.mean(values), "sd": statistics.stdev(values) if len(values) > 1 else 0.0}
                for part, values in columns.items()
            },
            "seconds": statistics.mean(run["seconds"] for run in runs),
            "runs": runs,
        }
    print(f"| {options.dataset}, {options.seeds} seeds | All | Old | New | seconds |")
    print("|---|---|---|---|---|")
    for name, row in rows.items():
        cells = [f"{row[part]['mean']:.1f} ± {row[part]['sd']:.1f}" for part in PARTS]
        print(f"| {name} | {' | '.join(cells)} | {row['seconds']:.0f} |")
    if options.out is not None:
        record = {
            "command": "python " + " ".join(sys.argv),
            "dataset": options.dataset,
            "seeds": list(range(options.seeds)),
            "versions": {name: version(name) for name in ("labelkit", "torch", "numpy", "scikit-learn")},
            "python": platform.python_version(),
            "options": options.extra,
            "results": rows,
        }
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(record, indent=1) + "\n")
    if options.plot is not None:
        draw(options.plot, rows, f"{options.dataset}, {options.seeds} seeds")


if __name__ == "__main__":
    main()
