"""Read arrays from a foreign HDF5 file: only in a process of its own, ``python -m labelkit.store.foreign.hdf5``.

This process never opens such a file with HDF5. The child looks at the datasets that were asked for and at the links
that lead to them, at nothing else, and refuses what ``labelkit.store.hdf5.structure`` refuses. It writes plain bytes
to its standard output: the values one after the other, then JSON that says what lies where, then its length in 8
bytes. Strings of variable length are read here and nowhere else in labelkit.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, BinaryIO, NoReturn

import h5py
import numpy as np
from numpy.typing import NDArray

from labelkit.errors import ConfigError, Damaged, NotAStore, Refused, resource_error
from labelkit.sandbox import confine
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
from labelkit.store.foreign.check import limit, verdict_of
from labelkit.store.hdf5.structure import SIGNATURE, UntrustedFile
from labelkit.store.opening import open_regular, raise_verdict, run_in_child
from labelkit.store.schema import name_bytes, name_text

_SECONDS = 10.0
# Unpacking is slower than looking, and it writes: 16 MB/s is a slow disk.
_SECONDS_PER_BYTE = 60.0 / (1 << 30)
_TEXT_ROWS = 1024
_LENGTH_BYTES = 8
_OBSERVATIONS, _CODES, _NAMES = "obs", "/codes", "/categories"
_REMEDY = "Write the arrays anew, as plain datasets of one file."


def read_hdf5(path: Path, wanted: Mapping[str, str | None], spool: IO[bytes]) -> ForeignRows:
    """Read the arrays of a foreign HDF5 file; the embeddings lie in ``spool`` and are mapped there.

    Args:
        path: the file.
        wanted: by role, the path of a dataset, or ``None`` to look among those of the root group.
        spool: an empty file without a name.

    Raises:
        NotAStore: it is no HDF5 file.
        ConfigError: a dataset that was named is not there.
        Refused: it holds what is never read; see ``labelkit.store.schema``.
        Damaged: HDF5 cannot read it.
        ResourceError: the disk is full, ...
    """
    where = str(path)
    with open_regular(path) as handle:
        size = os.fstat(handle.fileno()).st_size
        if handle.read(len(SIGNATURE)) != SIGNATURE:
            raise NotAStore(where, "not an HDF5 file" if size else "is empty", "Check the name and its suffix.")
        keys = json.dumps({role: None if key is None else key.strip("/") for role, key in wanted.items()})
        seconds = _SECONDS + size * _SECONDS_PER_BYTE
        said = run_in_child(handle, where, "labelkit.store.foreign.hdf5", [keys], seconds, output=spool)
    answer = json.loads(said.splitlines()[-1])
    if answer["error"] == "ConfigError":
        raise ConfigError(answer["where"], f"{where} {answer['problem']}", answer["remedy"])
    if answer["error"] == "OSError":
        raise resource_error(OSError(answer["errno"], answer["problem"]), where)
    raise_verdict(said.splitlines()[-1], where)
    return _collect(spool, where)


def _collect(spool: IO[bytes], where: str) -> ForeignRows:
    size = os.fstat(spool.fileno()).st_size
    spool.seek(size - _LENGTH_BYTES)
    length = int.from_bytes(spool.read(_LENGTH_BYTES), "little")
    spool.seek(size - _LENGTH_BYTES - length)
    index = json.loads(spool.read(length))
    left_out: list[str] = index.pop("left_out")
    columns: dict[str, Column] = {}
    for role, entry in index.items():
        if role == "embeddings":
            continue
        spool.seek(entry["offset"])
        raw = spool.read(entry["length"])
        if entry["kind"] == "number":
            columns[role] = np.frombuffer(raw, "<i8")
        else:
            columns[role] = [name_text(text) for text in raw.split(b"\0")[:-1]]
    rows = index["embeddings"]
    embeddings = np.memmap(spool, rows["dtype"], "r", rows["offset"], tuple(rows["shape"]))
    found = {role: "/" + entry["key"] for role, entry in index.items()}
    return ForeignRows(embeddings, columns, f"{where}:{found['embeddings']} row %d", found=found, left_out=left_out)


class _ForeignFile(UntrustedFile):
    """A foreign file: what is not asked for is not looked at."""

    def __init__(self, handle: BinaryIO) -> None:
        super().__init__(handle, "")
        self._file = self._open()

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


def _copy(handle: BinaryIO, wanted: Mapping[str, str | None], output: IO[bytes]) -> None:
    file = _ForeignFile(handle)
    members = file.members()
    if members.get(_OBSERVATIONS) is False:
        del members[_OBSERVATIONS]
        members |= file.members(_OBSERVATIONS)
    given = {role: key for role, key in wanted.items() if key is not None}
    shapes = _shapes(file, [name for name, is_dataset in members.items() if is_dataset or "/" in name], given)
    chosen = choose_arrays("", shapes, wanted)
    index: dict[str, Any] = {"left_out": [name for name in members if name not in chosen.values()]}
    labels = chosen.get("labels", "")
    if labels + _CODES in file.datasets:
        chosen |= {"labels": labels + _CODES, "class_names": labels + _NAMES}
    # Embeddings first, at the start of the output, where a map of them is aligned.
    for role, name in chosen.items():
        info, offset = file.datasets[name], output.tell()
        entry: dict[str, Any] = {"key": name, "offset": offset}
        if role == "embeddings":
            check_table(file.place(name), info.shape, info.dtype)
            for block in file.blocks(name):
                output.write(np.ascontiguousarray(block).data)
            entry |= {"dtype": info.dtype.str, "shape": list(info.shape)}
        elif info.dtype.kind in "SO" and len(info.shape) == 1:
            for raw in file.texts(name):
                output.write(raw + b"\0")
            entry["kind"] = "text"
        else:
            if len(info.shape) != 1 or info.dtype.kind not in "iubf":
                file._refuse(name, f"type {info.dtype} of shape {info.shape} where integers or texts are expected")
            for block in file.blocks(name):
                column = plain_column(block, file.place(name))
                if isinstance(column, list):
                    output.write(b"".join(name_bytes(text) + b"\0" for text in column))
                else:
                    output.write(np.ascontiguousarray(column, dtype="<i8").data)
            entry["kind"] = "text" if info.dtype.kind == "f" else "number"
        entry["length"] = output.tell() - offset
        index[role] = entry
    text = json.dumps(index).encode()
    output.write(text + len(text).to_bytes(_LENGTH_BYTES, "little"))
    output.flush()


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


def main() -> None:
    """Copy the arrays of the file on standard input to standard output; the verdict goes to standard error."""
    wanted, seconds, size = json.loads(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    limit(seconds, size)
    confine()
    source = os.fdopen(0, "rb", buffering=0, closefd=False)
    output = os.fdopen(1, "wb", closefd=False)

    def check() -> None:
        try:
            _copy(source, wanted, output)
        except (RuntimeError, KeyError, ValueError, TypeError, OverflowError) as error:
            raise Damaged("", f"HDF5 cannot read it ({' '.join(str(error).split())[:300]})", WHOLE) from error

    try:
        verdict = verdict_of(check)
    except ConfigError as error:
        found = {"where": error.where, "problem": error.problem.strip(), "remedy": error.remedy}
        verdict = json.dumps({"error": "ConfigError", **found})
    except OSError as error:
        # HDF5's own have no number, or one that says little; those of our writing are about the disk.
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            verdict = json.dumps({"error": "OSError", "errno": error.errno, "problem": os.strerror(error.errno)})
        else:
            problem = f"HDF5 cannot read it ({' '.join(str(error).split())[:300]})"
            verdict = json.dumps({"error": "Damaged", "where": "", "problem": problem, "remedy": WHOLE})
    sys.stderr.write("\n" + verdict + "\n")
    sys.stderr.flush()
    os._exit(0)  # nothing of a damaged file is to be closed in an orderly way


if __name__ == "__main__":
    main()
