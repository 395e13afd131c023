"""Progress on stderr: bars on a terminal, else a line every few seconds."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from labelkit.cli.console import Output, escape_control, is_main_process, print_message
from labelkit.progress import Progress, SilentProgress, Task

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

_SECONDS_BETWEEN_LINES = 5.0
_SECONDS_BETWEEN_DRAWINGS = 0.1


def progress_for(output: Output) -> Progress:
    """Return the progress display for the terminal and output options."""
    if not is_main_process():
        return SilentProgress()
    if output.quiet:
        return WarningsOnly()
    if sys.stderr.isatty() and os.environ.get("TERM") not in {"dumb", "unknown"}:
        return BarProgress()
    return LineProgress()


class WarningsOnly(SilentProgress):
    """Progress display that shows only warnings, for ``-q``."""

    def warning(self, text: str) -> None:
        """Print a warning."""
        print_message(f"warning: {text}")


class LineProgress(SilentProgress):
    """Progress display that prints a line per task at regular intervals.

    Args:
        seconds: time between two lines of a task.
        clock: returns seconds.
    """

    def __init__(self, seconds: float = _SECONDS_BETWEEN_LINES, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock

    @contextmanager
    def task(self, description: str, total: int | None = None) -> Iterator[Task]:
        """Report the progress of a task inside a ``with`` block."""
        task = _LineTask(description, total, self._seconds, self._clock)
        yield task
        task.finish()

    def message(self, text: str) -> None:
        """Print a message."""
        print_message(text)

    def warning(self, text: str) -> None:
        """Print a warning."""
        print_message(f"warning: {text}")


class _LineTask(Task):
    def __init__(self, description: str, total: int | None, seconds: float, clock: Callable[[], float]) -> None:
        self._description = description
        self._total = total
        self._seconds = seconds
        self._clock = clock
        self._started = self._last = clock()
        self._done = self._skipped = 0
        self._info: dict[str, object] = {}

    def advance(self, n: int = 1, **info: object) -> None:
        self._done += n
        self._info.update(info)
        now = self._clock()
        if now - self._last >= self._seconds:
            self._last = now
            self._say(now - self._started, finished=False)

    def skip(self, n: int) -> None:
        self._done += n
        self._skipped += n

    def finish(self) -> None:
        elapsed = self._clock() - self._started
        if elapsed >= self._seconds and self._total != 0:  # short work needs no words, nor does none
            self._say(elapsed, finished=True)

    def _say(self, elapsed: float, *, finished: bool) -> None:
        parts = [f"{self._done:,}/{self._total:,}"] if self._total is not None else [f"{self._done:,}"]
        if self._total is None and not self._done:
            parts = []  # work that cannot be counted
        if finished:
            parts.append(f"done in {duration(elapsed)}")
        elif self._total and self._skipped < self._done <= self._total:
            parts.append(f"{duration(elapsed / (self._done - self._skipped) * (self._total - self._done))} left")
        parts += info_texts(self._info)
        print_message(f"{self._description}: {', '.join(parts)}")


class BarProgress(Progress):
    """Progress display with one bar per open task and messages above the bars.

    Bars are drawn when a task advances, not by a thread: a thread's locks would not survive the
    fork of data-loading processes.
    """

    def __init__(self) -> None:
        self._bars: Bars | None = None

    @contextmanager
    def task(self, description: str, total: int | None = None) -> Iterator[Task]:
        """Show a progress bar for a task inside a ``with`` block."""
        outermost = self._bars is None
        bars = self._bars or _new_bars()
        if outermost:
            self._bars = bars
            bars.start()
        bar = bars.add_task(escape_control(description), total=total, info="")
        try:
            yield _BarTask(bars, bar)
        finally:
            bars.remove_task(bar)
            bars.refresh()
            if outermost:
                bars.stop()
                self._bars = None

    def message(self, text: str) -> None:
        """Print a message above the bars."""
        self._say(text)

    def warning(self, text: str) -> None:
        """Print a warning above the bars."""
        self._say(f"warning: {text}")

    def ask(self, question: str) -> str:
        """Ask a question and return the typed answer, or an empty text on Enter or if nobody can type."""
        if not sys.stdin.isatty():
            return ""
        self._say(question)
        return sys.stdin.readline().strip()

    def _say(self, text: str) -> None:
        if self._bars is None:
            print_message(text)
        else:
            self._bars.console.print(escape_control(text), markup=False, highlight=False)


class _BarTask(Task):
    def __init__(self, bars: Bars, bar: TaskID) -> None:
        self._bars = bars
        self._bar = bar
        self._drawn = 0.0
        self._info: dict[str, object] = {}

    def advance(self, n: int = 1, **info: object) -> None:
        self._info.update(info)
        self._bars.update(self._bar, advance=n, info="  ".join(info_texts(self._info)))
        now = time.monotonic()
        if now - self._drawn >= _SECONDS_BETWEEN_DRAWINGS:
            self._drawn = now
            self._bars.refresh()

    def skip(self, n: int) -> None:
        next(task for task in self._bars.tasks if task.id == self._bar).completed += n  # no sample of the speed


def info_texts(info: dict[str, object]) -> list[str]:
    """Format values as ``name value`` texts, with floats in four digits."""
    return [
        escape_control(f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}")
        for name, value in info.items()
    ]


def duration(seconds: float) -> str:
    """Format a time span for people, such as ``8 s``, ``3.4 min`` or ``2.1 h``."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"


def _new_bars() -> Bars:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    return Bars(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[info]}", markup=False),
        console=Console(stderr=True),
        auto_refresh=False,
        transient=True,
        redirect_stdout=False,  # the result is not ours to draw
    )
