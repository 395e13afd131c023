"""Time the help of ``labelkit`` against one second, and refusals against the imports that no Typer can do without.

Processor time of whole processes, started alike, with compiled modules, as an installation has them. The worst refusal
is looked for among all commands: each is timed twice first.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from labelkit.stages.commands import all_commands

from benchmarks.measure import Row, Wanted, compare

REPETITIONS = 5
IMPORTS = (sys.executable, "-c", "import typer, rich")


def rows() -> Iterator[Row]:
    """Compare the first help, and the worst of the refusals that need no file."""
    yield from quick_rows()
    names = [" ".join(name) for name in all_commands()]
    worst = _worst(names, lambda name: (_script(), *name.split(), "--no-such-option"))
    yield _row(
        f"labelkit {worst} --no-such-option, the worst refusal / python -c 'import typer, rich', processor time",
        (_script(), *worst.split(), "--no-such-option"),
        lambda: _processor_seconds(IMPORTS),
        10,
    )


def quick_rows() -> Iterator[Row]:
    """Compare the first help alone: to find the worst refusal, every command is run."""
    yield _row("labelkit --help / one second, processor time", (_script(), "--help"), lambda: 1.0, 1)


def _script() -> str:
    # the console script stands beside the interpreter it was installed for
    return str(Path(sys.executable).with_name("labelkit"))


def _row(name: str, command: tuple[str, ...], peer: Callable[[], float], limit: float) -> Row:
    return compare(
        name,
        lambda: _processor_seconds(command),
        peer,
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
