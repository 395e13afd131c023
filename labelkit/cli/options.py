"""What all commands share: ``--json``, ``-q``, ``-v``, and how a group of subcommands is set up."""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from labelkit.cli import common_rows
from labelkit.cli.common_rows import COMMON_PANEL, HELP_NAMES
from labelkit.cli.console import current_output, write
from labelkit.cli.help_layout import OptionRow, Paper, lay_out
from labelkit.cli.progress import progress_for
from labelkit.methods import OWN_METHODS_VARIABLE
from labelkit.stages.progress import use_progress

Command = Callable[..., None]
"""A function that Typer makes a command of: its options are the arguments, its help is the docstring."""

HELP_SETTINGS = {"help_option_names": list(HELP_NAMES)}


def switch(row: OptionRow) -> Any:
    """Return an option without a value that all commands share."""
    names = [name for name in (row.long, row.short) if name]
    return typer.Option(*names, metavar="", help=row.text, rich_help_panel=COMMON_PANEL)


JsonOption = Annotated[bool, switch(common_rows.JSON)]
QuietOption = Annotated[bool, switch(common_rows.QUIET)]
VerboseOption = Annotated[bool, switch(common_rows.VERBOSE)]


class PagedGroup(TyperGroup):
    """A group whose help is laid out here and not by Typer, which loads all of rich for it."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the subcommand; what is no method may be one of the user's own."""
        try:
            return super().resolve_command(ctx, args)
        except Exception as error:  # Typer's error of usage, which is private
            if ctx.info_name == "train" and hasattr(error, "message"):
                error.message = (
                    f"{error.message} A method of your own is one while {OWN_METHODS_VARIABLE} names its file."
                )
            raise

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Show the help; what calls this ends it with an empty line."""
        options = [_switch_row(option) for option in self.get_params(ctx) if not getattr(option, "hidden", False)]
        panels: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            if command is not None and not command.hidden:
                text = (command.short_help or command.help or "").partition("\n\n")[0]
                panels.setdefault(getattr(command, "rich_help_panel", None) or "Commands", []).append((name, text))
        usage, paper = f"{ctx.command_path} [OPTIONS] COMMAND [ARGS]...", Paper.of(sys.stdout)
        write(
            lay_out(
                usage, self.help or "", [("Options", options)], paper, commands=panels.items(), below=self.epilog or ""
            )
        )


def _switch_row(option: Any) -> OptionRow:
    long, short = ([name for name in option.opts if name.startswith("--") is wanted] for wanted in (True, False))
    # where an option has no word for its value, Typer shows the type
    kind = "<bool>" if option.metavar is None else option.metavar
    return OptionRow(option.help or "", ",".join(long), ",".join(short), kind=kind)


def new_group(commands: Mapping[str, Command] | None = None, words: Sequence[str] | None = None) -> typer.Typer:
    """Return a group of subcommands with labelkit's settings.

    Args:
        commands: by name, in the order of help.
        words: what follows the group on the command line. Only the command that they name gets its options,
            as to build all of them takes most of a second. None: every command gets its options.
    """
    group = typer.Typer(
        cls=PagedGroup,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings=HELP_SETTINGS,
    )
    for name, command in (commands or {}).items():
        named = command if is_named(name, words) else listed(inspect.getdoc(command) or "")
        group.command(name, cls=class_of(named))(named)
    return group


def class_of(command: Command) -> type[TyperCommand] | None:
    """Return what Typer makes of a command; None: its own class."""
    return getattr(command, "typer_class", None)


def is_named(name: str, words: Sequence[str] | None) -> bool:
    """Say whether these words of a command line name this command or group; None names all."""
    return words is None or list(words[:1]) == [name]


def words_below(name: str, words: Sequence[str] | None) -> Sequence[str] | None:
    """Return what follows this group among these words of a command line: none if they name another; None stays."""
    if words is None:
        return None
    return words[1:] if is_named(name, words) else ()


def listed(text: str) -> Command:
    """Return a command that can only be listed: it has help, no options, and cannot be called."""

    def command() -> None:
        raise RuntimeError("this command was not built")  # only the command that is named can be called

    command.__doc__ = text
    return command


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
