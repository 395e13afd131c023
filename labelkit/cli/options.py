"""Options that all commands share: ``--json``, ``-q``, ``-v``."""

import inspect
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
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


_VERBOSE = "Also show log messages of libraries and tracebacks of errors, on stderr."
_SWITCHES = {
    "json": _build_switch("Print the result as one JSON object.", "--json"),
    "quiet": _build_switch("Print only the paths of output files.", "--quiet", "-q"),
    "verbose": _build_switch(_VERBOSE, "--verbose", "-v"),
}
OUTPUT_PARAMETERS = [
    inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Annotated[bool, switch])
    for name, switch in _SWITCHES.items()
]


def with_output_options(function: Command) -> Command:
    """Add the options that all commands share to a command, and apply them while it runs."""

    @wraps(function)
    def run(*, json: bool, quiet: bool, verbose: bool, **given: Any) -> None:
        with apply_output_options(json=json, quiet=quiet, verbose=verbose):
            function(**given)

    parameters = [*inspect.signature(function).parameters.values(), *OUTPUT_PARAMETERS]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # read by inspect.signature
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


@contextmanager
def apply_output_options(*, json: bool = False, quiet: bool = False, verbose: bool = False) -> Iterator[None]:
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
