"""Progress on stderr: a line that is redrawn on a terminal, or a new line every few seconds elsewhere."""

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from labelkit.cli.console import OutputOptions, escape_controls, is_main_process, print_message, write_text
from labelkit.progress import Progress, Task

_SECONDS_BETWEEN_LINES = 5.0
# without a terminal: longer intervals for long tasks, as a fraction of the elapsed time, up to a maximum
_SHARE_BETWEEN_LINES = 0.1
_MAX_SECONDS_BETWEEN_LINES = 60.0
_SECONDS_BETWEEN_REDRAWS = 0.1
_ERASE = "\r\x1b[K"


def create_progress_display(output: OutputOptions) -> Progress:
    """Return the progress display that suits the terminal and the output options."""
    if not is_main_process():
        return Progress()
    if output.quiet:
        return QuietProgress()
    if sys.stderr.isatty() and os.environ.get("TERM") not in {"dumb", "unknown"}:
        return LineProgress(_SECONDS_BETWEEN_REDRAWS, redraws=True)
    return LineProgress()


class QuietProgress(Progress):
    """Progress display for quiet runs (``-q``), which shows only warnings."""

    def warning(self, text: str) -> None:
        """Print a warning."""
        print_message(f"warning: {text}")


class LineProgress(Progress):
    """Progress display that regularly prints a line per task, or redraws a single line on a terminal.

    Args:
        seconds: minimum time between two lines of a task.
        clock: function that returns the time in seconds.
        redraws: whether each line replaces the previous line, as on a terminal.
    """

    def __init__(
        self,
        seconds: float = _SECONDS_BETWEEN_LINES,
        clock: Callable[[], float] = time.monotonic,
        *,
        redraws: bool = False,
    ) -> None:
        self.seconds = seconds
        self.clock = clock
        self.redraws = redraws
        self._is_drawn = False

    @contextmanager
    def task(self, description: str, total: int | None = None) -> Iterator[Task]:
        """Report the progress of a task inside a ``with`` block."""
        task = _LineTask(self, description, total)
        try:
            yield task
        finally:
            self._erase()
        task.finish()

    def show(self, text: str) -> None:
        """Print or redraw the progress line of a task."""
        if self.redraws:
            line = escape_controls(text).replace("\n", " ")[: shutil.get_terminal_size().columns - 1]
            write_text(f"{_ERASE}{line}", sys.stderr)
            self._is_drawn = True
        else:
            print_message(text)

    def message(self, text: str) -> None:
        """Print a message."""
        self._erase()
        print_message(text)

    def warning(self, text: str) -> None:
        """Print a warning."""
        self.message(f"warning: {text}")

    def ask(self, question: str) -> str:
        """Ask a question and return the answer, which is empty on Enter or without a terminal."""
        if not self.redraws or not sys.stdin.isatty():
            return ""
        self.message(question)
        return sys.stdin.readline().strip()

    def _erase(self) -> None:
        if self._is_drawn:
            write_text(_ERASE, sys.stderr)
            self._is_drawn = False


class _LineTask(Task):
    def __init__(self, progress: LineProgress, description: str, total: int | None) -> None:
        self._progress = progress
        self._description = description
        self._total = total
        self._started = self._last = progress.clock()
        self._done = self._skipped = 0
        self._info: dict[str, object] = {}

    def advance(self, n: int = 1, **info: object) -> None:
        self._done += n
        self._info.update(info)
        now, wait = self._progress.clock(), self._progress.seconds
        if not self._progress.redraws:  # a log of a long task stays short
            wait = max(wait, min(_MAX_SECONDS_BETWEEN_LINES, _SHARE_BETWEEN_LINES * (now - self._started)))
        if now - self._last >= wait:
            self._last = now
            self._print_line(now - self._started, finished=False)

    def skip(self, n: int) -> None:
        self._done += n
        self._skipped += n

    def finish(self) -> None:
        elapsed = self._progress.clock() - self._started
        if elapsed >= _SECONDS_BETWEEN_LINES and self._total != 0:  # short or empty tasks are not reported
            self._print_line(elapsed, finished=True)

    def _print_line(self, elapsed: float, *, finished: bool) -> None:
        parts = [f"{self._done:,}" if self._total is None else f"{self._done:,}/{self._total:,}"]
        if self._total is None and not self._done:
            parts = []  # nothing was counted
        if finished:
            parts.append(f"done in {format_duration(elapsed)}")
        elif self._total and self._skipped < self._done <= self._total:
            parts.append(f"{format_duration(elapsed / (self._done - self._skipped) * (self._total - self._done))} left")
        for name, value in self._info.items():
            parts.append(f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}")
        (self._progress.message if finished else self._progress.show)(f"{self._description}: {', '.join(parts)}")


def format_duration(seconds: float) -> str:
    """Format a duration in readable units, such as ``8 s``, ``3.4 min`` or ``2.1 h``."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"
