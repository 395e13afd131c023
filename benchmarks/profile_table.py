"""Profile a piece of work, and show as text where its time went."""

import cProfile
import os
import pstats
import site
import time
from collections.abc import Callable
from pathlib import Path

FUNCTIONS = 15


def profiled(work: Callable[[], object]) -> tuple[float, pstats.Stats]:
    """Seconds of the processor, and where they were spent; the first call pays for imports and does not count."""
    work()
    profile = cProfile.Profile(time.process_time)
    begin = time.process_time()
    profile.runcall(work)
    return time.process_time() - begin, pstats.Stats(profile)


def table(stats: pstats.Stats) -> str:
    """The functions that take most, by the time in themselves."""
    rows = sorted(stats.stats.items(), key=lambda item: -item[1][2])[:FUNCTIONS]  # type: ignore[attr-defined] # untyped
    total = sum(entry[2] for entry in stats.stats.values())  # type: ignore[attr-defined] # likewise
    lines = [f"{'share':>6} {'own s':>8} {'all s':>8} {'calls':>8}  function"]
    for (file, line, name), (_, calls, own, cumulative, _) in rows:
        where = name if file in ("~", "") else f"{shown(file)}:{line} {name}"
        lines.append(f"{own / total:>6.1%} {own:>8.3f} {cumulative:>8.3f} {calls:>8}  {where}")
    return "\n".join(lines)


def shown(file: str) -> str:
    """A file below the repository or the installed packages."""
    for root in (*site.getsitepackages(), str(Path(__file__).parents[1]), str(Path(os.__file__).parent)):
        if file.startswith(root):
            return file[len(root) + 1 :]
    return Path(file).name
