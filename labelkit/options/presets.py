"""Find and merge the sources of a config, and report all problems together.

Precedence: class defaults < preset < config file < options. Presets are in ``presets/<method or command>/<name>.yaml``,
in the wheel, or next to the package in a source tree; their first line is a comment with the command that uses them.
YAML scalars are read as text and parsed by the config class, so that values mean the same as on the command line.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import ValidationError

from labelkit.errors import ConfigError
from labelkit.files import TABLE_SUFFIXES, missing_path_remedy, read_bytes
from labelkit.options.base import (
    BaseConfig,
    closest_name,
    combine_errors,
    command_line_name,
    equals_constant,
    explain_no_effect,
    format_value,
    is_allowed_in_presets,
    list_choices,
    list_retired_options,
    to_flag,
    validation_message,
)
from labelkit.progress import current_progress

C = TypeVar("C", bound=BaseConfig)

_FOLDER_PRESET = "folder"
_PRETRAINED_PRESET = "folder_pretrained"
_STORE_PRESET = "index"
_MAX_BYTES = 65536


@dataclass(frozen=True)
class MergedConfig(Generic[C]):
    """Config merged from defaults, preset, config file and options.

    Attributes:
        config: the validated config.
        origins: the origin of every field's value.
        preset_path: the preset that was used, if any.
    """

    config: C
    origins: dict[str, str]
    preset_path: Path | None


def resolve_config(
    config_class: type[C],
    *,
    preset: str | None = None,
    config_file: Path | None = None,
    overrides: Mapping[str, object] | None = None,
    origins: Mapping[str, str] | None = None,
) -> MergedConfig[C]:
    """Merge defaults, preset, config file and options into a validated config.

    An override that has no effect with the other values causes a warning; presets and files may contain such values,
    since they serve several modes.

    Args:
        config_class: class of the config.
        preset: name of a preset, path of a YAML file, or ``none``. Default: the method's preset with the name of the
            dataset, if there is one (``folder`` for a path, or ``folder_pretrained`` with weights; ``index`` for a
            store).
        config_file: a YAML file, which overrides the preset.
        overrides: values of options, as text or typed, which override everything else.
        origins: origin of each override; default: its option.

    Raises:
        ConfigError: unknown keys, bad values or missing fields; all problems, one per line.
    """
    overrides = dict(overrides or {})
    where = {name: (origins or {}).get(name, to_flag(name)) for name in overrides}
    faults: list[ConfigError] = []

    file_values: dict[str, object] = {}
    if config_file is not None:
        retired = list_retired_options(config_class).items()
        file_values = _read(config_file, str(config_file), faults)
        for key in [key for key, value in retired if key in file_values and equals_constant(value, file_values[key])]:
            del file_values[key]

    preset_values: dict[str, object] = {}
    preset_path: Path | None = None
    preset_name = ""
    try:
        preset_path = _choose_preset(config_class, preset, file_values | overrides)
    except ConfigError as error:
        faults.append(error)
    if preset_path is not None:
        folder, preset_name = find_bundled_presets(), str(preset_path)
        if folder is not None and preset_path.is_relative_to(folder):
            preset_name = str(Path("presets") / preset_path.relative_to(folder))
        preset_values = _read(preset_path, preset_name, faults)

    values: dict[str, object] = {}
    merged_origins = dict.fromkeys(config_class.model_fields, "default")
    for source, places in (
        (preset_values, dict.fromkeys(preset_values, preset_name)),
        (file_values, dict.fromkeys(file_values, str(config_file))),
        (overrides, where),
    ):
        faults += _check_source(config_class, source, places, in_file=source is not overrides)
        known = source.keys() & config_class.model_fields.keys()
        values |= {key: source[key] for key in source if key in known}
        merged_origins |= {key: places[key] for key in known}
    for name, field in config_class.model_fields.items():
        if field.is_required() and name not in values:
            shown = command_line_name(name, field)
            faults.append(ConfigError(shown, "is missing", f"Pass a value for {shown}."))
    if faults:
        raise combine_errors(faults)
    try:
        config = config_class.model_validate(values)
    except ValidationError as error:
        raise combine_errors(_check_combination(config_class, values, merged_origins, error)) from error
    for name in overrides:
        if why := explain_no_effect(config, name):
            current_progress().warning(f"{to_flag(name)} has no effect {why}")
    return MergedConfig(config, merged_origins, preset_path)


def find_bundled_presets() -> Path | None:
    """Find the folder of the presets bundled with labelkit; ``None`` if there is none."""
    package = Path(__file__).resolve().parent.parent
    places = [package / "presets"]
    # An unrelated "presets" folder may be next to an installed package; a source tree has this file.
    if (package.parent / "pyproject.toml").is_file():
        places.append(package.parent / "presets")
    return next(filter(Path.is_dir, places), None)


def preset_folder_name(command: tuple[str, ...]) -> str:
    """Return the folder name of a command's presets, such as ``sela`` or ``cluster-k-means``."""
    return command[1] if command[0] == "train" else "-".join(command)


def list_presets(config_class: type[BaseConfig]) -> dict[str, Path]:
    """List a command's presets by name; a custom method without presets inherits those of its parent."""
    folder = find_bundled_presets()
    if folder is None or not config_class.command:
        return {}
    found = folder / preset_folder_name(config_class.command)
    if config_class.command[0] == "train" and not found.is_dir():
        extended = (kind.command for kind in config_class.__mro__ if issubclass(kind, BaseConfig) and kind.command)
        folders = (folder / preset_folder_name(command) for command in extended)
        found = next((path for path in folders if path.is_dir()), found)
    return {path.stem: path for path in sorted(found.glob("*.yaml"))}


def read_preset_command(path: Path) -> str:
    """Read the command from a preset's first line, such as ``# labelkit train sela --dataset cifar10``.

    Raises:
        ConfigError: the first line is not such a comment.
    """
    first = read_small_text_file(path).partition("\n")[0].strip()
    command = first.removeprefix("#").strip()
    if not first.startswith("#") or not command.startswith("labelkit "):
        raise ConfigError(
            str(path), "the first line does not contain the command", "Write `# labelkit ...` on the first line."
        )
    return command


def read_preset_comment(path: Path) -> str:
    """Read the comment at the top of a preset file, without the line that names the command."""
    lines = []
    for line in read_small_text_file(path).splitlines()[1:]:
        if not line.startswith("#"):
            break
        lines.append(line.removeprefix("#").strip())
    return " ".join(lines)


def _read(path: Path, name: str, faults: list[ConfigError]) -> dict[str, object]:
    try:
        return read_yaml(path, name)
    except ConfigError as error:
        faults.append(ConfigError(error.where.replace(str(path), name), error.problem, error.remedy))
        return {}


def _choose_preset(config_class: type[BaseConfig], preset: str | None, values: Mapping[str, object]) -> Path | None:
    available = list_presets(config_class)
    if preset is not None:
        if preset in available:
            return available[preset]
        if preset == "none":
            return None
        path = Path(preset)
        if path.suffix in {".yaml", ".yml"} or len(path.parts) > 1:
            return path
        close = closest_name(preset, available)
        hint = f"Did you mean `{close}`? " if close else ""
        names = ", ".join(available) or "none"
        raise ConfigError("--preset", f"unknown preset (value {format_value(preset)})", f"{hint}Choose from: {names}.")
    field = config_class.model_fields.get("dataset")
    default = None if field is None or field.is_required() else field.default
    if config_class.command[:1] != ("train",) or (dataset := values.get("dataset", default)) is None:
        return None
    dataset = str(dataset)
    if values.get("index") not in (None, "none") and _STORE_PRESET in available:
        return available[_STORE_PRESET]
    if dataset in available:
        return available[dataset]
    if not _is_path(dataset):
        return None
    # settings for small networks trained from scratch, such as 32-pixel images, do not suit pretrained networks
    has_weights = str(values.get("pretrained")).lower() == "true" or values.get("weights") not in (None, "none")
    special = available.get(_PRETRAINED_PRESET) if has_weights else None
    return special or available.get(_FOLDER_PRESET)


def _is_path(dataset: str) -> bool:
    if "/" in dataset or os.sep in dataset or Path(dataset).suffix.lower() in TABLE_SUFFIXES:
        return True
    try:
        return Path(dataset).expanduser().exists()
    except (OSError, ValueError, RuntimeError):  # too long, a null character, an unknown ~user: no such path
        return False


def _check_source(
    config_class: type[BaseConfig], values: Mapping[str, object], where: Mapping[str, str], *, in_file: bool
) -> list[ConfigError]:
    """Check the keys and values of one source: a preset, a config file, or the options.

    Sources are checked separately, so that an invalid value in a preset is found even if an option overrides it.
    """
    faults: list[ConfigError] = []
    fields = config_class.model_fields
    for key, value in values.items():
        problem = remedy = ""
        if key not in fields and in_file and key in (retired := list_retired_options(config_class)):
            problem, remedy = f"is no longer an option and is always {format_value(retired[key])}", "Remove this key."
        elif key not in fields:
            problem = "unknown key"
            close = closest_name(key, (name for name in fields if not in_file or is_allowed_in_presets(fields[name])))
            remedy = f"Did you mean `{close}`?" if close else "See `labelkit config` for all keys."
        elif in_file and not is_allowed_in_presets(fields[key]):
            problem, remedy = "cannot be set in a preset or config file", f"Pass {to_flag(key)} instead."
        if problem:
            faults.append(_fault(where[key], key, f"{problem} (value {format_value(value)})", remedy))
    known = {key: value for key, value in values.items() if key in fields}
    try:
        # Relations between fields are checked later, when all sources are merged.
        config_class.model_validate(known)
    except ValidationError as error:
        problems: dict[str, list[Any]] = {}
        for detail in error.errors(include_url=False):
            if detail["loc"] and detail["loc"][0] in known:
                problems.setdefault(str(detail["loc"][0]), []).append(detail)
        for key, details in problems.items():
            # A union reports one error for each of its members.
            messages = " or ".join(dict.fromkeys(validation_message(detail) for detail in details))
            wrong = [str(detail["input"]) for detail in details if detail["type"] == "literal_error"]
            close = closest_name(wrong[0], list_choices(fields[key].annotation)) if wrong else None
            remedy = f"Did you mean `{close}`?" if close else ""
            faults.append(_fault(where[key], key, f"{messages} (value {format_value(known[key])})", remedy))
    return faults


def _fault(where: str, key: str, problem: str, remedy: str) -> ConfigError:
    """Return an error that names the key, unless its location does."""
    return ConfigError(where, problem if where.replace("-", "_").endswith(key) else f"{key}: {problem}", remedy)


def _check_combination(
    config_class: type[BaseConfig], values: Mapping[str, object], origins: Mapping[str, str], error: ValidationError
) -> list[ConfigError]:
    """Return errors for problems that occur only when all values are combined."""
    faults = []
    for detail in error.errors(include_url=False):
        if detail["loc"]:
            key = str(detail["loc"][0])
            value = format_value(values.get(key, config_class.model_fields[key].default))
            faults.append(ConfigError(origins[key], f"{key}: {validation_message(dict(detail))} (value {value})"))
            continue
        message = validation_message(dict(detail))
        command = " ".join(("labelkit", *config_class.command))
        # the origins of all fields named in the message, except defaults
        words = {word.strip("-").replace("-", "_") for word in re.findall(r"[\w-]+", message)}
        named = [name for name in config_class.model_fields if name in words and name in values]
        remedy = "; ".join(f"{name} = {format_value(values[name])} comes from {origins[name]}" for name in named)
        faults.append(ConfigError(command, message, remedy))
    return faults


def read_yaml(path: Path, name: str = "") -> dict[str, object]:
    """Read a flat YAML mapping, with scalars as text and lists as lists of text.

    Args:
        path: the file.
        name: name of the file for messages; default: its path.

    Raises:
        ConfigError: the file is unreadable, too large, not UTF-8, not a flat mapping, or has a duplicate key.
    """
    import yaml  # not needed for --help

    name, text = name or str(path), read_small_text_file(path)
    try:
        root = yaml.compose(text, Loader=yaml.BaseLoader)
    except (yaml.YAMLError, RecursionError, ValueError, OverflowError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{name}:{mark.line + 1}" if mark else name
        reason = getattr(error, "problem", None) or str(error).partition("\n")[0]
        raise ConfigError(place, f"is not valid YAML: {reason}") from error
    values: dict[str, object] = {}
    if root is not None and not isinstance(root, yaml.MappingNode):
        raise ConfigError(name, "is not a mapping", "Write one `key: value` per line.")
    for key, node in root.value if root is not None else ():
        items = node.value if isinstance(node, yaml.SequenceNode) else [node]
        place = f"{name}:{key.start_mark.line + 1}"
        if not all(isinstance(one, yaml.ScalarNode) for one in (key, *items)):
            raise ConfigError(place, "is neither a plain value nor a list of plain values", "Write `key: value`.")
        if key.value in values:
            raise ConfigError(place, f"{key.value} is set twice", "Remove one of the two lines.")
        values[key.value] = [one.value for one in items] if items is node.value else node.value
    return values


def read_small_text_file(path: Path) -> str:
    """Read a small UTF-8 text file.

    Raises:
        ConfigError: the file is unreadable, too large, or not UTF-8.
    """
    where = str(path)
    try:
        content = read_bytes(path.expanduser(), _MAX_BYTES)
    except FileNotFoundError as error:
        raise ConfigError(where, "does not exist", missing_path_remedy(path.expanduser())) from error
    except IsADirectoryError as error:
        raise ConfigError(where, "is a folder, not a YAML file") from error
    except (OSError, ValueError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(where, f"cannot be read: {reason}") from error
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(where, f"is not UTF-8 text (invalid byte {error.start})") from error
