"""Functions shared by the comparison scripts: run commands, keep runs, summarize and record results."""

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
    """Run a labelkit command with --json on one thread; return its output and the CPU seconds."""
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
    """Train into ``out`` unless it contains a finished run; return the summary, with ``cpu_seconds`` of the whole run.

    An interrupted run is resumed; its cost is then unknown, so ``cpu_seconds`` is omitted.
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
    """Return the metrics that a run logged after each epoch."""
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if "epoch" in line and "kind" not in line and "seconds" in line]


def add_options(parser: argparse.ArgumentParser, *, seeds: int = 5) -> None:
    """Add the options that all comparisons have."""
    parser.add_argument("--dataset", default="digits", help="dataset, or a store NAME.h5 to train on its embeddings")
    parser.add_argument("--data-root", default="data")
    parser.add_argument("--max-per-class", type=int, default=None, help="use at most this number of images per class")
    parser.add_argument("--seeds", type=int, default=seeds)
    parser.add_argument("--jobs", type=int, default=2, help="number of parallel runs, one thread each")
    parser.add_argument("--keep", type=Path, default=None, help="folder in which runs are kept and resumed")
    parser.add_argument("--plot", type=Path, default=None, help="PNG file for the plot")
    parser.add_argument("--out", type=Path, default=None, help="JSON file to write")
    parser.add_argument("extra", nargs="*", help="additional options of `labelkit train`, after --")


def add_only(parser: argparse.ArgumentParser) -> None:
    """Add the option for method-specific options; see :func:`own_words`."""
    names = ("METHOD", "WORDS")
    parser.add_argument("--only", nargs=2, action="append", default=[], metavar=names, help="options of one method")


def own_words(options: argparse.Namespace, method: str) -> list[str]:
    """Return the additional training options: those of ``--only`` for this method, otherwise the common ones."""
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
    """Return the options of a labelkit command that select the images."""
    part = [] if options.max_per_class is None else ["--max-per-class", str(options.max_per_class)]
    if options.dataset.endswith(".h5"):
        return ["--index", options.dataset, *part]
    return ["--dataset", options.dataset, "--data-root", options.data_root, *part]


@contextmanager
def run_folder(options: argparse.Namespace, *also: object) -> Iterator[Path]:
    """Provide the folder for runs: ``--keep``, or a temporary folder.

    Args:
        options: see :func:`add_options`.
        also: further settings that affect the runs, besides the data and the extra options.

    Raises:
        SystemExit: the folder contains runs with other options.
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
    """Return mean and standard deviation; a single value has a standard deviation of 0."""
    return {"mean": statistics.mean(values), "sd": statistics.stdev(values) if len(values) > 1 else 0.0}


def summarize(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return mean and standard deviation of every floating-point value, over the runs that have it, and the runs."""
    names = sorted({key for one in runs for key, value in one.items() if isinstance(value, float)})
    return {name: spread([one[name] for one in runs if name in one]) for name in names} | {"runs": runs}


def shown(stats: Stats | None, digits: int = 1) -> str:
    """Format mean ± standard deviation; empty if there is no value."""
    return "" if stats is None else f"{stats['mean']:.{digits}f} ± {stats['sd']:.{digits}f}"


def write_record(options: argparse.Namespace, **results: Any) -> None:
    """Write the command, versions, machine and results to --out."""
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
