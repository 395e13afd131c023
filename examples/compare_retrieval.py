"""Compare embeddings by retrieval among held-out images, over several seeds; write a table and JSON.

    python examples/compare_retrieval.py --seeds 5 --out examples/results/digits_retrieval.json
    python examples/compare_retrieval.py --dataset data/omniglot --preset omniglot --seeds 5 \
        --holdout-classes 'Korean_*,Latin_*' --out examples/results/omniglot_retrieval.json

All steps run through the command line. Networks start from random weights, or from the weights named by options after
``--`` (``--pretrained``, ``--weights``), as does the row without training. The table shows Recall@K and MAP@R (%),
where each held-out image is a query for all others, as mean and standard deviation over seeds, and the difference from
the row without the component, seed by seed. ``--matches`` adds a row in which second views show other images, matched
by affine SIFT.
"""

from __future__ import annotations

import argparse
import shlex
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import comparison

ROWS = {
    "baseline": ["tac-ccl", "--no-ccl", "--no-tac"],
    "+ CCL": ["tac-ccl", "--no-tac"],
    "+ CCL + TAC": ["tac-ccl"],
    "+ CCL + TAC + cross-image": ["tac-ccl", "--matches"],
    "labels, cross-entropy": ["san", "--no-san", "--loss", "cross-entropy"],
    "labels, multi-similarity": ["san", "--no-san"],
    "labels, multi-similarity, SAN": ["san"],
    "labels, multi-similarity, SAN, terms train all": ["san", "--term-gradients", "network"],
    "labels, multi-similarity, SAN, no terms": [
        *("san", "--entropy-weight", "0", "--correlation-weight", "0", "--coherence-weight", "0"),
    ],
    "clusters, no SAN": ["san", "--mode", "unsupervised", "--no-san"],
    "clusters, SAN": ["san", "--mode", "unsupervised"],
}
# for each row, the row without its component
RIVALS = {
    "+ CCL": "baseline",
    "+ CCL + TAC": "+ CCL",
    "+ CCL + TAC + cross-image": "+ CCL + TAC",
    "labels, multi-similarity, SAN": "labels, multi-similarity",
    "labels, multi-similarity, SAN, terms train all": "labels, multi-similarity, SAN",
    "labels, multi-similarity, SAN, no terms": "labels, multi-similarity, SAN",
    "clusters, SAN": "clusters, no SAN",
}
UNTRAINED = ["pixels", "untrained"]
KS = (1, 2, 4, 8)


def judge(index: Path, *source: object) -> dict[str, float]:
    """Embed the held-out images, and return their retrieval scores among each other in percent."""
    comparison.run("embed", *source, "--split", "test", "--out", index, "--overwrite")
    ks = ",".join(map(str, KS))
    found, _ = comparison.run("evaluate", "retrieval", "--index", index, "-k", ks)
    recalls = {f"r@{k}": 100 * found["recall"][str(k)] for k in KS}
    return recalls | {"map@r": 100 * found["map_at_r"], "nmi": 100 * found["nmi"]}


def settings(words: list[str]) -> dict[str, Any]:
    """Return the options of a training run, from preset, file and command line."""
    config: dict[str, Any] = comparison.run("config", "train", *words)[0]["config"]
    return config


def plain(folder: Path, data: list[str], row: str, seed: int, size: int, words: list[str]) -> dict[str, Any]:
    """Score pixels, or the backbone of TAC-CCL with its initial weights."""
    config = settings(["tac-ccl", *data, *words])
    held_out = ["--holdout", config["holdout"]] if config["holdout"] is not None else []
    if config["holdout_classes"]:
        held_out += ["--holdout-classes", ",".join(config["holdout_classes"])]
    part = ["--max-per-class", config["max_per_class"]] if config["max_per_class"] else []
    weights = ["--weights", config["weights"]] if config["weights"] else []
    weights = weights or ["--pretrained" if config["pretrained"] else "--random-weights"]
    network: list[object] = ["--backbone", config["backbone"], *weights, "--image-size", config["image_size"]]
    source: list[object] = network if row == "untrained" else ["--backbone", "pixels", "--image-size", size]
    plain_words = [*source, "--seed", seed, *data, *held_out, *part, "--label-split", "none"]
    return {"seed": seed} | judge(folder / f"{row}-{seed}.h5", *plain_words)


def trained(
    folder: Path, data: list[str], row: str, seed: int, words: list[str], matches: str, more: dict[str, list[str]]
) -> dict[str, Any]:
    """Train one row with one seed."""
    name = "".join(letter if letter.isalnum() else "-" for letter in row)
    own = [*ROWS[row], matches] if ROWS[row][-1] == "--matches" else ROWS[row]
    own = [*own, *more[own[0]]]
    summary = comparison.train(folder / f"{name}-{seed}", *own, *data, "--seed", seed, *words)
    cost = {key: summary[key] for key in ("cpu_seconds",) if key in summary}
    store = folder / f"{name}-{seed}.h5"
    return {"seed": seed} | judge(store, "--checkpoint", folder / f"{name}-{seed}", *data) | cost


def main() -> None:
    """Run everything and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    comparison.add_options(parser)
    parser.add_argument("--preset", help="preset of tac-ccl and san; default: the dataset's")
    parser.add_argument("--holdout-classes", help="classes to test on")
    parser.add_argument("--pixels", type=int, default=16, help="image size for comparing pixels")
    parser.add_argument("--matches", default="", help="pairs of training images found by `labelkit match`; adds a row")
    parser.add_argument("--tac-ccl", default="", help="options for tac-ccl rows only, as a single string")
    parser.add_argument("--san", default="", help="options for san rows only, as a single string")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=None, help="what to train")
    options = parser.parse_args()
    rows = options.rows or [row for row in ROWS if options.matches or row != "+ CCL + TAC + cross-image"]
    data = comparison.data_words(options)
    words = ["--preset", options.preset] if options.preset else []
    words += ["--holdout-classes", options.holdout_classes] if options.holdout_classes else []
    words += options.extra
    more = {"tac-ccl": shlex.split(options.tac_ccl), "san": shlex.split(options.san)}
    with comparison.run_folder(options, *words, more) as folder, ThreadPoolExecutor(options.jobs) as pool:

        def one(seed: int, row: str) -> dict[str, Any]:
            if row in UNTRAINED:
                return plain(folder, data, row, seed, options.pixels, words)
            return trained(folder, data, row, seed, words, options.matches, more)

        # seeds in the outer loop, so that an interrupted comparison has all rows; pixels have no seed
        cells = [*product(range(options.seeds), rows + UNTRAINED[1:]), (0, UNTRAINED[0])]
        pending = {cell: pool.submit(one, *cell) for cell in cells}
        runs = {row: [pending[cell].result() for cell in cells if cell[1] == row] for row in UNTRAINED + rows}
    results: dict[str, dict[str, Any]] = {}
    print(f"{options.dataset}, {options.seeds} seeds")
    print(f"| | {' | '.join(f'R@{k}' for k in KS)} | MAP@R | R@1 against without | MAP@R against without | CPU s |")
    print("|---|" + "---|" * (len(KS) + 4))
    for row, made in runs.items():
        found = results[row] = comparison.summarize(made)
        rival = RIVALS.get(row)
        if rival in runs:
            for key in ("r@1", "map@r"):
                pairs = zip(made, runs[rival], strict=True)
                found[f"{key}_against"] = comparison.spread([ours[key] - peer[key] for ours, peer in pairs])
        keys = [*(f"r@{k}" for k in KS), "map@r", "r@1_against", "map@r_against"]
        cost = f"{found['cpu_seconds']['mean']:.0f}" if "cpu_seconds" in found else ""
        print(f"| {row} | {' | '.join(comparison.shown(found.get(key)) for key in keys)} | {cost} |")
    comparison.write_record(options, results=results)


if __name__ == "__main__":
    main()
