"""Pages of the Python packages; mkdocstrings reads their docstrings when the site is built."""

import inspect
from importlib import import_module
from pathlib import Path

import labelkit
from labelkit.api import to_python_name
from labelkit.commands.table import all_commands

from docstrings import markdown
from generate.markdown import Page, page, table, text

PACKAGES = {
    "labelkit.losses": "Losses",
    "labelkit.algorithms": "Algorithms",
    "labelkit.metrics": "Metrics",
    "labelkit.store": "Stores",
    "labelkit.errors": "Errors",
}


DOOR = (
    *("labelkit.api.result.Result", "labelkit.store.frame.open_store", "labelkit.store.frame.Store"),
    *("labelkit.api.network.load_network", "labelkit.api.network.Network"),
)
"""Names of ``labelkit`` beside the functions, where they are defined."""


def python_pages() -> list[Page]:
    """Return one page per package, with every name that it exports."""
    return [_door_page(), *(_package_page(name, title) for name, title in PACKAGES.items())]


def _door_page() -> Page:
    """Return the page of what ``import labelkit`` offers: a function per command, results, stores."""
    rows = []
    for words, command in all_commands().items():
        name = f"labelkit.{'.'.join(map(to_python_name, words))}"
        rows.append([f"[`{name}`](../reference/commands/{'/'.join(words)}.md#from-python)", text(command.text)])
    return Page(
        "python/index.md",
        "Commands as functions",
        page(
            "# labelkit",
            "\n\n".join(text(part) for part in markdown(inspect.getdoc(labelkit) or "").split("\n\n")),
            table(["Function", "What it does"], rows),
            *(f"::: {name}" for name in DOOR),
        ),
    )


def _package_page(name: str, title: str) -> Page:
    package = import_module(name)
    exported = sorted(getattr(package, "__all__", ()), key=lambda word: (word.islower(), word.lower()))
    inner = [f"::: {name}.{word}" for word in exported]
    if name == "labelkit.losses":
        families = sorted(Path(labelkit.__file__).parent.glob("methods/*/*loss*.py"))
        inner += [f"::: labelkit.methods.{path.parent.name}.{path.stem}" for path in families]
    options = {"show_root_heading": False, "show_root_toc_entry": False, "members": not inner}
    lines = "".join(f"\n      {option}: {str(value).lower()}" for option, value in options.items())
    whole = f"::: {name}\n    options:{lines}"
    return Page(f"python/{name.removeprefix('labelkit.')}.md", title, page(f"# {name}", whole, *inner))
