"""Functions shared by the comparison scripts: running commands, storing runs, mean and spread, the record."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

Stats = dict[str, float]


def run(*words: object) -> tuple[dict[str, Any], float]:
    """Run one labelkit command with --json on one thread; returns what it printed and the CPU seconds it took."""
    command = [sys.executable, "-m", "labelkit", *map(str, words), "--json"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryFile() as printed, tempfile.TemporaryFile() as said:
        process = subprocess.Popen(command, stdout=printed, stderr=said, env=environment)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        printed.seek(0)
        said.seek(0)
        if process.returncode != 0:
            raise SystemExit(f"{' '.join(command)}\n{said.read().decode()}")
        return json.loads(printed.read()), usage.ru_utime + usage.ru_stime


def train(out: Path, *words: object) -> dict[str, Any]:
    """Train into ``out`` unless a finished run is there; returns its summary, with ``cpu_seconds`` of the whole run.

    A run that was stopped goes on, and then its cost is not known: ``cpu_seconds`` is left out.
    """
    summary, cost = out / "summary.json", out.with_name(f"{out.name}.cost.json")
    if not summary.exists():
        started_here = not out.exists()
        _, seconds = run("train", *words, "--threads", 1, "--out", out, *([] if started_here else ["--resume"]))
        if started_here:
            cost.write_text(json.dumps(seconds))
    found: dict[str, Any] = json.loads(summary.read_text())
    return found | ({"cpu_seconds": json.loads(cost.read_text())} if cost.exists() else {})


def epochs(out: Path) -> list[dict[str, Any]]:
    """What a run logged after each epoch."""
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if "epoch" in line and "kind" not in line and "seconds" in line]


def add_options(parser: argparse.ArgumentParser, *, seeds: int = 5) -> None:
    """Options that all comparisons have."""
    parser.add_argument("--dataset", default="digits", help="images, or a store NAME.h5 whose rows are trained on")
    parser.add_argument("--data-root", default="data")
    parser.add_argument("--max-per-class", type=int, default=None, help="use only a part of each class")
    parser.add_argument("--seeds", type=int, default=seeds)
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time, one thread each")
    parser.add_argument("--keep", type=Path, default=None, help="keep runs here; a stopped comparison goes on")
    parser.add_argument("--plot", type=Path, default=None, help="PNG to draw")
    parser.add_argument("--out", type=Path, default=None, help="JSON file to write")
    parser.add_argument("extra", nargs="*", help="further options of `labelkit train`, after --")


def add_only(parser: argparse.ArgumentParser) -> None:
    """An option for what a single method gets; see :func:`own_words`."""
    names = ("METHOD", "WORDS")
    parser.add_argument("--only", nargs=2, action="append", default=[], metavar=names, help="options of one method")


def own_words(options: argparse.Namespace, method: str) -> list[str]:
    """Further options of a training: those for all, where ``--only`` does not give the method its own."""
    own = [word for name, words in options.only if name == method for word in words.split()]
    named = {word for word in own if word.startswith("--")}
    kept: list[str] = []
    is_kept = True
    for word in options.extra:
        if word.startswith("--"):
            is_kept = word not in named
        kept += [word] if is_kept else []
    return [*kept, *own]


def data_words(options: argparse.Namespace) -> list[str]:
    """Options of a labelkit command that say which images."""
    part = [] if options.max_per_class is None else ["--max-per-class", str(options.max_per_class)]
    if options.dataset.endswith(".h5"):
        return ["--index", options.dataset, *part]
    return ["--dataset", options.dataset, "--data-root", options.data_root, *part]


@contextmanager
def run_folder(options: argparse.Namespace, *also: object) -> Iterator[Path]:
    """Where runs go: ``--keep``, or a folder that vanishes.

    Args:
        options: see :func:`add_options`.
        also: what else decides about the runs, beside the data and the extra options.

    Raises:
        SystemExit: what is kept there was made with other options.
    """
    if options.keep is None:
        with tempfile.TemporaryDirectory() as scratch:
            yield Path(scratch)
        return
    options.keep.mkdir(parents=True, exist_ok=True)
    about, now = (
        options.keep / "about.json",
        json.dumps([data_words(options), options.extra, *map(str, [*getattr(options, "only", []), *also])]),
    )
    if about.exists() and about.read_text() != now:
        raise SystemExit(
            f"{options.keep}: contains runs with the options {about.read_text()}, not {now}. Pass another --keep."
        )
    about.write_text(now)
    yield options.keep


def spread(values: Sequence[float]) -> Stats:
    """Mean and standard deviation; that of a single value is 0."""
    return {"mean": statistics.mean(values), "sd": statistics.stdev(values) if len(values) > 1 else 0.0}


def summarize(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean and standard deviation of every fractional number, over the runs that have it; and the runs."""
    names = sorted({key for one in runs for key, value in one.items() if isinstance(value, float)})
    return {name: spread([one[name] for one in runs if name in one]) for name in names} | {"runs": runs}


def shown(stats: Stats | None, digits: int = 1) -> str:
    """Mean ± standard deviation; empty where there is nothing."""
    return "" if stats is None else f"{stats['mean']:.{digits}f} ± {stats['sd']:.{digits}f}"


def write_record(options: argparse.Namespace, **results: Any) -> None:
    """Write --out: the command, versions and machine, and the results."""
    if options.out is None:
        return
    record = {
        "command": shlex.join(["python", *sys.argv]),
        "dataset": options.dataset,
        "seeds": list(range(options.seeds)),
        "versions": {name: version(name) for name in ("labelkit-images", "torch", "numpy", "scikit-learn")},
        "python": platform.python_version(),
        "machine": {"system": platform.system(), "processor": platform.machine(), "cores": os.cpu_count()},
        "options": options.extra,
        **results,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(record, indent=1) + "\n")
