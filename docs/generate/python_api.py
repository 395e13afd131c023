"""Pages of the Python packages; mkdocstrings reads their docstrings when the site is built."""

from __future__ import annotations

from importlib import import_module

from generate.markdown import Page, page

PACKAGES = {
    "labelkit.losses": "Losses",
    "labelkit.algorithms": "Algorithms",
    "labelkit.metrics": "Metrics",
    "labelkit.models": "Models",
    "labelkit.store": "Stores",
    "labelkit.errors": "Errors",
}


def python_pages() -> list[Page]:
    """Return one page per package, with every name that it exports."""
    return [_package_page(name, title) for name, title in PACKAGES.items()]


def _package_page(name: str, title: str) -> Page:
    package = import_module(name)
    exported = sorted(getattr(package, "__all__", ()), key=lambda word: (word.islower(), word.lower()))
    inner = [f"::: {name}.{word}" for word in exported]
    options = {"show_root_heading": False, "show_root_toc_entry": False, "members": not inner}
    lines = "".join(f"\n      {option}: {str(value).lower()}" for option, value in options.items())
    whole = f"::: {name}\n    options:{lines}"
    return Page(f"python/{name.removeprefix('labelkit.')}.md", title, page(f"# {name}", whole, *inner))
