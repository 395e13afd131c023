"""Read rows, names, labels and splits from tables of text: CSV, and lists of one name per line.

Tables are read line by line; numbers go to a file without a name as they come, so that a table larger than memory is
no trouble.
"""

from __future__ import annotations

import csv
import os
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, NoReturn

import numpy as np
from numpy.typing import NDArray

from labelkit.errors import ConfigError, NotAStore, Refused
from labelkit.store.foreign.arrays import USUAL_NAMES, Column, ForeignRows
from labelkit.store.opening import open_regular
from labelkit.store.schema import name_text

ESCAPED_COLUMN = "path_escaped"
r"""Header of a column of names where a backslash is ``\\``, a carriage return ``\r``, other bytes ``\udcXX``."""

_LINE_BYTES = 64 << 20
_BLOCK_VALUES = 1 << 19
_ESCAPE = re.compile(r"\\(?:(\\)|(r)|u(dc[89a-f][0-9a-f]))?")
_SHOWN = 12
_MORE_NAMES = {
    "ids": ("filename", "file_name", "file", "image", "image_path", "name", "sample_id", "id"),
    "labels": ("class", "class_name", "category"),
}
_REMEDY = "Write a header, then one line per image: its path, and numbers."


def needs_escape(name: str) -> bool:
    """Say whether a name cannot stand in a CSV file as it is."""
    # The csv module does not put a lone carriage return between quotes.
    return "\r" in name or any("\udc80" <= character <= "\udcff" for character in name)


def escape_name(name: str) -> str:
    """Return a name as text that can be encoded, such that ``unescape_name`` gives it back."""
    plain = name.replace("\\", "\\\\").replace("\r", "\\r")
    return plain.encode("utf-8", "backslashreplace").decode()


def unescape_name(text: str) -> str:
    r"""Return the name that ``escape_name`` was given.

    Raises:
        ValueError: a backslash is not doubled and does not begin ``\r`` or ``\udcXX``.
    """

    def plain(match: re.Match[str]) -> str:
        doubled, carriage_return, byte = match.groups()
        if doubled or carriage_return:
            return "\\" if doubled else "\r"
        if byte is None:
            raise ValueError(f"a backslash that is not doubled and not of \\r or \\udcXX in {text!r}")
        return chr(int(byte, 16))

    return _ESCAPE.sub(plain, text)


def read_names(path: Path) -> list[str]:
    """Read a text file of one name per line, as raw bytes; the last line break may be missing.

    Raises:
        NotAStore: there is no such file.
        Refused: it holds no name.
    """
    with open_regular(path) as file:
        raw = file.read()
    names = [name_text(line.removesuffix(b"\r")) for line in raw.split(b"\n")]
    if names[-1] == "":
        names.pop()
    if not names:
        raise Refused(str(path), "is empty", "Write one name per line.")
    return names


def read_columns(path: Path, wanted: Mapping[str, str | None]) -> tuple[dict[str, Column], NDArray[np.int64]]:
    """Read names, labels and splits from a CSV file; other columns are left alone.

    Returns:
        columns by role, and the line of each row.

    Raises:
        StoreError, ConfigError: see ``read_csv``.
    """
    with open_regular(path) as file:
        table = _Table(file, path, wanted)
        for fields in table.rows():
            table.take(fields)
    return table.columns(), np.array(table.lines)


def read_csv(path: Path, wanted: Mapping[str, str | None], spool: IO[bytes]) -> ForeignRows:
    """Read a CSV file with a header: a column of paths, maybe labels, splits, and one column per number of a row.

    Args:
        path: the file, UTF-8.
        wanted: by role, the name of a column, or ``None`` to look for the usual ones. ``embeddings`` is what the names
            of the embedding's columns begin with, before a number, or these names with commas between; by default
            they are the only columns that are numbered from 0 or 1 on.
        spool: an empty file without a name; gets the numbers as float64.

    Raises:
        NotAStore: there is no such file, or it is empty.
        Refused: a line cannot be used; names it.
        ConfigError: a column that was named is not there.
    """
    with open_regular(path) as file:
        table = _Table(file, path, wanted)
        numbers: list[list[float]] = []
        used: list[int] | None = None
        for fields in table.rows():
            if used is None:
                used = table.number_columns(fields)
            table.take(fields)
            try:
                numbers.append([float(fields[at]) for at in used])
            except ValueError:
                table.refuse_number(fields, used)
            if len(numbers) * len(used) >= _BLOCK_VALUES:
                spool.write(np.array(numbers, dtype="<f8").data)
                numbers.clear()
    assert used is not None
    if numbers:
        spool.write(np.array(numbers, dtype="<f8").data)
    spool.flush()
    found = dict(table.found) | {"embeddings": _run([table.header[at] for at in used])}
    rows = np.memmap(spool, "<f8", "r", 0, (len(table.lines), len(used)))
    read = {*used, *map(table.header.index, table.found.values())}
    left_out = [name or "(no name)" for at, name in enumerate(table.header) if at not in read]
    return ForeignRows(
        rows, table.columns(), f"{path} line %d", lines=np.array(table.lines), found=found, left_out=left_out
    )


def _run(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]} ({len(names)} columns)"


class _Table:
    """A CSV file while it is read: which column means what, and the texts of those but the numbers."""

    def __init__(self, file: IO[bytes], path: Path, wanted: Mapping[str, str | None]) -> None:
        self._where = str(path)
        self._reader = csv.reader(_lines(file, str(path)), strict=True)
        self._named = wanted.get("embeddings")
        self.lines: list[int] = []
        try:
            self.header = [name.strip() for name in next(self._reader)]
        except StopIteration:
            raise NotAStore(self._where, "is empty", _REMEDY) from None
        except csv.Error as error:
            raise Refused(f"{self._where} line 1", str(error), _REMEDY) from error
        self.found = self._choose(wanted)
        self._at = {role: self.header.index(name) for role, name in self.found.items()}
        for role, at in self._at.items():
            if self.header.count(self.header[at]) > 1:
                raise Refused(f"{self._where} line 1", f"column {self.header[at]!r} ({role}) comes twice", _REMEDY)
        self._texts: dict[str, list[str]] = {role: [] for role in self._at}

    def _choose(self, wanted: Mapping[str, str | None]) -> dict[str, str]:
        shown = ", ".join(self.header[:_SHOWN]) + (", ..." if len(self.header) > _SHOWN else "")
        by_lower = {name.lower(): name for name in reversed(self.header)}
        found: dict[str, str] = {}
        for role in ("ids", "labels", "splits", "labeled"):
            given = wanted.get(role)
            if given is not None and given not in self.header:
                raise ConfigError(f"--{role}-key", f"{self._where} has no column {given!r}; it has: {shown}", "")
            escaped = (ESCAPED_COLUMN,) if role == "ids" else ()
            usual = (*escaped, *USUAL_NAMES[role], *_MORE_NAMES.get(role, ()))
            name = given or next((by_lower[name] for name in usual if name in by_lower), None)
            if name is not None:
                found[role] = name
        if "ids" not in found:
            problem = f"no column of paths, such as path or sample_id; it has: {shown}"
            raise Refused(f"{self._where} line 1", problem, "Name it with --ids-key; the first line is the header.")
        return found

    def rows(self) -> Iterator[list[str]]:
        """Read line by line; lines that are empty are none."""
        while True:
            try:
                fields = next(self._reader)
            except StopIteration:
                break
            except csv.Error as error:
                raise Refused(f"{self._where} line {self._reader.line_num}", str(error), "Mend that line.") from error
            if not fields:
                continue
            if len(fields) != len(self.header):
                problem = f"{len(fields)} fields, the header has {len(self.header)}"
                raise Refused(f"{self._where} line {self._reader.line_num}", problem, "Mend that line.")
            self.lines.append(self._reader.line_num)
            yield fields
        if not self.lines:
            raise Refused(self._where, "holds a header only", _REMEDY)

    def take(self, fields: list[str]) -> None:
        """Keep the texts of a line."""
        for role, at in self._at.items():
            text = fields[at]
            if role == "ids" and self.header[at] == ESCAPED_COLUMN:
                try:
                    text = unescape_name(text)
                except ValueError as error:
                    raise Refused(f"{self._where} line {self.lines[-1]}", str(error), "Mend that line.") from error
            self._texts[role].append(text)

    def number_columns(self, fields: list[str]) -> list[int]:
        """Say which columns are the embedding: those that were named, or the only ones that are numbered."""
        runs: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for at, name in enumerate(self.header):
            numbered = re.fullmatch(r"(.*?)(\d+)", name)
            if numbered and at not in self._at.values():
                runs[numbered[1]].append((int(numbered[2]), at))
        if self._named is not None:
            names = [name.strip() for name in self._named.split(",")]
            used = [at for _, at in sorted(runs.get(self._named, ()))] or [
                self.header.index(name) for name in names if name in self.header
            ]
            if len(used) < len(names):
                problem = f"{self._where} has no column named {self._named!r} and a number"
                raise ConfigError("--embeddings-key", problem, "Give what their names begin with, or all names.")
            return used
        whole = [
            [at for _, at in sorted(run)]
            for run in runs.values()
            if sorted(number for number, _ in run)
            in (list(range(len(run))), list(range(1, len(run) + 1)) if len(run) > 1 else [])
        ]
        long = [run for run in whole if len(run) > 1] or whole
        used_runs = [run for run in long if any(_is_number(fields[at]) for at in run)] or long
        if len(used_runs) == 1:
            return used_runs[0]
        if used_runs:
            found = ", ".join(_run([self.header[at] for at in run]) for run in used_runs[:_SHOWN])
            problem = f"{len(used_runs)} runs of numbered columns may be the embedding: {found}"
        else:
            numbers = [name for at, name in enumerate(self.header) if _is_number(fields[at])]
            found = ", ".join(numbers[:_SHOWN]) or "none"
            problem = f"no run of columns such as embedding_0, embedding_1, ...; columns of numbers: {found}"
        remedy = "Say what their names begin with, before a number, or name all of them: --embeddings-key a,b,c."
        raise Refused(f"{self._where} line 1", problem, remedy)

    def refuse_number(self, fields: list[str], used: list[int]) -> NoReturn:
        """Name the field that is no number."""
        at = next(at for at in used if not _is_number(fields[at]))
        problem = f"{fields[at][:40]!r} in column {self.header[at]!r} is no number"
        raise Refused(
            f"{self._where} line {self.lines[-1]}",
            problem,
            "Mend or leave out that line, or name the columns: --embeddings-key.",
        )

    def columns(self) -> dict[str, Column]:
        """Return the texts by role; ``labeled`` as integers."""
        columns: dict[str, Column] = dict(self._texts)
        if "labeled" in self._texts:
            for text, line in zip(self._texts["labeled"], self.lines, strict=True):
                if text.strip() not in ("0", "1"):
                    raise Refused(f"{self._where} line {line}", f"labeled is {text!r}, expected 0 or 1", "Mend it.")
            columns["labeled"] = np.array([int(text) for text in self._texts["labeled"]], dtype=np.int64)
        return columns


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _lines(file: IO[bytes], where: str) -> Iterator[str]:
    number = 0
    with os.fdopen(os.dup(file.fileno()), "rb") as buffered:
        while raw := buffered.readline(_LINE_BYTES):
            number += 1
            if len(raw) == _LINE_BYTES:
                raise Refused(
                    f"{where} line {number}", f"is longer than {_LINE_BYTES >> 20} MiB", "Write shorter ones."
                )
            try:
                yield raw.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise Refused(f"{where} line {number}", "is not UTF-8", "Save the file as UTF-8.") from error
