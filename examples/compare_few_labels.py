r"""Compare classifiers that learn from a few labels; prints tables and writes them as JSON.

    python examples/compare_few_labels.py --seeds 5 --num-labels 10 20 50 --out examples/results/digits_few_labels.json

All rows take the data set's preset, or what follows ``--``, and the same number of steps. A seed draws the labels and
the weights. Error in percent on held-out images of the network that the method names its result, after the last step:
mean and standard deviation over seeds, and the difference to the method that this one builds on, seed by seed. Wrong:
share of the discovered labels that are wrong at the end. Cost is in seconds of CPU time, which a busy machine does not
change much.
"""

from __future__ import annotations

import argparse
import csv
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import comparison

# as mixmatch's preset for digits
ON_MIXMATCH = (
    "--trainer mixmatch --lr 2e-3 --weight-decay 0.02 --noise 0 --labeled-batch-size 32 --unlabeled-weight 30 "
    "--unlabeled-ramp 0.25"
)
ROWS = {
    "supervised": ["supervised"],
    "mean-teacher": ["mean-teacher"],
    "snowball without master": ["snowball", "--no-master"],
    "snowball": ["snowball"],
    "mixmatch": ["mixmatch"],
    "snowball on mixmatch": ["snowball", *ON_MIXMATCH.split()],
    "lmcs without composition": ["lmcs", "--guide", "average"],
    "lmcs without critical samples": ["lmcs", "--growth-limit", "1"],
    "lmcs": ["lmcs"],
    "freematch": ["freematch"],
}
# what each is to beat
RIVALS = {
    "snowball without master": "mean-teacher",
    "snowball": "mean-teacher",
    "snowball on mixmatch": "mixmatch",
    "lmcs without composition": "mixmatch",
    "lmcs without critical samples": "mixmatch",
    "lmcs": "mixmatch",
}


def wrong_share(folder: Path) -> dict[str, float]:
    """Share of wrong labels among those that a run discovered, if it did."""
    table = folder / "discovered.csv"
    if not table.exists():
        return {}
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    last = max((int(row["generation"]) for row in rows), default=0)
    rows = [row for row in rows if int(row["generation"]) == last and row.get("truth")]
    return {"wrong": 100 * sum(row["label"] != row["truth"] for row in rows) / len(rows)} if rows else {}


def train(folder: Path, words: list[str], data: list[str], labels: int, seed: int, extra: list[str]) -> dict[str, Any]:
    """Train one row with one seed."""
    draw = ["--num-labels", labels, "--label-seed", seed, "--seed", seed]
    summary = comparison.train(folder, *words, *data, *draw, *extra)
    return {
        "seed": seed,
        "error": 100 - 100 * summary["metrics"]["accuracy"],
        "steps": summary["steps"],
        **{key: summary[key] for key in ("cpu_seconds",) if key in summary},
        **wrong_share(folder),
    }


def main() -> None:
    """Run everything and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    comparison.add_options(parser)
    parser.add_argument("--num-labels", type=int, nargs="+", default=[20], help="labels in all, as many of each class")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS), help="what to compare")
    options = parser.parse_args()
    data = comparison.data_words(options)
    cells = list(product(options.num_labels, options.rows))
    with comparison.run_folder(options) as folder, ThreadPoolExecutor(options.jobs) as pool:

        def one(labels: int, row: str, seed: int) -> dict[str, Any]:
            where = folder / f"{row.replace(' ', '-')}-{labels}-s{seed}"
            return train(where, ROWS[row], data, labels, seed, options.extra)

        # seeds last, so that a stopped comparison has all rows
        pending = {(cell, seed): pool.submit(one, *cell, seed) for seed in range(options.seeds) for cell in cells}
        runs = {cell: [pending[cell, seed].result() for seed in range(options.seeds)] for cell in cells}
    results: dict[str, dict[str, Any]] = {}
    for labels in options.num_labels:
        print(f"{options.dataset}, {labels} labels, {options.seeds} seeds")
        print("| | error, % | against its rival | wrong labels, % | steps | CPU s |")
        print("|---|---|---|---|---|---|")
        table = results.setdefault(str(labels), {})
        for row in options.rows:
            found = comparison.summarize(runs[labels, row])
            rival = RIVALS.get(row)
            if rival in options.rows:
                pairs = zip(runs[labels, row], runs[labels, rival], strict=True)
                found["against_rival"] = comparison.spread([ours["error"] - peer["error"] for ours, peer in pairs])
            table[row] = found
            shown = [comparison.shown(found.get(key)) for key in ("error", "against_rival", "wrong")]
            cost = f"{found['cpu_seconds']['mean']:.0f}" if "cpu_seconds" in found else ""
            print(f"| {row} | {' | '.join(shown)} | {runs[labels, row][0]['steps']} | {cost} |")
        print()
    comparison.write_record(options, results=results)


if __name__ == "__main__":
    main()
