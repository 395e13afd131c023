"""What all commands share: ``--json``, ``-q``, ``-v``, and how a group of subcommands is set up."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from labelkit.cli.console import current_output
from labelkit.cli.progress import progress_for
from labelkit.stages.progress import use_progress

HELP_SETTINGS = {"help_option_names": ["-h", "--help"]}
COMMON_PANEL = "All commands"

JsonOption = Annotated[
    bool, typer.Option("--json", metavar="", help="Print one JSON object on stdout.", rich_help_panel=COMMON_PANEL)
]
QuietOption = Annotated[
    bool,
    typer.Option(
        "--quiet", "-q", metavar="", help="Print only the path of what was made.", rich_help_panel=COMMON_PANEL
    ),
]
VerboseOption = Annotated[
    bool,
    typer.Option(
        "--verbose",
        "-v",
        metavar="",
        help="Also say on stderr what was set and what libraries log; show the traceback of an error.",
        rich_help_panel=COMMON_PANEL,
    ),
]


def new_group() -> typer.Typer:
    """Return a group of subcommands with labelkit's settings."""
    return typer.Typer(
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings=HELP_SETTINGS,
    )


@contextmanager
def speaking(*, json: bool = False, quiet: bool = False, verbose: bool = False) -> Iterator[None]:
    """Apply the shared options to this invocation and let stages report their progress."""
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
        with use_progress(progress_for(output)):
            yield
    except EOFError as error:
        # Typer would say "Aborted!" and hide our bug.
        raise RuntimeError("a file ended too early") from error
    finally:
        if handler:
            root.removeHandler(handler)
            root.setLevel(level)
