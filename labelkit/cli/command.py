"""Build commands from config classes: one option per field, plus the options that all commands share.

Typer takes every value as text. The config class parses it, so that one message lists the problems of all options,
presets and files. ``labelkit config COMMAND`` shows the merged values and their origins.
"""

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic.fields import FieldInfo

from labelkit.cli.console import current_output, dump_json, escape_controls, print_line, print_result
from labelkit.cli.options import COMMON_PANEL, OUTPUT_PARAMETERS, Command, apply_output_options
from labelkit.commands.table import Command as StageCommand
from labelkit.errors import ConfigError
from labelkit.options.base import (
    BaseConfig,
    describe_bounds,
    format_value,
    get_item_type,
    is_allowed_in_presets,
    list_aliases,
    list_choices,
    metavar,
    read_field_extra,
    split_list,
    to_flag,
)
from labelkit.options.presets import MergedConfig, list_presets, resolve_config

_WIDEST_METAVAR = 20
_LAST_PANELS = ("Output", "Limits", "Run")


def build_typer_command(command: StageCommand) -> Command:
    """Build the Typer command that runs a function, prints its result and raises any error returned with it."""
    config_class = command.load_config_class()
    presets = list_presets(config_class)
    lists = [name for name, field in config_class.model_fields.items() if _takes_all_arguments(field)]
    kinds = {name: get_item_type(field.annotation) for name, field in config_class.model_fields.items()}
    repeatable = {name: kind for name, kind in kinds.items() if kind is not None and name not in lists}

    def run(**given: Any) -> None:
        given |= {name: tuple(given[name] or ()) or None for name in lists}
        given |= {name: _join_repeated(given.get(name) or (), kind) for name, kind in repeatable.items()}
        with apply_output_options(json=given.pop("json"), quiet=given.pop("quiet"), verbose=given.pop("verbose")):
            config_file = given.pop("config")
            preset = given.pop("preset", None)
            overrides, origins = _overrides(given)
            merged = resolve_config(
                config_class,
                preset=preset,
                config_file=None if config_file is None else Path(config_file),
                overrides=overrides,
                origins=origins,
            )
            if current_output().shows_config:
                print_config(merged)
                return
            result, fault = command.run(merged.config)
            print_result(result)  # even if there is an error
            if fault is not None:
                raise fault

    is_train = config_class.command[:1] == ("train",)
    fields = sorted(config_class.model_fields.items(), key=lambda item: _help_rank(item[1]))
    parameters = [_build_parameter(name, field) for name, field in fields]
    if presets or is_train:
        chosen = " Default: the preset with the same name as the dataset, if there is one." if is_train else ""
        text = f"Name of a preset, path to a YAML file, or none.{chosen} Presets: {', '.join(presets) or 'none yet'}."
        parameters.append(_build_common_option("preset", text, "NAME|FILE", str | None, (*presets, "none")))
    parameters += _COMMON_PARAMETERS
    run.__doc__ = escape_markup(command.help)
    run.__name__ = "_".join(config_class.command).replace("-", "_") or "command"
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # read by inspect.signature
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _join_repeated(texts: Sequence[str], kind: object) -> str | list[str] | None:
    if len(texts) < 2:
        return texts[0] if texts else None
    return [part for text in texts for part in split_list(text.strip(), kind)]


def escape_markup(text: str) -> str:
    """Escape text so that rich does not interpret it as markup."""
    return text.replace("[", r"\[")


def _overrides(given: dict[str, Any]) -> tuple[dict[str, object], dict[str, str]]:
    """Return the values from options and ``--set`` with their origins; options override ``--set``."""
    values: dict[str, object] = {}
    origins: dict[str, str] = {}
    for setting in given.pop("set") or []:
        key, equals, text = setting.partition("=")
        key = key.strip().replace("-", "_")
        if not equals or not key:
            problem = f"{format_value(setting)} is not of the form KEY=VALUE"
            raise ConfigError("--set", problem, "Write, for example, --set lr=0.1.")
        values[key], origins[key] = text, f"--set {key}"
    set_options = {name: value for name, value in given.items() if value is not None}
    return values | set_options, origins | {name: to_flag(name) for name in set_options}


def _help_rank(field: FieldInfo) -> int:
    """Return the sort key of a field in the help: output, limits and run options come last."""
    panel = read_field_extra(field, "panel")
    return _LAST_PANELS.index(str(panel)) + 1 if panel in _LAST_PANELS else 0


def _takes_all_arguments(field: FieldInfo) -> bool:
    return bool(read_field_extra(field, "positional")) and "tuple" in str(field.annotation)


def _help_text(field: FieldInfo) -> str:
    notes = [describe_bounds(field)] if describe_bounds(field) else []
    if _placeholder(field) == "CHOICE":
        notes.append("one of " + ", ".join(list_choices(field.annotation)))
    description = (field.description or "").strip()
    if field.is_required():
        notes.append("required")
    else:
        default = field.get_default(call_default_factory=True)
        is_explained = default is None and "default" in description.lower()
        if not is_explained and default != ():
            notes.append(f"default: {format_value(default)}")
    return f"{description} [{'; '.join(notes)}]" if notes else description


def _placeholder(field: FieldInfo) -> str:
    """Return the placeholder for a value; long lists of choices go to the description, where they can wrap."""
    if field.annotation is bool:
        return ""
    word = metavar(field.annotation)
    return word if len(word) <= _WIDEST_METAVAR else "CHOICE"


def _build_parameter(name: str, field: FieldInfo) -> inspect.Parameter:
    text = escape_markup(_help_text(field))
    if read_field_extra(field, "positional"):
        place = typer.Argument(help=text, metavar=name.upper(), show_default=False)
        return _build_keyword(name, Annotated[list[str] | None if _takes_all_arguments(field) else str | None, place])
    panel = read_field_extra(field, "panel")
    short, long, switch = read_field_extra(field, "short"), to_flag(name), field.annotation is bool
    option = typer.Option(
        *([str(short)] if short else []),
        f"{long}/--no-{long[2:]}" if switch else long,
        *list_aliases(field),
        help=text,
        metavar=_placeholder(field),
        show_default=False,
        rich_help_panel=str(panel) if panel else None,
        autocompletion=_build_completion(list_choices(field.annotation)),
    )
    several = get_item_type(field.annotation) is not None
    return _build_keyword(
        name, Annotated[bool | None if switch else list[str] | None if several else str | None, option]
    )


def _build_common_option(
    name: str, text: str, word: str, kind: object, completion: tuple[str, ...] = ()
) -> inspect.Parameter:
    option = typer.Option(
        to_flag(name),
        metavar=word,
        help=escape_markup(text),
        show_default=False,
        rich_help_panel=COMMON_PANEL,
        autocompletion=_build_completion(completion),
    )
    return _build_keyword(name, Annotated[kind, option])


def _build_keyword(name: str, annotation: object) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _build_completion(known: tuple[str, ...]) -> Callable[[str], list[str]] | None:
    if not known:
        return None

    def complete(incomplete: str) -> list[str]:
        return [choice for choice in known if choice.startswith(incomplete)]

    return complete


_COMMON_PARAMETERS = [
    _build_common_option(
        "config", "YAML file with options; overrides the preset, but not command-line options.", "FILE", str | None
    ),
    _build_common_option("set", "Set an option by its key; can be repeated.", "KEY=VALUE", list[str] | None),
    *OUTPUT_PARAMETERS,
]


def config() -> None:
    """Show a command's configuration, and where each value comes from.

    Example: labelkit config train flipclass --dataset digits > my.yaml
    """
    problem = "requires a command"
    raise ConfigError("labelkit config", problem, "Pass the command, for example: `labelkit config train sela`.")


def print_config(merged_config: MergedConfig[BaseConfig]) -> None:
    """Print the resolved config as YAML, with the origin of each value in a comment.

    The output can be used as a preset or config file. Fields that a file may not set are commented out.
    """
    values, origins = merged_config.config.to_yaml_dict(), merged_config.origins
    command = " ".join(("labelkit", *merged_config.config.command))
    if current_output().json:
        document = {"command": command, "preset": merged_config.preset_path, "config": values, "origins": origins}
        print_line(dump_json(document))
        return
    fields = type(merged_config.config).model_fields
    lines = [
        ("" if is_allowed_in_presets(fields[name]) else "# ") + _yaml_line(name, value)
        for name, value in values.items()
    ]
    if not current_output().quiet:
        # A long value must not push all comments out of view.
        width = min(max(len(line) for line in lines), 48)
        comments = (escape_controls(origins[name]) for name in values)
        lines = [f"{line.ljust(width)}  # {comment}" for line, comment in zip(lines, comments, strict=True)]
    print_line("\n".join([f"# {command}", *lines]))


def _yaml_line(name: str, value: object) -> str:
    import yaml  # not needed for --help

    style = None if isinstance(value, list) else False  # a list on one line: [8, 9]
    text: str = yaml.safe_dump({name: value}, default_flow_style=style, width=2**20, allow_unicode=True)
    # Text with line breaks is written as JSON, which is valid YAML and stays on one line.
    return text.strip() if text.count("\n") == 1 else f"{name}: {dump_json(value)}"
