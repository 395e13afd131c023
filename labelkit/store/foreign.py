"""Read embeddings, names and labels written by other programs from NumPy, HDF5 and text files.

Text files are CSV tables, or lists of one name per line. Pickles are never loaded. In HDF5 files, links are not
followed, and datasets in external files are not read. Only this module of labelkit reads variable-length strings.
"""

import codecs
import csv
import re
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import h5py
import numpy as np
from numpy.typing import NDArray

from labelkit.errors import ConfigError, Damaged, NotAStore, Refused
from labelkit.files import decode_table, detect_encoding, open_csv_reader
from labelkit.formatting import to_one_line
from labelkit.store.csv_table import ESCAPED_COLUMN, unescape_name
from labelkit.store.reader import open_hdf5, open_regular
from labelkit.store.schema import decode_name

USUAL_NAMES: dict[str, tuple[str, ...]] = {
    "embeddings": ("embeddings", "embedding", "features", "feats", "vectors", "x", "arr_0"),
    "ids": ("sample_ids", "ids", "paths", "path", "filenames", "files", "names", "obs/_index", "obs/index"),
    "labels": ("labels", "label", "targets", "y", "obs/labels", "obs/label"),
    "splits": ("splits", "split"),
    "labeled": ("labeled", "labelled"),
    "class_names": ("class_names", "classes"),
    "split_names": ("split_names",),
}
"""Names to look for if no option specifies one; the first that exists is used, ignoring case.

AnnData stores names and labels in the group ``obs``.
"""

_WHOLE = "Restore the file, or create it again."

Column = list[str] | NDArray[Any]


@dataclass
class ImportedRows:
    """Embeddings and columns read from another program's file; only types and lengths have been checked.

    Attributes:
        embeddings: (n, d) numbers of any type, a memory map of the file if they are contiguous.
        columns: by role: ``ids``, ``labels``, ``splits``, ``labeled`` with n strings or integers each, and
            ``class_names``, ``split_names`` with a name per index.
        where: function that returns the location of a row for messages.
        found: name of the array or column used for each role.
        left_out: names of unused arrays or columns.
    """

    embeddings: NDArray[Any]
    columns: dict[str, Column]
    where: Callable[[int], str]
    found: dict[str, str] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)


def _check_table(array: Any, where: str) -> None:
    if array.dtype.kind not in "iuf":
        remedy = "Write the embeddings as one array of numbers, such as float32."
        raise Refused(where, f"embeddings of type {array.dtype} are not supported", remedy)
    if len(array.shape) != 2 or 0 in array.shape:
        problem = f"embeddings have shape {array.shape}, expected (n, d) with n, d >= 1"
        raise Refused(where, problem, "Write one row per image.")


def _chosen(
    where: str, names: Sequence[str], shown: str, wanted: Mapping[str, str | None], usual: Mapping[str, tuple[str, ...]]
) -> dict[str, str]:
    """Return the array or column for each role that exists, by the user's name for it or by a usual name."""
    by_lower = {name.lower(): name for name in reversed(names)}
    chosen: dict[str, str] = {}
    for role, known in usual.items():
        given = wanted.get(role)
        if given is not None and given not in names:
            option = f"--{role.replace('_', '-')}-key"
            raise ConfigError(option, f"{where} has no {given!r}, only {shown}", "Choose one of these names.")
        found = given or next((by_lower[name] for name in known if name in by_lower), None)
        if found is not None and (given or found not in chosen.values()):
            chosen[role] = found
    return chosen


def _choose(where: str, found: Mapping[str, Any], wanted: Mapping[str, str | None], others: Any = ()) -> dict[str, str]:
    """Return the name of the array for each role, ``embeddings`` first; messages also list the ``others``."""
    shown = list({**found, **dict(others)}.items())[:20]
    names = ", ".join(f"{name} {array.shape}" for name, array in shown) or "nothing"
    chosen = _chosen(where, list(found), names, wanted, USUAL_NAMES)
    if "embeddings" not in chosen:
        tables = [name for name, array in found.items() if array.dtype.kind not in "SUO" and len(array.shape) == 2]
        if len(tables) != 1:
            problem = f"cannot tell which array contains the embeddings; arrays: {names}"
            raise Refused(where, problem, "Choose one with --embeddings-key.")
        chosen["embeddings"] = tables[0]
    return {"embeddings": chosen.pop("embeddings"), **chosen}


def _plain_column(values: NDArray[Any], where: str) -> Column:
    """Return a column as strings or integers; floating-point numbers, such as labels with NaN, become strings."""
    if values.ndim != 1 or values.dtype.kind not in "iubfSUO":
        problem = f"has type {values.dtype} and shape {values.shape}, expected one integer or string "
        raise Refused(where, f"{problem}per row", "Write a one-dimensional array of integers or strings.")
    if values.dtype.kind in "iub":
        if values.dtype.kind == "u" and len(values) and int(values.max()) > np.iinfo(np.int64).max:
            raise Refused(where, "contains integers outside the range of int64", "Use smaller numbers.")
        return values.astype(np.int64)
    return [decode_name(text) if isinstance(text, bytes) else str(text) for text in values.tolist()]


def read_arrays(path: Path, requested: Mapping[str, str | None], arrays: Any = None) -> ImportedRows:
    """Read embeddings and columns from a ``.npy`` or ``.npz`` file, or from arrays that are already loaded."""
    arrays = _load(path) if arrays is None else arrays
    if isinstance(arrays, np.ndarray):
        _check_table(arrays, str(path))
        return ImportedRows(arrays, {}, lambda row: f"{path} row {row}")
    chosen = _choose(str(path), arrays, requested)
    _check_table(arrays[chosen["embeddings"]], f"{path}:{chosen['embeddings']}")
    found = {role: arrays[name] for role, name in chosen.items()}
    return _foreign_rows(found, {role: f"{path}:{name}" for role, name in chosen.items()}, chosen, list(arrays))


def _load(path: Path) -> Any:
    """Return the array written by ``numpy.save`` as a memory map, or the arrays of ``numpy.savez`` by name."""
    open_regular(path).close()
    try:
        loaded = np.load(path, mmap_mode="r", allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return loaded
        with loaded:
            return {name: loaded[name] for name in loaded.files}
    except (OSError, ValueError, RuntimeError, SyntaxError, TypeError, zipfile.BadZipFile, zlib.error) as error:
        remedy = "Save arrays of numbers or strings, not of Python objects, with numpy.save (.npy) or savez (.npz)."
        raise Damaged(str(path), f"NumPy cannot read it ({to_one_line(error)})", remedy) from error
    except EOFError as error:
        raise NotAStore(str(path), "is empty", _WHOLE) from error


def _foreign_rows(
    arrays: dict[str, NDArray[Any]], places: Mapping[str, str], chosen: dict[str, str], members: Sequence[str]
) -> ImportedRows:
    rows = arrays.pop("embeddings")
    columns = {role: _plain_column(values, places[role]) for role, values in arrays.items()}
    left_out = [name for name in members if name not in chosen.values()]
    return ImportedRows(rows, columns, lambda row: f"{places['embeddings']} row {row}", chosen, left_out)


def read_hdf5(path: Path, requested: Mapping[str, str | None]) -> ImportedRows:
    """Read embeddings and columns from a foreign HDF5 file; contiguous embeddings become a memory map.

    ``requested`` is the path of the dataset for each role, or ``None`` to search the root group and ``obs``, where
    AnnData stores names and labels.
    """
    where, named = str(path), {role: key and key.strip("/") for role, key in requested.items()}
    with open_regular(path) as handle:
        try:
            with open_hdf5(handle, where) as file:
                return _read_datasets(file, handle, where, named)
        except (OSError, RuntimeError, KeyError, ValueError, TypeError, OverflowError, MemoryError) as error:
            raise Damaged(where, f"HDF5 cannot read it ({to_one_line(error)})", _WHOLE) from error


def _read_datasets(file: h5py.File, handle: BinaryIO, where: str, wanted: Mapping[str, str | None]) -> ImportedRows:
    datasets: dict[str, h5py.Dataset] = {}

    def collect(name: str | bytes, item: h5py.Group | h5py.Dataset) -> None:
        name = name if isinstance(name, str) else decode_name(name)
        if isinstance(item, h5py.Group):
            # A pandas categorical is stored as a group of codes and categories.
            if isinstance(item.get("codes"), h5py.Dataset) and isinstance(item.get("categories"), h5py.Dataset):
                datasets[name] = item["codes"]
        elif not item.is_virtual and not item.external:
            datasets[name] = item

    file.visititems(collect)  # does not follow soft or external links
    members = [name for name in file if isinstance(file.get(name, getlink=True), h5py.HardLink)]
    if "obs" in members and "obs" not in datasets:
        members[members.index("obs") : members.index("obs") + 1] = [f"obs/{name}" for name in file["obs"]]
    given = {key: datasets[key] for key in wanted.values() if key in datasets}
    chosen = _choose(where, given | {name: datasets[name] for name in members if name in datasets}, wanted, datasets)
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
            raise Refused(places[role], f"has type {dataset.dtype}", "Write integers or strings.")
        offset = dataset.id.get_offset() if role == "embeddings" and dataset.chunks is None else None
        if offset is None or offset % dataset.dtype.itemsize:
            found[role] = dataset[...]
        else:
            found[role] = np.memmap(handle, dataset.dtype, "r", offset, dataset.shape)
    return _foreign_rows(found, places, {role: f"/{name}" for role, name in chosen.items()}, left_out)


_COLUMN_NAMES = {
    "ids": (
        ESCAPED_COLUMN, *USUAL_NAMES["ids"],
        "filename", "file_name", "file", "file_path", "filepath", "filepaths", "image", "image_path", "img_path",
        "image_name", "img", "name", "sample_id", "image_id", "id", "uri", "url",
    ),
    "labels": (*USUAL_NAMES["labels"], "class", "class_name", "category"),
    "splits": USUAL_NAMES["splits"],
    "labeled": USUAL_NAMES["labeled"],
}  # fmt: skip
_LISTED = re.compile(r"(.*\.\w+)[ \t]+(-?\d+)")  # a line of an image list with class indices, such as ImageNet's
_LISTED_TEXT = re.compile(r"(.*\.\w+) *[\t,] *([^\t,./]+)")  # the same with class names
_REMEDY = "Write a header, then one line per image with its path and numbers."


def read_names(path: Path, requested: Mapping[str, str | None]) -> ImportedRows:
    """Read names from a text file with one name per line, or from a table with a header, like ``read_csv``.

    If every line consists of a file name, a space and a number, the numbers are labels; the same holds for a file name,
    a tab or comma, and text.
    """
    with open_regular(path) as file:
        raw = file.read()
    try:
        raw = decode_table(raw).encode() if detect_encoding(raw) == "utf-16" else raw.removeprefix(codecs.BOM_UTF8)
    except UnicodeDecodeError as error:
        raise Refused(str(path), f"is not UTF-16 ({error.reason})", "Save the file as UTF-8.") from error
    names = [decode_name(line).replace("\\", "/") for line in raw.splitlines()]
    if not names:
        raise Refused(str(path), "is empty", "Write one name per line.")
    if any(requested.values()) or set(re.split("[,;\t]", names[0].lower())) & set(_COLUMN_NAMES["ids"]):
        return read_csv(path, requested, with_rows=False)
    columns: dict[str, Column] = {"ids": names}
    pairs = [match.groups() for match in map(_LISTED.fullmatch, names) if match]
    pairs = pairs or [match.groups() for match in map(_LISTED_TEXT.fullmatch, names) if match]
    if len(pairs) == len(names):
        columns = {"ids": [name for name, _ in pairs], "labels": [label for _, label in pairs]}
    return ImportedRows(np.empty((len(names), 0)), columns, lambda row: f"{path} line {row + 1}")


def read_csv(path: Path, requested: Mapping[str, str | None], *, with_rows: bool = True) -> ImportedRows:
    """Read a CSV file with a path column, optional labels and splits, and one column per embedding dimension.

    Args:
        path: the file, UTF-8, or UTF-16 with a byte order mark; columns are separated by commas, semicolons or tabs.
        requested: name of the column for each role, or ``None`` to look for the usual names. For ``embeddings``, the
            common prefix of numbered columns, or the names of all columns separated by commas; by default, the only
            columns that are numbered from 0 or 1.
        with_rows: whether to read the embeddings; otherwise, the rows have no values.
    """
    where = str(path)
    with open_regular(path) as raw:
        encoding = detect_encoding(raw.read(4))
    reader: Any = None
    with path.open(encoding=encoding, newline="") as file:
        try:
            reader, header = open_csv_reader(file, {*_COLUMN_NAMES["ids"], (requested.get("ids") or "path").lower()})
            found = _find_columns(where, header, requested)
            places = {role: header.index(name) for role, name in found.items()}
            used = _number_columns(where, header, places.values(), requested.get("embeddings")) if with_rows else []
            texts: dict[str, list[str]] = {role: [] for role in places}
            numbers: list[int] = []
            rows: list[NDArray[np.float64]] = []
            for fields in filter(None, reader):
                if len(fields) != len(header):
                    raise ValueError(f"has {len(fields)} fields, but the header has {len(header)}")
                rows.append(np.array([fields[at] for at in used], np.float64))
                for role, at in places.items():
                    texts[role].append(unescape_name(fields[at]) if found[role] == ESCAPED_COLUMN else fields[at])
                numbers.append(reader.line_num)
        except UnicodeDecodeError as error:
            raise Refused(where, f"is not UTF-8 ({error.reason})", "Save the file as UTF-8.") from error
        except (csv.Error, ValueError) as error:
            line = reader.line_num if reader else 1
            raise Refused(f"{where} line {line}", str(error)[:200], "Correct or remove this line.") from error
    if not rows:
        raise Refused(where, "contains only a header", _REMEDY)
    if found["ids"] != ESCAPED_COLUMN:
        texts["ids"] = [name.replace("\\", "/") for name in texts["ids"]]
    columns: dict[str, Column] = dict(texts)
    if used:
        found["embeddings"] = f"{header[used[0]]} to {header[used[-1]]} ({len(used)} columns)"
    left_out = [name or "(no name)" for at, name in enumerate(header) if at not in (*used, *places.values())]
    return ImportedRows(np.stack(rows), columns, lambda row: f"{where} line {numbers[row]}", found, left_out)


def _find_columns(where: str, header: Sequence[str], wanted: Mapping[str, str | None]) -> dict[str, str]:
    """Return the name of the column for each role except the embeddings."""
    if not header:
        raise NotAStore(where, "is empty", _REMEDY)
    shown = ", ".join(header[:12])
    found = _chosen(where, header, shown, wanted, _COLUMN_NAMES)
    if "ids" not in found:
        problem = f"has no column of paths, such as path or sample_id; columns: {shown}"
        raise Refused(f"{where} line 1", problem, "Choose one with --ids-key; the first line must be a header.")
    if twice := [name for name in found.values() if header.count(name) > 1]:
        raise Refused(f"{where} line 1", f"column {twice[0]!r} occurs twice", _REMEDY)
    return found


def _number_columns(where: str, header: Sequence[str], taken: Iterable[int], named: str | None) -> list[int]:
    """Return the indices of the embedding columns: the named columns, or the only ones numbered from 0 or 1."""
    runs: dict[str, dict[int, int]] = defaultdict(dict)
    for at, name in enumerate(header):
        numbered = re.fullmatch(r"(.*?)(\d+)", name)
        if numbered and at not in taken:
            runs[numbered[1]][int(numbered[2])] = at
    if named is not None:
        names = [name.strip() for name in named.split(",")]
        if named not in runs and not set(names) <= set(header):
            problem = f"{where} has no columns named {named!r} followed by a number"
            raise ConfigError("--embeddings-key", problem, "Pass the prefix of the column names, or all their names.")
        return [at for _, at in sorted(runs[named].items())] or [header.index(name) for name in names]
    whole = [run for run in runs.values() if sorted(run) in (list(range(len(run))), list(range(1, len(run) + 1)))]
    long = [run for run in whole if len(run) > 1] or whole
    if len(long) != 1:
        problem = f"has {len(long)} series of numbered columns, such as embedding_0, embedding_1, ...; expected one"
        remedy = "Pass a prefix, or all column names: --embeddings-key a,b,c. Split lists into columns."
        raise Refused(f"{where} line 1", problem, remedy)
    return [at for _, at in sorted(long[0].items())]
