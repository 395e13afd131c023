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
"""Function of a Typer command: its parameters are the options, and its docstring is the help."""

COMMON_PANEL = "All commands"


def _build_switch(text: str, *names: str) -> Any:
    return typer.Option(*names, metavar="", help=text, rich_help_panel=COMMON_PANEL)


JsonOption = Annotated[bool, _build_switch("Print the result as one JSON object.", "--json")]
QuietOption = Annotated[bool, _build_switch("Print only the paths of output files.", "--quiet", "-q")]
VerboseOption = Annotated[
    bool,
    _build_switch(
        "Also show the options that were set, log messages of libraries, and tracebacks of errors, on stderr.",
        "--verbose",
        "-v",
    ),
]


@contextmanager
def output_context(*, json: bool = False, quiet: bool = False, verbose: bool = False) -> Iterator[None]:
    """Apply the output options and show progress inside a ``with`` block."""
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
        # Typer would print "Aborted!" and hide the bug.
        raise RuntimeError("unexpected end of file") from error
    finally:
        if handler:
            root.removeHandler(handler)
            root.setLevel(level)
