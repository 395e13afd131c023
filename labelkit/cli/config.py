"""``labelkit config COMMAND``: the options a command would run with, and where each value comes from."""

from __future__ import annotations

from labelkit.cli.console import current_output, escape_control, json_text, print_line
from labelkit.errors import ConfigError
from labelkit.options.base import StageConfig, is_allowed_in_presets
from labelkit.options.presets import MergedConfig


def config() -> None:
    """Show the configuration a command would run with, and its sources.

    Example: labelkit config train flipclass --dataset digits > my.yaml
    """
    problem = "no command was given"
    raise ConfigError("labelkit config", problem, "Name a command, for example: `labelkit config train sela`.")


def show_config(merged: MergedConfig[StageConfig]) -> None:
    """Print the resolved config as YAML, with the origin of each value as a comment.

    The output can be used as a preset or config file. Fields that a file may not set are commented out with ``#``.
    """
    values, origins = merged.config.to_yaml_dict(), merged.origins
    command = " ".join(("labelkit", *merged.config.command))
    if current_output().json:
        document = {"command": command, "preset": merged.preset_path, "config": values, "origins": origins}
        print_line(json_text(document))
        return
    fields = type(merged.config).model_fields
    lines = [
        ("" if is_allowed_in_presets(fields[name]) else "# ") + _yaml_line(name, value)
        for name, value in values.items()
    ]
    if not current_output().quiet:
        # One long value must not push all comments out of sight.
        width = min(max(len(line) for line in lines), 48)
        comments = (escape_control(origins[name]) for name in values)
        lines = [f"{line.ljust(width)}  # {comment}" for line, comment in zip(lines, comments, strict=True)]
    print_line("\n".join([f"# {command}", *lines]))


def _yaml_line(name: str, value: object) -> str:
    import yaml  # not needed for --help

    style = None if isinstance(value, list) else False  # a list on one line: [8, 9]
    text: str = yaml.safe_dump({name: value}, default_flow_style=style, width=2**20, allow_unicode=True)
    # A text with line breaks is written as JSON, which is valid YAML too and stays on one line.
    return text.strip() if text.count("\n") == 1 else f"{name}: {json_text(value)}"
