"""Progress reports of commands, which are silent unless a display is active, as on the command line.

A command calls ``current_progress()`` and never prints:

    with current_progress().task("embed", total=n) as task:
        for batch in batches:
            ...
            task.advance(len(batch), loss=loss)
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar


class Task:
    """Progress of a task with a known or unknown number of units; this base class shows nothing."""

    def advance(self, n: int = 1, **info: object) -> None:
        """Report ``n`` more completed units, with the latest values to show in ``info``."""

    def skip(self, n: int) -> None:
        """Report ``n`` units that were already done or took no time, and exclude them from the time estimate."""


class Progress:
    """Receiver of a command's progress reports, messages and warnings; this base class, the default, shows nothing."""

    def task(self, description: str, total: int | None = None) -> AbstractContextManager[Task]:
        """Start a progress task of ``total`` units (None: unknown); tasks may nest."""
        return nullcontext(Task())

    def message(self, text: str) -> None:
        """Show a one-line message that stays on the screen."""

    def warning(self, text: str) -> None:
        """Show a warning that the user should act on."""

    def ask(self, question: str) -> str:
        """Ask a question and return the answer, which is empty without a terminal or to accept the default."""
        return ""


_SILENT = Progress()
_current: ContextVar[Progress] = ContextVar("labelkit_progress", default=_SILENT)


def current_progress() -> Progress:
    """Return the progress object of the current context."""
    return _current.get()


@contextmanager
def use_progress(progress: Progress) -> Iterator[Progress]:
    """Send progress reports to ``progress`` inside the ``with`` block."""
    token = _current.set(progress)
    try:
        yield progress
    finally:
        _current.reset(token)
