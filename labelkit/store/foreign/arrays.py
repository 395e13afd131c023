"""Rows made elsewhere: which array of a foreign file means what, and what ``.npy`` and ``.npz`` files hold.

HDF5 is read by ``labelkit.store.foreign.hdf5``, tables of text by ``labelkit.store.foreign.tables``. Nothing here runs
a pickle, and no size that a file states is taken on trust.
"""

from __future__ import annotations

import ast
import os
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from labelkit.errors import ConfigError, Damaged, NotAStore, Refused, resource_error
from labelkit.store import schema
from labelkit.store.opening import open_regular
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

WHOLE = "Restore the file or write it again."
_HEADER_BYTES = 1 << 16
_COPY_BYTES = 4 << 20

Column = list[str] | NDArray[Any]


@dataclass
class ForeignRows:
    """What a foreign file holds, rows in its own order; nothing is checked but types and lengths.

    Attributes:
        embeddings: (n, d) numbers of any type, as a rule a map of a file.
        columns: by meaning: ``ids``, ``labels``, ``splits``, ``labeled`` with n texts or integers each, and
            ``class_names``, ``split_names`` with a name per number.
        place: number of a row to how messages call it is ``place % (row + first)``.
        first: number of the first row in messages.
        lines: (n,) numbers of the rows in messages, where they do not follow each other.
        found: which array or column was taken for what.
        left_out: other arrays or columns.
        sha256: digest of the file, 64 hexadecimal digits.
    """

    embeddings: NDArray[Any]
    columns: dict[str, Column]
    place: str
    first: int = 0
    lines: NDArray[np.int64] | None = None
    found: dict[str, str] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    sha256: str = ""

    def where(self, row: int) -> str:
        """Return how messages call a row."""
        return self.place % (row + self.first if self.lines is None else self.lines[row])


@dataclass(frozen=True)
class ArrayShape:
    """What is known about an array before it is read: its lengths, and its kind: ``number`` or ``text``."""

    shape: tuple[int, ...]
    kind: str


def choose_arrays(where: str, found: Mapping[str, ArrayShape], wanted: Mapping[str, str | None]) -> dict[str, str]:
    """Say which array of a file means what.

    Args:
        where: the file.
        found: what it holds, by name.
        wanted: by role, the name that the user gave, or ``None``.

    Returns:
        name by role, ``embeddings`` first; roles that the file lacks are left out.

    Raises:
        ConfigError: a name that was given is not there.
        Refused: no array can be the embeddings.
    """
    names = ", ".join(f"{name} {_lengths(array.shape)}" for name, array in list(found.items())[:20]) or "nothing"
    chosen: dict[str, str] = {}
    for role in USUAL_NAMES:
        given = wanted.get(role)
        if given is not None:
            if given not in found:
                option = f"--{role.replace('_', '-')}-key"
                raise ConfigError(option, f"{where} has no {given!r}; it has: {names}", "Choose one of them.")
            chosen[role] = given
            continue
        by_lower = {name.lower(): name for name in reversed(list(found))}
        usual = next((by_lower[name] for name in USUAL_NAMES[role] if name in by_lower), None)
        if usual is not None and usual not in chosen.values():
            chosen[role] = usual
    if "embeddings" not in chosen:
        tables = [name for name, array in found.items() if array.kind == "number" and len(array.shape) == 2]
        if len(tables) != 1:
            problem = f"it is not clear which array holds the embeddings; it has: {names}"
            raise Refused(where, problem, "Name it with --embeddings-key.")
        chosen["embeddings"] = tables[0]
    return {"embeddings": chosen.pop("embeddings"), **chosen}


def _lengths(shape: tuple[int, ...]) -> str:
    return "(" + ", ".join(map(str, shape)) + ")"


def check_table(where: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    """Refuse embeddings that are no table of numbers.

    Raises:
        Refused: they are not.
    """
    if dtype.kind not in "iuf":
        remedy = "Write the rows as one array of numbers, such as float32."
        raise Refused(where, f"embeddings of type {dtype} are no numbers that a row can have", remedy)
    if len(shape) != 2 or 0 in shape:
        problem = f"embeddings of shape {_lengths(shape)}, expected (rows, values), neither of them 0"
        raise Refused(where, problem, "Write one row per image.")


# ---- .npy


def read_npy(path: Path) -> ForeignRows:
    """Map the rows of a ``.npy`` file.

    Raises:
        NotAStore: it is none.
        Refused: it holds objects, or no table of numbers.
        Damaged: it is cut off.
    """
    where = str(path)
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        header = _read_header(file, where)
        check_table(where, header.shape, header.dtype)
        rows = _mapped(file, header, size, where)
    return ForeignRows(rows, {}, f"{where} row %d")


@dataclass(frozen=True)
class _Header:
    """What stands in front of the values of an array in NumPy's format."""

    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype[Any]
    offset: int

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=object)) * self.dtype.itemsize


def _read_header(file: Any, where: str) -> _Header:
    start = file.read(12)
    if start[:6] != b"\x93NUMPY":
        empty = "is empty" if not start else "is not in NumPy's .npy format"
        raise NotAStore(where, empty, "Write it with numpy.save.")
    wide = start[6] >= 2
    if len(start) < 12 or start[6] not in (1, 2, 3):
        raise NotAStore(where, "has a header of an unknown version", "Write it with numpy.save.")
    length = struct.unpack("<I" if wide else "<H", start[8 : 12 if wide else 10])[0]
    if length > _HEADER_BYTES:
        raise Refused(where, f"its header of {length} bytes is above {_HEADER_BYTES}", WHOLE)
    offset = (12 if wide else 10) + length
    text = start[12 if wide else 10 :] + file.read(offset - 12)
    try:
        parsed = ast.literal_eval(text.decode("utf-8" if start[6] == 3 else "latin-1").strip())
        dtype = np.lib.format.descr_to_dtype(parsed["descr"])
        shape, fortran = tuple(parsed["shape"]), bool(parsed["fortran_order"])
        if len(text) < length or any(type(axis) is not int or axis < 0 for axis in shape):
            raise ValueError(f"shape {shape}")
    except (ValueError, TypeError, KeyError, SyntaxError, RecursionError, MemoryError) as error:
        raise Damaged(where, f"its header cannot be read ({str(error)[:100]})", WHOLE) from error
    if dtype.hasobject:
        problem = "holds Python objects, which only a pickle could bring back, and a pickle can run anything"
        raise Refused(where, problem, "Write numbers and texts as arrays of their own type.")
    return _Header(shape, fortran, dtype, offset)


def _mapped(file: IO[bytes], header: _Header, size: int, where: str) -> NDArray[Any]:
    if header.offset + header.nbytes > size:
        problem = f"is cut off: {header.nbytes} bytes of values declared, {size - header.offset} there"
        raise Damaged(where, problem, WHOLE)
    order: Any = "F" if header.fortran else "C"
    return np.memmap(file, header.dtype, "r", header.offset, header.shape, order)


# ---- .npz


def read_npz(path: Path, wanted: Mapping[str, str | None], spool: IO[bytes]) -> ForeignRows:
    """Read a ``.npz`` file; its embeddings are unpacked into ``spool`` and mapped there.

    Raises:
        NotAStore: it is none.
        ConfigError, Refused: see ``choose_arrays``; it holds objects, or declares more than its bytes can hold.
        Damaged: it is cut off or changed.
    """
    where = str(path)
    with open_regular(path) as file:
        try:
            with zipfile.ZipFile(file) as archive:
                return _read_archive(archive, where, wanted, spool)
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
            if not zipfile.is_zipfile(file):
                raise NotAStore(where, "is not in NumPy's .npz format", "Write it with numpy.savez.") from error
            raise Damaged(where, f"cannot be unpacked ({str(error)[:100]})", WHOLE) from error
        except OSError as error:
            raise resource_error(error, where) from error


def _read_archive(
    archive: zipfile.ZipFile, where: str, wanted: Mapping[str, str | None], spool: IO[bytes]
) -> ForeignRows:
    members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
    if len(members) > schema.MAX_OBJECTS or len(members) < len(archive.infolist()):
        raise Refused(where, "holds too many arrays, or two of one name", WHOLE)
    headers: dict[str, _Header] = {}
    for name, info in members.items():
        if info.file_size > schema.FILTER_RATIO * max(info.compress_size, 64) + _HEADER_BYTES:
            problem = f"{info.file_size} bytes declared, {info.compress_size} stored"
            raise Refused(f"{where}:{name}", problem, "Write it with numpy.savez.")
        with archive.open(info) as member:
            try:
                headers[name] = _read_header(member, f"{where}:{name}")
            except Refused:
                if name in wanted.values() or any(name.lower() in usual for usual in USUAL_NAMES.values()):
                    raise
                continue  # an array that means nothing here
        if headers[name].offset + headers[name].nbytes != info.file_size:
            problem = f"{headers[name].nbytes} bytes of values declared, {info.file_size - headers[name].offset} there"
            raise Damaged(f"{where}:{name}", problem, WHOLE)
    shapes = {
        name: ArrayShape(header.shape, "text" if header.dtype.kind in "SU" else "number")
        for name, header in headers.items()
    }
    chosen = choose_arrays(where, shapes, wanted)
    columns: dict[str, Column] = {}
    for role, name in chosen.items():
        place, header = f"{where}:{name}", headers[name]
        if role == "embeddings":
            check_table(place, header.shape, header.dtype)
            with archive.open(members[name]) as member:
                while block := member.read(_COPY_BYTES):
                    spool.write(block)
            spool.flush()
        else:
            with archive.open(members[name]) as member:
                columns[role] = plain_column(_whole(member.read(), header), place)
    name = chosen["embeddings"]
    rows = _mapped(spool, headers[name], os.fstat(spool.fileno()).st_size, where)
    left_out = [name for name in members if name not in chosen.values()]
    return ForeignRows(rows, columns, f"{where}:{name} row %d", found=chosen, left_out=left_out)


def _whole(data: bytes, header: _Header) -> NDArray[Any]:
    values = np.frombuffer(data, header.dtype, offset=header.offset, count=int(np.prod(header.shape, dtype=np.int64)))
    return values.reshape(header.shape, order="F" if header.fortran else "C")


def plain_column(values: NDArray[Any], where: str) -> Column:
    """Return a column as texts, or as integers.

    Args:
        values: (n,) integers, flags, bytes or text; numbers with a point, such as labels with gaps, become texts.
        where: how messages call it.

    Raises:
        Refused: it is something else, or a text holds a NUL.
    """
    if values.ndim != 1 or values.dtype.kind not in "iubfSU":
        problem = f"type {values.dtype} of shape {_lengths(values.shape)}, expected one integer or text per row"
        raise Refused(where, problem, "Write it as such an array.")
    if values.dtype.kind in "iub":
        if values.dtype.kind == "u" and len(values) and int(values.max()) > np.iinfo(np.int64).max:
            raise Refused(where, "holds integers above 64 bits with a sign", "Write smaller numbers.")
        return values.astype(np.int64)
    raw: Sequence[Any] = values.tolist()
    return [name_text(text) if isinstance(text, bytes) else str(text) for text in raw]


def spooled(folder: Path) -> IO[bytes]:
    """Return a nameless file for what does not fit in memory; it is gone when it is closed.

    Raises:
        ResourceError: none can be made.
    """
    try:
        return tempfile.TemporaryFile(dir=folder)
    except OSError as error:
        raise resource_error(error, str(folder)) from error
