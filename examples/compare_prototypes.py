r"""Compare fixed prototypes, assigned or not, with a learned classifier; prints a table and writes it as JSON.

    python examples/compare_prototypes.py --seeds 5 --dims 8 64 --out examples/results/digits_prototypes.json
    python examples/compare_prototypes.py --dataset cifar10 --imbalance 0.01 --dims 5 10 64 --seeds 3 \
        --out cifar10_lt.json --plot cifar10_lt.png -- --preset cifar10_lt --epochs 30 --lr-drop-epochs 24,27

Rows: psc (``train softmax``), etf (a simplex, where d >= classes - 1), fixed (spread prototypes that stay with their
class), dl2pa (assigned anew every epoch). All use the data set's preset, or what follows ``--``. Accuracy in percent on
held-out images, of the last and of the best epoch: mean and standard deviation over seeds. Cost is in seconds of CPU
time, which a busy machine does not change much. Changed: classes that got another prototype, of each epoch.
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
from itertools import product
from pathlib import Path
from typing import Any

ROWS = {
    "psc": ["softmax"],
    "etf": ["dl2pa", "--prototypes", "simplex", "--no-reassign"],
    "fixed": ["dl2pa", "--no-reassign"],
    "dl2pa": ["dl2pa"],
}
NUMBERS = {"accuracy": "last", "best_accuracy": "best"}


def run(words: list[str]) -> tuple[dict[str, Any], float]:
    """Run one command with --json; returns what it printed and the CPU seconds it took."""
    command = [sys.executable, "-m", "labelkit", *words, "--json"]
    with tempfile.TemporaryFile() as printed, tempfile.TemporaryFile() as said:
        process = subprocess.Popen(command, stdout=printed, stderr=said, env=os.environ | {"OMP_NUM_THREADS": "1"})
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        printed.seek(0)
        said.seek(0)
        if process.returncode:
            raise SystemExit(f"{' '.join(command)}\n{said.read().decode()}")
        answer: dict[str, Any] = json.loads(printed.read())
    return answer, usage.ru_utime + usage.ru_stime


def train(folder: Path, method: list[str], data: list[str], seed: int, dim: int, extra: list[str]) -> dict[str, Any]:
    """Train one row with one seed; what ``folder`` holds already is not trained again."""
    kept = folder.with_suffix(".json")
    if kept.exists():
        scores: dict[str, Any] = json.loads(kept.read_text())
        return scores
    words = ["train", *method, *data, "--embed-dim", str(dim), "--seed", str(seed), "--threads", "1", *extra]
    answer, seconds = run([*words, "--out", str(folder), *(["--resume"] if folder.exists() else [])])
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    epochs = [line for line in lines if "kind" not in line]
    metrics = answer["metrics"]
    scores = {
        "seed": seed,
        **{name: 100 * metrics[name] for name in NUMBERS},
        "cpu_seconds": seconds,
        "changed": [int(line.get("assignment/changed", 0)) for line in epochs],
    }
    kept.write_text(json.dumps(scores))
    return scores


def summarize(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean and standard deviation of every number."""
    spread = {}
    for name in (*NUMBERS, "cpu_seconds"):
        values = [one[name] for one in runs]
        spread[name] = {"mean": statistics.mean(values), "sd": statistics.stdev(values) if len(values) > 1 else 0.0}
    return {**spread, "runs": runs}


def draw(path: Path, rows: dict[str, dict[str, Any]], title: str) -> None:
    """Left: accuracy of each row, a dot per seed. Right: classes that changed their prototype, mean over seeds."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 0.35 * len(rows) + 2), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    for position, row in enumerate(rows.values()):
        left.barh(position, row["accuracy"]["mean"], 0.7, xerr=row["accuracy"]["sd"], color="C0", alpha=0.6)
        values = [one["accuracy"] for one in row["runs"]]
        left.plot(values, [position] * len(values), ".", color="black", markersize=4)
    left.set_yticks(range(len(rows)), list(rows))
    left.invert_yaxis()
    lowest = min(one["accuracy"] for row in rows.values() for one in row["runs"])
    left.set_xlim(max(0, lowest - 5), None)
    left.set_xlabel("accuracy on held-out images, %")
    for name, row in rows.items():
        if not name.startswith("dl2pa"):
            continue
        curves = list(zip(*(one["changed"] for one in row["runs"]), strict=True))
        right.plot(range(1, len(curves) + 1), [statistics.mean(values) for values in curves], label=name)
    right.set(xlabel="epoch", ylabel="classes with another prototype")
    right.legend(fontsize="small")
    figure.suptitle(title)
    figure.savefig(path, dpi=120)


def main() -> None:
    """Run everything and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="digits")
    parser.add_argument("--data-root", default="data")
    parser.add_argument("--max-per-class", type=int, default=None, help="use only a part of each class")
    parser.add_argument("--imbalance", type=float, nargs="+", default=[1.0], help="rarest over largest class; 1: all")
    parser.add_argument("--dims", type=int, nargs="+", default=[64], help="widths of the embedding")
    parser.add_argument(
        "--classes", type=int, default=10, help="classes of the set; a simplex needs dims >= classes - 1"
    )
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS), help="what to compare")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time, one thread each")
    parser.add_argument("--keep", type=Path, default=None, help="keep runs here; a stopped comparison goes on")
    parser.add_argument("--plot", type=Path, default=None, help="PNG to draw (needs matplotlib)")
    parser.add_argument("--out", type=Path, default=None, help="JSON file to write")
    parser.add_argument("extra", nargs="*", help="further options of `labelkit train`, after --")
    options = parser.parse_args()
    data = ["--dataset", options.dataset, "--data-root", options.data_root]
    if options.max_per_class is not None:
        data += ["--max-per-class", str(options.max_per_class)]
    cells = [
        (row, dim, factor)
        for factor, dim, row in product(options.imbalance, options.dims, options.rows)
        if row != "etf" or dim >= options.classes - 1
    ]
    with tempfile.TemporaryDirectory() as temporary, ThreadPoolExecutor(options.jobs) as pool:
        folder = options.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)

        def one(cell: tuple[str, int, float], seed: int) -> dict[str, Any]:
            row, dim, factor = cell
            cut = [] if factor == 1 else ["--imbalance-factor", str(factor)]
            where = folder / f"{row}-d{dim}-i{factor:g}-s{seed}".replace(".", "_")
            return train(where, ROWS[row], data + cut, seed, dim, options.extra)

        # seeds last, so that a stopped comparison has all rows
        pending = {(cell, seed): pool.submit(one, cell, seed) for seed in range(options.seeds) for cell in cells}
        rows = {
            f"{row} d={dim}" + ("" if factor == 1 else f" imbalance {factor:g}"): summarize(
                [pending[(row, dim, factor), seed].result() for seed in range(options.seeds)]
            )
            for row, dim, factor in cells
        }
    width = max(map(len, rows))
    print(f"{'':{width}}  {'last':>12}  {'best':>12}  CPU s  changed, per epoch")
    for name, row in rows.items():
        shown = "  ".join(f"{row[key]['mean']:5.2f} ± {row[key]['sd']:4.2f}" for key in NUMBERS)
        changed = " ".join(str(count) for count in row["runs"][0]["changed"][:16])
        print(f"{name:{width}}  {shown}  {row['cpu_seconds']['mean']:5.0f}  {changed}")
    title = f"{options.dataset}, {options.seeds} seeds"
    if options.plot is not None:
        draw(options.plot, rows, title)
    if options.out is not None:
        about = {
            "dataset": options.dataset,
            "seeds": options.seeds,
            "imbalance": options.imbalance,
            "dims": options.dims,
            "max_per_class": options.max_per_class,
            "options": options.extra,
            "command": " ".join(["python", *sys.argv]),
            "versions": {name: version(name) for name in ("labelkit", "torch", "numpy")},
            "machine": platform.machine(),
        }
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
