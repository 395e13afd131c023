"""The result that a command returns to Python."""

from __future__ import annotations

import json
from collections.abc import Iterator, KeysView
from typing import TYPE_CHECKING, Any

from labelkit.cli.console import json_text, plain_table

if TYPE_CHECKING:
    from labelkit.commands.common.results import SimpleResult


class Result:
    """Result of a command: its values, tables and files.

    Attributes:
        values: everything that ``--json`` prints, by the same keys; paths are ``Path``. ``result["nmi"]`` is
            ``result.values["nmi"]``.
        paths: files and folders that were made, the most important first.
        tables: the tables that the command shows: ``title``, ``columns``, ``rows``.
    """

    def __init__(self, found: SimpleResult) -> None:
        made = list(found.paths)
        self.values: dict[str, Any] = found.to_json() | ({"made": made} if made else {})
        self.paths = tuple(made)
        self.tables = found.shown

    def to_json(self) -> dict[str, Any]:
        """Return the values as JSON types: strings for paths and ``None`` for non-finite numbers."""
        values: dict[str, Any] = json.loads(json_text(self.values))
        return values

    def __getitem__(self, key: str) -> Any:
        return self.values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.values)

    def keys(self) -> KeysView[str]:
        """Return the keys of the values, so that ``dict(result)`` contains them."""
        return self.values.keys()

    def __repr__(self) -> str:
        """Return what the command prints: its tables, then a line for each path that was made."""
        made = "".join(f"made {path}\n" for path in self.paths)
        return ("\n".join(plain_table(table) for table in self.tables) + made).rstrip("\n")
