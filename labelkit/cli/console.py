"""Terminal output: the result on stdout, everything else on stderr.

In a multi-process run, only the main process prints, except for errors.
"""

import json
import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TextIO

from labelkit.commands.common.results import Cell, CommandResult, Table, to_json_types
from labelkit.errors import BROKEN_PIPE_SIGNAL, Interrupted
from labelkit.formatting import Percent, addresses_of_copies


@dataclass
class OutputOptions:
    """Options for what a command prints: JSON, quiet, verbose, or only its config."""

    json: bool = False
    quiet: bool = False
    verbose: bool = False
    shows_config: bool = False


_current: ContextVar[OutputOptions] = ContextVar("labelkit_output")


def current_output() -> OutputOptions:
    """Return the output options of the current invocation."""
    return _current.get(OutputOptions())


@contextmanager
def use_output_options(output: OutputOptions) -> Iterator[OutputOptions]:
    """Use the given output options inside a ``with`` block."""
    token = _current.set(output)
    try:
        yield output
    finally:
        _current.reset(token)


def is_main_process() -> bool:
    """Return whether this is the only process or has rank 0."""
    return os.environ.get("RANK", "0") in {"", "0"}


def print_result(result: CommandResult) -> None:
    """Print a result to stdout as tables and paths, as one JSON object (``--json``), or as paths only (``-q``).

    A result may have a ``text`` that replaces its tables.

    All three formats list the output files: as lines ``made PATH`` (``unchanged PATH`` if they already existed),
    under the key ``made`` (absent if there are none), or as one path per line.
    """
    if not is_main_process():
        return
    output = current_output()
    made = list(result.paths)
    if output.json:
        write_text(dump_json(result.to_json() | ({"made": made} if made else {})) + "\n")
    elif text := result.text:
        write_text(text)
    elif output.quiet:
        write_text("".join(f"{path}\n" for path in made))
    else:
        for number, table in enumerate(result.shown):
            write_text("\n" if number else "")
            write_text(format_table(table))
        verb = "unchanged" if result.unchanged else "made"
        write_text("".join(f"{verb} {path}\n" for path in made))


def print_line(text: str) -> None:
    """Print one line to stdout on the main process."""
    if is_main_process():
        write_text(text + "\n")


def print_error(text: str) -> None:
    """Print an error to stderr from any process, indenting lines after the first."""
    if not is_main_process():
        text = f"[process {os.environ['RANK']}] {text}"
    write_text(f"error: {escape_controls(text)}".replace("\n", "\n       ") + "\n", sys.stderr)


def print_message(text: str) -> None:
    """Print one line to stderr on the main process."""
    if is_main_process():
        write_text(escape_controls(text) + "\n", sys.stderr)


def write_text(text: str, stream: TextIO | None = None) -> None:
    """Write text to a stream (default: stdout), even if its encoding cannot represent every character.

    Raises:
        Interrupted: the pipe was closed (``labelkit ... | head``).
    """
    stream = stream or sys.stdout
    for folder, address in addresses_of_copies.items():
        text = text.replace(folder, address)
    try:
        try:
            stream.write(text)
        except UnicodeEncodeError:
            # Undecodable file names are written as their original bytes; other characters are escaped.
            encoding = stream.encoding or "utf-8"
            try:
                content = text.encode(encoding, "surrogateescape")
            except UnicodeEncodeError:
                content = text.encode(encoding, "backslashreplace")
            stream.flush()
            stream.buffer.write(content)
        stream.flush()
    except BrokenPipeError as error:
        raise Interrupted(BROKEN_PIPE_SIGNAL) from error


def dump_json(value: object) -> str:
    """Serialize a value to strict one-line ASCII JSON, with null for NaN and infinities.

    Raises:
        TypeError: a value cannot be represented in JSON.
    """
    return json.dumps(to_json_types(value), allow_nan=False)


def format_table(table: Table) -> str:
    """Format a table as aligned text, with right-aligned numbers and untruncated cells."""
    rows = [[format_cell(cell) for cell in row] for row in table.rows]
    columns = [str(column) for column in table.columns]
    widths = [max(len(line[number]) for line in [columns, *rows]) for number in range(len(columns))]
    right = _numeric_columns(table)
    lines = [escape_controls(table.title)] if table.title else []
    for line in [columns, *rows]:
        cells = [
            text.rjust(width) if is_number else text.ljust(width)
            for text, width, is_number in zip(line, widths, right, strict=True)
        ]
        lines.append("  ".join(cells).rstrip())
    return "".join(f"{line}\n" for line in lines)


def format_cell(cell: Cell) -> str:
    """Format a table cell: percentages with one decimal, other floats with four digits, undefined values as a dash.

    Control characters are escaped.
    """
    if cell is None:
        return "-"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, float):
        return "-" if math.isnan(cell) else str(cell) if isinstance(cell, Percent) else f"{cell:.4g}"
    if isinstance(cell, int):
        return f"{cell:,}"
    text = escape_controls(str(cell)).replace("\n", "\\n")
    return text.encode("utf-8", "backslashreplace").decode()  # undecodable bytes of a file name


def escape_controls(text: str) -> str:
    """Escape control characters except line breaks and tabs.

    A file name must not control the terminal.
    """
    return "".join(
        character
        if character.isprintable() or character in "\n\t" or "\udc80" <= character <= "\udcff"
        else character.encode("unicode_escape").decode()
        for character in text
    )


def _numeric_columns(table: Table) -> list[bool]:
    return [
        all(isinstance(row[number], int | float) or row[number] is None for row in table.rows)
        and any(row[number] is not None for row in table.rows)
        for number in range(len(table.columns))
    ]
