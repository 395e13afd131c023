"""Progress reports of a stage, which are silent unless someone listens, as the command line does.

A stage calls ``current_progress()`` and never prints:

    with current_progress().task("embed", total=n) as task:
        for batch in batches:
            ...
            task.advance(len(batch), loss=loss)
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar


class Task:
    """Progress of one task with a known or unknown number of units; this base class shows nothing."""

    def advance(self, n: int = 1, **info: object) -> None:
        """Report ``n`` more finished units; ``info`` holds the latest numbers to show with them."""

    def skip(self, n: int) -> None:
        """Report ``n`` units that were already done or took no time, leaving them out of the time estimate."""


class Progress:
    """Receiver of a command's progress reports, messages and warnings; this base class, the default, shows nothing."""

    def task(self, description: str, total: int | None = None) -> AbstractContextManager[Task]:
        """Start a progress task of ``total`` units (None: unknown); tasks may nest."""
        return nullcontext(Task())

    def message(self, text: str) -> None:
        """Show a one-line message that stays visible."""

    def warning(self, text: str) -> None:
        """Show a warning that the user should act on, and continue."""

    def ask(self, question: str) -> str:
        """Ask the user a question; return an empty string if nobody can answer or the user accepts the default."""
        return ""


_SILENT = Progress()
_current: ContextVar[Progress] = ContextVar("labelkit_progress", default=_SILENT)


def current_progress() -> Progress:
    """Return the progress object that receives the reports of the current context."""
    return _current.get()


@contextmanager
def use_progress(progress: Progress) -> Iterator[Progress]:
    """Send progress reports to ``progress`` inside the ``with`` block."""
    token = _current.set(progress)
    try:
        yield progress
    finally:
        _current.reset(token)
