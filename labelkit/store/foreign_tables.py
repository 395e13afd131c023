"""Read rows, names, labels and splits from tables of text: CSV, and lists of one name per line."""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, NoReturn

import numpy as np
from numpy.typing import NDArray

from labelkit.errors import ConfigError, NotAStore, Refused
from labelkit.store.csv_table import ESCAPED_COLUMN, unescape_name
from labelkit.store.foreign_arrays import USUAL_NAMES, Column, ForeignRows
from labelkit.store.schema import name_text
from labelkit.store.structure import open_regular

_BLOCK_ROWS = 1 << 12
_SHOWN = 12
_MORE_NAMES = {
    "ids": ("filename", "file_name", "file", "image", "image_path", "name", "sample_id", "id"),
    "labels": ("class", "class_name", "category"),
}
_REMEDY = "Write a header, then one line per image: its path, and numbers."


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


def read_csv(path: Path, wanted: Mapping[str, str | None], *, with_rows: bool = True) -> ForeignRows:
    """Read a CSV file with a header: a column of paths, maybe labels, splits, and one column per number of a row.

    Args:
        path: the file, UTF-8.
        wanted: by role, the name of a column, or ``None`` to look for the usual ones. ``embeddings`` is what the names
            of the embedding's columns begin with, before a number, or these names with commas between; by default
            they are the only columns that are numbered from 0 or 1 on.
        with_rows: also read the numbers; else the rows have no values.

    Raises:
        NotAStore: there is no such file, or it is empty.
        Refused: a line cannot be used; names it.
        ConfigError: a column that was named is not there.
    """
    with open_regular(path) as file:
        return _Table(file, str(path), wanted).read(wanted.get("embeddings"), with_rows=with_rows)


class _Table:
    """A CSV file while it is read: which column means what."""

    def __init__(self, file: BinaryIO, where: str, wanted: Mapping[str, str | None]) -> None:
        self._where = where
        self._reader = csv.reader(_lines(file, where), strict=True)
        self._header = [name.strip() for name in next(self._fields(), [])]
        if not self._header:
            raise NotAStore(where, "is empty", _REMEDY)
        self._found = self._choose(wanted)
        self._at = {role: self._header.index(name) for role, name in self._found.items()}
        for role, name in self._found.items():
            if self._header.count(name) > 1:
                raise Refused(f"{where} line 1", f"column {name!r} ({role}) comes twice", _REMEDY)

    def read(self, named: str | None, *, with_rows: bool) -> ForeignRows:
        lines: list[int] = []
        texts: dict[str, list[str]] = {role: [] for role in self._at}
        blocks: list[NDArray[np.float64]] = []
        numbers: list[list[float]] = []
        used: list[int] = []
        for fields in self._fields():
            line = self._reader.line_num
            if len(fields) != len(self._header):
                problem = f"{len(fields)} fields, the header has {len(self._header)}"
                raise Refused(f"{self._where} line {line}", problem, "Mend that line.")
            if not lines and with_rows:
                used = self._number_columns(fields, named)
            lines.append(line)
            for role, at in self._at.items():
                texts[role].append(self._text(role, fields[at], line))
            try:
                numbers.append([float(fields[at]) for at in used])
            except ValueError:
                self._refuse_number(fields, used, line)
            if len(numbers) == _BLOCK_ROWS:
                blocks.append(np.array(numbers))
                numbers.clear()
        if not lines:
            raise Refused(self._where, "holds a header only", _REMEDY)
        blocks.append(np.array(numbers).reshape(len(numbers), len(used)))
        columns: dict[str, Column] = dict(texts)
        if "labeled" in texts:
            columns["labeled"] = np.array([int(text) for text in texts["labeled"]], dtype=np.int64)
        found = self._found | ({"embeddings": _run([self._header[at] for at in used])} if with_rows else {})
        read = {*used, *self._at.values()}
        left_out = [name or "(no name)" for at, name in enumerate(self._header) if at not in read]
        place = f"{self._where} line %d"
        return ForeignRows(np.concatenate(blocks), columns, place, np.array(lines), found, left_out)

    def _fields(self) -> Iterator[list[str]]:
        """Read line by line; lines that are empty are none."""
        try:
            yield from filter(None, self._reader)
        except csv.Error as error:
            raise Refused(f"{self._where} line {self._reader.line_num}", str(error), "Mend that line.") from error

    def _choose(self, wanted: Mapping[str, str | None]) -> dict[str, str]:
        shown = ", ".join(self._header[:_SHOWN]) + (", ..." if len(self._header) > _SHOWN else "")
        by_lower = {name.lower(): name for name in reversed(self._header)}
        found: dict[str, str] = {}
        for role in ("ids", "labels", "splits", "labeled"):
            given = wanted.get(role)
            if given is not None and given not in self._header:
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

    def _text(self, role: str, text: str, line: int) -> str:
        """Return a field as it is meant."""
        if role == "ids" and self._found["ids"] == ESCAPED_COLUMN:
            try:
                return unescape_name(text)
            except ValueError as error:
                raise Refused(f"{self._where} line {line}", str(error), "Mend that line.") from error
        if role == "labeled" and text.strip() not in ("0", "1"):
            raise Refused(f"{self._where} line {line}", f"labeled is {text!r}, expected 0 or 1", "Mend it.")
        return text

    def _number_columns(self, fields: list[str], named: str | None) -> list[int]:
        """Say which columns are the embedding: those that were named, or the only ones that are numbered."""
        runs: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for at, name in enumerate(self._header):
            numbered = re.fullmatch(r"(.*?)(\d+)", name)
            if numbered and at not in self._at.values():
                runs[numbered[1]].append((int(numbered[2]), at))
        if named is not None:
            names = [name.strip() for name in named.split(",")]
            used = [at for _, at in sorted(runs.get(named, ()))] or [
                self._header.index(name) for name in names if name in self._header
            ]
            if len(used) < len(names):
                problem = f"{self._where} has no column named {named!r} and a number"
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
            found = ", ".join(_run([self._header[at] for at in run]) for run in used_runs[:_SHOWN])
            problem = f"{len(used_runs)} runs of numbered columns may be the embedding: {found}"
        else:
            numbers = [name for at, name in enumerate(self._header) if _is_number(fields[at])]
            found = ", ".join(numbers[:_SHOWN]) or "none"
            problem = f"no run of columns such as embedding_0, embedding_1, ...; columns of numbers: {found}"
        remedy = "Say what their names begin with, before a number, or name all of them: --embeddings-key a,b,c."
        raise Refused(f"{self._where} line 1", problem, remedy)

    def _refuse_number(self, fields: list[str], used: list[int], line: int) -> NoReturn:
        """Name the field that is no number."""
        at = next(at for at in used if not _is_number(fields[at]))
        problem = f"{fields[at][:40]!r} in column {self._header[at]!r} is no number"
        remedy = "Mend or leave out that line, or name the columns: --embeddings-key."
        raise Refused(f"{self._where} line {line}", problem, remedy)


def _run(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]} ({len(names)} columns)"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _lines(file: BinaryIO, where: str) -> Iterator[str]:
    for number, raw in enumerate(file, 1):
        try:
            yield raw.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise Refused(f"{where} line {number}", "is not UTF-8", "Save the file as UTF-8.") from error
