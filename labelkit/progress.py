"""How a stage tells what it is doing; silent unless someone listens (the command line does).

A stage asks ``current_progress()`` and never prints:

    with current_progress().task("embed", total=n) as task:
        for batch in batches:
            ...
            task.advance(len(batch), loss=loss)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Protocol


class Task(Protocol):
    """Progress bar of one task with a known or unknown number of units."""

    def advance(self, n: int = 1, **info: object) -> None:
        """Report ``n`` more finished units; ``info`` holds the latest numbers to show with them."""
        ...

    def skip(self, n: int) -> None:
        """Report ``n`` units that were already done or took no time, leaving them out of the time estimate."""
        ...


class Progress(Protocol):
    """Interface through which a command reports progress, messages and warnings."""

    def task(self, description: str, total: int | None = None) -> AbstractContextManager[Task]:
        """Start a progress task of ``total`` units (None: unknown); tasks may nest."""
        ...

    def message(self, text: str) -> None:
        """Show a one-line message that stays visible."""
        ...

    def warning(self, text: str) -> None:
        """Show a warning that the user should act on, and continue."""
        ...

    def ask(self, question: str) -> str:
        """Ask the user a question; return an empty text if nobody is there or the default is taken."""
        ...


class SilentTask:
    """Progress task that reports nothing."""

    def advance(self, n: int = 1, **info: object) -> None:
        """Ignore the report."""

    def skip(self, n: int) -> None:
        """Ignore the report."""


class SilentProgress:
    """Progress that reports nothing, the default for library users."""

    def task(self, description: str, total: int | None = None) -> AbstractContextManager[Task]:
        """Return a progress task that reports nothing."""
        return nullcontext(SilentTask())

    def message(self, text: str) -> None:
        """Ignore the message."""

    def warning(self, text: str) -> None:
        """Ignore the warning."""

    def ask(self, question: str) -> str:
        """Return an empty text, since there is nobody to ask."""
        return ""


_SILENT: Progress = SilentProgress()
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
