"""Run every ``bench_*.py`` of this folder and print one table; ``python -m tests.benchmarks``.

The exit code is 0 even where a ratio misses what is wanted: the table says so, and the machine may be to blame. It is 1
where a row's figure cannot be: negative, not a number, or different fivefold between turns.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import shlex
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from tests.benchmarks.measure import Row, fault

NAMES = sorted(path.stem.removeprefix("bench_") for path in Path(__file__).parent.glob("bench_*.py"))
PACKAGES = ("labelkit", "torch", "timm", "accelerate", "numpy", "scikit-learn", "h5py", "pillow", "typer", "rich")
NAME_WIDTH = 96


def main() -> int:
    """Parse, run, print, write."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description="Speed against named peers.")
    parser.add_argument("--only", choices=NAMES, metavar="NAME", help=f"run one of: {', '.join(NAMES)}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write rows, versions, threads and seeds")
    # With more threads than idle cores, every parallel region waits for the slowest: ratios then measure the neighbors.
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="CPU threads of torch, both sides (1)")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    load_before = os.getloadavg()[0]
    names = NAMES if options.only is None else [options.only]
    table: list[Row] = []
    seeds: dict[str, Any] = {}
    show(f"{'':{NAME_WIDTH}}  {'ours':>9}  {'peer':>9}  {'ratio':>6}  {'min - max':>13}  wanted")
    for name in names:
        module = importlib.import_module(f"tests.benchmarks.bench_{name}")
        if hasattr(module, "SEEDS"):
            seeds[name] = module.SEEDS
        for row in module.rows():
            table.append(row)
            show(line(row))
    broken = [(row["name"], reason) for row in table if (reason := fault(row)) is not None]
    for name, reason in broken:
        show(f"broken row: {name}: {reason}")
    missed = [row["name"] for row in table if not row["ok"]]
    load_after = os.getloadavg()[0]
    show(
        f"{len(table) - len(missed)} of {len(table)} as wanted; threads {torch.get_num_threads()}, "
        f"cores {os.cpu_count()}, load {load_before:.1f} before, {load_after:.1f} after"
    )
    if options.json is not None:
        record = {
            "command": shlex.join([Path(sys.executable).name, "-m", "tests.benchmarks", *sys.argv[1:]]),
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "versions": {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}},
            "platform": platform.platform(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "load_average": {"before": load_before, "after": load_after},
            "seeds": seeds,
            "rows": table,
        }
        options.json.write_text(json.dumps(record, indent=2) + "\n")
    return 1 if broken else 0


def line(row: Row) -> str:
    """Return one row of the table."""
    spread = f"{row['ratio_min']:.2f} - {row['ratio_max']:.2f}" if "ratio_min" in row else ""
    verdict = "" if row["ok"] else "  (missed)"
    times = f"{duration(row['ours_s']):>9}  {duration(row['peer_s']):>9}"
    return f"{row['name']:{NAME_WIDTH}}  {times}  {row['ratio']:>6.3g}  {spread:>13}  {row['wanted']}{verdict}"


def duration(seconds: float) -> str:
    """Return a time with three digits: ``23.4 ms``, ``1.2 s``."""
    return f"{1000 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def show(text: str) -> None:
    """Print a line at once."""
    print(text, flush=True)  # noqa: T201 - a script's result


if __name__ == "__main__":
    raise SystemExit(main())
