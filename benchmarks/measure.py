"""Compare two computations by running them alternately, so that a noisy machine slows both equally."""

import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NotRequired, TypedDict


class Row(TypedDict):
    """One line of the table: seconds of both sides, their ratio, and the bound of the ratio."""

    name: str
    ours_s: float
    peer_s: float
    ratio: float
    wanted: str
    ok: bool
    ratio_min: NotRequired[float]
    ratio_max: NotRequired[float]
    ratio_inner: NotRequired[list[float]]
    repetitions: NotRequired[int]


@dataclass(frozen=True, slots=True)
class Wanted:
    """The bound of a ratio.

    Attributes:
        sign: ``<=``: ratio is our time over the peer's; ``>=``: our speed over the peer's; empty: our speed over the
            peer's, shown without a bound.
        limit: the bound.
    """

    sign: Literal["<=", ">=", ""]
    limit: float = 0.0

    def ratio(self, ours_s: float, peer_s: float) -> float:
        """Return the ratio of one repetition."""
        return ours_s / peer_s if self.sign == "<=" else peer_s / ours_s

    def is_met(self, ratio: float) -> bool:
        """Return whether the ratio is within the bound."""
        return ratio <= self.limit if self.sign == "<=" else ratio >= self.limit

    def __str__(self) -> str:
        return f"{self.sign} {self.limit:g}" if self.sign else "shown only"


MAX_SPREAD = 5.0
# With this many repetitions, the lowest and highest ratios are ignored: another process may have disturbed one.
MANY_TURNS = 7


def fault(row: Row) -> str | None:
    """Return why the value of a row is invalid, or ``None`` if it is valid.

    A time or ratio that is not positive was not measured; a ratio that varies fivefold between repetitions was measured
    on a busy machine. With seven repetitions or more, the lowest and the highest may vary more.
    """
    if row["wanted"] == "skipped":
        return None
    if not all(math.isfinite(row[key]) and row[key] > 0 for key in ("ours_s", "peer_s", "ratio")):
        return f"{row['ours_s']:.3g}, {row['peer_s']:.3g} and their ratio {row['ratio']:.3g} are not all positive"
    low, high = row.get("ratio_inner") or (row.get("ratio_min", 1.0), row.get("ratio_max", 1.0))
    if high > MAX_SPREAD * low:
        return f"ratios from {low:.3g} to {high:.3g}"
    return None


def seconds(work: Callable[[], object]) -> Callable[[], float]:
    """Return a function that does the work and returns how long it took."""

    def timed() -> float:
        begin = time.perf_counter()
        work()
        return time.perf_counter() - begin

    return timed


def processor_seconds(work: Callable[[], object]) -> Callable[[], float]:
    """Like :func:`seconds`, but CPU seconds of all threads, which exclude other processes on a busy machine."""

    def timed() -> float:
        begin = time.process_time()
        work()
        return time.process_time() - begin

    return timed


def memory(name: str) -> int:
    """Return the memory of this process in bytes, current (``VmRSS``) or peak (``VmHWM``)."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return 1024 * int(line.split()[1])


def compare(
    name: str,
    ours: Callable[[], float],
    peer: Callable[[], float],
    *,
    wanted: Wanted,
    repetitions: int,
    warmups: int = 1,
) -> Row:
    """Run both sides alternately: ours, peer, ours, peer, ...

    Args:
        name: name of the row.
        ours: runs our side once and returns its seconds, for the same amount of work as the peer.
        peer: runs the peer once and returns its seconds.
        wanted: bound of the ratio.
        repetitions: number of measured repetitions.
        warmups: number of repetitions before them.

    Returns:
        Medians over the repetitions. The ratio is the median of the ratios of consecutive runs rather than the ratio of
        the medians: if the machine becomes slower halfway through, both runs of a pair are affected.
    """
    (row,) = compare_several([Side(name, ours, wanted)], peer, repetitions=repetitions, warmups=warmups)
    return row


@dataclass(frozen=True, slots=True)
class Side:
    """One of several sides compared with the same peer: the name of its row, its work, and its bound."""

    name: str
    work: Callable[[], float]
    wanted: Wanted


def compare_several(
    sides: Sequence[Side], peer: Callable[[], float], *, repetitions: int, warmups: int = 1
) -> list[Row]:
    """Like :func:`compare`, but each run of the peer counts for every side: first, second, peer, first, second, ..."""
    for _ in range(warmups):
        for side in sides:
            side.work()
        peer()
    turns = [([side.work() for side in sides], peer()) for _ in range(repetitions)]
    rows = []
    for number, side in enumerate(sides):
        pairs = [(ours[number], theirs) for ours, theirs in turns]
        ratios = sorted(side.wanted.ratio(*pair) for pair in pairs)
        ratio = statistics.median(ratios)
        row = Row(
            name=side.name,
            ours_s=statistics.median(pair[0] for pair in pairs),
            peer_s=statistics.median(pair[1] for pair in pairs),
            ratio=ratio,
            wanted=str(side.wanted),
            ok=side.wanted.is_met(ratio),
            ratio_min=ratios[0],
            ratio_max=ratios[-1],
            repetitions=repetitions,
        )
        if repetitions >= MANY_TURNS:
            row["ratio_inner"] = [ratios[1], ratios[-2]]
        rows.append(row)
    return rows


def with_check(row: Row, what: str, same: bool) -> Row:
    """Add to a row whether both sides gave the same result; a faster way to a different result does not count."""
    name = f"{row['name']}, {'same' if same else 'DIFFERENT'} {what}"
    return {**row, "name": name, "ok": row["ok"] and same}


@contextmanager
def own_cache() -> Iterator[Path]:
    """Provide a temporary folder, which also serves as the cache of labelkit and its processes."""
    with tempfile.TemporaryDirectory() as name:
        before, os.environ["LABELKIT_CACHE"] = os.environ.get("LABELKIT_CACHE"), str(Path(name) / "cache")
        try:
            yield Path(name)
        finally:
            del os.environ["LABELKIT_CACHE"]
            if before is not None:
                os.environ["LABELKIT_CACHE"] = before
