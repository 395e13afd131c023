"""Rows made elsewhere, in files of NumPy, HDF5 and text: which array or column means what, and what they hold.

Tables of text are CSV, or lists of one name per line. Nothing here runs a pickle. Of an HDF5 file, no link is followed
that leads elsewhere, and ``labelkit.store.structure`` refuses what no dataset may be. Strings of variable length are
read here and nowhere else in labelkit.
"""

from __future__ import annotations

import csv
import re
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import h5py
import numpy as np
from numpy.typing import NDArray

from labelkit.errors import ConfigError, Damaged, NotAStore, Refused
from labelkit.store import schema
from labelkit.store.csv_table import ESCAPED_COLUMN, unescape_name
from labelkit.store.schema import name_bytes, name_text
from labelkit.store.structure import DatasetInfo, Refuse, inspect_dataset, one_line, open_hdf5, open_regular, plain_type

USUAL_NAMES: dict[str, tuple[str, ...]] = {
    "embeddings": ("embeddings", "embedding", "features", "feats", "vectors", "x", "arr_0"),
    "ids": ("sample_ids", "ids", "paths", "path", "filenames", "files", "names", "obs/_index", "obs/index"),
    "labels": ("labels", "label", "targets", "y", "obs/labels", "obs/label"),
    "splits": ("splits", "split"),
    "labeled": ("labeled",),
    "class_names": ("class_names", "classes"),
    "split_names": ("split_names",),
}
"""Names looked for, the first that is there, where no option says another; capitals do not matter.

In a file of AnnData, names and labels are in the group ``obs``.
"""

_WHOLE = "Restore the file or write it again."
_OBSERVATIONS, _CODES, _NAMES = "obs", "/codes", "/categories"

Column = list[str] | NDArray[Any]
_Known = NDArray[Any] | DatasetInfo
"""An array, or what is known about it before it is read."""


@dataclass
class ForeignRows:
    """Embeddings and columns read from a file in a foreign format, with only types and lengths checked.

    Attributes:
        embeddings: (n, d) numbers of any type, a map of the file where it holds them in one piece.
        columns: by meaning: ``ids``, ``labels``, ``splits``, ``labeled`` with n texts or integers each, and
            ``class_names``, ``split_names`` with a name per number.
        place: number of a row to how messages call it is ``place % row``.
        lines: (n,) numbers of the rows in messages, where they do not count from 0.
        found: which array or column was taken for what.
        left_out: other arrays or columns.
    """

    embeddings: NDArray[Any]
    columns: dict[str, Column]
    place: str
    lines: NDArray[np.int64] | None = None
    found: dict[str, str] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)

    def where(self, row: int) -> str:
        """Return the name of a row for error messages."""
        return self.place % (row if self.lines is None else self.lines[row])


def _shape_text(shape: tuple[int, ...]) -> str:
    return "(" + ", ".join(map(str, shape)) + ")"


def _check_table(array: _Known, where: str) -> None:
    """Reject embeddings that are no table of numbers."""
    if array.dtype.kind not in "iuf":
        remedy = "Write the embeddings as one array of numbers, such as float32."
        raise Refused(where, f"embeddings of type {array.dtype} are not supported", remedy)
    if len(array.shape) != 2 or 0 in array.shape:
        problem = f"embeddings of shape {_shape_text(array.shape)}, expected (rows, values), neither of them 0"
        raise Refused(where, problem, "Write one row per image.")


def _chosen(
    where: str, names: Sequence[str], shown: str, wanted: Mapping[str, str | None], usual: Mapping[str, tuple[str, ...]]
) -> dict[str, str]:
    """Return the name of the array or column for each role; roles that the file lacks are left out.

    Args:
        where: the file.
        names: what it holds.
        shown: the same for messages.
        wanted: by role, the name that the user gave, or ``None``.
        usual: by role, the names looked for, the first that is there; capitals do not matter.

    Raises:
        ConfigError: a name that was given is not there.
    """
    by_lower = {name.lower(): name for name in reversed(names)}
    chosen: dict[str, str] = {}
    for role, known in usual.items():
        given = wanted.get(role)
        if given is not None and given not in names:
            option = f"--{role.replace('_', '-')}-key"
            raise ConfigError(option, f"{where} has no {given!r}, only {shown}", "Choose one of these.")
        found = given or next((by_lower[name] for name in known if name in by_lower), None)
        if found is not None and (given or found not in chosen.values()):
            chosen[role] = found
    return chosen


def _choose(where: str, found: Mapping[str, _Known], wanted: Mapping[str, str | None]) -> dict[str, str]:
    """Return the name of the array for each role, ``embeddings`` first.

    Raises:
        ConfigError: a name that was given is not there.
        Refused: no array can be the embeddings.
    """
    names = ", ".join(f"{name} {_shape_text(array.shape)}" for name, array in list(found.items())[:20]) or "nothing"
    chosen = _chosen(where, list(found), names, wanted, USUAL_NAMES)
    if "embeddings" not in chosen:
        tables = [name for name, array in found.items() if array.dtype.kind not in "SUO" and len(array.shape) == 2]
        if len(tables) != 1:
            problem = f"it is unclear which array contains the embeddings; arrays: {names}"
            raise Refused(where, problem, "Choose one with --embeddings-key.")
        chosen["embeddings"] = tables[0]
    return {"embeddings": chosen.pop("embeddings"), **chosen}


def _plain_column(values: NDArray[Any], where: str) -> Column:
    """Return a column as texts, or as integers; numbers with a point, such as labels with gaps, become texts."""
    if values.ndim != 1 or values.dtype.kind not in "iubfSUO":
        problem = f"type {values.dtype} of shape {_shape_text(values.shape)}, expected one integer or text "
        raise Refused(where, f"{problem}per row", "Write it as such an array.")
    if values.dtype.kind in "iub":
        if values.dtype.kind == "u" and len(values) and int(values.max()) > np.iinfo(np.int64).max:
            raise Refused(where, "contains integers beyond the range of signed 64 bits", "Write smaller numbers.")
        return values.astype(np.int64)
    return [name_text(text) if isinstance(text, bytes) else str(text) for text in values.tolist()]


# ---- .npy and .npz


def _refuse_objects(where: str) -> NoReturn:
    problem = "contains Python objects, which only an unsafe pickle could restore"
    raise Refused(where, problem, "Write numbers and strings as arrays of these types.")


def read_npy(path: Path) -> ForeignRows:
    """Read the embeddings of a ``.npy`` file as a memory map.

    Raises:
        NotAStore: it is none.
        Refused: it holds objects, or no table of numbers.
        Damaged: it is cut off.
    """
    where = str(path)
    with open_regular(path) as file:
        start = file.read(6)
    if start != b"\x93NUMPY":
        problem = "is not in NumPy's .npy format" if start else "is empty"
        raise NotAStore(where, problem, "Write it with numpy.save.")
    try:
        rows = np.lib.format.open_memmap(path, mode="r")
    except (ValueError, OSError, SyntaxError, TypeError) as error:
        if "Python objects" in str(error):
            _refuse_objects(where)
        raise Damaged(where, f"is cut off, or its header cannot be read ({str(error)[:100]})", _WHOLE) from error
    _check_table(rows, where)
    return ForeignRows(rows, {}, f"{where} row %d")


def read_npz(path: Path, wanted: Mapping[str, str | None]) -> ForeignRows:
    """Read embeddings and columns of a ``.npz`` file into memory.

    Raises:
        NotAStore: it is none.
        ConfigError: an array that was named is not there.
        Refused: no array can be the embeddings; it holds objects, or declares more than its bytes can hold.
        Damaged: it is cut off or changed.
    """
    where = str(path)
    with open_regular(path) as file:
        if not zipfile.is_zipfile(file):
            raise NotAStore(where, "is not in NumPy's .npz format", "Write it with numpy.savez.")
        file.seek(0)
        try:
            with np.load(file, allow_pickle=False) as archive:
                return _read_archive(archive, where, wanted)
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError) as error:
            raise Damaged(where, f"cannot be unpacked ({str(error)[:100]})", _WHOLE) from error


def _read_archive(archive: Any, where: str, wanted: Mapping[str, str | None]) -> ForeignRows:
    for info in archive.zip.infolist():
        if info.file_size > schema.FILTER_RATIO * max(info.compress_size, 1024):
            problem = f"{info.file_size} bytes declared, {info.compress_size} stored"
            raise Refused(f"{where}:{info.filename.removesuffix('.npy')}", problem, "Write it with numpy.savez.")
    arrays: dict[str, NDArray[Any]] = {}
    for name in archive.files:
        try:
            arrays[name] = archive[name]
        except ValueError as error:
            if "Object arrays" not in str(error):
                raise
            if name in wanted.values() or any(name.lower() in usual for usual in USUAL_NAMES.values()):
                _refuse_objects(f"{where}:{name}")
    chosen = _choose(where, arrays, wanted)
    _check_table(arrays[chosen["embeddings"]], f"{where}:{chosen['embeddings']}")
    columns = {
        role: _plain_column(arrays[name], f"{where}:{name}") for role, name in chosen.items() if role != "embeddings"
    }
    left_out = [name for name in archive.files if name not in chosen.values()]
    rows = arrays[chosen["embeddings"]]
    return ForeignRows(rows, columns, f"{where}:{chosen['embeddings']} row %d", found=chosen, left_out=left_out)


# ---- HDF5


def read_hdf5(path: Path, wanted: Mapping[str, str | None]) -> ForeignRows:
    """Read embeddings and columns of a foreign HDF5 file, with contiguous embeddings as a memory map.

    Args:
        path: the file.
        wanted: by role, the path of a dataset, or ``None`` to look among those of the root group.

    Raises:
        NotAStore: it is no HDF5 file.
        ConfigError: a dataset that was named is not there.
        Refused: it holds what is never read; see ``labelkit.store.schema``.
        Damaged: HDF5 cannot read it.
    """
    where = str(path)
    with open_regular(path) as handle:
        try:
            with open_hdf5(handle, where) as file:
                named = {role: None if key is None else key.strip("/") for role, key in wanted.items()}
                return _ForeignFile(file, handle, where).read(named)
        except (OSError, RuntimeError, KeyError, ValueError, TypeError, OverflowError, MemoryError) as error:
            raise Damaged(where, f"HDF5 cannot read it ({one_line(error)})", _WHOLE) from error


def _foreign_type(dtype: np.dtype[Any], refuse: Refuse) -> np.dtype[Any]:
    text = h5py.check_string_dtype(dtype)
    if text is not None and text.length is None:
        return np.dtype(object)
    return dtype if dtype.kind == "b" else plain_type(dtype, refuse)


class _ForeignFile:
    """A foreign HDF5 file: what is not asked for is not examined."""

    def __init__(self, file: h5py.File, handle: Any, where: str) -> None:
        self._file, self._handle, self._where = file, handle, where
        self._size = handle.seek(0, 2)
        self._seen: dict[str, DatasetInfo] = {}

    def read(self, wanted: Mapping[str, str | None]) -> ForeignRows:
        members = list(self._members(""))
        if _OBSERVATIONS in members and not self._look(_OBSERVATIONS):
            members.remove(_OBSERVATIONS)
            members += self._members(_OBSERVATIONS)
        given = {role: key for role, key in wanted.items() if key is not None}
        chosen = _choose(self._where, self._looked_at(members, given), wanted)
        left_out = [name for name in members if name not in chosen.values()]
        labels = chosen.get("labels", "")
        if labels + _CODES in self._seen:
            chosen |= {"labels": labels + _CODES, "class_names": labels + _NAMES}
        found = {role: f"/{name}" for role, name in chosen.items()}
        places = {role: f"{self._where}:{name}" for role, name in found.items()}
        info = self._seen[chosen["embeddings"]]
        _check_table(info, places["embeddings"])
        rows: NDArray[Any]
        if info.offset is None or info.offset % info.dtype.itemsize:
            rows = self._file[name_bytes(chosen["embeddings"])][...]
        else:
            rows = np.memmap(self._handle, info.dtype, "r", info.offset, info.shape)
        columns = {
            role: _plain_column(self._file[name_bytes(name)][...], places[role])
            for role, name in chosen.items()
            if role != "embeddings"
        }
        return ForeignRows(rows, columns, f"{places['embeddings']} row %d", found=found, left_out=left_out)

    def _looked_at(self, names: list[str], given: Mapping[str, str]) -> dict[str, DatasetInfo]:
        """Inspect all datasets, and refuse those alone that were named or have a usual name."""
        usual = {name for role, known in USUAL_NAMES.items() if role not in given for name in known}
        there: dict[str, str] = {}
        for name in dict.fromkeys([*given.values(), *names]):
            try:
                # Categories of pandas are a group of numbers and their names.
                if self._look(name + _CODES) and self._look(name + _NAMES):
                    there[name] = name + _CODES
                elif self._look(name):
                    there[name] = name
            except Refused:
                if name in given.values() or name.lower() in usual:
                    raise
        return {name: self._seen[key] for name, key in there.items()}

    def _members(self, group: str) -> Iterator[str]:
        """Paths of all that links of a group lead to, but for those that lead elsewhere."""
        opened = self._file[name_bytes("/" + group)]
        for name in opened:
            if isinstance(opened.get(name, getlink=True), h5py.HardLink):
                yield f"{group}/{name if isinstance(name, str) else name_text(name)}".lstrip("/")

    def _look(self, path: str) -> bool:
        """Check a dataset and the links that lead to it; say whether it is there."""

        def refuse(problem: str) -> NoReturn:
            remedy = "Rewrite the arrays as plain datasets of one file."
            raise Refused(f"{self._where}:/{path}", f"is not supported: {problem}", remedy)

        item: Any = self._file
        for part in path.split("/"):
            link = item.get(name_bytes(part), getlink=True) if part and isinstance(item, h5py.Group) else None
            if link is None:
                return False
            if not isinstance(link, h5py.HardLink):
                refuse("a soft or external link")
            item = item[name_bytes(part)]
        if not isinstance(item, h5py.Dataset):
            return False
        self._seen[path] = inspect_dataset(item, self._size, refuse, may_filter=True, type_of=_foreign_type)
        return True


_BLOCK_ROWS = 1 << 12
_SHOWN = 12
_COLUMN_NAMES = {
    "ids": (
        ESCAPED_COLUMN, *USUAL_NAMES["ids"],
        "filename", "file_name", "file", "image", "image_path", "name", "sample_id", "id",
    ),
    "labels": (*USUAL_NAMES["labels"], "class", "class_name", "category"),
    "splits": USUAL_NAMES["splits"],
    "labeled": USUAL_NAMES["labeled"],
}  # fmt: skip
_REMEDY = "Write a header, then one line per image with its path and numbers."


def read_names(path: Path) -> list[str]:
    """Read a text file with one name per line, as raw bytes, with or without a final line break.

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
    """Read a CSV file with a column of paths, optional labels and splits, and one column per embedding value.

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
                raise Refused(f"{where} line 1", f"column {name!r} ({role}) occurs twice", _REMEDY)

    def read(self, named: str | None, *, with_rows: bool) -> ForeignRows:
        lines: list[int] = []
        texts: dict[str, list[str]] = {role: [] for role in self._at}
        blocks: list[NDArray[np.float64]] = []
        numbers: list[list[float]] = []
        used: list[int] = []
        for fields in self._fields():
            line = self._reader.line_num
            if len(fields) != len(self._header):
                problem = f"the line has {len(fields)} fields, but the header has {len(self._header)}"
                raise Refused(f"{self._where} line {line}", problem, "Correct this line.")
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
            raise Refused(self._where, "contains only a header", _REMEDY)
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
            raise Refused(f"{self._where} line {self._reader.line_num}", str(error), "Correct this line.") from error

    def _choose(self, wanted: Mapping[str, str | None]) -> dict[str, str]:
        shown = ", ".join(self._header[:_SHOWN]) + (", ..." if len(self._header) > _SHOWN else "")
        found = _chosen(self._where, self._header, shown, wanted, _COLUMN_NAMES)
        if "ids" not in found:
            problem = f"there is no column of paths, such as path or sample_id; columns: {shown}"
            raise Refused(f"{self._where} line 1", problem, "Choose one with --ids-key; the first line is the header.")
        return found

    def _text(self, role: str, text: str, line: int) -> str:
        """Return a field as it is meant."""
        if role == "ids" and self._found["ids"] == ESCAPED_COLUMN:
            try:
                return unescape_name(text)
            except ValueError as error:
                raise Refused(f"{self._where} line {line}", str(error), "Correct this line.") from error
        if role == "labeled" and text.strip() not in ("0", "1"):
            raise Refused(f"{self._where} line {line}", f"labeled is {text!r}, expected 0 or 1", "Correct it.")
        return text

    def _number_columns(self, fields: list[str], named: str | None) -> list[int]:
        """Return which columns are the embedding: those that were named, or the only ones that are numbered."""
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
                raise ConfigError("--embeddings-key", problem, "Pass the prefix of the column names, or all names.")
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
            problem = f"{len(used_runs)} series of numbered columns may be the embedding: {found}"
        else:
            numbers = [name for at, name in enumerate(self._header) if _is_number(fields[at])]
            found = ", ".join(numbers[:_SHOWN]) or "none"
            problem = f"there are no columns such as embedding_0, embedding_1, ...; columns of numbers: {found}"
        remedy = "Pass the prefix before the number, or all column names: --embeddings-key a,b,c."
        raise Refused(f"{self._where} line 1", problem, remedy)

    def _refuse_number(self, fields: list[str], used: list[int], line: int) -> NoReturn:
        """Name the field that is no number."""
        at = next(at for at in used if not _is_number(fields[at]))
        problem = f"{fields[at][:40]!r} in column {self._header[at]!r} is not a number"
        remedy = "Correct or remove this line, or choose the columns with --embeddings-key."
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
