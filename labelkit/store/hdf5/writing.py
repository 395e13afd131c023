"""Write HDF5 files whose bytes depend on their contents only, without HDF5 touching the disk.

On a full disk HDF5's own writing can crash the process and take older rows with it. It is given a file object that
records its few hundred bytes of metadata, with datasets allocated but never filled; the arrays then go to the offsets
it assigned, by our own plain writes. One mechanism serves every size, from a part in memory to a store larger than
memory. The format is described in ``labelkit.store.schema``.
"""

from __future__ import annotations

import errno
import hashlib
import io
import math
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Self

import h5py
import numpy as np
from numpy.typing import NDArray

from labelkit.store import schema
from labelkit.store.commit import write_all
from labelkit.store.digests import (
    BlockDigester,
    attribute_line,
    bytes_of,
    dataset_line,
    digest_of_lines,
    group_line,
    rows_per_block,
    sha256_of,
)
from labelkit.store.schema import name_bytes, name_text

Array = NDArray[Any]
AttributeValue = str | int | Array


@dataclass(frozen=True)
class Stream:
    """A dataset too large for memory.

    Attributes:
        dtype: little-endian type of its values.
        shape: its shape; at least one axis.
        blocks: called to read it once more from the beginning, in pieces of whole rows.
        digests: its block digests, where they are known already; of the ``block_bytes`` of the image.
        part: called to read rows [start, stop) once more, in pieces of whole rows; ``None``: only all can be read.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    blocks: Callable[[], Iterator[Array]]
    digests: bytes | None = None
    part: Callable[[int, int], Iterator[Array]] | None = None

    def between(self, start: int, stop: int) -> Stream:
        """Return some of the rows.

        Raises:
            ValueError: only all can be read.
        """
        part = self.part
        if part is None:
            raise ValueError("this stream cannot be read in parts")
        return Stream(self.dtype, (stop - start, *self.shape[1:]), lambda: part(start, stop))


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
        alignment: large arrays begin at multiples of this.

    Attributes:
        size: bytes of the file.
        content_digest: its identity, 64 hexadecimal digits.
        contents: all that is in it, digests included.
        groups: paths of all groups.
        offsets: where the bytes of each dataset begin in the file.
        sha256: of the bytes of each dataset that has no block digests; only where they were made here.
    """

    def __init__(
        self, contents: Contents, *, block_bytes: int = schema.BLOCK_BYTES, alignment: int = schema.ALIGNMENT
    ) -> None:
        datasets = dict(contents.datasets)
        attributes = {path: dict(values) for path, values in contents.attributes.items()}
        lines = []
        self.sha256: dict[str, str] = {}
        for path, data in contents.datasets.items():
            if data.dtype.byteorder == ">":
                raise TypeError(f"a store cannot hold values of type {data.dtype}")
            row_bytes = data.dtype.itemsize * math.prod(data.shape[1:])
            if data.shape and data.shape[0] * row_bytes > block_bytes:
                block_rows = rows_per_block(row_bytes, block_bytes)
                digests = _block_digests(data, block_rows * row_bytes)
                datasets[f"digests/{path}"] = np.frombuffer(digests, np.uint8).reshape(-1, 32)
                attributes[f"digests/{path}"] = {"block_rows": block_rows}
                lines.append(dataset_line(path, data.dtype, data.shape, hashlib.sha256(digests).hexdigest()))
            else:
                self.sha256[path] = sha256_of(_rows(data)).hexdigest()
                lines.append(dataset_line(path, data.dtype, data.shape, self.sha256[path]))
        for path in datasets.keys() - contents.datasets.keys():
            digest = sha256_of(_rows(datasets[path])).hexdigest()
            lines.append(dataset_line(path, datasets[path].dtype, datasets[path].shape, digest))
        groups = {""} | {path for path in attributes if path not in datasets}
        for path in list(datasets) + list(groups):
            parts = path.split("/")[:-1]
            groups.update("/".join(parts[: i + 1]) for i in range(len(parts)))
        lines.extend(group_line(path) for path in groups)
        for path, values in attributes.items():
            lines.extend(attribute_line(path, name, _attribute_array(value)) for name, value in values.items())
        self.content_digest = digest_of_lines(lines)
        attributes.setdefault("", {})["content_digest"] = self.content_digest
        self.contents = Contents(datasets, attributes)
        self._lay_out(sorted(groups), alignment)

    @classmethod
    def verbatim(cls, contents: Contents, groups: Iterable[str]) -> Self:
        """Return the image of exactly these contents: no digest is made or compared, attributes keep their types.

        Args:
            contents: all datasets and attributes, digests included; attributes as arrays.
            groups: all groups, the root as the empty path.
        """
        image = cls.__new__(cls)
        image.content_digest = attribute_text(contents.attributes[""]["content_digest"])
        image.contents, image.sha256 = contents, {}
        image._lay_out(sorted(set(groups) | {""}), schema.ALIGNMENT)
        return image

    def _lay_out(self, groups: list[str], alignment: int) -> None:
        recorder = _Recorder()
        self.groups = groups
        self.offsets: dict[str, int] = {}
        with h5py.File(
            recorder,
            "w",
            libver=("v108", "v108"),
            alignment_threshold=schema.ALIGNMENT,
            alignment_interval=alignment,
        ) as file:
            create = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            create.set_layout(h5py.h5d.CONTIGUOUS)
            create.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
            create.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
            create.set_obj_track_times(False)
            for path in groups:
                if path:
                    file.create_group(path, track_order=False)
            for path, data in sorted(self.contents.datasets.items()):
                space = h5py.h5s.create_simple(data.shape) if data.shape else h5py.h5s.create(h5py.h5s.SCALAR)
                dataset = h5py.h5d.create(file.id, path.encode(), _hdf5_type(data.dtype), space, dcpl=create)
                offset = dataset.get_offset()
                if offset is not None:
                    self.offsets[path] = offset
            for path, values in sorted(self.contents.attributes.items()):
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
        for path, offset in sorted(self.offsets.items(), key=lambda item: item[1]):
            for rows in _rows(self.contents.datasets[path]):
                yield offset, bytes_of(rows)
                offset += rows.nbytes

    def metadata(self, start: int, stop: int) -> bytes:
        """Return the bytes [start, stop) of the file as they are without those of datasets, which are zeros here."""
        found = bytearray(stop - start)
        for offset, block in self._metadata:
            low, high = max(offset, start), min(offset + len(block), stop)
            if low < high:
                found[low - start : high - start] = block[low - offset : high - offset]
        return bytes(found)

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


def attribute_text(value: AttributeValue) -> str:
    """Return the text of an attribute that holds one."""
    return value if isinstance(value, str) else name_text(np.asarray(value).item())


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
