r"""Measure how much accuracy a small number of cached views per image costs, and how much time it saves.

    python examples/reuse_frozen.py --dataset cifar10 --max-per-class 100 --weights vit.safetensors --out reuse.json \
        -- --backbone vit_small_patch14_reg4_dinov2 --image-size 56

Options after `--` are passed to every training run. Each method is trained with new views in each epoch, and with
--reuse-frozen 1, 2, 4, and so on. The table shows the accuracy (v2, in %) on the unlabeled images, the median time of
an epoch without evaluation, the time to fill the cache, and its size on disk, on one thread, as mean and standard
deviation over seeds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import comparison

FRESH = 0
PARTS = ("all", "old", "new")


def main() -> int:
    """Train the missing runs, print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dataset", required=True, help="training dataset")
    parser.add_argument("--max-per-class", type=int, required=True, help="images per class")
    parser.add_argument("--weights", type=Path, required=True, help="backbone weights")
    parser.add_argument("--methods", nargs="+", default=["simgcd", "flipclass"], help="methods (simgcd flipclass)")
    parser.add_argument("--views", nargs="+", type=int, default=[1, 2, 4, 8, 16], help="views (1 2 4 8 16)")
    parser.add_argument("--epochs", type=int, default=20, help="epochs (20)")
    parser.add_argument("--seeds", type=int, default=3, help="seeds (3)")
    parser.add_argument("--runs", type=Path, default=Path("runs/reuse"), help="folder for runs (runs/reuse)")
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    parser.add_argument("words", nargs="*", help="options of every training run, after --")
    options = parser.parse_args()
    rows = []
    for method in options.methods:
        for views in (FRESH, *options.views):
            found = [_trained(options, method, views, seed) for seed in range(options.seeds)]
            row = {"method": method, "views": views or "new", "runs": found}
            rows.append(row)
            print(_line(row), flush=True)
            options.out.write_text(json.dumps({"command": comparison_command(), "rows": rows}, indent=1) + "\n")
    return 0


def comparison_command() -> str:
    """Return the command line, with the path of the weights shortened to their name."""
    words = ["python", "examples/reuse_frozen.py", *sys.argv[1:]]
    return " ".join(Path(word).name if Path(word).is_absolute() else word for word in words)


def _trained(options: argparse.Namespace, method: str, views: int, seed: int) -> dict[str, Any]:
    out = options.runs / f"{method}-{views}-{seed}" / "run"
    out.parent.mkdir(parents=True, exist_ok=True)
    words = ["--dataset", options.dataset, "--max-per-class", options.max_per_class, "--label-split", "gcd"]
    words += ["--weights", options.weights, "--preset", "none", "--epochs", options.epochs, "--seed", seed]
    words += ["--eval-every-epochs", options.epochs, "--device", "cpu", *options.words]
    reuse = ["--reuse-frozen", views] if views else []
    started = time.perf_counter()
    summary = comparison.train(out, method, *words, *reuse)
    whole = time.perf_counter() - started
    epochs = comparison.epochs(out)
    kept = sum(path.stat().st_size for path in out.parent.glob("kept-*/parts/*.h5"))
    return {
        "seed": seed,
        **{part: round(100 * summary["metrics"][f"{part}_accuracy"], 2) for part in PARTS},
        "epoch_seconds": round(statistics.median(epoch["seconds"] for epoch in epochs), 3),
        "training_seconds": summary["seconds"],
        "whole_seconds": round(whole, 1),
        "kept_mib": round(kept / 2**20, 1),
    }


def _line(row: dict[str, Any]) -> str:
    def spread(name: str) -> str:
        values = [run[name] for run in row["runs"]]
        deviation = statistics.stdev(values) if len(values) > 1 else 0.0
        return f"{statistics.mean(values):6.1f} ± {deviation:4.1f}"

    scores = "  ".join(f"{part} {spread(part)}" for part in PARTS)
    epoch = statistics.median(run["epoch_seconds"] for run in row["runs"])
    return (
        f"{row['method']:<10} {row['views']!s:>4}  {scores}  {epoch:7.2f} s an epoch  {row['runs'][0]['kept_mib']} MiB"
    )


if __name__ == "__main__":
    sys.exit(main())
