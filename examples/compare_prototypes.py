r"""Compare fixed prototypes, with and without reassignment, with a learned classifier; print a table and write JSON.

    python examples/compare_prototypes.py --seeds 5 --dims 8 64 --out examples/results/digits_prototypes.json
    python examples/compare_prototypes.py --dataset cifar10 --imbalance 0.01 --dims 5 10 64 --seeds 3 \
        --out cifar10_lt.json --plot cifar10_lt.png -- --preset cifar10_lt --epochs 30 --lr-drop-epochs 24,27

Rows: psc (``train softmax``), etf (a simplex, if d >= classes - 1), fixed (spread prototypes that are not reassigned;
if d >= classes - 1, they form the simplex, so this row is etf), dl2pa (reassigned every epoch). All rows use the preset
of the dataset, or the options after ``--``. If networks start from pretrained weights, a row with logistic regression
on the features of these weights is added. The table shows the accuracy (%) on held-out images in the last and in the
best epoch, as mean and standard deviation over seeds. The cost is CPU time, which varies little on a busy machine.
"Changed" is the number of classes that were assigned a different prototype in each epoch.
"""

from __future__ import annotations

import argparse
import statistics
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import comparison

ROWS = {
    "psc": ["softmax"],
    "etf": ["dl2pa", "--prototypes", "simplex", "--no-reassign"],
    "fixed": ["dl2pa", "--no-reassign"],
    "dl2pa": ["dl2pa"],
    "dl2pa, as Eq. 5": ["dl2pa", "--sharpest-t", "none"],
}
NUMBERS = {"accuracy": "last", "best_accuracy": "best"}


def train(folder: Path, method: list[str], data: list[str], seed: int, dim: int, extra: list[str]) -> dict[str, Any]:
    """Train one row with one seed."""
    summary = comparison.train(folder, *method, *data, "--embed-dim", dim, "--seed", seed, *extra)
    return {
        "seed": seed,
        **{name: 100 * summary["metrics"][name] for name in NUMBERS},
        **{key: summary[key] for key in ("cpu_seconds",) if key in summary},
        "changed": [int(line.get("assignment/changed", 0)) for line in comparison.epochs(folder)],
    }


def frozen(folder: Path, dataset: str, data: list[str], extra: list[str]) -> dict[str, Any] | None:
    """Run logistic regression on the features before training; ``None`` if the initial weights are random."""
    index = Path(dataset)
    if index.suffix != ".h5":
        config, _ = comparison.run("config", "train", "softmax", *data, *extra)
        options = config["config"]
        if not (options["weights"] or options["pretrained"]):
            return None
        weights = ["--weights", options["weights"]] if options["weights"] else ["--pretrained"]
        network = ["--backbone", options["backbone"], *weights, "--image-size", options["image_size"]]
        index = folder / "frozen.h5"
        comparison.run("embed", *data, *network, "--split", "all", "--out", index, "--overwrite")
    found, seconds = comparison.run("evaluate", "linear", "--index", index)
    right = 100 * found["accuracy"]["mean"]
    return {"seed": 0, "accuracy": right, "best_accuracy": right, "cpu_seconds": seconds, "changed": []}


def draw(path: Path, rows: dict[str, dict[str, Any]], title: str) -> None:
    """Plot the accuracy of each row (a dot per seed), and the mean number of classes that changed their prototype."""
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
    comparison.add_options(parser)
    comparison.add_only(parser)
    parser.add_argument("--imbalance", type=float, nargs="+", default=[1.0], help="smallest / largest class (1: all)")
    parser.add_argument("--dims", type=int, nargs="+", default=[64], help="embedding dimensions")
    parser.add_argument(
        "--classes", type=int, default=10, help="number of classes; a simplex needs dims >= classes - 1"
    )
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS), help="what to compare")
    options = parser.parse_args()
    data = comparison.data_words(options)
    cells = [
        (row, dim, factor)
        for factor, dim, row in product(options.imbalance, options.dims, options.rows)
        if row not in ("etf", "fixed") or (row == "etf") == (dim >= options.classes - 1)
    ]
    with comparison.run_folder(options) as folder, ThreadPoolExecutor(options.jobs) as pool:

        def one(cell: tuple[str, int, float], seed: int) -> dict[str, Any]:
            row, dim, factor = cell
            cut = [] if factor == 1 else ["--imbalance-factor", str(factor)]
            where = folder / f"{row}-d{dim}-i{factor:g}-s{seed}".replace(".", "_")
            return train(where, ROWS[row], data + cut, seed, dim, comparison.own_words(options, ROWS[row][0]))

        # seeds in the outer loop, so that an interrupted comparison has all rows
        pending = {(cell, seed): pool.submit(one, cell, seed) for seed in range(options.seeds) for cell in cells}
        rows = {
            f"{row} d={dim}" + ("" if factor == 1 else f" imbalance {factor:g}"): comparison.summarize(
                [pending[(row, dim, factor), seed].result() for seed in range(options.seeds)]
            )
            for row, dim, factor in cells
        }
        start = frozen(folder, options.dataset, data, options.extra)
    if start is not None:
        rows = {"logistic regression on frozen features": comparison.summarize([start]), **rows}
    width = max(map(len, rows))
    print(f"{'':{width}}  {'last':>12}  {'best':>12}  CPU s  changed, per epoch")
    for name, row in rows.items():
        shown = "  ".join(f"{comparison.shown(row[key], 2):>12}" for key in NUMBERS)
        changed = " ".join(str(count) for count in row["runs"][0]["changed"][:16])
        cost = f"{row['cpu_seconds']['mean']:5.0f}" if "cpu_seconds" in row else "    -"
        print(f"{name:{width}}  {shown}  {cost}  {changed}")
    title = f"{options.dataset}, {options.seeds} seeds"
    if options.plot is not None:
        draw(options.plot, rows, title)
    comparison.write_record(options, results=rows)


if __name__ == "__main__":
    main()
