"""Write HDF5 files as specified in ``docs/inside/file_format.txt``, including stores in one file or in shards.

h5py writes through a Python file object, never by path, so that a full disk raises ``OSError`` instead of crashing. The
same contents have the same content digest, regardless of the program that wrote the bytes.

For a store in shards, the shards are written before the index, so that the store appears complete or not at all.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, Self

import h5py
import numpy as np
from numpy.typing import NDArray

from labelkit import __version__
from labelkit.errors import OutputExistsError, StoreError, output_exists_error
from labelkit.store import schema
from labelkit.store.commit import canonical_json, commit_bytes, commit_file, fsync_folder, translate_os_errors
from labelkit.store.reader import (
    SHARD_NAME,
    VIRTUAL_NAME,
    Shard,
    ShardColumn,
    Shards,
    compute_content_digest,
    hash_arrays,
    open_checked_file,
    shards_folder,
)
from labelkit.store.schema import decode_name, encode_name

MADE_BY: str = f"labelkit {__version__}"
"""Program and version recorded in files."""
Array = NDArray[Any]
AttributeValue = str | int | Array


@dataclass(frozen=True)
class StreamedDataset:
    """Dataset too large for memory, to be written in blocks of rows.

    Attributes:
        dtype: little-endian dtype of its values.
        shape: its shape, with at least one axis.
        read: function that returns rows [start, stop); called repeatedly.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    read: Callable[[int, int], Array]


@dataclass
class FileContents:
    """Datasets and attributes of a file to be written.

    Attributes:
        datasets: by path without a leading slash; groups are created as needed. Arrays must be little-endian and of
            a type that the format allows; see ``encode_strings`` for text.
        attributes: by path of the group or dataset (the root is the empty path), then by name; a path without datasets
            is an empty group.
    """

    datasets: dict[str, Array | StreamedDataset] = field(default_factory=dict)
    attributes: dict[str, dict[str, AttributeValue]] = field(default_factory=dict)

    @classmethod
    def create(
        cls,
        file_format: str,
        datasets: Mapping[str, Array | StreamedDataset] | None = None,
        **root: AttributeValue | Mapping[str, object],
    ) -> Self:
        """Create contents in a given file format, with the attributes of the root group; mappings become JSON."""
        contents = cls(dict(datasets or {}))
        made = {"format": file_format, "format_version": schema.FORMAT_VERSION, "requires": ""}
        for name, value in {**made, **root}.items():
            if isinstance(value, Mapping):
                contents.set_json("", name, canonical_json(dict(value)))
            else:
                contents.set_attributes("", **{name: value})
        return contents

    def set_attributes(self, group: str, **values: AttributeValue) -> None:
        """Set attributes of a group."""
        self.attributes.setdefault(group, {}).update(values)

    def set_json(self, group: str, name: str, text: str) -> None:
        """Store JSON text as an attribute, or as a scalar dataset if it is too long for an attribute."""
        if len(encode_name(text)) > schema.JSON_ATTRIBUTE_BYTES:
            self.datasets[f"{group}/{name}".lstrip("/")] = np.array(encode_name(text))
        else:
            self.set_attributes(group, **{name: text})

    def groups(self) -> list[str]:
        """Return the sorted paths of all groups; the root is the empty path."""
        groups = {""} | (self.attributes.keys() - self.datasets.keys())
        for path in [*self.datasets, *groups]:
            parts = path.split("/")[:-1]
            groups.update("/".join(parts[: i + 1]) for i in range(len(parts)))
        return sorted(groups)

    @property
    def content_digest(self) -> str:
        """Digest that identifies the sealed contents, as 64 hexadecimal digits."""
        return decode_attribute(self.attributes[""]["content_digest"])

    def sealed(self, block_bytes: int | None = None) -> FileContents:
        """Return a copy of these contents with all digests added, as stored in a file.

        Datasets larger than ``block_bytes`` (default: 4 MiB) get a digest for each block of about this size.
        """
        block_bytes = block_bytes or schema.BLOCK_BYTES
        sealed = FileContents(dict(self.datasets), {path: dict(values) for path, values in self.attributes.items()})
        digests: dict[str, tuple[np.dtype[Any], tuple[int, ...], str]] = {}
        for path, data in self.datasets.items():
            if data.dtype.byteorder == ">" or data.dtype.kind not in "iufS":
                raise TypeError(f"a store cannot contain values of type {data.dtype}")
            row_bytes = data.dtype.itemsize * math.prod(data.shape[1:])
            if data.shape and data.shape[0] * row_bytes > block_bytes:
                block_rows = max(1, block_bytes // row_bytes)
                of_blocks = b"".join(hash_arrays([rows]).digest() for rows in iterate_dataset_blocks(data, block_rows))
                table = sealed.datasets[f"digests/{path}"] = np.frombuffer(of_blocks, np.uint8).reshape(-1, 32)
                sealed.set_attributes(f"digests/{path}", block_rows=block_rows)
                digest = hash_arrays([table]).hexdigest()
                digests[f"digests/{path}"] = (table.dtype, table.shape, digest)
            else:
                digest = hash_arrays(iterate_dataset_blocks(data)).hexdigest()
            digests[path] = (data.dtype, data.shape, digest)
        attributes = {
            path: {name: _attribute_array(value) for name, value in values.items()}
            for path, values in sealed.attributes.items()
        }
        sealed.set_attributes("", content_digest=compute_content_digest(sealed.groups(), attributes, digests))
        return sealed

    def write(self, file: BinaryIO) -> None:
        """Write the sealed contents to a new, empty file that is open for reading and writing."""
        align = schema.ALIGNMENT
        with _create_hdf5(file, libver=("v108", "v108"), alignment_threshold=align, alignment_interval=align) as hdf5:
            for path in self.groups()[1:]:
                hdf5.create_group(path, track_order=False)
            for path, data in sorted(self.datasets.items()):
                kind = _hdf5_type(data.dtype)
                dataset = hdf5.create_dataset(path, data.shape, kind, track_times=False)
                start = 0
                for rows in iterate_dataset_blocks(data):
                    if rows.size:
                        dataset[slice(start, start + len(rows)) if rows.shape else ()] = rows.view(kind)
                        start += len(rows) if rows.shape else 0
            for path, values in sorted(self.attributes.items()):
                for name, value in sorted(values.items()):
                    array = _attribute_array(value)
                    hdf5[f"/{path}"].attrs.create(name, array, dtype=_hdf5_type(array.dtype))

    def to_bytes(self) -> bytes:
        """Return the sealed contents as the bytes of a complete file."""
        buffer = io.BytesIO()
        self.write(buffer)
        return buffer.getvalue()


class _FirstError:
    """File for HDF5 that records the first error instead of raising it, so that HDF5 can close the file.

    After the error, nothing is written, and the data that HDF5 reads is meaningless.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file: Any = file
        self.error: OSError | None = None

    def _call(self, name: str, *values: Any, default: int) -> int:
        if self.error is None:
            try:
                return int(getattr(self._file, name)(*values) or 0)
            except OSError as error:
                self.error = error
        return default

    def read(self, size: int) -> bytes:  # h5py requires it, but calls readinto
        raise NotImplementedError

    def readinto(self, buffer: Any) -> int:
        return self._call("readinto", buffer, default=len(buffer))

    def write(self, data: Any) -> int:
        return self._call("write", data, default=len(data))

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return self._call("seek", offset, whence, default=offset)

    def tell(self) -> int:
        return self._call("tell", default=0)

    def truncate(self, size: int) -> int:
        return self._call("truncate", size, default=size)

    def flush(self) -> None:
        self._call("flush", default=0)


@contextlib.contextmanager
def _create_hdf5(file: BinaryIO, **options: Any) -> Iterator[h5py.File]:
    """Create an HDF5 file in an empty file for a ``with`` block; any ``OSError`` of the file is raised at the end."""
    guarded = _FirstError(file)
    try:
        with h5py.File(guarded, "w", **options) as hdf5:
            yield hdf5
    except Exception:
        if guarded.error is None:
            raise
    if guarded.error is not None:
        raise guarded.error


def encode_strings(values: Iterable[str]) -> Array:
    """Encode strings without NUL as a fixed-length UTF-8 array (n,); surrogate escapes become their original bytes."""
    raw = [encode_name(value) for value in values]
    for value in raw:
        if b"\0" in value:
            raise ValueError(f"the string {value!r} contains a NUL byte")
    return np.array(raw, dtype=f"S{max((len(value) for value in raw), default=1) or 1}")


def write_small_file(path: Path, contents: FileContents, *options: str, overwrite: bool) -> str:
    """Write a small file atomically and return its content digest; other content is replaced only with ``overwrite``.

    Writing the same content twice is not an error. Messages suggest ``options`` (default: ``--out``) for another name.
    """
    sealed = contents.sealed()
    try:
        commit_bytes(path, sealed.to_bytes(), replace=overwrite)
    except OutputExistsError as error:
        try:
            with open_checked_file(path, str(contents.attributes[""]["format"])) as file:
                same = file.content_digest == sealed.content_digest
                for name in file.datasets if same else ():
                    file.read(name)
        except StoreError as fault:
            raise output_exists_error(path, *options, state=f"and cannot be used ({fault.problem})") from error
        if not same:
            raise output_exists_error(path, *options, state="and has other content") from error
    return sealed.content_digest


def iterate_dataset_blocks(data: Array | StreamedDataset, rows: int = 0) -> Iterator[Array]:
    """Yield a dataset in blocks of ``rows`` rows; by default, a whole array, or a stream in blocks of a few MiB."""
    if not isinstance(data, StreamedDataset):
        yield from (data[start : start + rows] for start in range(0, len(data), rows)) if rows else [data]
        return
    rows = rows or max(1, schema.BLOCK_BYTES // (data.dtype.itemsize * math.prod(data.shape[1:])))
    for start in range(0, data.shape[0], rows):
        yield data.read(start, min(start + rows, data.shape[0]))


def decode_attribute(value: AttributeValue) -> str:
    """Decode an attribute that contains text."""
    return value if isinstance(value, str) else decode_name(np.asarray(value).item())


def _hdf5_type(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(h5py.string_dtype("utf-8", dtype.itemsize)) if dtype.kind == "S" else dtype


def _attribute_array(value: AttributeValue) -> Array:
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, str):
        raw = encode_name(value)
        if b"\0" in raw or len(raw) >= schema.ATTRIBUTE_BYTES:
            raise ValueError(f"an attribute contains a NUL byte, or too many ({len(raw)} bytes): {value[:80]!r}")
        return np.array(raw, dtype=f"S{len(raw) or 1}")
    return np.array(value, dtype="<i8")


def shard_ranges(rows: int, shards: int, first: int = 0) -> tuple[tuple[int, int], ...]:
    """Split rows into nonempty shards of about equal size; return the first and end row (exclusive) of each."""
    count = min(shards, rows - first, schema.MAX_SHARDS)
    return tuple(pairwise(first + (rows - first) * number // max(1, count) for number in range(count + 1)))


def list_sharded_columns(contents: FileContents) -> list[str]:
    """List the columns to store in shards: embeddings, view embeddings, and additional model outputs."""
    every, rows = contents.datasets, contents.datasets["embeddings"].shape[0]
    extras = [name for name, data in every.items() if schema.is_extra_output(name, data.dtype.str, data.shape, rows)]
    return [*(name for name in ("embeddings", schema.VIEWS) if name in every), *sorted(extras)]


def write_store_files(
    contents: FileContents, out: Path, temporary: Path, *, shards: int | None, replace: bool, kept: Shards | None = None
) -> None:
    """Write a store atomically, to one file or to shards, and remove the shards that it replaces.

    The store appears when its shards are complete. If there was no store before, a failure leaves no files; files left
    by a killed process are removed when a store of this name is written.

    Args:
        contents: sealed contents of the store in one file.
        out: path of the store.
        temporary: unused path for incomplete files, on the same file system.
        shards: number of files for its rows; ``None``: one file.
        replace: whether an existing store may be replaced; if not, it raises an ``OutputExistsError``.
        kept: shards of another store with the first rows, to be linked; ``shards`` (default: 1) contain the others.
    """
    names: list[str] = []
    try:
        if shards is not None or kept is not None:
            table = _write_shards(contents, shards or 1, out, temporary, kept)
            names, contents = [VIRTUAL_NAME, *(shard.name for shard in table.files)], _index(contents, table)
        commit_file(out, contents.write, replace=replace, temporary=temporary)
    except BaseException:
        if not out.exists():  # otherwise, another process may have created it from the same shards
            _remove_shards(out, but=())
        raise
    _remove_shards(out, but=names)


def _remove_shards(out: Path, *, but: Iterable[str]) -> None:
    """Remove the shards that a store does not use, and their folder if it is then empty."""
    folder = shards_folder(out)
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            if (path.name == VIRTUAL_NAME or SHARD_NAME.fullmatch(path.name)) and path.name not in but:
                path.unlink(missing_ok=True)
        folder.rmdir()


def _write_shards(whole: FileContents, count: int, out: Path, temporary: Path, kept: Shards | None) -> Shards:
    """Write the shards, and link those that another store already has."""
    datasets, names = whole.datasets, list_sharded_columns(whole)
    folder = shards_folder(out)
    with translate_os_errors(folder):
        folder.mkdir(exist_ok=True)
    fsync_folder(folder.parent)
    shards: list[Shard] = []
    if kept is not None:
        for shard in kept.files:
            _link(kept.checked_path(shard), folder / shard.name, temporary)
            shards.append(replace(shard, store_digest=shard.store_digest or kept.store_digest))
    old = shards[-1].stop if shards else 0
    for number, (start, stop) in enumerate(shard_ranges(datasets["embeddings"].shape[0], count, old), len(shards)):
        rows = {name: _between(datasets[name], start, stop) for name in names}
        contents = FileContents.create(schema.FORMAT_SHARD, rows, shard=number, row_start=start, row_stop=stop)
        contents.set_attributes("", store_digest=whole.content_digest)
        # Readers verify rows by the digests in the index; for a single shard, the content digest covers its bytes.
        sealed = contents.sealed(1 << 62)
        path = folder / Shard(number, start, stop, 0, sealed.content_digest).name
        commit_file(path, sealed.write, temporary=temporary)
        shards.append(Shard(number, start, stop, path.stat().st_size, sealed.content_digest))
    about = {
        name: ShardColumn(
            datasets[name].dtype.str,
            datasets[name].shape[1],
            "" if f"digests/{name}" in datasets else hash_arrays(iterate_dataset_blocks(datasets[name])).hexdigest(),
        )
        for name in names
    }
    table = Shards(out, about, tuple(shards))
    _write_virtual(table, temporary)
    return table


def _link(source: Path, target: Path, temporary: Path) -> None:
    """Hard-link a file, which never changes, or copy it if the file system does not support links."""
    with contextlib.suppress(OSError, NotImplementedError):
        target.hardlink_to(source)
    if not (target.exists() and target.samefile(source)):
        with source.open("rb") as file:
            commit_file(target, partial(shutil.copyfileobj, file), temporary=temporary)


def _write_virtual(shards: Shards, temporary: Path) -> None:
    """Write the file that presents all shards as one to other programs; rows of missing shards are NaN."""

    def write(file: BinaryIO) -> None:
        with _create_hdf5(file, libver=("v110", "v110")) as hdf5:
            for name, column in shards.columns.items():
                create = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
                create.set_obj_track_times(False)
                create.set_fill_value(np.array(np.nan, column.dtype))
                space = h5py.h5s.create_simple((shards.rows, column.width))
                for shard in shards.files:
                    shape = (shard.stop - shard.start, column.width)
                    space.select_hyperslab((shard.start, 0), shape)
                    create.set_virtual(space, shard.name.encode(), name.encode(), h5py.h5s.create_simple(shape))
                space.select_all()
                h5py.h5d.create(hdf5.id, name.encode(), h5py.h5t.py_create(np.dtype(column.dtype)), space, dcpl=create)

    commit_file(shards.folder / VIRTUAL_NAME, write, temporary=temporary)


def _between(data: Array | StreamedDataset, start: int, stop: int) -> Array | StreamedDataset:
    if not isinstance(data, StreamedDataset):
        return data[start:stop]
    return StreamedDataset(data.dtype, (stop - start, *data.shape[1:]), lambda a, b: data.read(start + a, start + b))


def _index(whole: FileContents, shards: Shards) -> FileContents:
    datasets = {path: data for path, data in whole.datasets.items() if path not in shards.columns}
    attributes = {path: dict(values) for path, values in whole.attributes.items() if path not in shards.columns}
    index = FileContents(datasets, attributes)
    words = [word for word in decode_attribute(index.attributes[""].get("requires", "")).split(",") if word]
    index.set_attributes("", requires=",".join([*words, schema.FEATURE_SHARDED]))
    index.set_json("", "shards", shards.to_text())
    return index
