"""Read the flat YAML of presets and config files.

Scalars are read as text and parsed by the config class, so that a value means the same in a file and on the
command line (``1e-3``, ``no``, ``010`` are not converted by YAML).
"""

from __future__ import annotations

from pathlib import Path

from labelkit.errors import ConfigError
from labelkit.files import missing_path_remedy, open_regular

_MAX_BYTES = 65536


def read_yaml(path: Path, name: str = "") -> dict[str, object]:
    """Read a flat YAML mapping, keeping scalars as text and lists as lists of text.

    Args:
        path: the file.
        name: name of the file in messages; default: its path.

    Raises:
        ConfigError: unreadable, too large, not UTF-8, invalid syntax, a duplicate key, or not a flat mapping.
    """
    import yaml  # not needed for --help

    name, text = name or str(path), read_text(path)
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
        raise ConfigError(where, f"is larger than {_MAX_BYTES:,} bytes", "Pass a config file with one line per option.")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(where, f"is not UTF-8 text (byte {error.start})") from error
