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
    """One piece of work with a length."""

    def advance(self, n: int = 1, **info: object) -> None:
        """Report ``n`` more units done; ``info`` are the latest numbers to show next to them."""
        ...

    def skip(self, n: int) -> None:
        """Report ``n`` units that were done before or took no time; the time that is left does not follow from them."""
        ...


class Progress(Protocol):
    """Receives progress reports of a command."""

    def task(self, description: str, total: int | None = None) -> AbstractContextManager[Task]:
        """Open a piece of work of ``total`` units (None: unknown); tasks may nest."""
        ...

    def message(self, text: str) -> None:
        """Show one line worth keeping."""
        ...

    def warning(self, text: str) -> None:
        """Show a warning that the user should act on, while work continues."""
        ...

    def ask(self, question: str) -> str:
        """Ask a person; the empty text: nobody is there, or the default is taken."""
        ...


class SilentTask:
    """Reports nothing."""

    def advance(self, n: int = 1, **info: object) -> None:
        """Ignore the call."""

    def skip(self, n: int) -> None:
        """Ignore the call."""


class SilentProgress:
    """Reports nothing; what library users get."""

    def task(self, description: str, total: int | None = None) -> AbstractContextManager[Task]:
        """Return a task that reports nothing."""
        return nullcontext(SilentTask())

    def message(self, text: str) -> None:
        """Ignore the call."""

    def warning(self, text: str) -> None:
        """Ignore the call."""

    def ask(self, question: str) -> str:
        """Return the empty text: nobody is there."""
        return ""


_SILENT: Progress = SilentProgress()
_current: ContextVar[Progress] = ContextVar("labelkit_progress", default=_SILENT)


def current_progress() -> Progress:
    """Return who listens in this context."""
    return _current.get()


@contextmanager
def use_progress(progress: Progress) -> Iterator[Progress]:
    """Let ``progress`` listen inside the ``with`` block."""
    token = _current.set(progress)
    try:
        yield progress
    finally:
        _current.reset(token)
