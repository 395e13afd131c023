"""A browser for pages."""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.commands.browsing import chromium


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A Chromium of this machine, without a window."""
    yield from chromium()
