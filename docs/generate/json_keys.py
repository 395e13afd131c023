"""Keys of what ``--json`` prints: read from values, kept in a file by ``recording``, shown with each command."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from generate.markdown import code, table, text

Keys = dict[str, dict[str, str]]
RECORD = Path(__file__).resolve().parents[1] / "json_keys.json"
_LARGEST_OBJECT = 30  # an object with more keys has them from the data: names of classes, of images


def keys(value: object, name: str = "") -> dict[str, str]:
    """Return the keys of a JSON value, ``a.b`` for an object in an object and ``a[].b`` for objects in a list."""
    if isinstance(value, Mapping) and not (name and _has_keys_of_data(value)):
        found = {name: "object"} if name else {}
        for key, below in value.items():
            found |= keys(below, f"{name}.{key}" if name else str(key))
        return found
    if isinstance(value, list) and value and all(isinstance(entry, Mapping) for entry in value):
        found = {name: "list of objects"}
        for entry in value:
            below = keys(entry, f"{name}[]")
            add_keys({key: kind for key, kind in below.items() if key != f"{name}[]"}, found)
        return found
    return {name: _kind(value)}


def keys_table(command: str) -> str:
    """Return the recorded keys of a command as a table; nothing for a command that prints none."""
    found: Mapping[str, str] = json.loads(RECORD.read_text()).get(command, {})
    return table(["Key", "Value"], [[code(key), text(kind)] for key, kind in found.items()]) if found else ""


def add_keys(new: Mapping[str, str], found: dict[str, str]) -> None:
    """Add keys to those found before; a key with several kinds of value has all of them, null last."""
    for key, kind in new.items():
        kinds = {*found.get(key, kind).split(" or "), *kind.split(" or ")}
        found[key] = " or ".join(sorted(kinds, key=lambda word: (word == "null", word)))


def _has_keys_of_data(value: Mapping[str, Any]) -> bool:
    return len(value) > _LARGEST_OBJECT or any(not key.replace("_", "").isidentifier() for key in value)


_KINDS = {bool: "switch", int: "whole number", float: "number", str: "text", list: "list", type(None): "null"}
_PLURALS = {"text": "texts", "number": "numbers", "whole number": "whole numbers", "switch": "switches"}


def _kind(value: object) -> str:
    if isinstance(value, list) and value:
        kind = _kind(value[0])
        return f"list of {_PLURALS.get(kind) or kind.replace('list', 'lists', 1)}"
    return _KINDS.get(type(value), "object by name")
