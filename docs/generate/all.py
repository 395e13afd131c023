"""Every generated page, in the order of the navigation."""

from __future__ import annotations

from pathlib import Path

from generate.commands import command_pages
from generate.markdown import Page
from generate.tables import table_pages


def all_pages(root: Path) -> list[Page]:
    """Make all pages.

    Args:
        root: the source tree.
    """
    return [*command_pages(), *table_pages()]
