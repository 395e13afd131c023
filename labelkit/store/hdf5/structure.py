"""Look at the structure of an HDF5 file before any of its data is used: nothing that the file says is believed.

Links that lead elsewhere, types, filters, storage and sizes that a format does not allow are refused.
The format is described in ``labelkit.store.schema``.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO, NoReturn

import h5py
import numpy as np
from numpy.typing import NDArray

from labelkit.errors import Damaged, NotAStore, Refused, VersionError
from labelkit.store import schema
from labelkit.store.digests import RESTORE, attribute_line
from labelkit.store.schema import name_text

Array = NDArray[Any]

SIGNATURE = b"\x89HDF\r\n\x1a\n"
"""First bytes of an HDF5 file."""
_FILTERS = {h5py.h5z.FILTER_DEFLATE, h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_FLETCHER32}
_TYPE_CLASSES = {h5py.h5t.INTEGER, h5py.h5t.FLOAT, h5py.h5t.ENUM, h5py.h5t.STRING}


@dataclass(frozen=True)
class DatasetInfo:
    """What is known about a dataset of a checked file.

    Attributes:
        dtype: type of its values, as NumPy sees it.
        shape: its shape.
        offset: where its bytes begin in the file, or ``None`` where they are not in one piece.
        block_rows: rows per digest in ``digests/PATH``, or 0 where the content digest covers its bytes.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int | None
    block_rows: int

    @property
    def nbytes(self) -> int:
        """Bytes of all values."""
        return self.dtype.itemsize * math.prod(self.shape)


class UntrustedFile:
    """An HDF5 file, looked at object by object.

    Args:
        handle: the file.
        where: the name used in messages.
        file_format: what it must be; empty where that is not known yet.
        group: path of a group that is read as if it were a file of its own; empty for the whole file.

    Attributes:
        where: the name used in messages.
        format: what it is, such as ``labelkit.store``.
        datasets: what was looked at, by path without a leading slash.
        attributes: by path of the object (the root is the empty path), then by name; texts as ``str``,
            numbers as ``int`` or ``float``. Attributes that are arrays are left out.
        stored_attributes: the same as they are stored, arrays too.
        groups: paths of all groups.
        features: words of ``requires``.
    """

    _file: Any = None

    def __init__(self, handle: BinaryIO, where: str, file_format: str = "", group: str = "") -> None:
        self.where = where
        self._handle = handle
        self._size = os.fstat(handle.fileno()).st_size if _has_descriptor(handle) else handle.seek(0, os.SEEK_END)
        self._root = f"/{group}" if group else ""
        self.format = file_format
        self.datasets: dict[str, DatasetInfo] = {}
        self.attributes: dict[str, dict[str, Any]] = {}
        self.stored_attributes: dict[str, dict[str, Array]] = {}
        self.groups: list[str] = []
        self.features: tuple[str, ...] = ()
        self._attribute_lines: list[bytes] = []
        self._objects = 0

    def place(self, path: str) -> str:
        """Return how messages call an object of the file."""
        inner = f"{self._root}/{path}" if path else self._root
        return f"{self.where}:{inner}" if inner else self.where

    def _open(self) -> Any:
        self._handle.seek(0)
        if self._handle.read(len(SIGNATURE)) != SIGNATURE:
            raise NotAStore(self.where, "not an HDF5 file", "Give a file written by labelkit.")
        try:
            return h5py.File(self._handle, "r")
        except Exception as error:
            short = "truncated" in str(error)
            problem = "shorter than it says, it was cut off" if short else f"HDF5 cannot open it ({one_line(error)})"
            raise Damaged(self.where, problem, RESTORE) from error

    def _check_header(self, group: Any, file_format: str | None) -> None:
        root = self._read_attributes(group, "", only=("format", "format_version", "requires"))
        found = root.get("format", "nothing")
        if found != file_format and (file_format is not None or found not in schema.FORMATS):
            expected = f"format {file_format}" if file_format else "a format of labelkit"
            raise NotAStore(self.place(""), f"expected {expected}, found {found}", "Give a file written by labelkit.")
        self.format = str(found)
        version = str(root.get("format_version", ""))
        major = version.partition(".")[0]
        if not major.isdecimal() or not major.isascii():
            self._refuse("", f"format_version is {version!r}")
        if int(major) > schema.MAJOR_VERSION:
            problem = f"written in format {version}; this labelkit reads up to {schema.FORMAT_VERSION}"
            raise VersionError(self.place(""), problem, "Update labelkit.")
        self.features = tuple(word for word in str(root.get("requires", "")).split(",") if word)
        known = schema.KNOWN_FEATURES | ({schema.FEATURE_SHARDED} if found == schema.FORMAT_STORE else set())
        if unknown := sorted(set(self.features) - known):
            raise VersionError(
                self.place(""), f"needs features this labelkit lacks: {', '.join(unknown)}", "Update labelkit."
            )

    def _walk(self, group: Any, path: str, depth: int) -> None:
        self.groups.append(path)
        self.attributes[path] = self._read_attributes(group, path)
        names: list[tuple[bytes, Any]] = []

        def collect(name: bytes, info: Any) -> bool | None:
            names.append((name, info.type))
            return True if self._objects + len(names) > schema.MAX_OBJECTS else None

        group.links.iterate(collect, info=True)
        self._objects += len(names)
        if self._objects > schema.MAX_OBJECTS:
            self._refuse(path, f"more than {schema.MAX_OBJECTS} objects")
        if names and depth >= schema.MAX_DEPTH:
            self._refuse(path, f"groups nested deeper than {schema.MAX_DEPTH}")
        for name, link in names:
            if any(byte < 0x20 for byte in name):
                self._refuse(path, "a name with control characters")
            child = f"{path}/{name_text(name)}".lstrip("/")
            if link != h5py.h5l.TYPE_HARD:
                self._refuse(child, "a soft or external link")
            with self._translated(child):
                kind = h5py.h5o.get_info(group, name).type
                if kind == h5py.h5o.TYPE_GROUP:
                    self._walk(h5py.h5g.open(group, name), child, depth + 1)
                elif kind == h5py.h5o.TYPE_DATASET:
                    self._look_at(h5py.h5d.open(group, name), child)
                else:
                    self._refuse(child, "a named type")

    def _look_at(self, dataset: Any, path: str) -> None:
        create = dataset.get_create_plist()
        layout = create.get_layout()
        # Before anything else: asking a virtual dataset for its shape opens other files.
        if layout == h5py.h5d.VIRTUAL:
            self._refuse(path, "a virtual dataset")
        if create.get_external_count():
            self._refuse(path, "storage outside of the file")
        dtype = self._checked_type(dataset.get_type(), path)
        shape = self._checked_shape(dataset.get_space(), path)
        stored = dataset.get_storage_size()
        declared = dtype.itemsize * math.prod(shape)
        filters = [create.get_filter(i)[0] for i in range(create.get_nfilters())]
        if filters and (not self._may_filter(path) or any(code not in _FILTERS for code in filters)):
            self._refuse(path, f"filters that are not allowed here: {filters}")
        if layout == h5py.h5d.CHUNKED and dtype.itemsize * math.prod(create.get_chunk()) > schema.CHUNK_BYTES:
            self._refuse(path, f"chunks above {schema.CHUNK_BYTES >> 20} MiB")
        offset = dataset.get_offset() if layout == h5py.h5d.CONTIGUOUS else None
        inside = stored <= self._size and (offset is None or offset + declared <= self._size)
        if not inside or declared > stored * (schema.FILTER_RATIO if filters else 1):
            self._refuse(path, f"{declared} bytes declared, {stored} bytes stored in a file of {self._size}")
        self.datasets[path] = DatasetInfo(dtype, shape, offset, 0)
        self.attributes[path] = self._read_attributes(dataset, path)

    def _may_filter(self, path: str) -> bool:
        return self.format == schema.FORMAT_RESULT or in_results(path)

    def _read_attributes(self, item: Any, path: str, only: tuple[str, ...] = ()) -> dict[str, Any]:
        values: dict[str, Any] = {}
        count = h5py.h5a.get_num_attrs(item)
        # before the first is opened: finding one of very many takes HDF5 long
        if count > schema.MAX_OBJECTS:
            self._refuse(path, f"more than {schema.MAX_OBJECTS} attributes")
        for index in range(count):
            attribute = h5py.h5a.open(item, index=index)
            if any(byte < 0x20 for byte in attribute.name):
                self._refuse(path, "a name with control characters")
            name = name_text(attribute.name)
            if only and name not in only:
                continue
            place = f"{path}@{name}"
            dtype = self._checked_type(attribute.get_type(), place)
            shape = self._checked_shape(attribute.get_space(), place)
            if dtype.itemsize * math.prod(shape) > schema.ATTRIBUTE_BYTES:
                self._refuse(place, f"an attribute above {schema.ATTRIBUTE_BYTES >> 10} KiB")
            value = np.empty(shape, dtype)
            attribute.read(value, attribute.get_type())
            if not only:
                self.stored_attributes.setdefault(path, {})[name] = value
            if not shape:
                values[name] = _plain(value)
            elif only:
                self._refuse(place, "more than one value")
            if not only and not in_results(path) and (path, name) != ("", "content_digest"):
                self._attribute_lines.append(attribute_line(path, name, value))
        return values

    def _forget_attribute(self, path: str, name: str) -> None:
        """Leave an attribute out of what is shown, and out of the content digest."""
        value = self.stored_attributes.get(path, {}).pop(name, None)
        self.attributes[path].pop(name, None)
        if value is not None:
            self._attribute_lines.remove(attribute_line(path, name, value))

    def _show_attribute(self, path: str, name: str, value: Array) -> None:
        """Show an attribute that the file holds in other words."""
        self.stored_attributes.setdefault(path, {})[name] = value
        self.attributes[path][name] = _plain(value)
        self._attribute_lines.append(attribute_line(path, name, value))

    def _checked_type(self, kind: Any, place: str) -> np.dtype[Any]:
        if kind.committed():
            self._refuse(place, "a named type")
        if kind.get_class() not in _TYPE_CLASSES:
            self._refuse(place, "a type other than integer, float, enumeration or fixed-length string")
        if kind.get_class() == h5py.h5t.STRING and kind.is_variable_str():
            self._refuse(place, "a string of variable length")
        try:
            dtype: np.dtype[Any] = kind.dtype
        except Exception as error:
            raise Refused(self.place(place), f"a number type that is not known ({one_line(error)})", RESTORE) from error
        if dtype.kind not in "iufS" or dtype.itemsize > self._size:
            self._refuse(place, f"a type that is not allowed: {dtype}")
        return np.dtype(dtype.str)

    def _checked_shape(self, space: Any, place: str) -> tuple[int, ...]:
        if space.get_simple_extent_type() not in (h5py.h5s.SIMPLE, h5py.h5s.SCALAR):
            self._refuse(place, "no data space")
        return tuple(int(length) for length in space.get_simple_extent_dims())

    def _refuse(self, path: str, problem: str) -> NoReturn:
        raise Refused(self.place(path), f"holds what it must not hold: {problem}", RESTORE)

    @contextmanager
    def _translated(self, path: str) -> Iterator[None]:
        """Turn what h5py raises on a damaged object into ``Damaged``."""
        try:
            yield
        except (OSError, RuntimeError, KeyError, ValueError, TypeError, OverflowError, MemoryError) as error:
            raise Damaged(self.place(path), f"HDF5 cannot read it ({one_line(error)})", RESTORE) from error


def _plain(value: Array) -> Any:
    return name_text(value.item()) if value.dtype.kind == "S" else value.item()


def in_results(path: str) -> bool:
    """Say whether an object belongs to a packed result: the digest of the store leaves it out."""
    return path == "results" or path.startswith("results/")


def one_line(error: BaseException) -> str:
    """Return what HDF5 says, short enough for a message."""
    return " ".join(str(error).split())[:300] or type(error).__name__


def _has_descriptor(handle: BinaryIO) -> bool:
    try:
        handle.fileno()
    except OSError:
        return False
    return True
