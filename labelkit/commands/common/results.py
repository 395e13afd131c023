"""Results of commands: machine-readable values, output paths, and human-readable tables."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from labelkit.errors import LabelkitError

if TYPE_CHECKING:
    from labelkit.options.base import BaseConfig

Cell = str | int | float | bool | Path | None
"""Table cell; None and NaN are shown as a dash."""


@dataclass(frozen=True)
class Table:
    """Human-readable table in the output of a command.

    Attributes:
        title: description of the rows; may be empty.
        columns: column headings.
        rows: cells of each row, one per column.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]

    @classmethod
    def from_row(cls, title: str, row: Mapping[str, Cell]) -> Table:
        """Build a table with a single row, passed as a mapping from column headings to cells."""
        return cls(title, list(row), [list(row.values())])

    def __post_init__(self) -> None:
        for number, row in enumerate(self.rows):
            if len(row) != len(self.columns):
                raise ValueError(
                    f"row {number} of table {self.title!r} has {len(row)} cells for {len(self.columns)} columns"
                )


@dataclass(frozen=True)
class CommandResult:
    """Result of a command, with machine-readable values, output paths and human-readable tables.

    Attributes:
        values: machine-readable output of dicts, lists, strings, numbers and paths; NaN means "undefined".
        paths: created files and folders, the most important first.
        shown: human-readable tables, the most important first.
        unchanged: whether the paths already existed with the same content.
        text: text shown instead of the tables; may be empty.
        fault: error with which the command ends after showing the result.
    """

    values: dict[str, object]
    paths: tuple[Path, ...] = ()
    shown: tuple[Table, ...] = ()
    unchanged: bool = field(default=False, kw_only=True)
    text: str = field(default="", kw_only=True)
    fault: LabelkitError | None = field(default=None, kw_only=True)

    def to_json(self) -> dict[str, object]:
        """Return the values of the result."""
        return self.values


def describe_dry_run(config: BaseConfig, values: dict[str, object], plan: Sequence[Sequence[Cell]]) -> CommandResult:
    """Build the result of a dry run, which shows the options of a command and its plan as a table of two columns."""
    from labelkit.options.base import format_value  # imports pydantic, which `labelkit --help` does not need

    options = [[key, format_value(value, max_length=None)] for key, value in config.to_yaml_dict().items()]
    shown = Table("plan (nothing was written)", ["what", "value"], plan)
    return CommandResult(values, (), (Table("configuration", ["option", "value"], options), shown))


def to_json_types(value: object) -> object:
    """Convert a value to JSON types: paths to strings, NaN and infinity to null, tuples and arrays to lists.

    Raises:
        TypeError: the value cannot be converted.
    """
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): to_json_types(entry) for key, entry in value.items()}
    to_list = getattr(value, "tolist", None)  # NumPy and PyTorch, without importing them
    if callable(to_list):
        return to_json_types(to_list())
    if isinstance(value, Sequence):
        return [to_json_types(entry) for entry in value]
    raise TypeError(f"cannot be written as JSON: {value!r}")
