"""Compare two pieces of work by turns, so that a noisy machine slows both alike."""

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
    """One line of the table: seconds of both sides, their ratio, and the ratio asked for."""

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
    """What a ratio must be.

    Attributes:
        sign: ``<=``: ratio is our time over the peer's; ``>=``: our speed over the peer's; empty: our speed over the
            peer's, shown and not judged.
        limit: the bound.
    """

    sign: Literal["<=", ">=", ""]
    limit: float = 0.0

    def ratio(self, ours_s: float, peer_s: float) -> float:
        """Return the ratio of one repetition."""
        return ours_s / peer_s if self.sign == "<=" else peer_s / ours_s

    def is_met(self, ratio: float) -> bool:
        """Tell whether the ratio is within the bound."""
        return ratio <= self.limit if self.sign == "<=" else ratio >= self.limit

    def __str__(self) -> str:
        return f"{self.sign} {self.limit:g}" if self.sign else "shown only"


MAX_SPREAD = 5.0
# Of so many turns, the lowest and the highest ratio break no row: the machine may do something else in one of them.
MANY_TURNS = 7


def fault(row: Row) -> str | None:
    """Say why a row's figure cannot be taken for one; ``None``: it can.

    A time or ratio that is not positive was not measured; a ratio that differs fivefold between turns was measured on a
    machine that did something else. Of seven turns or more, the lowest and the highest may lie further out.
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
    """As :func:`seconds`, of the processor and of all threads, so that neighbors on a busy machine do not count."""

    def timed() -> float:
        begin = time.process_time()
        work()
        return time.process_time() - begin

    return timed


def memory(name: str) -> int:
    """Bytes of this process alone: ``VmRSS``, resident now; ``VmHWM``, its peak."""
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
    """Run both sides by turns: ours, peer, ours, peer, ...

    Args:
        name: of the row.
        ours: runs once and returns its seconds, whatever unit of work both sides agree on.
        peer: likewise.
        wanted: what the ratio must be.
        repetitions: turns that count.
        warmups: turns before them.

    Returns:
        Medians over the repetitions. The ratio is the median of the ratios of neighboring turns, not the ratio of the
        medians: a machine that becomes slower halfway through changes both turns of a pair.
    """
    (row,) = compare_several([Side(name, ours, wanted)], peer, repetitions=repetitions, warmups=warmups)
    return row


@dataclass(frozen=True, slots=True)
class Side:
    """What is compared with a peer that several share: the name of its row, its work, and what is wanted of it."""

    name: str
    work: Callable[[], float]
    wanted: Wanted


def compare_several(
    sides: Sequence[Side], peer: Callable[[], float], *, repetitions: int, warmups: int = 1
) -> list[Row]:
    """As :func:`compare`, where a turn of the peer counts for every side: first, second, peer, first, second, ..."""
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
    """Add to a row whether both sides came to the same result; a faster way to another result does not count."""
    name = f"{row['name']}, {'same' if same else 'DIFFERENT'} {what}"
    return {**row, "name": name, "ok": row["ok"] and same}


@contextmanager
def own_cache() -> Iterator[Path]:
    """A folder that is gone afterwards, where labelkit and its processes also keep what they would keep for a user."""
    with tempfile.TemporaryDirectory() as name:
        before, os.environ["LABELKIT_CACHE"] = os.environ.get("LABELKIT_CACHE"), str(Path(name) / "cache")
        try:
            yield Path(name)
        finally:
            del os.environ["LABELKIT_CACHE"]
            if before is not None:
                os.environ["LABELKIT_CACHE"] = before
