"""Time the help of ``labelkit`` against one second: processor time of whole processes, with compiled modules."""

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.measure import Row, Wanted, compare

REPETITIONS = 5
# the console script stands beside the interpreter it was installed for
HELP = (Path(sys.executable).with_name("labelkit"), "--help")


def rows() -> Iterator[Row]:
    """Compare the first help."""
    yield compare(
        "labelkit --help / one second, processor time",
        help_seconds,
        lambda: 1.0,
        wanted=Wanted("<=", 1),
        repetitions=REPETITIONS,
    )


quick_rows = rows


def help_seconds() -> float:
    """Processor seconds of a process that prints the help, as an installation starts it."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    compiled = os.environ | {"PYTHONDONTWRITEBYTECODE": ""}
    subprocess.run(HELP, check=True, env=compiled, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
