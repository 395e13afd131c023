"""What the rows share: counting attempts, counts of the sample and of the full run, trees of files."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

FULL_SECONDS = 3600


class Tally:
    """Attempts of a test, what went wrong in those that failed, and lines to show below the table of counts."""

    def __init__(self) -> None:
        self.attempts = 0
        self.faults: list[str] = []
        self.notes: list[str] = []

    @contextmanager
    def attempt(self, what: object) -> Iterator[None]:
        """Count one attempt; an exception in it is a failure, and the next attempt follows."""
        self.attempts += 1
        try:
            yield
        except Exception as error:
            self.faults.append(f"{what}: {type(error).__name__}: {error}"[:2000])


def sized(sample: int, full: int) -> pytest.MarkDecorator:
    """Give a test its ``count``: a sample in the quick suite, all of it where torture is asked for."""
    marks = (pytest.mark.torture, pytest.mark.timeout(FULL_SECONDS))
    return pytest.mark.parametrize(
        "count", [pytest.param(sample, id="sample"), pytest.param(full, id="full", marks=marks)]
    )


def tree(folder: Path) -> dict[str, bytes]:
    """Return all regular files below a folder by their relative path."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
