"""What all commands share: ``--json``, ``-q``, ``-v``, and how a group of subcommands is set up."""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from labelkit.cli.console import current_output
from labelkit.cli.progress import progress_for
from labelkit.commands.table import Command as Stage
from labelkit.methods import OWN_METHODS_VARIABLE
from labelkit.progress import use_progress

Command = Callable[..., None]
"""A function that Typer makes a command of: its options are the arguments, its help is the docstring."""

COMMON_PANEL = "All commands"


def _switch(text: str, *names: str) -> Any:
    return typer.Option(*names, metavar="", help=text, rich_help_panel=COMMON_PANEL)


JsonOption = Annotated[bool, _switch("Print one JSON object on stdout.", "--json")]
QuietOption = Annotated[bool, _switch("Print only the path of the output.", "--quiet", "-q")]
VerboseOption = Annotated[
    bool,
    _switch(
        "Also report on stderr which options were set and what libraries log; show the traceback of an error.",
        "--verbose",
        "-v",
    ),
]


class _Group(TyperGroup):
    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the subcommand, or raise an error that hints at own methods if a training method is unknown."""
        try:
            return super().resolve_command(ctx, args)
        except Exception as error:  # Typer's error of usage, which is private
            if ctx.info_name == "train" and hasattr(error, "message"):
                error.message = (
                    f"{error.message} A method of your own is one while {OWN_METHODS_VARIABLE} names its file."
                )
            raise


SETTINGS: dict[str, Any] = {
    "cls": _Group,
    "no_args_is_help": True,
    "pretty_exceptions_enable": False,
    "rich_markup_mode": "rich",
    "context_settings": {"help_option_names": ["-h", "--help"]},
}
"""Of every group of commands; help is Typer's own."""


def new_group(commands: Mapping[str, Command | Stage] | None = None, words: Sequence[str] | None = None) -> typer.Typer:
    """Return a Typer group of subcommands with labelkit's settings.

    Args:
        commands: by name, in the order of help: functions, or rows of the table of commands.
        words: what follows the group on the command line. Only the command that they name gets its options,
            as to build all of them takes most of a second. None: every command gets its options.
    """
    group = typer.Typer(add_completion=False, **SETTINGS)
    for name, command in (commands or {}).items():
        group.command(name)(built_command(command, is_named=is_named(name, words)))
    return group


def built_command(command: Command | Stage, *, is_named: bool) -> Command:
    """Return the function that Typer makes a command of; one that is not named has its help only."""
    if not is_named:
        text = command.help if isinstance(command, Stage) else inspect.getdoc(command) or ""
        return placeholder_command(text)
    if not isinstance(command, Stage):
        return command
    from labelkit.cli.command import run_command  # pydantic loads here, not in `labelkit --help`

    return run_command(command)


def is_named(name: str, words: Sequence[str] | None) -> bool:
    """Return whether command-line words start with this command or group name; ``None`` matches all."""
    return words is None or list(words[:1]) == [name]


def placeholder_command(text: str) -> Command:
    """Return a placeholder command that appears in help but has no options and cannot be called."""

    def command() -> None:
        raise RuntimeError("this command was not built")  # only the command that is named can be called

    command.__doc__ = text
    return command


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
        with use_progress(progress_for(output)):
            yield
    except EOFError as error:
        # Typer would say "Aborted!" and hide our bug.
        raise RuntimeError("a file ended too early") from error
    finally:
        if handler:
            root.removeHandler(handler)
            root.setLevel(level)
