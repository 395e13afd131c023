"""Run every ``bench_*.py`` in this folder and print one table; ``python -m benchmarks``.

The exit code is 0 even if a ratio misses its bound: the table says so, and the machine may be to blame. It is 1 if the
value of a row is impossible: negative, not a number, or varying fivefold between repetitions.

Measuring how time and memory grow with the size of a store takes half an hour, so it requires ``--growth``. ``--quick``
runs the rows of each module that take seconds. Slow rows without a bound (``shown_rows`` of a module) run only with
``--only``. Omitted rows are listed.
"""

import argparse
import importlib
import json
import os
import platform
import shlex
import sys
import time
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any

import psutil
import torch
from threadpoolctl import threadpool_info, threadpool_limits

from benchmarks.measure import Row, fault

NAMES = sorted(path.stem.removeprefix("bench_") for path in Path(__file__).parent.glob("bench_*.py"))
GROWTH = "load"
PACKAGES = (
    *("labelkit-images", "torch", "timm", "accelerate", "numpy", "scipy", "scikit-learn", "faiss-cpu"),
    *("pytorch-metric-learning", "h5py", "pillow", "typer", "rich"),
)
NAME_WIDTH = 96


def main() -> int:
    """Run the benchmarks, print and write the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Benchmark against other libraries.")
    part = parser.add_mutually_exclusive_group()
    part.add_argument("--only", choices=NAMES, metavar="NAME", help=f"run one of: {', '.join(NAMES)}")
    part.add_argument("--quick", action="store_true", help="run only rows that take seconds")
    part.add_argument("--growth", action="store_true", help="measure the growth of time and memory (half an hour)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write rows, versions, threads and seeds")
    # With more threads than idle cores, parallel regions wait for the slowest: ratios then measure other processes.
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="CPU threads on both sides (1)")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    record: dict[str, Any] = {
        "command": " ".join([*sizes(), shlex.join([Path(sys.executable).name, "-m", "benchmarks", *sys.argv[1:]])]),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}},
        "machine": machine() | {"threads": options.threads},
        "load_average": {"before": os.getloadavg()[0]},
        "seconds": {},
        "seeds": {},
        "rows": [],
    }
    left_out: list[str] = []
    shown_alone: list[str] = []
    show(f"{'':{NAME_WIDTH}}  {'ours':>9}  {'peer':>9}  {'ratio':>6}  {'min - max':>13}  wanted")
    for name in chosen(options):
        module = importlib.import_module(f"benchmarks.bench_{name}")
        work = getattr(module, "quick_rows", None) if options.quick else module.rows
        if work is None:
            left_out.append(name)
            continue
        shown = getattr(module, "shown_rows", None)
        if shown is not None and options.only is None:
            shown_alone.append(name)
        parts = [work, shown] if shown is not None and options.only is not None else [work]
        if hasattr(module, "SEEDS"):
            record["seeds"][name] = module.SEEDS
        begin = time.perf_counter()
        with threadpool_limits(options.threads):
            for row in chain.from_iterable(part() for part in parts):
                show(line(row))
                record["rows"].append(row)
                record["seconds"][name] = round(time.perf_counter() - begin, 1)
                write(record, options.json)
    broken = [(row["name"], reason) for row in record["rows"] if (reason := fault(row)) is not None]
    for name, reason in broken:
        show(f"broken row: {name}: {reason}")
    record["load_average"]["after"] = os.getloadavg()[0]
    before, after = record["load_average"].values()
    show(summary(record["rows"], record["seconds"], left_out))
    if shown_alone:
        show(f"rows that are shown and not judged run by --only NAME: {', '.join(shown_alone)}")
    show(f"threads {options.threads}, cores {os.cpu_count()}, load {before:.1f} before, {after:.1f} after")
    write(record, options.json)
    return 1 if broken else 0


def write(record: dict[str, Any], path: Path | None) -> None:
    """Write the results so far; if the run is interrupted, the final system load is missing."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(record, indent=2) + "\n")


def chosen(options: argparse.Namespace) -> list[str]:
    """Return the names of the modules to run."""
    if options.only is not None:
        return [options.only]
    if options.growth:
        return [GROWTH]
    return [name for name in NAMES if name != GROWTH]


def summary(table: list[Row], took: dict[str, float], left_out: list[str]) -> str:
    """Return the number of rows within their bounds, and the time per module."""
    met = sum(row["ok"] for row in table)
    slowest = sorted(took, key=took.__getitem__, reverse=True)
    times = ", ".join(f"{name} {took[name]:.0f} s" for name in slowest)
    missing = f"; without quick rows: {', '.join(left_out)}" if left_out else ""
    return f"{met} of {len(table)} as wanted; {sum(took.values()) / 60:.1f} min: {times}{missing}"


def sizes() -> list[str]:
    """Return the environment variables that set problem sizes, as shell assignments."""
    found = {name: value for name, value in os.environ.items() if name.startswith("LABELKIT_BENCH_")}
    return [f"{name}={shlex.quote(value)}" for name, value in sorted(found.items()) if not name.endswith("_FOLDER")]


def machine() -> dict[str, Any]:
    """Return the properties that determine the speed of a machine: processor, cores, memory, linear algebra."""
    libraries = {f"{one['internal_api']} {one['version']}: {one.get('architecture')}" for one in threadpool_info()}
    names = [row.partition(":")[2].strip() for row in _cpu_facts() if row.startswith("model name")]
    return {
        "platform": platform.platform(),
        "processor": names[0] if names else platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "memory (GiB)": round(psutil.virtual_memory().total / 2**30, 1),
        "libraries": "; ".join(sorted(library for library in libraries if "None: None" not in library)),
        "chosen kernels": os.environ.get("OPENBLAS_CORETYPE", "by the library"),
    }


def _cpu_facts() -> list[str]:
    try:
        return Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return []


def line(row: Row) -> str:
    """Format one row of the table."""
    spread = f"{row['ratio_min']:.2f} - {row['ratio_max']:.2f}" if "ratio_min" in row else ""
    verdict = "" if row["ok"] else "  (missed)"
    times = f"{duration(row['ours_s']):>9}  {duration(row['peer_s']):>9}"
    return f"{row['name']:{NAME_WIDTH}}  {times}  {row['ratio']:>6.3g}  {spread:>13}  {row['wanted']}{verdict}"


def duration(seconds: float) -> str:
    """Format a time with three digits: ``23.4 ms``, ``1.2 s``."""
    return f"{1000 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def show(text: str) -> None:
    """Print a line without buffering."""
    print(text, flush=True)  # noqa: T201 - a script's result


if __name__ == "__main__":
    raise SystemExit(main())
