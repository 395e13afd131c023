"""Options that all commands share: ``--json``, ``-q``, ``-v``."""

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from labelkit.cli.console import current_output
from labelkit.cli.progress import create_progress_display
from labelkit.progress import use_progress

Command = Callable[..., None]
"""A function that Typer turns into a command: its parameters are the options, its docstring is the help."""

COMMON_PANEL = "All commands"


def _build_switch(text: str, *names: str) -> Any:
    return typer.Option(*names, metavar="", help=text, rich_help_panel=COMMON_PANEL)


JsonOption = Annotated[bool, _build_switch("Print one JSON object on stdout.", "--json")]
QuietOption = Annotated[bool, _build_switch("Print only the path of the output.", "--quiet", "-q")]
VerboseOption = Annotated[
    bool,
    _build_switch(
        "Also report on stderr which options were set and what libraries log; show the traceback of an error.",
        "--verbose",
        "-v",
    ),
]


@contextmanager
def output_context(*, json: bool = False, quiet: bool = False, verbose: bool = False) -> Iterator[None]:
    """Apply the shared output options and show progress inside a ``with`` block."""
    output = current_output()
    output.json, output.quiet, output.verbose = json, quiet, verbose
    handler = logging.StreamHandler(sys.stderr) if verbose else None
    root = logging.getLogger()
    level = root.level
    if handler:
        handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
        root.addHandler(handler)
        root.setLevel(logging.INFO)
    try:
        with use_progress(create_progress_display(output)):
            yield
    except EOFError as error:
        # Typer would print "Aborted!" and hide our bug.
        raise RuntimeError("a file ended too early") from error
    finally:
        if handler:
            root.removeHandler(handler)
            root.setLevel(level)
