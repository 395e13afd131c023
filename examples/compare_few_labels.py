r"""Compare classifiers that learn from a few labels; print tables and write them as JSON.

    python examples/compare_few_labels.py --seeds 5 --num-labels 10 20 50 --out examples/results/digits_few_labels.json

All rows use the preset of the dataset, or the options after ``--``, and the same number of steps. The seed determines
the labels and the initial weights. The table shows the error (%) of each method's final network on held-out images
after the last step, as mean and standard deviation over seeds, and the difference from the method that it builds on,
seed by seed. "Wrong" is the fraction of discovered labels that are wrong at the end. The cost is CPU time, which varies
little on a busy machine. If networks start from pretrained weights, two rows are added, which use the same labels and
the features before training: scikit-learn's logistic regression on normalized features, and
``labelkit discover answer``.
"""

from __future__ import annotations

import argparse
import csv
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import comparison
import labelkit
import numpy as np
from sklearn.linear_model import LogisticRegression

# as in mixmatch's preset for digits
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
FROZEN = ("logistic regression on frozen features", "discover answer on frozen features")
# the method that each is compared with
RIVALS = {
    "snowball without master": "mean-teacher",
    "snowball": "mean-teacher",
    "snowball on mixmatch": "mixmatch",
    "lmcs without composition": "mixmatch",
    "lmcs without critical samples": "mixmatch",
    "lmcs": "mixmatch",
}


def wrong_share(folder: Path) -> dict[str, float]:
    """Return the fraction of discovered labels that are wrong, if a run discovered any."""
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


def network_words(data: list[str], extra: list[str]) -> list[object] | None:
    """Return the options that select the initial weights; None: random weights."""
    config, _ = comparison.run("config", "train", "supervised", *data, *extra)
    options = config["config"]
    if not (options["weights"] or options["pretrained"]):
        return None
    weights = ["--weights", options["weights"]] if options["weights"] else ["--pretrained"]
    return ["--backbone", options["backbone"], *weights, "--image-size", options["image_size"]]


def frozen(index: Path, data: list[str], network: list[object], labels: int, seed: int) -> dict[str, dict[str, Any]]:
    """Return the errors of two classifiers on the features before training, with the same labels as training."""
    draw = ["--num-labels", labels, "--label-seed", seed]
    comparison.run("embed", *data, *network, *draw, "--split", "all", "--out", index, "--overwrite")
    with labelkit.open_store(index) as store:
        rows, truth = np.asarray(store.embeddings, dtype=np.float32), np.asarray(store.labels)
        given, names = np.asarray(store.labeled, dtype=bool), list(store.class_names)
        held_out = np.asarray(store.splits) == list(store.split_names).index("test")
    rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    fitted = LogisticRegression(max_iter=2000).fit(rows[given], truth[given])
    found = {FROZEN[0]: fitted.predict(rows[held_out]) == truth[held_out]}
    classes = len(np.unique(truth))
    answer = ["--num-clusters", classes, "--min-confidence", 0, "--seed", seed, "--csv", index.with_suffix(".csv")]
    comparison.run("discover", "answer", "--index", index, *answer, "--overwrite")
    with labelkit.open_store(index) as store:
        arrays = store.result("answer").arrays
        group_names = np.asarray(arrays["names"])
        named = group_names[np.asarray(arrays["group_ids"])]
    found[FROZEN[1]] = named[held_out] == np.asarray(names)[truth[held_out]]
    return {row: {"seed": seed, "error": 100 - 100 * float(right.mean()), "steps": 0} for row, right in found.items()}


def main() -> None:
    """Run everything and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    comparison.add_options(parser)
    comparison.add_only(parser)
    parser.add_argument("--num-labels", type=int, nargs="+", default=[20], help="total number of labels (balanced)")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS), help="what to compare")
    options = parser.parse_args()
    data = comparison.data_words(options)
    cells = list(product(options.num_labels, options.rows))
    with comparison.run_folder(options) as folder, ThreadPoolExecutor(options.jobs) as pool:

        def one(labels: int, row: str, seed: int) -> dict[str, Any]:
            where = folder / f"{row.replace(' ', '-')}-{labels}-s{seed}"
            return train(where, ROWS[row], data, labels, seed, comparison.own_words(options, ROWS[row][0]))

        # seeds in the outer loop, so that an interrupted comparison has all rows
        pending = {(cell, seed): pool.submit(one, *cell, seed) for seed in range(options.seeds) for cell in cells}
        runs = {cell: [pending[cell, seed].result() for seed in range(options.seeds)] for cell in cells}
        network = network_words(data, options.extra)
        if network is not None:
            for labels in options.num_labels:
                index = folder / "frozen.h5"
                asked = [frozen(index, data, network, labels, seed) for seed in range(options.seeds)]
                runs |= {(labels, row): [one[row] for one in asked] for row in FROZEN}
    results: dict[str, dict[str, Any]] = {}
    for labels in options.num_labels:
        print(f"{options.dataset}, {labels} labels, {options.seeds} seeds")
        print("| | error, % | against its rival | wrong labels, % | steps | CPU s |")
        print("|---|---|---|---|---|---|")
        table = results.setdefault(str(labels), {})
        for row in (*(FROZEN if network else ()), *options.rows):
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
