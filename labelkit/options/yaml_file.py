"""Read the flat YAML of presets and config files.

Scalars are read as text and parsed by the config class, so that a value means the same in a file and on the
command line (``1e-3``, ``no``, ``010`` hold no surprises).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from labelkit.errors import ConfigError
from labelkit.files import missing_path_remedy, open_regular
from labelkit.options.base import Fault, faults_error

_MAX_BYTES = 65536
_PLAIN_TAGS = {"str", "int", "float", "bool", "null", "timestamp", "seq", "map"}


def read_yaml(path: Path) -> dict[str, object]:
    """Read a flat YAML mapping, with scalars as text, null as None and lists as lists of texts.

    Raises:
        ConfigError: unreadable, too large, not UTF-8, bad syntax, a key twice, or not a flat mapping.
    """
    faults: list[Fault] = []
    values = read_source(path, str(path), faults)
    if faults:
        raise faults_error(faults)
    return values


def read_source(path: Path, name: str, faults: list[Fault]) -> dict[str, object]:
    """Read a YAML file like ``read_yaml``, but collect its faults instead of raising an error.

    Args:
        path: the file.
        name: what messages call it.
        faults: a list to extend.
    """
    try:
        text = read_text(path)
    except ConfigError as error:
        faults.append(Fault(name, error.problem, error.remedy))
        return {}
    values, found = _parse_yaml(text, name)
    faults += found
    return values


def read_text(path: Path) -> str:
    """Return the text of a small UTF-8 file.

    Raises:
        ConfigError: unreadable, too large, or not UTF-8.
    """
    where = str(path)
    try:
        with open_regular(path.expanduser()) as file:
            content = file.read(_MAX_BYTES + 1)
    except FileNotFoundError as error:
        raise ConfigError(where, "does not exist", missing_path_remedy(path.expanduser())) from error
    except IsADirectoryError as error:
        raise ConfigError(where, "is a folder, not a YAML file") from error
    except (OSError, ValueError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(where, f"cannot be read: {reason}") from error
    if len(content) > _MAX_BYTES:
        raise ConfigError(where, f"larger than {_MAX_BYTES:,} bytes", "A config file has one short line per option.")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(where, f"not UTF-8 text (byte {error.start})") from error


def _parse_yaml(text: str, name: str) -> tuple[dict[str, object], list[Fault]]:
    import yaml  # not needed for --help

    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{name}:{mark.line + 1}" if mark else name
        problem = error.problem or error.context or "bad syntax"
        return {}, [Fault(place, f"not YAML: {problem}")]
    except (yaml.YAMLError, RecursionError, ValueError, OverflowError) as error:
        problem = "nested too deeply" if isinstance(error, RecursionError) else str(error).partition("\n")[0]
        return {}, [Fault(name, f"not YAML: {problem}")]
    if root is None:
        return {}, []
    if not isinstance(root, yaml.MappingNode):
        return {}, [Fault(name, "is not a mapping", "Write one `key: value` per line.")]

    values: dict[str, object] = {}
    faults: list[Fault] = []
    lines: dict[str, int] = {}
    for key_node, value_node in root.value:
        line = key_node.start_mark.line + 1
        if not isinstance(key_node, yaml.ScalarNode):
            faults.append(Fault(f"{name}:{line}", "contains a key that is not a plain word"))
            continue
        key = key_node.value
        if key in lines:
            faults.append(Fault(f"{name}:{line}", f"{key} is set twice, first in line {lines[key]}", "Remove one."))
            continue
        lines[key] = line
        try:
            values[key] = _node_value(value_node)
        except ValueError as error:
            faults.append(Fault(f"{name}:{line}", f"{key}: {error}"))
    return values, faults


def _node_value(node: Any) -> object:
    import yaml

    kind = node.tag.removeprefix("tag:yaml.org,2002:")
    if kind not in _PLAIN_TAGS:
        raise ValueError(f"the YAML tag {node.tag} is not allowed")
    if isinstance(node, yaml.SequenceNode):
        if not all(isinstance(item, yaml.ScalarNode) for item in node.value):
            raise ValueError("a list may contain only plain values")
        return [_node_value(item) for item in node.value]
    if not isinstance(node, yaml.ScalarNode):
        raise ValueError("expected a value or a list of values, not a mapping")
    return None if kind == "null" else node.value
