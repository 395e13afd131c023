"""Train published table rows in full: long-tailed CIFAR-10, ResNet-32, 200 epochs (Table 6 of DL2PA).

    python examples/published_rows.py --cifar10 data --work rows --out rows.json --jobs 3
    python examples/published_rows.py --cifar10 data --work rows --out rows.json --seconds 600 --options=--compile

The script trains softmax, ETF and DL2PA with each seed, ``--jobs`` runs in parallel. After ``--seconds``, the runs
write their checkpoints and stop; to continue them, repeat the command. ``--cifar10`` is a folder with CIFAR-10 in any
layout that ``labelkit train --dataset cifar10`` reads. The JSON contains the published and the measured accuracy, the
accuracy after each evaluation, and the time per epoch in seconds.
"""

from __future__ import annotations

import argparse
import json
import platform
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from labelkit import __version__

#: Row, command, published accuracy in percent.
ROWS = (
    ("softmax", "softmax --preset cifar10_lt", 72.8),
    ("ETF", "dl2pa --preset cifar10_lt --prototypes simplex --no-reassign", 76.5),
    ("DL2PA", "dl2pa --preset cifar10_lt", 76.9),
)


def train(words: str, seed: int, folder: Path, options: argparse.Namespace) -> subprocess.Popen[bytes]:
    """Start or resume a run; its output is written to a file next to its folder."""
    line = [sys.executable, "-m", "labelkit", "train", *words.split(), "--seed", str(seed)]
    line += ["--dataset", "cifar10", "--data-root", options.cifar10, "--device", options.device]
    line += ["--out", str(folder), *options.options.split()]
    line += ["--resume"] if (folder / "checkpoints" / "last.json").exists() else ["--overwrite"]
    with folder.with_suffix(".log").open("ab") as said:
        return subprocess.Popen(line, stdout=said, stderr=said)


def epochs(folder: Path) -> list[dict[str, Any]]:
    """Return the metrics of a run's epochs."""
    file = folder / "metrics.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return [line for line in lines if "kind" not in line]


def has_ended(folder: Path, options: argparse.Namespace) -> bool:
    """Return whether all epochs of a run are done."""
    return len(epochs(folder)) >= options.epochs


def write(options: argparse.Namespace, runs: dict[tuple[str, int], Path]) -> list[dict[str, Any]]:
    """Write the table; return its rows."""
    rows = []
    for name, words, published in ROWS:
        for seed in options.seeds:
            done = epochs(runs[name, seed])
            curve = [[line["epoch"] + 1, round(100 * line["accuracy"], 2)] for line in done if "accuracy" in line]
            rows.append(
                {
                    "row": name,
                    "seed": seed,
                    "command": f"labelkit train {words} --dataset cifar10 --seed {seed} {options.options}".strip(),
                    "published": published,
                    "measured": curve[-1][1] if len(done) >= options.epochs else None,
                    "epochs": len(done),
                    "training_seconds": round(sum(line["seconds"] for line in done)),
                    "curve": curve,
                }
            )
    gpu = options.device.startswith("cuda")
    about = {
        "command": shlex.join(["python", *sys.argv]),
        "versions": {"labelkit": __version__, "torch": torch.__version__, "python": platform.python_version()},
        "device": torch.cuda.get_device_name(options.device) if gpu else platform.machine(),
        "jobs": options.jobs,
    }
    options.out.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")
    return rows


def main() -> int:
    """Train the remaining runs; return 1 if a run failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cifar10", required=True, help="folder with CIFAR-10")
    parser.add_argument("--work", type=Path, required=True, help="folder for the runs")
    parser.add_argument("--out", type=Path, required=True, help="JSON file for the table")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--epochs", type=int, default=200, help="number of epochs in the presets")
    parser.add_argument("--options", default="", help="additional options of labelkit train, as a single string")
    parser.add_argument("--jobs", type=int, default=1, help="number of parallel runs")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="time limit, after which the runs stop")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    order = [(name, words, seed) for seed in options.seeds for name, words, _ in ROWS]
    runs = {(name, seed): options.work.resolve() / f"{name.lower()}-{seed}" for name, _, seed in order}
    waiting = [row for row in order if not has_ended(runs[row[0], row[2]], options)]
    running: dict[tuple[str, int], subprocess.Popen[bytes]] = {}
    ends, next_look, failed = time.monotonic() + options.seconds, 0.0, []
    while waiting or running:
        now = time.monotonic()
        while waiting and len(running) < options.jobs and now < ends:
            name, words, seed = waiting.pop(0)
            running[name, seed] = train(words, seed, runs[name, seed], options)
        if now >= ends:
            waiting = []
            for child in running.values():
                child.send_signal(signal.SIGTERM)  # training writes a checkpoint
            ends = float("inf")
        for key, child in [(key, child) for key, child in running.items() if child.poll() is not None]:
            del running[key]
            if child.returncode not in (0, 143):
                failed.append(key)
                print(f"{key} failed:", *runs[key].with_suffix(".log").read_text().splitlines()[-5:], sep="\n  ")
        if now >= next_look:
            next_look = now + 15
            write(options, runs)
            print(*(f"{name}-{seed} {len(epochs(runs[name, seed]))}" for name, seed in running), sep=", ", flush=True)
        time.sleep(0.2)
    for row in write(options, runs):
        print(
            row["row"], row["seed"], "published", row["published"], "measured", row["measured"], "epochs", row["epochs"]
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
