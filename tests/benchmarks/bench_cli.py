"""Time ``labelkit --help`` against the imports that no help with Typer and rich can do without."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.benchmarks.measure import Row, Wanted, compare, seconds

REPETITIONS = 21


def rows() -> Iterator[Row]:
    """Compare whole processes, started alike."""
    # the console script stands beside the interpreter it was installed for
    script = Path(sys.executable).with_name("labelkit")

    def run(*command: str) -> None:
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    yield compare(
        "labelkit --help / python -c 'import typer, rich'",
        seconds(lambda: run(str(script), "--help")),
        seconds(lambda: run(sys.executable, "-c", "import typer, rich")),
        wanted=Wanted("<=", 3),
        repetitions=REPETITIONS,
        warmups=3,
    )
