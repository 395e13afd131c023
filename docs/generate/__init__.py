"""Pages that are made from the code when the site is built; none of them is committed."""

from generate.all import all_pages
from generate.markdown import Page
from generate.results import result_pictures

__all__ = ["Page", "all_pages", "result_pictures"]
