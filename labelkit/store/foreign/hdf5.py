"""Read arrays from a foreign HDF5 file.

Only the datasets that were asked for and the links that lead to them are looked at, and what
``labelkit.store.hdf5.structure`` refuses is refused. Strings of variable length are read here and nowhere else in
labelkit.
"""

from __future__ import annotations

import contextlib
import errno
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, NoReturn, Self

import h5py
import numpy as np
from numpy.typing import NDArray

from labelkit.errors import Damaged, NotAStore, Refused
from labelkit.store import schema
from labelkit.store.foreign.arrays import (
    USUAL_NAMES,
    WHOLE,
    ArrayShape,
    Column,
    ForeignRows,
    check_table,
    choose_arrays,
    plain_column,
)
from labelkit.store.hdf5.structure import SIGNATURE, UntrustedFile, one_line
from labelkit.store.opening import open_regular
from labelkit.store.schema import name_bytes, name_text

_TEXT_ROWS = 1024
_OBSERVATIONS, _CODES, _NAMES = "obs", "/codes", "/categories"
_REMEDY = "Write the arrays anew, as plain datasets of one file."


def read_hdf5(path: Path, wanted: Mapping[str, str | None], spool: IO[bytes]) -> ForeignRows:
    """Read the arrays of a foreign HDF5 file; the embeddings are copied into ``spool`` and mapped there.

    Args:
        path: the file.
        wanted: by role, the path of a dataset, or ``None`` to look among those of the root group.
        spool: an empty file without a name.

    Raises:
        NotAStore: it is no HDF5 file.
        ConfigError: a dataset that was named is not there.
        Refused: it holds what is never read; see ``labelkit.store.schema``.
        Damaged: HDF5 cannot read it.
        OSError: the disk of ``spool`` is full.
    """
    where = str(path)
    with open_regular(path) as handle:
        start = handle.read(len(SIGNATURE))
        if start != SIGNATURE:
            raise NotAStore(where, "not an HDF5 file" if start else "is empty", "Check the name and its suffix.")
        try:
            with _ForeignFile(handle, where) as file:
                named = {role: None if key is None else key.strip("/") for role, key in wanted.items()}
                return _read(file, named, spool)
        except (OSError, RuntimeError, KeyError, ValueError, TypeError, OverflowError, MemoryError) as error:
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise
            raise Damaged(where, f"HDF5 cannot read it ({one_line(error)})", WHOLE) from error


class _ForeignFile(UntrustedFile):
    """A foreign file: what is not asked for is not looked at."""

    def __enter__(self) -> Self:
        self._file = self._open()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(Exception):
            self._file.close()

    def _may_filter(self, path: str) -> bool:
        return True

    def _read_attributes(self, item: Any, path: str, only: tuple[str, ...] = ()) -> dict[str, Any]:
        return {}  # foreign attributes mean nothing here, so they are left alone

    def _checked_type(self, kind: Any, place: str) -> np.dtype[Any]:
        if kind.get_class() == h5py.h5t.STRING and kind.is_variable_str() and not kind.committed():
            return np.dtype(object)
        if kind.get_class() == h5py.h5t.ENUM and kind.dtype == np.dtype(np.bool_):
            return np.dtype(np.bool_)
        return super()._checked_type(kind, place)

    def _refuse(self, path: str, problem: str) -> NoReturn:
        raise Refused(self.place(path), f"is not read: {problem}", _REMEDY)

    def members(self, group: str = "") -> dict[str, bool]:
        """Names in a group, and whether each is a dataset and not a group."""
        names: list[bytes] = []
        opened = h5py.h5g.open(self._file.id, name_bytes("/" + group))

        def collect(name: bytes, info: Any) -> bool | None:
            if info.type == h5py.h5l.TYPE_HARD:
                names.append(name)
            return True if len(names) > schema.MAX_OBJECTS else None

        opened.links.iterate(collect, info=True)
        if len(names) > schema.MAX_OBJECTS:
            self._refuse(group, f"more than {schema.MAX_OBJECTS} objects")
        kinds = {name: h5py.h5o.get_info(opened, name).type for name in names}
        above = group + "/" if group else ""
        return {above + name_text(name): kind == h5py.h5o.TYPE_DATASET for name, kind in kinds.items()}

    def look_at(self, path: str) -> bool:
        """Check a dataset and the links that lead to it; say whether it is there."""
        group = h5py.h5g.open(self._file.id, b"/")
        parts = path.split("/")
        if len(parts) > schema.MAX_DEPTH:
            self._refuse(path, f"groups nested deeper than {schema.MAX_DEPTH}")
        for depth, part in enumerate(parts):
            name = name_bytes(part)
            if not name or name == b"." or not group.links.exists(name):
                return False
            if group.links.get_info(name).type != h5py.h5l.TYPE_HARD:
                self._refuse("/".join(parts[: depth + 1]), "a soft or external link")
            kind = h5py.h5o.get_info(group, name).type
            if depth < len(parts) - 1:
                if kind != h5py.h5o.TYPE_GROUP:
                    return False
                group = h5py.h5g.open(group, name)
            elif kind != h5py.h5o.TYPE_DATASET:
                return False
        self._look_at(h5py.h5d.open(self._file.id, name_bytes("/" + path)), path)
        return True

    def blocks(self, path: str) -> Iterator[NDArray[Any]]:
        """Read a table in pieces of whole chunks, so that none is unpacked twice."""
        info = self.datasets[path]
        dataset = h5py.Dataset(h5py.h5d.open(self._file.id, name_bytes("/" + path)))
        row_bytes = info.dtype.itemsize * math.prod(info.shape[1:])
        step = max(1, schema.BLOCK_BYTES // max(1, row_bytes))
        chunk = dataset.chunks[0] if dataset.chunks else 1
        if chunk * row_bytes <= schema.CHUNK_BYTES:
            step = -(-step // chunk) * chunk
        for start in range(0, info.shape[0], step):
            yield dataset[start : start + step]

    def texts(self, path: str) -> Iterator[bytes]:
        """Read strings, a few at a time: many may share one huge text."""
        info = self.datasets[path]
        dataset = h5py.Dataset(h5py.h5d.open(self._file.id, name_bytes("/" + path)))
        total = 0
        for start in range(0, info.shape[0], _TEXT_ROWS):
            for row, value in enumerate(dataset[start : start + _TEXT_ROWS].tolist(), start):
                raw = value if isinstance(value, bytes) else b""
                total += len(raw)
                if len(raw) > schema.ATTRIBUTE_BYTES or total > 2 * self._size + schema.PART_BYTES:
                    self._refuse(path, f"texts longer than the file, or one above 64 KiB, at row {row}")
                if b"\0" in raw:
                    self._refuse(path, f"a NUL in the text of row {row}")
                yield raw


def _read(file: _ForeignFile, wanted: Mapping[str, str | None], spool: IO[bytes]) -> ForeignRows:
    members = file.members()
    if members.get(_OBSERVATIONS) is False:
        del members[_OBSERVATIONS]
        members |= file.members(_OBSERVATIONS)
    given = {role: key for role, key in wanted.items() if key is not None}
    shapes = _shapes(file, [name for name, is_dataset in members.items() if is_dataset or "/" in name], given)
    chosen = choose_arrays(file.where, shapes, wanted)
    left_out = [name for name in members if name not in chosen.values()]
    labels = chosen.get("labels", "")
    if labels + _CODES in file.datasets:
        chosen |= {"labels": labels + _CODES, "class_names": labels + _NAMES}
    columns: dict[str, Column] = {}
    for role, name in chosen.items():
        info = file.datasets[name]
        if role == "embeddings":
            check_table(file.place(name), info.shape, info.dtype)
            for block in file.blocks(name):
                spool.write(np.ascontiguousarray(block).data)
            spool.flush()
        elif info.dtype.kind in "SO" and len(info.shape) == 1:
            columns[role] = [name_text(raw) for raw in file.texts(name)]
        else:
            if len(info.shape) != 1 or info.dtype.kind not in "iubf":
                file._refuse(name, f"type {info.dtype} of shape {info.shape} where integers or texts are expected")
            values = np.concatenate([*file.blocks(name), np.empty(0, info.dtype)])
            columns[role] = plain_column(values, file.place(name))
    info = file.datasets[chosen["embeddings"]]
    rows = np.memmap(spool, info.dtype, "r", 0, info.shape)
    found = {role: f"/{name}" for role, name in chosen.items()}
    return ForeignRows(rows, columns, f"{file.where}:{found['embeddings']} row %d", found=found, left_out=left_out)


def _shapes(file: _ForeignFile, names: list[str], given: Mapping[str, str]) -> dict[str, ArrayShape]:
    """Look at the datasets that were named, those with usual names, and others of the root group if they must do."""
    usual = {name for role, known in USUAL_NAMES.items() if role not in given for name in known}
    meant = list(dict.fromkeys([*given.values(), *(name for name in names if name.lower() in usual)]))
    # Categories of pandas are a group of numbers and their names.
    data = {
        name: name + _CODES if file.look_at(name + _CODES) and file.look_at(name + _NAMES) else name for name in meant
    }
    there = {name: key for name, key in data.items() if key != name or file.look_at(name)}
    if "embeddings" not in given and not {name.lower() for name in there} & set(USUAL_NAMES["embeddings"]):
        for name in names:
            with contextlib.suppress(Refused):
                if name not in there and "/" not in name and file.look_at(name):
                    there[name] = name
    infos = {name: file.datasets[key] for name, key in there.items()}
    return {
        name: ArrayShape(info.shape, "text" if info.dtype.kind in "SO" else "number") for name, info in infos.items()
    }
