"""Profile a function, and show as text where the time is spent."""

import cProfile
import os
import pstats
import site
import time
from collections.abc import Callable
from pathlib import Path

FUNCTIONS = 15


def profiled(work: Callable[[], object]) -> tuple[float, pstats.Stats]:
    """Return the CPU seconds and the profile of a function; a first call, which includes imports, does not count."""
    work()
    profile = cProfile.Profile(time.process_time)
    begin = time.process_time()
    profile.runcall(work)
    return time.process_time() - begin, pstats.Stats(profile)


def table(stats: pstats.Stats) -> str:
    """Return a table of the functions that take longest, by their own time."""
    rows = sorted(stats.stats.items(), key=lambda item: -item[1][2])[:FUNCTIONS]  # type: ignore[attr-defined] # untyped
    total = sum(entry[2] for entry in stats.stats.values())  # type: ignore[attr-defined] # likewise
    lines = [f"{'share':>6} {'own s':>8} {'all s':>8} {'calls':>8}  function"]
    for (file, line, name), (_, calls, own, cumulative, _) in rows:
        where = name if file in ("~", "") else f"{shown(file)}:{line} {name}"
        lines.append(f"{own / total:>6.1%} {own:>8.3f} {cumulative:>8.3f} {calls:>8}  {where}")
    return "\n".join(lines)


def shown(file: str) -> str:
    """Return a path relative to the repository or to the installed packages."""
    for root in (*site.getsitepackages(), str(Path(__file__).parents[1]), str(Path(os.__file__).parent)):
        if file.startswith(root):
            return file[len(root) + 1 :]
    return Path(file).name
