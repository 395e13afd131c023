"""Time the help of ``labelkit`` against one second: CPU time of whole processes, with compiled modules."""

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.measure import Row, Wanted, compare

REPETITIONS = 5
# the console script is in the same folder as its interpreter
HELP = (Path(sys.executable).with_name("labelkit"), "--help")


def rows() -> Iterator[Row]:
    """Compare the time of the main help."""
    yield compare(
        "labelkit --help / one second, processor time",
        help_seconds,
        lambda: 1.0,
        wanted=Wanted("<=", 1),
        repetitions=REPETITIONS,
    )


quick_rows = rows


def help_seconds() -> float:
    """Return the CPU seconds of a process that prints the help, started as in an installation."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    compiled = os.environ | {"PYTHONDONTWRITEBYTECODE": ""}
    subprocess.run(HELP, check=True, env=compiled, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
