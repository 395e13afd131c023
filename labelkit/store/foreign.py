"""Rows made elsewhere, in files of NumPy, HDF5 and text: which array or column means what, and what they hold.

Tables of text are CSV, or lists of one name per line. Nothing here runs a pickle. Of an HDF5 file, no link is followed,
and no dataset is read that lies in other files. Strings of variable length are read here and nowhere else in labelkit.
"""

from __future__ import annotations

import csv
import re
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import h5py
import numpy as np
from numpy.typing import NDArray

from labelkit.errors import ConfigError, Damaged, NotAStore, Refused
from labelkit.store.csv_table import ESCAPED_COLUMN, unescape_name
from labelkit.store.reader import one_line, open_hdf5, open_regular
from labelkit.store.schema import name_text

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

Column = list[str] | NDArray[Any]


@dataclass
class ForeignRows:
    """Embeddings and columns read from a file in a foreign format, with only types and lengths checked.

    Attributes:
        embeddings: (n, d) numbers of any type, a map of the file where it holds them in one piece.
        columns: by meaning: ``ids``, ``labels``, ``splits``, ``labeled`` with n texts or integers each, and
            ``class_names``, ``split_names`` with a name per number.
        where: number of a row to how messages call it.
        found: which array or column was taken for what.
        left_out: other arrays or columns.
    """

    embeddings: NDArray[Any]
    columns: dict[str, Column]
    where: Callable[[int], str]
    found: dict[str, str] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)


def _shape_text(shape: tuple[int, ...]) -> str:
    return "(" + ", ".join(map(str, shape)) + ")"


def _check_table(array: Any, where: str) -> None:
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
    """Return the name of the array or column for each role, as the user gave it or one that is usual, if there is one.

    Raises:
        ConfigError: a name that was given is not there.
    """
    by_lower = {name.lower(): name for name in reversed(names)}
    chosen: dict[str, str] = {}
    for role, known in usual.items():
        given = wanted.get(role)
        if given is not None and given not in names:
            option = f"--{role.replace('_', '-')}-key"
            raise ConfigError(option, f"{where} has no {given!r}, only {shown}", "Pass one of these.")
        found = given or next((by_lower[name] for name in known if name in by_lower), None)
        if found is not None and (given or found not in chosen.values()):
            chosen[role] = found
    return chosen


def _choose(where: str, found: Mapping[str, Any], wanted: Mapping[str, str | None]) -> dict[str, str]:
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
            raise Refused(where, "contains integers outside the range of int64", "Use smaller numbers.")
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
    return ForeignRows(rows, {}, lambda row: f"{where} row {row}")


def read_npz(path: Path, wanted: Mapping[str, str | None]) -> ForeignRows:
    """Read embeddings and columns of a ``.npz`` file into memory.

    Raises:
        NotAStore: it is none.
        ConfigError: an array that was named is not there.
        Refused: no array can be the embeddings, or it holds objects.
        Damaged: it is cut off or changed.
    """
    where = str(path)
    with open_regular(path) as file:
        if not zipfile.is_zipfile(file):
            raise NotAStore(where, "is not in NumPy's .npz format", "Write it with numpy.savez.")
        file.seek(0)
        arrays: dict[str, NDArray[Any]] = {}
        try:
            with np.load(file, allow_pickle=False) as archive:
                members = archive.files
                for name in members:
                    try:
                        arrays[name] = archive[name]
                    except ValueError as error:
                        if "Object arrays" not in str(error):
                            raise
                        if name in wanted.values() or any(name.lower() in usual for usual in USUAL_NAMES.values()):
                            _refuse_objects(f"{where}:{name}")
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError) as error:
            raise Damaged(where, f"cannot be unpacked ({str(error)[:100]})", _WHOLE) from error
    chosen = _choose(where, arrays, wanted)
    found = {role: arrays[name] for role, name in chosen.items()}
    return _foreign_rows(found, {role: f"{where}:{name}" for role, name in chosen.items()}, chosen, members)


def _foreign_rows(
    arrays: dict[str, NDArray[Any]], places: Mapping[str, str], chosen: dict[str, str], members: Sequence[str]
) -> ForeignRows:
    """Return the arrays by role, ``embeddings`` first, as rows and columns."""
    rows = arrays.pop("embeddings")
    columns = {role: _plain_column(values, places[role]) for role, values in arrays.items()}
    left_out = [name for name in members if name not in chosen.values()]
    return ForeignRows(rows, columns, lambda row: f"{places['embeddings']} row {row}", chosen, left_out)


# ---- HDF5


def read_hdf5(path: Path, wanted: Mapping[str, str | None]) -> ForeignRows:
    """Read embeddings and columns of a foreign HDF5 file, with contiguous embeddings as a memory map.

    Args:
        path: the file.
        wanted: by role, the path of a dataset, or ``None`` to look among those of the root group, and of ``obs``, where
            AnnData has names and labels.

    Raises:
        NotAStore: it is no HDF5 file.
        ConfigError: a dataset that was named is not there.
        Refused: no dataset can be the embeddings, or one holds what is not read.
        Damaged: HDF5 cannot read it.
    """
    where, named = str(path), {role: key and key.strip("/") for role, key in wanted.items()}
    with open_regular(path) as handle:
        try:
            with open_hdf5(handle, where) as file:
                return _read_datasets(file, handle, where, named)
        except (OSError, RuntimeError, KeyError, ValueError, TypeError, OverflowError, MemoryError) as error:
            raise Damaged(where, f"HDF5 cannot read it ({one_line(error)})", _WHOLE) from error


def _read_datasets(file: h5py.File, handle: BinaryIO, where: str, wanted: Mapping[str, str | None]) -> ForeignRows:
    datasets: dict[str, h5py.Dataset] = {}

    def look(name: str | bytes, item: h5py.Group | h5py.Dataset) -> None:
        name = name if isinstance(name, str) else name_text(name)
        if isinstance(item, h5py.Group):
            # Categories of pandas are a group of numbers and their names.
            if isinstance(item.get("codes"), h5py.Dataset) and isinstance(item.get("categories"), h5py.Dataset):
                datasets[name] = item["codes"]
        elif not item.is_virtual and not item.external:
            datasets[name] = item

    file.visititems(look)  # no link that leads elsewhere is followed
    members = [name for name in file if isinstance(file.get(name, getlink=True), h5py.HardLink)]
    if "obs" in members and "obs" not in datasets:
        members[members.index("obs") : members.index("obs") + 1] = [f"obs/{name}" for name in file["obs"]]
    given = {key: datasets[key] for key in wanted.values() if key in datasets}
    chosen = _choose(where, given | {name: datasets[name] for name in members if name in datasets}, wanted)
    left_out = [name for name in members if name not in chosen.values()]
    labels = chosen.get("labels")
    if labels is not None and isinstance(file[labels], h5py.Group):
        chosen |= {"labels": f"{labels}/codes", "class_names": f"{labels}/categories"}
    places = {role: f"{where}:/{name}" for role, name in chosen.items()}
    found: dict[str, NDArray[Any]] = {}
    for role, name in chosen.items():
        dataset = file[name]
        if role == "embeddings":
            _check_table(dataset, places[role])
        elif dataset.dtype.kind == "O" and h5py.check_string_dtype(dataset.dtype) is None:
            raise Refused(places[role], f"holds {dataset.dtype}", "Write integers or texts.")
        offset = dataset.id.get_offset() if role == "embeddings" and dataset.chunks is None else None
        if offset is None or offset % dataset.dtype.itemsize:
            found[role] = dataset[...]
        else:
            found[role] = np.memmap(handle, dataset.dtype, "r", offset, dataset.shape)
    return _foreign_rows(found, places, {role: f"/{name}" for role, name in chosen.items()}, left_out)


# ---- text


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
    where = str(path)
    with open_regular(path) as file:
        lines = _fields(file, where)
        _, header = next(lines, (0, []))
        header = [name.strip() for name in header]
        if not header:
            raise NotAStore(where, "is empty", _REMEDY)
        found = _find_columns(where, header, wanted)
        places = {role: header.index(name) for role, name in found.items()}
        texts: dict[str, list[str]] = {role: [] for role in places}
        numbers: list[int] = []
        rows: list[NDArray[np.float64]] = []
        used: list[int] = []
        for line, fields in lines:
            if len(fields) != len(header):
                problem = f"the line has {len(fields)} fields, but the header has {len(header)}"
                raise Refused(f"{where} line {line}", problem, "Correct this line.")
            if not numbers and with_rows:
                others = {at: name for at, name in enumerate(header) if at not in places.values()}
                used = _number_columns(where, header, others, fields, wanted.get("embeddings"))
            numbers.append(line)
            for role, at in places.items():
                texts[role].append(fields[at])
            try:
                rows.append(np.array([float(fields[at]) for at in used]))
            except ValueError:
                at = next(at for at in used if not _is_number(fields[at]))
                problem = f"{fields[at][:40]!r} in column {header[at]!r} is not a number"
                remedy = "Correct or remove this line, or choose the columns with --embeddings-key."
                raise Refused(f"{where} line {line}", problem, remedy) from None
    if not rows:
        raise Refused(where, "contains only a header", _REMEDY)
    if found["ids"] == ESCAPED_COLUMN:
        texts["ids"] = [
            _unescaped(text, f"{where} line {line}") for text, line in zip(texts["ids"], numbers, strict=True)
        ]
    columns: dict[str, Column] = dict(texts)
    if "labeled" in texts:
        for text, line in zip(texts["labeled"], numbers, strict=True):
            if text.strip() not in ("0", "1"):
                raise Refused(
                    f"{where} line {line}",
                    f"column 'labeled' contains {text!r}, expected 0 or 1",
                    "Correct this value.",
                )
        columns["labeled"] = np.array(texts["labeled"]).astype(np.int64)
    found |= {"embeddings": _run([header[at] for at in used])} if with_rows else {}
    left_out = [name or "(no name)" for at, name in enumerate(header) if at not in (*used, *places.values())]
    return ForeignRows(np.stack(rows), columns, lambda row: f"{where} line {numbers[row]}", found, left_out)


def _fields(file: BinaryIO, where: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the number and the fields of each line that is not empty."""
    reader = csv.reader(_lines(file, where), strict=True)
    try:
        yield from ((reader.line_num, fields) for fields in reader if fields)
    except csv.Error as error:
        raise Refused(f"{where} line {reader.line_num}", str(error), "Correct this line.") from error


def _unescaped(text: str, place: str) -> str:
    try:
        return unescape_name(text)
    except ValueError as error:
        raise Refused(place, str(error), "Correct this line.") from error


def _find_columns(where: str, header: Sequence[str], wanted: Mapping[str, str | None]) -> dict[str, str]:
    shown = ", ".join(header[:_SHOWN]) + (", ..." if len(header) > _SHOWN else "")
    found = _chosen(where, header, shown, wanted, _COLUMN_NAMES)
    if "ids" not in found:
        problem = f"there is no column of paths, such as path or sample_id; columns: {shown}"
        raise Refused(f"{where} line 1", problem, "Choose one with --ids-key; the first line is the header.")
    for role, name in found.items():
        if header.count(name) > 1:
            raise Refused(f"{where} line 1", f"column {name!r} ({role}) occurs twice", _REMEDY)
    return found


def _number_columns(
    where: str, header: Sequence[str], others: Mapping[int, str], fields: Sequence[str], named: str | None
) -> list[int]:
    """Return which columns are the embedding: those that were named, or the only ones that are numbered.

    Args:
        where: the file.
        header: all names.
        others: the columns that have no other role.
        fields: the first line.
        named: what the user gave.
    """
    runs: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for at, name in others.items():
        numbered = re.fullmatch(r"(.*?)(\d+)", name)
        if numbered:
            runs[numbered[1]].append((int(numbered[2]), at))
    if named is not None:
        names = [name.strip() for name in named.split(",")]
        used = [at for _, at in sorted(runs.get(named, ()))] or [header.index(name) for name in names if name in header]
        if len(used) < len(names):
            problem = f"{where} has no column named {named!r} and a number"
            raise ConfigError("--embeddings-key", problem, "Pass the prefix of the column names, or all names.")
        return used
    whole = []
    for run in runs.values():
        numbers = [number for number, _ in sorted(run)]
        if numbers == list(range(len(run))) or (len(run) > 1 and numbers == list(range(1, len(run) + 1))):
            whole.append([at for _, at in sorted(run)])
    long = [run for run in whole if len(run) > 1] or whole
    used_runs = [run for run in long if any(_is_number(fields[at]) for at in run)] or long
    if len(used_runs) == 1:
        return used_runs[0]
    if used_runs:
        found = ", ".join(_run([header[at] for at in run]) for run in used_runs[:_SHOWN])
        problem = f"{len(used_runs)} series of numbered columns may be the embedding: {found}"
    else:
        found = ", ".join([name for name, text in zip(header, fields, strict=True) if _is_number(text)][:_SHOWN])
        problem = f"there are no columns such as embedding_0, embedding_1, ...; columns of numbers: {found or 'none'}"
    remedy = "Pass the prefix before the number, or all column names: --embeddings-key a,b,c."
    raise Refused(f"{where} line 1", problem, remedy)


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
