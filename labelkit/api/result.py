"""The result that a command's Python function returns."""

from __future__ import annotations

import json
from collections.abc import Iterator, KeysView
from typing import TYPE_CHECKING, Any

from labelkit.cli.console import dump_json, format_table

if TYPE_CHECKING:
    from labelkit.commands.common.results import CommandResult


class Result:
    """Result of a command: its values, tables and files.

    Attributes:
        values: everything that ``--json`` prints, under the same keys; paths are ``Path`` objects. ``result["nmi"]``
            is short for ``result.values["nmi"]``.
        paths: output files and folders, the most important first.
        tables: the tables that the command prints, with ``title``, ``columns`` and ``rows``.
    """

    def __init__(self, found: CommandResult) -> None:
        made = list(found.paths)
        self.values: dict[str, Any] = found.to_json() | ({"made": made} if made else {})
        self.paths = tuple(made)
        self.tables = found.shown

    def to_json(self) -> dict[str, Any]:
        """Return the values as JSON types: strings for paths and ``None`` for non-finite numbers."""
        values: dict[str, Any] = json.loads(dump_json(self.values))
        return values

    def __getitem__(self, key: str) -> Any:
        return self.values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.values)

    def keys(self) -> KeysView[str]:
        """Return the keys of the values, so that ``dict(result)`` works."""
        return self.values.keys()

    def __repr__(self) -> str:
        """Return the command's printed output: its tables, then a line for each output path."""
        made = "".join(f"made {path}\n" for path in self.paths)
        return ("\n".join(format_table(table) for table in self.tables) + made).rstrip("\n")
