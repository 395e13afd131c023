"""Every generated page, in the order of the navigation."""

from pathlib import Path

from generate.commands import command_pages
from generate.markdown import Page
from generate.python_api import python_pages
from generate.results import result_pages
from generate.store_format import format_page
from generate.tables import table_pages


def all_pages(root: Path) -> list[Page]:
    """Make all pages.

    Args:
        root: the source tree.
    """
    return [*command_pages(), *table_pages(), format_page(), *python_pages(), *result_pages(root)]
