"""``labelkit config COMMAND``: what a command would run with, and where each value comes from."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from labelkit.cli.command import config_command
from labelkit.cli.console import current_output, escape_control, json_text, print_line
from labelkit.cli.options import Command, is_named, new_group, placeholder_command, words_below
from labelkit.commands.table import all_commands
from labelkit.options.base import StageConfig, in_presets
from labelkit.options.presets import Collected, parsed_values

REQUIRED = "required"


def show_config(collected: Collected[StageConfig]) -> None:
    """Print the resolved config as YAML, with the origin of each value as a comment.

    It can be a preset or config file. Fields that a file may not set, and required ones that nobody set, stand behind a
    ``#``.

    Raises:
        ConfigError: what is set cannot be used.
    """
    values, origins = _values(collected)
    command = " ".join(("labelkit", *collected.config_class.command))
    if current_output().json:
        preset = collected.preset_path
        document = {"command": command, "preset": preset, "config": values, "origins": origins}
        print_line(json_text(document))
        return
    lines = [f"# {command}"]
    lines += _yaml_lines(collected.config_class, values, {} if current_output().quiet else origins)
    print_line("\n".join(lines))


def _values(collected: Collected[StageConfig]) -> tuple[dict[str, object], dict[str, str]]:
    """Return all values in plain form; of a required one that is missing, None.

    Where nothing is set, the defaults are shown although some command needs one of several options.
    """
    origins = collected.origins | dict.fromkeys(collected.missing, REQUIRED)
    if collected.faults or (collected.values and not collected.missing):
        return collected.config.to_yaml_dict(), origins
    return parsed_values(collected), origins


def _yaml_lines(config_class: type[StageConfig], values: dict[str, object], origins: dict[str, str]) -> list[str]:
    lines = []
    for name, value in values.items():
        is_missing = origins.get(name) == REQUIRED
        text = _yaml_line(name, value)
        if is_missing:
            text = f"{name}:"
        lines.append(text if in_presets(config_class.model_fields[name]) and not is_missing else f"# {text}")
    if not origins:
        return lines
    # One long value must not push all comments out of sight.
    width = min(max(len(line) for line in lines), 48)
    return [f"{line.ljust(width)}  # {escape_control(origins[name])}" for name, line in zip(values, lines, strict=True)]


def _yaml_line(name: str, value: object) -> str:
    import yaml  # not needed for --help

    style = None if isinstance(value, list) else False  # lists in one line: [8, 9]
    text: str = yaml.safe_dump({name: value}, default_flow_style=style, width=2**20, allow_unicode=True)
    # A text with line ends: JSON's form is YAML too, and keeps one line.
    return text.strip() if text.count("\n") == 1 else f"{name}: {json_text(value)}"


def _config_command(command_words: tuple[str, ...], words: Sequence[str] | None) -> Command:
    command = " ".join(command_words)
    text = (
        f"Print what `labelkit {command}` would run with, and where each value comes from.\n\n"
        f"Example: labelkit config {command} > my.yaml"
    )
    if not is_named(command_words[-1], words):
        return placeholder_command(text)
    return config_command(all_commands()[command_words].config_class(), show_config, text)


def build_app(words: Sequence[str] | None) -> typer.Typer:
    """Build the ``labelkit config`` app, with options only for the command named in ``words``."""
    app = new_group()
    groups: dict[str, list[tuple[str, ...]]] = {}
    for command_words in all_commands():
        groups.setdefault(command_words[0], []).append(command_words)
    for word, members in groups.items():
        is_group = len(members[0]) > 1
        below = words_below(word, words) if is_group else words
        commands = {member[-1]: _config_command(member, below) for member in members}
        if is_group:
            first = f"labelkit config {' '.join(members[0])}"
            text = f"Print the config of a `labelkit {word}` command.\n\nExample: {first}"
            app.add_typer(new_group(commands, below), name=word, help=text)
        else:
            app.command(word)(commands[word])
    return app
