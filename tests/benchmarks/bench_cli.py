"""Time help and refusals of ``labelkit`` against the imports that no help with Typer and rich can do without.

Processor time of whole processes, started alike, with compiled modules, as an installation has them. The worst command
is looked for among all: the help of each is timed twice first.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from labelkit.stages.commands import all_commands
from tests.benchmarks.measure import Row, Wanted, compare

REPETITIONS = 5
IMPORTS = (sys.executable, "-c", "import typer, rich")


def rows() -> Iterator[Row]:
    """Compare the first help, the worst help, and the worst of the refusals that need no file."""
    # the console script stands beside the interpreter it was installed for
    script = str(Path(sys.executable).with_name("labelkit"))
    yield _row("labelkit --help", (script, "--help"), 3)
    names = [" ".join(name) for name in all_commands()]
    worst = _worst(names, lambda name: (script, *name.split(), "--help"))
    yield _row(f"labelkit {worst} --help, the worst help", (script, *worst.split(), "--help"), 3)
    worst = _worst(names, lambda name: (script, *name.split(), "--no-such-option"))
    yield _row(
        f"labelkit {worst} --no-such-option, the worst refusal", (script, *worst.split(), "--no-such-option"), 10
    )


def quick_rows() -> Iterator[Row]:
    """Compare the first help alone: to find the worst, every command is run."""
    yield _row("labelkit --help", (str(Path(sys.executable).with_name("labelkit")), "--help"), 3)


def _row(name: str, command: tuple[str, ...], limit: float) -> Row:
    return compare(
        f"{name} / python -c 'import typer, rich', processor time",
        lambda: _processor_seconds(command),
        lambda: _processor_seconds(IMPORTS),
        wanted=Wanted("<=", limit),
        repetitions=REPETITIONS,
        warmups=3,
    )


def _worst(names: list[str], command: Callable[[str], tuple[str, ...]]) -> str:
    return max(names, key=lambda name: min(_processor_seconds(command(name)) for _ in range(2)))


def _processor_seconds(command: tuple[str, ...]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    compiled = os.environ | {"PYTHONDONTWRITEBYTECODE": ""}
    done = subprocess.run(command, check=False, env=compiled, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode not in (0, 2):
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
