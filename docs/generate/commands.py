"""One page per command: its words, its example, every option; read from the built command line itself."""

import inspect
import re
from collections.abc import Iterator
from functools import cache
from typing import Any, get_args

from labelkit.api import to_python_name
from labelkit.cli.config_classes import CONFIG_CLASSES
from labelkit.cli.main import COMMANDS, PANELS, build_app
from labelkit.cli.options import COMMON_PANEL
from labelkit.options.base import (
    BaseConfig,
    command_line_name,
    describe_bounds,
    format_value,
    list_choices,
    metavar,
    read_field_extra,
)
from typer.main import get_command

from generate.json_keys import keys_table
from generate.markdown import Page, block, code, page, table, text

FOLDER = "reference/commands"
Words = tuple[str, ...]
_CONFIGS: dict[Words, type[BaseConfig]] = {config.command: config for config in CONFIG_CLASSES}


def command_pages() -> list[Page]:
    """Return the overview, a page per group of commands and a page per command, in the order of help."""
    pages = [Page(f"{FOLDER}/index.md", "Commands", _overview())]
    for words, command in all_commands():
        group = _subcommands(command)
        if group:
            pages.append(Page(f"{FOLDER}/{'/'.join(words)}/index.md", words[-1], _group_page(words, command)))
        else:
            pages.append(Page(f"{FOLDER}/{'/'.join(words)}.md", words[-1], _command_page(words, command)))
    return pages


@cache
def all_commands() -> list[tuple[Words, Any]]:
    """Return every group and every command in the order of help, with the words after ``labelkit``."""
    built = _subcommands(get_command(build_app(None)))  # groups last
    return [found for name in COMMANDS for found in _below((name,), built[name])]


def _below(words: Words, command: Any) -> Iterator[tuple[Words, Any]]:
    yield words, command
    for name, below in _subcommands(command).items():
        yield from _below((*words, name), below)


def _subcommands(command: Any) -> dict[str, Any]:
    return dict(getattr(command, "commands", {}))


def _overview() -> str:
    groups = {words[0] for words, command in all_commands() if _subcommands(command)}
    panels = []
    for panel, names in PANELS.items():
        rows = [[f"[`{name}`]({name}{'/index' * (name in groups)}.md)", text(COMMANDS[name].summary)] for name in names]
        panels.append(page(f"## {panel}", table(["Command", "What it does"], rows)))
    return page(
        "# Commands",
        "Options come from four sources, each of which overrides the previous one: defaults, a preset (`--preset`), a "
        "file (`--config`), and the command line. `labelkit config COMMAND` shows the resulting values and "
        "their sources.",
        *panels,
        "Every command exits with one of the [exit codes](../exit-codes.md), and is also available as a "
        "[Python function](../../python/index.md).",
    )


def _group_page(words: Words, command: Any) -> str:
    rows = [
        [f"[`{name}`]({name}.md)", text(_help_parts(below)[0].split("\n\n")[0])]
        for name, below in _subcommands(command).items()
    ]
    return page(_heading(words), *_said(command), table(["Command", "What it does"], rows))


def _command_page(words: Words, command: Any) -> str:
    config = _CONFIGS.get(words)
    panels: dict[str, list[Any]] = {}
    for parameter in command.params:
        if parameter.name != "help":
            panels.setdefault(getattr(parameter, "rich_help_panel", None) or "Options", []).append(parameter)
    sections = [
        page(f"## {panel}", _option_table(parameters, config))
        for panel, parameters in panels.items()
        if panel != COMMON_PANEL
    ]
    common = panels.get(COMMON_PANEL, [])
    below = ""
    if words == ("config",):
        below = "`COMMAND` is any command with options, for example `labelkit config train sela`."
    return page(
        _heading(words),
        *_said(command),
        below,
        *sections,
        page("## All commands", _option_table(common, config)),
        _in_python(words, config),
        _printed(words),
    )


def _in_python(words: Words, config: type[BaseConfig] | None) -> str:
    """Return the call of a command's function, with the arguments that it needs."""
    if config is None:
        return ""
    needed = ", ".join(f"{name}=..." for name, field in config.model_fields.items() if field.is_required())
    return page(
        "## From Python",
        block(f"labelkit.{'.'.join(map(to_python_name, words))}({needed})", "python"),
        "Every option is a keyword argument. The attribute `values` of the result contains the keys below.",
    )


def _printed(words: Words) -> str:
    keys = keys_table(" ".join(words))
    told = (
        "Keys in the output of `--json` for a few images; other options may add keys. `a[].b` is the key `b` of each "
        "object in the list `a`; flags are true or false."
    )
    return page("## JSON keys", told, keys) if keys else ""


def _heading(words: Words) -> str:
    return f"# labelkit {' '.join(words)}"


def _said(command: Any) -> list[str]:
    words, example = _help_parts(command)
    return [*(text(part) for part in words.split("\n\n")), block(example, "sh") if example else ""]


def _help_parts(command: Any) -> tuple[str, str]:
    """Return what help says and the example in it."""
    words, _, example = inspect.cleandoc(command.help or "").replace(r"\[", "[").partition("Example:")
    return words.strip(), example.strip()


def _option_table(parameters: list[Any], config: type[BaseConfig] | None) -> str:
    return table(["Option", "Value", "Default", "Meaning"], [_row(parameter, config) for parameter in parameters])


def _row(parameter: Any, config: type[BaseConfig] | None) -> list[str]:
    names = ", ".join(code(name) for name in (*parameter.opts, *parameter.secondary_opts))
    field = config.model_fields.get(parameter.name) if config else None
    if field is not None and read_field_extra(field, "positional"):
        names = code(command_line_name(parameter.name, field))
    if field is None:
        words = re.sub(r"\\\[", "[", parameter.help or "")
        return [names, code(parameter.metavar or ""), "", text(words)]
    known = list_choices(field.annotation)
    limits = describe_bounds(field)
    value = "" if field.annotation is bool else code(metavar(field.annotation))
    if known and metavar(field.annotation) == f"[{'|'.join(known)}]":
        none = ["none"] if type(None) in get_args(field.annotation) else []
        value = " ".join(code(choice) for choice in (*known, *none))
    value += f" {text(limits)}" if limits else ""
    if field.is_required():
        default = "required"
    else:
        default = code(format_value(field.get_default(call_default_factory=True)))
    return [names, value, default, text(field.description or "")]
