"""Write and read HDF5 files without trusting them: the one import of h5py.

Writing. HDF5 never writes to the disk: on a full disk its own writing can crash the process and take
older rows with it. It is given a file object that records its few hundred bytes of metadata, with datasets
allocated but never filled; the arrays then go to the offsets it assigned, by our own plain writes. One
mechanism serves every size, from a part in memory to a store larger than memory.

Reading. ``CheckedFile`` looks at structure, types, sizes and digests before any data is used. Files from
elsewhere go through ``labelkit.store.opening``. The format is described in ``labelkit.store.schema``.
"""

from __future__ import annotations

import errno
import hashlib
import io
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, BinaryIO, NoReturn, Self

import h5py
import numpy as np
from numpy.typing import NDArray

from labelkit.errors import Damaged, Mismatch, NotAStore, Refused, VersionError
from labelkit.store import schema
from labelkit.store.commit import write_all
from labelkit.store.digests import (
    RESTORE,
    BlockDigester,
    attribute_line,
    bytes_of,
    dataset_line,
    digest_of_lines,
    group_line,
    rows_per_block,
    sha256_of,
    verify_block,
    verify_blocks,
)
from labelkit.store.schema import name_bytes, name_text

Array = NDArray[Any]
AttributeValue = str | int | Array

_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_FILTERS = {h5py.h5z.FILTER_DEFLATE, h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_FLETCHER32}
_TYPE_CLASSES = {h5py.h5t.INTEGER, h5py.h5t.FLOAT, h5py.h5t.ENUM, h5py.h5t.STRING}


@dataclass(frozen=True)
class Stream:
    """A dataset too large for memory.

    Attributes:
        dtype: little-endian type of its values.
        shape: its shape; at least one axis.
        blocks: called to read it once more from the beginning, in pieces of whole rows.
        digests: its block digests, where they are known already; of the ``block_bytes`` of the image.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    blocks: Callable[[], Iterator[Array]]
    digests: bytes | None = None


@dataclass
class Contents:
    """What a file is to hold.

    Attributes:
        datasets: by path without a leading slash; groups are made as needed. Arrays must be of a type
            that the format allows, little-endian; see ``strings`` for text.
        attributes: by path of the group or dataset (the root is the empty path), then by name.
    """

    datasets: dict[str, Array | Stream] = field(default_factory=dict)
    attributes: dict[str, dict[str, AttributeValue]] = field(default_factory=dict)

    def set(self, group: str, **values: AttributeValue) -> None:
        """Set attributes of a group."""
        self.attributes.setdefault(group, {}).update(values)

    def set_json(self, group: str, name: str, text: str) -> None:
        """Set a JSON text: an attribute, or a scalar dataset where it is too long for one."""
        if len(name_bytes(text)) > schema.JSON_ATTRIBUTE_BYTES:
            self.datasets[f"{group}/{name}".lstrip("/")] = np.array(name_bytes(text))
        else:
            self.set(group, **{name: text})


def strings(values: Iterable[str]) -> Array:
    """Return (n,) fixed-length UTF-8 strings; surrogate escapes become the bytes they stand for.

    Raises:
        ValueError: a string holds a NUL byte, which a fixed-length string cannot.
    """
    raw = [name_bytes(value) for value in values]
    for value in raw:
        if b"\0" in value:
            raise ValueError(f"the string {value!r} holds a NUL byte")
    return np.array(raw, dtype=f"S{max((len(value) for value in raw), default=1) or 1}")


class _Recorder(io.RawIOBase):
    """A file object that keeps what HDF5 writes as (offset, bytes)."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[tuple[int, bytes]] = []
        self.size = 0
        self._position = 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self.size}[whence]
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def write(self, data: Any) -> int:
        block = bytes(data)
        self.writes.append((self._position, block))
        self._position += len(block)
        self.size = max(self.size, self._position)
        return len(block)

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        start, stop = self._position, self._position + len(view)
        view[:] = bytes(len(view))
        for offset, block in self.writes:
            low, high = max(offset, start), min(offset + len(block), stop)
            if low < high:
                view[low - start : high - start] = block[low - offset : high - offset]
        self._position = stop
        return len(view)

    def truncate(self, size: int | None = None) -> int:
        self.size = self._position if size is None else size
        return self.size


class Image:
    """The bytes of a file: the same contents give the same bytes, in memory or streamed.

    Args:
        contents: what it holds; block digests and the content digest are added here.
        block_bytes: datasets above this many bytes get a digest per block of about as many.

    Attributes:
        size: bytes of the file.
        content_digest: its identity, 64 hexadecimal digits.
    """

    def __init__(self, contents: Contents, *, block_bytes: int = schema.BLOCK_BYTES) -> None:
        datasets = dict(contents.datasets)
        attributes = {path: dict(values) for path, values in contents.attributes.items()}
        lines = []
        for path, data in contents.datasets.items():
            if data.dtype.byteorder == ">":
                raise TypeError(f"a store cannot hold values of type {data.dtype}")
            row_bytes = data.dtype.itemsize * math.prod(data.shape[1:])
            if data.shape and data.shape[0] * row_bytes > block_bytes:
                block_rows = rows_per_block(row_bytes, block_bytes)
                digests = _block_digests(data, block_rows * row_bytes)
                datasets[f"digests/{path}"] = np.frombuffer(digests, np.uint8).reshape(-1, 32)
                attributes[f"digests/{path}"] = {"block_rows": block_rows}
                lines.append(dataset_line(path, data.dtype, data.shape, hashlib.sha256(digests)))
            else:
                lines.append(dataset_line(path, data.dtype, data.shape, sha256_of(_rows(data))))
        for path in datasets.keys() - contents.datasets.keys():
            lines.append(
                dataset_line(path, datasets[path].dtype, datasets[path].shape, sha256_of(_rows(datasets[path])))
            )
        groups = {""} | {path for path in attributes if path not in datasets}
        for path in list(datasets) + list(groups):
            parts = path.split("/")[:-1]
            groups.update("/".join(parts[: i + 1]) for i in range(len(parts)))
        lines.extend(group_line(path) for path in groups)
        for path, values in attributes.items():
            lines.extend(attribute_line(path, name, _attribute_array(value)) for name, value in values.items())
        self.content_digest = digest_of_lines(lines)
        attributes.setdefault("", {})["content_digest"] = self.content_digest
        self._datasets = datasets
        self._lay_out(sorted(groups), attributes)

    @classmethod
    def verbatim(cls, contents: Contents, groups: Iterable[str]) -> Self:
        """Return the image of exactly these contents: no digest is made or compared, attributes keep their types.

        Args:
            contents: all datasets and attributes, digests included; attributes as arrays.
            groups: all groups, the root as the empty path.
        """
        image = cls.__new__(cls)
        image.content_digest = str(_plain(np.asarray(contents.attributes[""]["content_digest"])))
        image._datasets = dict(contents.datasets)
        image._lay_out(sorted(set(groups) | {""}), contents.attributes)
        return image

    def _lay_out(self, groups: list[str], attributes: Mapping[str, Mapping[str, AttributeValue]]) -> None:
        recorder = _Recorder()
        self._offsets: dict[str, int] = {}
        with h5py.File(
            recorder,
            "w",
            libver=("v108", "v108"),
            alignment_threshold=schema.ALIGNMENT,
            alignment_interval=schema.ALIGNMENT,
        ) as file:
            create = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            create.set_layout(h5py.h5d.CONTIGUOUS)
            create.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
            create.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
            create.set_obj_track_times(False)
            for path in groups:
                if path:
                    file.create_group(path, track_order=False)
            for path, data in sorted(self._datasets.items()):
                space = h5py.h5s.create_simple(data.shape) if data.shape else h5py.h5s.create(h5py.h5s.SCALAR)
                dataset = h5py.h5d.create(file.id, path.encode(), _hdf5_type(data.dtype), space, dcpl=create)
                offset = dataset.get_offset()
                if offset is not None:
                    self._offsets[path] = offset
            for path, values in sorted(attributes.items()):
                for name, value in sorted(values.items()):
                    array = _attribute_array(value)
                    kind = h5py.string_dtype("utf-8", array.dtype.itemsize) if array.dtype.kind == "S" else array.dtype
                    file[f"/{path}"].attrs.create(name, array, dtype=kind)
        self._metadata = recorder.writes
        self.size = recorder.size

    def pieces(self) -> Iterator[tuple[int, memoryview]]:
        """Yield (offset, bytes) of all that is not zero, metadata first; a later piece may repair an earlier one."""
        for offset, block in self._metadata:
            yield offset, memoryview(block)
        for path, offset in sorted(self._offsets.items(), key=lambda item: item[1]):
            for rows in _rows(self._datasets[path]):
                yield offset, bytes_of(rows)
                offset += rows.nbytes

    def to_bytes(self) -> bytes:
        """Return the whole file."""
        image = bytearray(self.size)
        for offset, block in self.pieces():
            image[offset : offset + len(block)] = block
        return bytes(image)

    def write_to(self, descriptor: int) -> None:
        """Write the file into a new, empty one: reserve its whole size, then fill it.

        Raises:
            OSError: the disk is full, ...
        """
        reserve(descriptor, self.size)
        for offset, block in self.pieces():
            os.lseek(descriptor, offset, os.SEEK_SET)
            write_all(descriptor, block)


def reserve(descriptor: int, size: int) -> None:
    """Give a new file its size, with the disk space reserved where the file system can do that.

    Raises:
        OSError: the disk is full, ...
    """
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(descriptor, 0, size)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.ENODEV, errno.ENOSYS):
                raise
        else:
            return
    os.ftruncate(descriptor, size)


def _hdf5_type(dtype: np.dtype[Any]) -> Any:
    if dtype.kind == "S":
        dtype = h5py.string_dtype("utf-8", dtype.itemsize)
    elif dtype.kind not in "iuf":
        raise TypeError(f"a store cannot hold values of type {dtype}")
    return h5py.h5t.py_create(dtype, logical=True)


def _attribute_array(value: AttributeValue) -> Array:
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, str):
        raw = name_bytes(value)
        if b"\0" in raw or len(raw) >= schema.ATTRIBUTE_BYTES:
            raise ValueError(f"an attribute cannot hold a NUL byte or {len(raw)} bytes: {value[:80]!r}")
        return np.array(raw, dtype=f"S{len(raw) or 1}")
    return np.array(value, dtype="<i8")


def _block_digests(data: Array | Stream, block_bytes: int) -> bytes:
    if isinstance(data, Stream) and data.digests is not None:
        return data.digests
    digester = BlockDigester(block_bytes)
    for rows in _rows(data):
        digester.update(rows)
    return digester.finish()


def _rows(data: Array | Stream) -> Iterator[Array]:
    if isinstance(data, Stream):
        yield from data.blocks()
    else:
        yield data


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


class CheckedFile:
    """An HDF5 file whose structure, sizes, types and content digest were found right.

    Made by ``open_file`` and ``check_handle``. All reading goes through one descriptor, so that a file
    replaced meanwhile does not mix with this one.

    Attributes:
        where: the name used in messages.
        datasets: by path without a leading slash.
        attributes: by path of the object (the root is the empty path), then by name; texts as ``str``,
            numbers as ``int`` or ``float``. Attributes that are arrays are left out.
        stored_attributes: the same as they are stored, arrays too.
        groups: paths of all groups.
        format: what it is, such as ``labelkit.store``.
        content_digest: as stored and recomputed.
    """

    _file: Any = None

    def __init__(
        self,
        handle: BinaryIO,
        where: str,
        file_format: str | None,
        *,
        outer: CheckedFile | None = None,
        group: str = "",
    ) -> None:
        """Check a file, or a group of one that is checked already as if it were a file of its own.

        Args:
            handle: the file.
            where: the name used in messages.
            file_format: what it must be; ``None`` for any format of labelkit.
            outer: the checked file that ``group`` is in.
            group: path of the group.
        """
        self._begin(handle, where, file_format or "", outer, group)
        try:
            self._file = self._open() if outer is None else outer._file
            with _translated(self, ""):
                root = h5py.h5g.open(self._file.id, name_bytes(self._root) or b"/")
                self._check_header(root, file_format)
                self._walk(root, "", 0)
            self.content_digest = self._check_digest()
        except BaseException:
            self.close()
            raise

    def _begin(
        self, handle: BinaryIO, where: str, file_format: str, outer: CheckedFile | None = None, group: str = ""
    ) -> None:
        """Set what is known before anything of the file is read."""
        self.where = where
        self._handle = handle
        self._size = os.fstat(handle.fileno()).st_size if _has_descriptor(handle) else handle.seek(0, os.SEEK_END)
        self._outer = outer
        self._root = f"/{group}" if group else ""
        self.format = file_format
        self.datasets: dict[str, DatasetInfo] = {}
        self.attributes: dict[str, dict[str, Any]] = {}
        self.stored_attributes: dict[str, dict[str, Array]] = {}
        self.groups: list[str] = []
        self._attribute_lines: list[bytes] = []
        self._objects = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close HDF5's side and the descriptor; maps stay valid. A group of a file leaves that to the file."""
        if self._outer is not None:
            return
        if self._file is not None:
            with suppress(Exception):
                self._file.close()
        self._handle.close()

    def inside(self, group: str, file_format: str) -> CheckedFile:
        """Return a group of this file as a file of its own; usable while this one is open.

        Raises:
            StoreError: it is not of this format, or its content digest differs.
        """
        return CheckedFile(self._handle, self.where, file_format, outer=self, group=group)

    # ---- structure

    def _open(self) -> Any:
        self._handle.seek(0)
        if self._handle.read(len(_SIGNATURE)) != _SIGNATURE:
            raise NotAStore(self.where, "not an HDF5 file", "Give a file written by labelkit.")
        try:
            return h5py.File(self._handle, "r")
        except Exception as error:
            short = "truncated" in str(error)
            problem = "shorter than it says, it was cut off" if short else f"HDF5 cannot open it ({_one_line(error)})"
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
        needed = {word for word in str(root.get("requires", "")).split(",") if word}
        if unknown := sorted(needed - schema.KNOWN_FEATURES):
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
            with _translated(self, child):
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
        return self.format == schema.FORMAT_RESULT or _in_results(path)

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
            if not only and not _in_results(path) and (path, name) != ("", "content_digest"):
                self._attribute_lines.append(attribute_line(path, name, value))
        return values

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
            raise Refused(
                self.place(place), f"a number type that is not known ({_one_line(error)})", RESTORE
            ) from error
        if dtype.kind not in "iufS" or dtype.itemsize > self._size:
            self._refuse(place, f"a type that is not allowed: {dtype}")
        return np.dtype(dtype.str)

    def _checked_shape(self, space: Any, place: str) -> tuple[int, ...]:
        if space.get_simple_extent_type() not in (h5py.h5s.SIMPLE, h5py.h5s.SCALAR):
            self._refuse(place, "no data space")
        return tuple(int(length) for length in space.get_simple_extent_dims())

    def _refuse(self, path: str, problem: str) -> NoReturn:
        raise Refused(self.place(path), f"holds what it must not hold: {problem}", RESTORE)

    def place(self, path: str) -> str:
        """Return how messages call an object of the file."""
        inner = f"{self._root}/{path}" if path else self._root
        return f"{self.where}:{inner}" if inner else self.where

    # ---- digests

    def _check_digest(self) -> str:
        lines = [group_line(path) for path in self.groups if not _in_results(path)]
        lines.extend(self._attribute_lines)
        for path, info in list(self.datasets.items()):
            if _in_results(path):
                continue
            with _translated(self, path):
                digests = self.datasets.get(f"digests/{path}")
                if digests is None:
                    digest = sha256_of(self._blocks(path))
                else:
                    rows = self.attributes[f"digests/{path}"].get("block_rows")
                    blocks = -(-info.shape[0] // rows) if isinstance(rows, int) and rows > 0 and info.shape else -1
                    if digests.shape != (blocks, 32) or digests.dtype != np.uint8:
                        self._refuse(f"digests/{path}", f"shape {digests.shape} with block_rows {rows}")
                    self.datasets[path] = DatasetInfo(info.dtype, info.shape, info.offset, int(rows or 0))
                    digest = sha256_of(self._blocks(f"digests/{path}"))
                lines.append(dataset_line(path, info.dtype, info.shape, digest))
        found, stored = digest_of_lines(lines), self.attributes[""].get("content_digest")
        if found != stored:
            problem = "content digest differs, the file was changed or the disk is failing"
            raise Damaged(self.place(""), problem, RESTORE)
        return found

    def _blocks(self, path: str, step: int = 0) -> Iterator[Array]:
        """Read a dataset in pieces of ``step`` rows, by default of about 4 MiB."""
        info = self.datasets[path]
        dataset = h5py.h5d.open(self._file.id, name_bytes(f"{self._root}/{path}"))
        # The stored type, not h5py's idea of it: the bytes come as they are.
        kind = dataset.get_type()
        if not info.shape:
            scalar = np.empty((), info.dtype)
            dataset.read(h5py.h5s.ALL, h5py.h5s.ALL, scalar, kind)
            yield scalar
            return
        step = step or max(1, schema.BLOCK_BYTES * info.shape[0] // max(1, info.nbytes))
        for start in range(0, info.shape[0] if info.nbytes else 0, step):
            block = np.empty((min(step, info.shape[0] - start), *info.shape[1:]), info.dtype)
            space = dataset.get_space()
            space.select_hyperslab((start, *(0 for _ in info.shape[1:])), block.shape)
            dataset.read(h5py.h5s.create_simple(block.shape), space, block, kind)
            yield block

    def read_chunked(self) -> None:
        """Read every dataset that is in chunks once: that is where damaged files hang.

        Raises:
            Damaged: HDF5 cannot read one.
        """
        for path, info in self.datasets.items():
            if info.offset is None and info.nbytes:
                with _translated(self, path):
                    for _ in self._blocks(path):
                        pass

    def verified_blocks(self, path: str, faults: list[Damaged] | None = None) -> Iterator[Array]:
        """Yield a dataset in pieces of whole rows, each compared with its digest; a scalar in one piece.

        Args:
            path: of the dataset.
            faults: gets what is wrong, and the damaged rows are yielded all the same; ``None``: it is raised.

        Raises:
            Damaged: a digest differs; names the rows.
        """
        expected = self.digests(path)
        start = 0
        try:
            with _translated(self, path):
                for number, block in enumerate(self._blocks(path, self.datasets[path].block_rows)):
                    try:
                        verify_block(self.place(path), block, start, None if expected is None else expected[number])
                    except Damaged as error:
                        if faults is None:
                            raise
                        faults.append(error)
                    yield block
                    start += len(block) if block.ndim else 0
        except Damaged as error:
            if faults is None:
                raise
            faults.append(error)

    def read(self, path: str, *, verify: bool = True) -> Array:
        """Return a dataset as a new array.

        Raises:
            Damaged: its digests differ, or HDF5 cannot read it.
        """
        info = self.datasets[path]
        with _translated(self, path):
            value = np.empty(info.shape, info.dtype)
            start = 0
            for block in self._blocks(path):
                if info.shape:
                    value[start : start + len(block)] = block
                    start += len(block)
                else:
                    value[()] = block
        if verify:
            self.verify(path, value)
        return value

    def read_strings(self, path: str, *, verify: bool = True) -> list[str]:
        """Return a dataset of strings; bytes that are not UTF-8 become surrogate escapes."""
        return [name_text(raw) for raw in self.read(path, verify=verify).tolist()]

    def read_text(self, group: str, name: str) -> str:
        """Return a text kept as an attribute, or as a scalar dataset where it is long; empty if there is none."""
        path = f"{group}/{name}".lstrip("/")
        info = self.datasets.get(path)
        if info is not None and info.shape == () and info.dtype.kind == "S":
            return name_text(self.read(path).item())
        value = self.attributes.get(group, {}).get(name, "")
        return value if isinstance(value, str) else ""

    def map(self, path: str) -> Array:
        """Return a dataset as a read-only map of the file, or as an array where it is not in one piece."""
        info = self.datasets[path]
        if info.offset is None or not info.nbytes or info.offset % info.dtype.itemsize:
            value = self.read(path, verify=False)
            value.flags.writeable = False
            return value
        return np.memmap(self._handle, info.dtype, "r", info.offset, info.shape)

    def digests(self, path: str) -> Array | None:
        """Return the (b, 32) block digests of a dataset, or ``None`` where the content digest covers its bytes."""
        return self.read(f"digests/{path}") if self.datasets[path].block_rows else None

    def verify(self, path: str, value: Array) -> None:
        """Compare a dataset with its block digests.

        Raises:
            Damaged: a block differs; names the dataset and its rows.
        """
        verify_blocks(self.place(path), value, self.datasets[path].block_rows, self.digests(path))


@contextmanager
def _translated(file: CheckedFile, path: str) -> Iterator[None]:
    """Turn what h5py raises on a damaged object into ``Damaged``."""
    try:
        yield
    except (OSError, RuntimeError, KeyError, ValueError, TypeError, OverflowError, MemoryError) as error:
        raise Damaged(file.place(path), f"HDF5 cannot read it ({_one_line(error)})", RESTORE) from error


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


def _plain(value: Array) -> Any:
    item = value.item()
    return name_text(item) if isinstance(item, bytes) else item


def _in_results(path: str) -> bool:
    return path == "results" or path.startswith("results/")


def _has_descriptor(handle: BinaryIO) -> bool:
    try:
        handle.fileno()
    except OSError:
        return False
    return True


def check_axes(
    file: CheckedFile,
    columns: Mapping[str, tuple[str, ...]],
    lengths: Mapping[str, int] | None = None,
    prefix: str = "",
) -> dict[str, int]:
    """Check types and shapes of the known datasets of a file against each other.

    Args:
        file: a checked file.
        columns: axes of each known dataset, as in ``labelkit.store.schema``.
        lengths: lengths that are known already, by letter.
        prefix: group of the datasets, such as ``label_sets/coarse/``.

    Returns:
        The length of each letter.

    Raises:
        Refused: a dataset has another type or number of axes.
        Mismatch: two datasets differ in the length of an axis that they share.
    """
    known = dict(lengths or {})
    owner = dict.fromkeys(known, "the file")
    for name, axes in columns.items():
        info = file.datasets.get(prefix + name)
        if info is None:
            continue
        place = file.place(prefix + name)
        kinds = schema.COLUMN_TYPES[name]
        kind = "S" if info.dtype.kind == "S" else info.dtype.str[1:]
        if kind not in kinds or info.dtype.byteorder == ">" or len(info.shape) != len(axes):
            raise Refused(
                place, f"type {info.dtype} of shape {info.shape}, expected {kinds[0]} ({', '.join(axes)})", RESTORE
            )
        for axis, length in zip(axes, info.shape, strict=True):
            expected = int(axis) if axis.isdecimal() else known.setdefault(axis, length)
            if length != expected:
                problem = f"{length} rows where {owner.get(axis, 'the format')} has {expected}"
                raise Mismatch(place, problem, RESTORE)
            owner.setdefault(axis, f"/{prefix}{name}")
    return known


def check_handle(handle: BinaryIO, where: str, file_format: str | None) -> None:
    """Do in this process what ``open_file`` does in a child, and read all chunked datasets.

    Raises:
        StoreError: see ``open_file``.
    """
    with CheckedFile(handle, where, file_format) as file:
        file.read_chunked()
