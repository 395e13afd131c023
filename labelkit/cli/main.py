"""Entry point: find the requested command, run it, and convert its outcome to an exit code.

``COMMANDS`` lists all commands. Only the modules that the requested command needs are imported, so that
``labelkit --help`` is instant.
"""

import errno
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Annotated, Any

import typer

from labelkit import __version__
from labelkit.cli.console import OutputOptions, print_error, print_message, use_output_options, write_text
from labelkit.cli.process import describe_interruption, interrupt_on_signals
from labelkit.commands.table import COMMANDS as _TABLE
from labelkit.commands.table import Command, Group
from labelkit.errors import BROKEN_PIPE_SIGNAL, Interrupted, LabelkitError, ResourceError, convert_os_error
from labelkit.methods import OWN_METHODS_VARIABLE

PROGRAM = "labelkit"
_COMPLETION_VARIABLE = "_LABELKIT_COMPLETE"
SETTINGS: dict[str, Any] = {
    "no_args_is_help": True,
    "pretty_exceptions_enable": False,
    "rich_markup_mode": "rich",
    "context_settings": {"help_option_names": ["-h", "--help"]},
}
"""Typer settings for the app and every command group."""

_FULL_OR_FORBIDDEN = {
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.EFBIG,
    errno.ENAMETOOLONG,
}

EXIT_CODES = {
    0: "success",
    1: "a bug in labelkit or in your own method (with a traceback)",
    2: "invalid option, preset or config file",
    3: "unusable input: images, store or checkpoint",
    4: "training failed: non-finite values, exploding loss or collapse",
    5: "disk full, no permission or missing device",
    6: "another run is writing to the same output",
    10: "a score violates its limit (--fail-under, --fail-over)",
    129: "the terminal was closed (SIGHUP)",
    130: "interrupted (Ctrl-C)",
    141: "the output pipe was closed, as by `| head`",
    143: "terminated (SIGTERM)",
}


@dataclass(frozen=True)
class _BuiltInCommand:
    """Command that is not in the table; ``target`` is its function, or a mapping of names to functions for a group."""

    summary: str
    target: str


_BUILT_IN = {
    "config": _BuiltInCommand(
        "Show a command's configuration, and where each value comes from.", "labelkit.cli.command:config"
    ),
    "list": _BuiltInCommand(
        "List methods, datasets, backbones, presets or published tables.", "labelkit.cli.list:FUNCTIONS"
    ),
    "doctor": _BuiltInCommand("Check the installation.", "labelkit.cli.doctor:doctor"),
    "version": _BuiltInCommand("Show the installed versions.", "labelkit.cli.doctor:version"),
}

PANELS = {
    "First steps": ("start", "predict", "list", "datasets", "config"),
    "Training and analysis": (
        "train",
        "embed",
        "cluster",
        "discover",
        "evaluate",
        "compare",
        "reproduce",
        "retrieve",
        "prototypes",
        "match",
    ),
    "Labels": ("suggest", "label"),
    "Inspect": ("report", "show", "find", "status"),
    "Files": ("import", "export", "pack", "verify"),
    "Installation": ("doctor", "version"),
}
"""Panels of ``labelkit --help`` and their commands, grouped by task."""

COMMANDS: dict[str, Command | Group | _BuiltInCommand] = {
    name: (_TABLE | _BUILT_IN)[name] for names in PANELS.values() for name in names
}


def build_app(arguments: Sequence[str] | None) -> typer.Typer:
    """Build the command-line app, with options only for the command named in the arguments.

    Args:
        arguments: the words after ``labelkit``. Other commands appear only in the help. None: all commands get
            their options.
    """
    codes = "\n".join(f"{code:>3}  {meaning}" for code, meaning in EXIT_CODES.items())
    app = typer.Typer(
        name=PROGRAM,
        help="Learn image representations and labels with few labels or none.\n\n"
        "Example: labelkit train flipclass --dataset digits",
        epilog=f"Exit codes:\n\n{codes}",
        **SETTINGS,
    )
    app.callback()(_global_options)
    # Before the command name, only switches are allowed, which take no value.
    words = None if arguments is None else [argument for argument in arguments if not argument.startswith("-")]
    if _COMPLETION_VARIABLE in os.environ:
        words = None
    for panel, names in PANELS.items():
        for name in names:
            entry = COMMANDS[name]
            shown: dict[str, Any] = {"short_help": entry.summary, "rich_help_panel": panel}
            if not starts_with_name(name, words):
                app.command(name, **shown)(build_placeholder_command(entry.summary))
                continue
            help_text = f"{entry.summary}\n\nExample: labelkit {name} methods"
            found: Any = entry
            if isinstance(entry, _BuiltInCommand):
                module, _, attribute = entry.target.partition(":")
                found = getattr(import_module(module), attribute)
            elif isinstance(entry, Group):
                found, help_text = entry.commands, entry.help
            if isinstance(found, Mapping):
                group = build_group(found, None if words is None else words[1:])
                app.add_typer(group, name=name, help=help_text, **shown)
            else:
                app.command(name, **shown)(build_command(found, is_named=True))
    return app


def build_group(
    commands: Mapping[str, Callable[..., None] | Command] | None = None, words: Sequence[str] | None = None
) -> typer.Typer:
    """Build a Typer group of subcommands with labelkit's settings.

    Args:
        commands: functions or entries of the command table, by name, in the order of the help.
        words: the words after the group name on the command line. Only the command that they name gets its options,
            since building all of them takes most of a second. None: all commands get their options.
    """
    group = typer.Typer(add_completion=False, **SETTINGS)
    for name, command in (commands or {}).items():
        group.command(name)(build_command(command, is_named=starts_with_name(name, words)))
    return group


def build_command(command: Callable[..., None] | Command, *, is_named: bool) -> Callable[..., None]:
    """Build the function of a Typer command; if the command is not named on the command line, a placeholder."""
    if not is_named:
        text = command.help if isinstance(command, Command) else inspect.getdoc(command) or ""
        return build_placeholder_command(text)
    if not isinstance(command, Command):
        return command
    from labelkit.cli.command import build_typer_command  # pydantic loads here, not in `labelkit --help`

    return build_typer_command(command)


def starts_with_name(name: str, words: Sequence[str] | None) -> bool:
    """Return whether command-line words start with this command or group name; words of ``None`` match every name."""
    return words is None or list(words[:1]) == [name]


def build_placeholder_command(text: str) -> Callable[..., None]:
    """Build a command without options that appears in the help but cannot be called."""

    def command() -> None:
        raise RuntimeError("this command was not built")  # unreachable: Typer calls only the named command

    command.__doc__ = text
    return command


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code.

    Args:
        argv: the words after ``labelkit``; default: the arguments of this process.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    shows_config = arguments[:1] == ["config"] and arguments[1:2] != [] and arguments[1] in _TABLE
    if shows_config:  # takes the options of the command to show
        del arguments[0]
    return run_app(lambda: build_app(arguments), arguments, OutputOptions(shows_config=shows_config))


def run_app(build: Callable[[], typer.Typer], arguments: Sequence[str], output: OutputOptions | None = None) -> int:
    """Build and run an app, and convert its outcome to an exit code."""
    with use_output_options(output or OutputOptions()) as output, interrupt_on_signals() as seen:
        try:
            try:
                build()(args=list(arguments), prog_name=PROGRAM)
                code: object = 0
            except SystemExit as finished:  # raised by Typer, even after success
                code = finished.code
                if code == 2 and arguments[:1] == ["train"] and arguments[1:]:
                    from labelkit.methods.registry import METHODS  # loaded already, to build the command

                    if arguments[1][:1] != "-" and arguments[1] not in METHODS:
                        print_message(f"for your own method, set {OWN_METHODS_VARIABLE} to its file")
            sys.stdout.flush()
            return _exit_code(code)
        except Interrupted as interrupted:
            return _report_interrupt(interrupted, arguments)
        except BrokenPipeError:
            return _report_interrupt(Interrupted(BROKEN_PIPE_SIGNAL))
        except Exception as error:
            if seen:  # a library wrapped the interrupt, or failed because of it
                return _report_interrupt(Interrupted(seen[0]), arguments)
            known = error if isinstance(error, LabelkitError) else _as_resource_error(error)
            if known is not None:
                return _report_error(known, output)
            write_text(traceback.format_exc(), sys.stderr)
            own = os.environ.get(OWN_METHODS_VARIABLE)
            whose = f", unless it is in your own method ({own})" if own else ""
            print_error(f"this is a bug in labelkit {__version__}{whose}; please report it with the traceback above")
            return 1


def _print_version(shown: bool) -> None:
    if shown:
        write_text(f"{PROGRAM} {__version__}\n")
        raise typer.Exit


def _global_options(
    version: Annotated[
        bool, typer.Option("--version", metavar="", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Declare the options of ``labelkit`` itself."""


def _report_error(error: LabelkitError, output: OutputOptions) -> int:
    if output.verbose:
        write_text("".join(traceback.format_exception(error)), sys.stderr)
    print_error(str(error))
    return error.exit_code


def _as_resource_error(error: Exception) -> ResourceError | None:
    """Convert an error to one with a remedy if a resource is unavailable, otherwise return None."""
    if isinstance(error, OSError) and error.errno in _FULL_OR_FORBIDDEN:
        where = error.filename2 or error.filename or "output"
        return convert_os_error(error, os.fsdecode(where) if isinstance(where, str | bytes) else str(where))
    # Compared by name, to avoid importing torch.
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return ResourceError(
            "memory",
            "this command needs more memory than is available",
            "Lower --batch-size, the image size or the number of images, or use a machine with more memory.",
        )
    return None


def _report_interrupt(interrupted: Interrupted, arguments: Sequence[str] = ()) -> int:
    if interrupted.signum != BROKEN_PIPE_SIGNAL:  # after a broken pipe, nobody would read a message
        print_error(describe_interruption(interrupted.signum, arguments, resumable=interrupted.resumable))
    return interrupted.exit_code


def _exit_code(code: object) -> int:
    if code is None or isinstance(code, int):
        return code or 0
    print_error(str(code))  # a library's sys.exit("reason")
    return 1
