"""Read labelkit's HDF5 files, verifying structure, types, sizes and digests before any data is used.

Large columns of a store may be stored in shards, which are also labelkit files, listed in the store's own file, the
index. The formats are described in ``docs/inside/file_format.txt``.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, Self

import h5py
import numpy as np
from numpy.typing import NDArray

from labelkit import files as reading
from labelkit.errors import Damaged, Mismatch, NotAStore, Refused, StoreError, VersionError, convert_os_error
from labelkit.formatting import to_one_line
from labelkit.store import schema
from labelkit.store.commit import canonical_json, json_digest
from labelkit.store.schema import decode_name, encode_name

Array = NDArray[Any]
_FILTERS = {h5py.h5z.FILTER_DEFLATE, h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_FLETCHER32}
RESTORE = "Restore the file from a copy, or create it again with --overwrite"
"""Remedy for a file whose content has changed since it was written."""
_CHANGED = "differs: the file was changed, or the disk is failing"

SHARD_NAME = re.compile(r"\d{5}-[0-9a-f]{16}\.h5")
VIRTUAL_NAME = "all.h5"
"""File next to the shards that combines them as virtual datasets, for other programs; labelkit does not read it."""


def open_checked_file(path: Path, file_format: str | None) -> CheckedFile:
    """Open a labelkit file through one descriptor and check everything except large arrays.

    Args:
        path: the file.
        file_format: expected format, such as ``labelkit.store``; ``None`` for any labelkit format.

    Raises:
        NotAStore: the file is missing, not a regular file, not HDF5, or of another format.
        VersionError: the file was written by a newer labelkit.
        Refused: the file contains something that its format does not allow.
        Damaged: the file is truncated or was changed.
        ResourceError: the file cannot be read, for example for lack of permission.
    """
    return CheckedFile(open_regular(path), str(path), file_format)


def is_in_results(path: str) -> bool:
    """Return whether a path belongs to a packed result, which the store's digest excludes."""
    return path == "results" or path.startswith("results/")


def _remedy(path: Path) -> str:
    """Suggest what to pass instead of a path that is not a regular file."""
    near = path.with_name(path.name + ".h5")
    if near.is_file():
        return f"Did you mean `{near}`?"
    inside = [file for file in path.glob("*.h5") if file.is_file()] if path.is_dir() else []
    if inside:
        return f"Pass a file in this folder: the newest is `{max(inside, key=lambda file: file.stat().st_mtime)}`."
    return "Pass a file written by labelkit."


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading; ``NotAStore`` for others, such as named pipes, which would block."""
    try:
        return reading.open_regular_file(path, buffering=0)
    except (reading.NotRegularFileError, IsADirectoryError) as error:
        raise NotAStore(
            str(path), "is a folder" if path.is_dir() else "is not a regular file", _remedy(path)
        ) from error
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotAStore(str(path), "does not exist", reading.missing_store_remedy(path)) from error
    except OSError as error:
        raise convert_os_error(error, str(path)) from error


def open_hdf5(handle: BinaryIO, where: str) -> h5py.File:
    """Open an untrusted HDF5 file; ``NotAStore`` if it is not HDF5, ``Damaged`` if HDF5 cannot open it."""
    handle.seek(0)
    if handle.read(len(schema.SIGNATURE)) != schema.SIGNATURE:
        raise NotAStore(where, "is not an HDF5 file", "Pass a file written by labelkit.")
    try:
        return h5py.File(handle, "r")
    except Exception as error:
        short = "truncated" in str(error)
        problem = "is incomplete: it was truncated" if short else f"HDF5 cannot open it ({to_one_line(error)})"
        raise Damaged(where, problem, RESTORE) from error


@dataclass(frozen=True)
class HDF5DatasetInfo:
    """Type, shape and storage of a dataset in a checked file.

    Attributes:
        dtype: NumPy dtype of its values.
        shape: its shape.
        offset: position of its bytes in the file, or ``None`` if they are not contiguous.
        block_rows: rows per digest in ``digests/PATH``, or 0 if its bytes are covered by the content digest.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int | None
    block_rows: int = 0

    @property
    def nbytes(self) -> int:
        """Total size of the values in bytes."""
        return self.dtype.itemsize * math.prod(self.shape)


class CheckedFile:
    """Open HDF5 file whose structure, sizes, types and content digest have been verified.

    All data is read through one descriptor, so that a file replaced in the meantime is not mixed with this one. For a
    store in shards, this is the index; it presents the content of the store as if it were in a single file.

    Attributes:
        where: name of the file in messages.
        format: format of the file, such as ``labelkit.store``.
        datasets: checked datasets, by path without a leading slash.
        attributes: by path of the object (the root is the empty path), then by name; strings as ``str``,
            numbers as ``int`` or ``float``. Attributes that are arrays are omitted.
        stored_attributes: the same in their stored form, including arrays.
        groups: paths of all groups.
        features: features listed in ``requires``.
        content_digest: stored digest, verified by recomputing it.
        shards: files that contain columns; ``None`` if everything is in this file.
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
        """Check a file, or a group of a checked file as if it were a separate file.

        Args:
            handle: the file; closed together with this object, and after an error.
            where: name of the file in messages.
            file_format: expected format; ``None`` for any labelkit format.
            outer: checked file that contains ``group``.
            group: path of the group.
        """
        self.where = where
        self.format = file_format or ""
        self.datasets: dict[str, HDF5DatasetInfo] = {}
        self.attributes: dict[str, dict[str, Any]] = {}
        self.stored_attributes: dict[str, dict[str, Array]] = {}
        self.groups: list[str] = []
        self.features: tuple[str, ...] = ()
        self.shards: Shards | None = None
        self._handle = handle
        self._outer = outer
        self._root = f"/{group}" if group else ""
        try:
            self._size = handle.seek(0, os.SEEK_END)
            self._file = open_hdf5(handle, where) if outer is None else outer._file
            with self._translated(""):
                root = self._file[encode_name(self._root) or b"/"]
                self._read_attributes(root, "")
                self._check_header(file_format)
                self._walk(root, "", 0)
            if outer is None and schema.FEATURE_SHARDED in self.features:
                self._read_shard_list()
            self.content_digest = self._check_digest()
            if self.shards is not None:
                self.shards.store_digest = self.content_digest
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; memory maps remain valid. Closing a group does not close its file."""
        if self._outer is not None:
            return
        if self._file is not None:
            with suppress(Exception):
                self._file.close()
        self._handle.close()

    def open_group(self, group: str, file_format: str) -> CheckedFile:
        """Open a group of this file as if it were a separate file; it can be used while this file is open."""
        return CheckedFile(self._handle, self.where, file_format, outer=self, group=group)

    def location_of(self, path: str) -> str:
        """Return the location of an object in the file, for error messages."""
        inner = f"{self._root}/{path}" if path else self._root
        return f"{self.where}:{inner}" if inner else self.where

    def _check_header(self, file_format: str | None) -> None:
        texts = self.attributes[""]
        found = str(texts.get("format", "nothing"))
        if found != file_format and (file_format is not None or found not in schema.FORMATS):
            expected = f"format {file_format}" if file_format else "a labelkit format"
            raise NotAStore(
                self.location_of(""), f"expected {expected}, found {found}", "Pass a file written by labelkit."
            )
        self.format = found
        version = str(texts.get("format_version", ""))
        major = version.partition(".")[0]
        if not major.isdecimal() or not major.isascii():
            self._refuse("", f"format_version is {version!r}")
        if int(major) > schema.MAJOR_VERSION:
            problem = f"was written in format {version}, but this labelkit reads up to {schema.FORMAT_VERSION}"
            raise VersionError(self.location_of(""), problem, "Upgrade labelkit.")
        self.features = tuple(word for word in str(texts.get("requires", "")).split(",") if word)
        known = schema.KNOWN_FEATURES | ({schema.FEATURE_SHARDED} if found == schema.FORMAT_STORE else set())
        if unknown := sorted(set(self.features) - known):
            problem = f"requires features that this version of labelkit lacks: {', '.join(unknown)}"
            raise VersionError(self.location_of(""), problem, "Upgrade labelkit.")

    def _walk(self, group: h5py.Group, path: str, depth: int) -> None:
        self.groups.append(path)
        names = list(group)
        if names and depth >= schema.MAX_DEPTH:
            self._refuse(path, f"groups nested deeper than {schema.MAX_DEPTH}")
        for name in names:
            child = f"{path}/{name if isinstance(name, str) else decode_name(name)}".lstrip("/")
            with self._translated(child):
                if not isinstance(group.get(name, getlink=True), h5py.HardLink):
                    self._refuse(child, "a soft or external link")
                item = group[name]
                if isinstance(item, h5py.Datatype):
                    self._refuse(child, "a named type")
                self._read_attributes(item, child)
                if isinstance(item, h5py.Group):
                    self._walk(item, child, depth + 1)
                else:
                    self.datasets[child] = self._inspect(item, child)

    def _inspect(self, dataset: h5py.Dataset, path: str) -> HDF5DatasetInfo:
        """Check how a dataset is stored, without reading it."""
        # This must come first: asking a virtual dataset for its shape opens other files.
        if dataset.is_virtual or dataset.external:
            self._refuse(path, "a virtual dataset, or storage outside of the file")
        dtype, shape = self._plain_type(dataset.dtype, path), dataset.shape
        if shape is None:
            self._refuse(path, "no data space")
        create = dataset.id.get_create_plist()
        filters = [create.get_filter(i)[0] for i in range(create.get_nfilters())]
        allowed = _FILTERS if self.format == schema.FORMAT_RESULT or is_in_results(path) else set()
        if not allowed.issuperset(filters):
            self._refuse(path, f"filters that are not allowed here: {filters}")
        if dataset.chunks is not None and dtype.itemsize * math.prod(dataset.chunks) > schema.CHUNK_BYTES:
            self._refuse(path, f"chunks above {schema.CHUNK_BYTES >> 20} MiB")
        offset = dataset.id.get_offset() if dataset.chunks is None else None
        stored, declared = dataset.id.get_storage_size(), dtype.itemsize * math.prod(shape)
        inside = stored <= self._size and (offset is None or offset + declared <= self._size)
        if not inside or declared > stored * (schema.FILTER_RATIO if filters else 1):
            self._refuse(path, f"{declared} bytes declared, {stored} bytes stored in a file of {self._size}")
        return HDF5DatasetInfo(dtype, shape, offset)

    def _plain_type(self, dtype: np.dtype[Any], path: str) -> np.dtype[Any]:
        """Convert h5py's type to a plain NumPy dtype, and reject all but numbers and fixed-length strings."""
        if dtype.kind not in "iufS":
            self._refuse(path, f"a type other than numbers and fixed-length strings: {dtype}")
        return np.dtype(dtype.str)

    def _read_attributes(self, item: h5py.HLObject, path: str) -> None:
        self.attributes[path] = {}
        for index in range(h5py.h5a.get_num_attrs(item.id)):
            attribute = h5py.h5a.open(item.id, index=index)
            name = decode_name(attribute.name)
            dtype = self._plain_type(attribute.dtype, f"{path}@{name}")
            if dtype.itemsize * math.prod(attribute.shape) > schema.ATTRIBUTE_BYTES:
                self._refuse(f"{path}@{name}", f"an attribute above {schema.ATTRIBUTE_BYTES >> 10} KiB")
            value = np.empty(attribute.shape, dtype)
            attribute.read(value, attribute.get_type())
            self._set_attribute(path, name, value)

    def _set_attribute(self, path: str, name: str, value: Array) -> None:
        self.stored_attributes.setdefault(path, {})[name] = value
        if not value.shape:
            self.attributes[path][name] = decode_name(value.item()) if value.dtype.kind == "S" else value.item()

    def _read_shard_list(self) -> None:
        """Replace the table of shards in the index by the columns that the shards contain."""
        try:
            shards = Shards.parse(Path(self.where), self.read_text("", "shards"))
        except ValueError as error:
            self._refuse("shards", f"an invalid table of shards ({error})")
        if schema.FEATURE_IMAGELESS in self.features:
            shards.remedy = shards.remedy.replace("labelkit embed", "labelkit import")
        self.shards = shards
        self.datasets.pop("shards", None)
        for name, column in shards.columns.items():
            if name in self.datasets or name in self.groups:
                self._refuse(name, "a column that is also in its shards")
            block_rows = shards.rows if column.sha256 else 0
            self.datasets[name] = HDF5DatasetInfo(np.dtype(column.dtype), (shards.rows, column.width), None, block_rows)
        for values in (self.attributes[""], self.stored_attributes[""]):
            values.pop("shards", None)
        left = ",".join(word for word in self.features if word != schema.FEATURE_SHARDED)
        self._set_attribute("", "requires", np.array(encode_name(left), f"S{len(left) or 1}"))

    def is_sharded(self, path: str) -> bool:
        """Return whether a dataset is stored in shards."""
        return self.shards is not None and path in self.shards.columns

    def _check_digest(self) -> str:
        datasets = {}
        for path, info in list(self.datasets.items()):
            if not is_in_results(path):
                with self._translated(path):
                    datasets[path] = (info.dtype, info.shape, self._digest_of(path, info))
        groups = [path for path in self.groups if not is_in_results(path)]
        attributes = {path: values for path, values in self.stored_attributes.items() if not is_in_results(path)}
        found = compute_content_digest(groups, attributes, datasets)
        if found != self.attributes[""].get("content_digest"):
            raise Damaged(self.location_of(""), f"content digest {_CHANGED}", RESTORE)
        return found

    def _digest_of(self, path: str, info: HDF5DatasetInfo) -> str:
        digests = self.datasets.get(f"digests/{path}")
        if self.shards is not None and self.is_sharded(path):
            column = self.shards.columns[path]
            if bool(column.sha256) == (digests is not None):
                self._refuse("shards", f"a column, {path}, with two digests or none")
            if column.sha256:
                return column.sha256
        if digests is None:
            return str(hash_arrays(self.iterate_verified_blocks(path)).hexdigest())
        rows = self.attributes[f"digests/{path}"].get("block_rows")
        blocks = -(-info.shape[0] // rows) if isinstance(rows, int) and rows > 0 and info.shape else -1
        if digests.shape != (blocks, 32) or digests.dtype != np.uint8:
            self._refuse(f"digests/{path}", f"shape {digests.shape} with block_rows {rows}")
        self.datasets[path] = replace(info, block_rows=int(rows or 0))
        return str(hash_arrays([self._rows(f"digests/{path}")]).hexdigest())

    def check_axes(
        self, columns: schema.Columns, lengths: Mapping[str, int] | None = None, *, required: Iterable[str] = ()
    ) -> dict[str, int]:
        """Check that the types and shapes of known datasets are consistent, and return the axis lengths.

        ``columns`` are known datasets, as in ``labelkit.store.schema``; those in ``required`` must exist. ``lengths``
        are known lengths by letter. ``Refused``: one is missing or has another type; ``Mismatch``: two lengths differ.
        """
        for name in required:
            if name not in self.datasets:
                raise Refused(self.location_of(name), "is missing", RESTORE)
        known = dict(lengths or {})
        owner = dict.fromkeys(known, "the file")
        for name, (axes, kinds) in columns.items():
            info = self.datasets.get(name)
            if info is None:
                continue
            kind = "S" if info.dtype.kind == "S" else info.dtype.str[1:]
            if kind not in kinds or info.dtype.byteorder == ">" or len(info.shape) != len(axes):
                problem = f"type {info.dtype} of shape {info.shape}, expected {kinds[0]} ({', '.join(axes)})"
                raise Refused(self.location_of(name), problem, RESTORE)
            for axis, length in zip(axes, info.shape, strict=True):
                expected = int(axis) if axis.isdecimal() else known.setdefault(axis, length)
                if length != expected:
                    problem = f"{length} rows, but {owner.get(axis, 'the format')} has {expected}"
                    raise Mismatch(self.location_of(name), problem, RESTORE)
                owner.setdefault(axis, f"/{name}")
        return known

    def _rows(self, path: str, start: int = 0, stop: int | None = None) -> Array:
        """Read all rows of a dataset, or a range of them, without verification."""
        info = self.datasets[path]
        if self.shards is not None and self.is_sharded(path):
            return self.shards.read(path, slice(start, stop))
        dataset = self._file[encode_name(f"{self._root}/{path}")]
        return np.asarray(dataset[() if stop is None else slice(start, stop)], info.dtype)

    def iterate_verified_blocks(self, path: str, start: int = 0, stop: int | None = None) -> Iterator[Array]:
        """Yield the rows of a dataset from start to stop (default: all) in verified blocks; a scalar is a single block.

        Raises ``Damaged`` if a digest differs; the message names the rows, or the shard that contains them.
        """
        digests, info = self.block_digests(path), self.datasets[path]
        with self._translated(path):
            if not info.shape:
                yield self._rows(path)
                return
            step = info.block_rows or max(1, schema.BLOCK_BYTES * info.shape[0] // max(1, info.nbytes))
            stop = info.shape[0] if stop is None else stop
            for first in range(start - start % step, stop if info.nbytes else 0, step):
                block = self._rows(path, first, min(first + step, info.shape[0]))
                if digests is not None:
                    verify_rows(self.location_of(path), block, digests, step, first)
                yield block[max(0, start - first) : stop - first]

    def read(self, path: str) -> Array:
        """Read a dataset into a new array; ``Damaged`` if its digests differ or HDF5 cannot read it."""
        with self._translated(path):
            value = self._rows(path)
        digests = self.block_digests(path)
        if digests is not None:
            verify_rows(self.location_of(path), value, digests, self.datasets[path].block_rows)
        return value

    def read_strings(self, path: str) -> list[str]:
        """Read a dataset of strings; bytes that are not UTF-8 become surrogate escapes."""
        return [decode_name(raw) for raw in self.read(path).tolist()]

    def read_text(self, group: str, name: str) -> str:
        """Read a string from an attribute, or from a scalar dataset if it is long; return "" if there is none."""
        path = f"{group}/{name}".lstrip("/")
        info = self.datasets.get(path)
        if info is not None and info.shape == () and info.dtype.kind == "S":
            return decode_name(self.read(path).item())
        value = self.attributes.get(group, {}).get(name, "")
        return value if isinstance(value, str) else ""

    def read_json(self, group: str, name: str, default: str = "") -> dict[str, Any]:
        """Read a JSON object stored as string ``name`` of a group, or ``default`` if there is none."""
        place = self.location_of(f"{group}@{name}")
        try:
            found = reading.parse_json(self.read_text(group, name) or default)
        except ValueError as error:
            raise Refused(place, "is not JSON", RESTORE) from error
        if not isinstance(found, dict):
            raise Refused(place, "is not a JSON object", RESTORE)
        return found

    def make_row_reader(self, path: str) -> Callable[[], Array]:
        """Make a function that returns all rows of a dataset, unverified, even after the file is closed.

        It returns a read-only memory map, or an array if the rows are in shards or not contiguous.
        """
        info, shards = self.datasets[path], self.shards
        if shards is not None and path in shards.columns:
            return lambda: shards.read(path, slice(None))
        if info.offset is None or not info.nbytes or info.offset % info.dtype.alignment:
            with self._translated(path):
                rows = self._rows(path)
        else:
            rows = np.memmap(self._handle, info.dtype, "r", info.offset, info.shape)
        return lambda: rows

    def block_digests(self, path: str) -> Array | None:
        """Return the (b, 32) block digests of a dataset, or ``None`` if the content digest covers its bytes."""
        if self.shards is not None and self.is_sharded(path) and self.shards.columns[path].sha256:
            digest = bytes.fromhex(self.shards.columns[path].sha256)
            return np.frombuffer(digest, np.uint8).reshape(1, 32)
        return self.read(f"digests/{path}") if self.datasets[path].block_rows else None

    def _refuse(self, path: str, problem: str) -> NoReturn:
        raise Refused(self.location_of(path), f"contains something that is not allowed: {problem}", RESTORE)

    @contextmanager
    def _translated(self, path: str) -> Iterator[None]:
        """Convert h5py errors caused by a damaged object to ``Damaged``."""
        try:
            yield
        except (OSError, RuntimeError, KeyError, ValueError, TypeError, OverflowError, MemoryError) as error:
            raise Damaged(self.location_of(path), f"HDF5 cannot read it ({to_one_line(error)})", RESTORE) from error


class LazyRows:
    """Large numeric array (n, ...) that is memory-mapped or read from shards, and verified when used.

    Indexing by a slice or int64 rows returns a new array; for a store in shards, nothing else is held in memory. It
    can be pickled, and used after the file is closed.

    Attributes:
        shape, dtype: shape and dtype of the whole array.
    """

    def __init__(self, file: CheckedFile, path: str) -> None:
        info = file.datasets[path]
        self._file, self._path, self._store_digest = file.where, path, file.content_digest
        self._shards = file.shards if file.is_sharded(path) else None
        self._place = file.location_of(path)
        self._read = file.make_row_reader(path)
        self._digests = file.block_digests(path)
        self._step = info.block_rows or max(1, info.shape[0])
        self.shape, self.dtype = info.shape, info.dtype

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, where: slice | NDArray[np.int64]) -> Array:
        return np.asarray(self.array[where]) if self._shards is None else self._shards.read(self._path, where)

    def __reduce__(self) -> tuple[Callable[..., LazyRows], tuple[str, str, str]]:
        return reopen_column, (str(Path(self._file).absolute()), self._path, self._store_digest)

    @cached_property
    def array(self) -> Array:
        """All rows, as a read-only array; ``Damaged`` if a block has changed."""
        rows = self._read()
        if self._digests is not None:
            verify_rows(self._place, rows, self._digests, self._step)
        rows.flags.writeable = False
        return rows


@lru_cache(maxsize=2)
def reopen_column(store: str, path: str, content_digest: str) -> LazyRows:
    """Reopen a column of a store already checked by another process; ``Mismatch`` if the store was replaced."""
    with open_checked_file(Path(store), schema.FORMAT_STORE) as file:
        if file.content_digest != content_digest:
            raise Mismatch(store, "has been replaced by another store", "Run the command again.")
        return LazyRows(file, path)


def verify_rows(location: str, rows: Array, digests: Array, step: int, first: int = 0) -> None:
    """Verify rows (m, ...) of whole blocks against the digests (b, 32) of all blocks of ``step`` rows.

    ``first`` is the index of the first row. Raises ``Damaged`` if a digest differs; the message names the rows.
    """
    for start in range(0, len(rows), step):
        block = rows[start : start + step]
        if hash_arrays([block]).digest() != digests[(first + start) // step].tobytes():
            where = f"{location} rows {first + start}-{first + start + len(block) - 1}"
            raise Damaged(where, f"digest {_CHANGED}", RESTORE)


def hash_arrays(blocks: Iterable[Array]) -> Any:
    """Hash the concatenated bytes of several arrays with SHA-256, and return the hash object."""
    digest = hashlib.sha256()
    for block in blocks:
        digest.update(np.ascontiguousarray(block).reshape(-1).view(np.uint8).data)
    return digest


def compute_content_digest(
    groups: Iterable[str],
    attributes: Mapping[str, Mapping[str, Array]],
    datasets: Mapping[str, tuple[np.dtype[Any], tuple[int, ...], str]],
) -> str:
    """Compute the content digest of a file as 64 hexadecimal digits.

    Args:
        groups: paths of all groups without a leading slash; the root is the empty path.
        attributes: by path of their object, then by name; the content digest itself is ignored.
        datasets: dtype, shape and SHA-256 (hex) of the bytes, or of the block digests, by path.
    """
    lines = [b"G /" + encode_name(path) for path in groups]
    for path, values in attributes.items():
        for name, value in values.items():
            if (path, name) != ("", "content_digest"):
                place = b"A /" + encode_name(path) + b"@" + encode_name(name)
                lines.append(place + _values_text(value.dtype, value.shape, hash_arrays([value]).hexdigest()))
    for path, about in datasets.items():
        lines.append(b"D /" + encode_name(path) + _values_text(*about))
    return hashlib.sha256(b"".join(line + b"\n" for line in sorted(lines))).hexdigest()


def _values_text(dtype: np.dtype[Any], shape: tuple[int, ...], digest: str) -> bytes:
    return f" {dtype.str} {'x'.join(map(str, shape)) or 'scalar'} {digest}".encode()


@dataclass(frozen=True)
class ShardColumn:
    """Description of a column that is stored in shards.

    Attributes:
        dtype: NumPy dtype of its values, as a string.
        width: number of values per row.
        sha256: SHA-256 of its bytes, covered by the content digest; empty if the index contains block digests instead.
    """

    dtype: str
    width: int
    sha256: str


@dataclass(frozen=True)
class Shard:
    """Description of one shard, as listed in the index.

    Attributes:
        number: index of the shard, from 0.
        start, stop: its first row and end row (exclusive).
        size: size of the file in bytes.
        digest: its content digest; for version 0.1.0, the SHA-256 of the whole file except its rows.
        store_digest: content digest of the store for which it was written; empty: the store that lists it.
    """

    number: int
    start: int
    stop: int
    size: int
    digest: str
    store_digest: str = ""

    @property
    def name(self) -> str:
        """File name, which depends on the content so that a store can be replaced while it is being read."""
        return f"{self.number:05d}-{self.digest[:16]}.h5"


class Shards:
    """Shards of a store, open for reading and verified against their digests on first use.

    Args:
        index: file of the store.
        columns: columns that are stored in shards, by name.
        files: the shards in the order of their rows.

    Attributes:
        store_digest: content digest of the store, recorded in each shard that was written for it.
        remedy: remedy for a missing or damaged shard, with the command that recreates it.
    """

    def __init__(self, index: Path, columns: Mapping[str, ShardColumn], files: tuple[Shard, ...]) -> None:
        self.columns, self.files, self.rows = columns, files, files[-1].stop
        self.folder = shards_folder(index)
        own = [one for one in files if not one.store_digest]
        made = f"--extend STORE --out {index}" if len(own) < len(files) else f"--out {index}"
        command = f"labelkit embed ... {made} --shards {len(own) or 1} --overwrite"
        self.remedy = f"Restore the file from a copy, or repeat the command that created the store: `{command}`."
        self.store_digest = ""
        self._read: dict[int, dict[str, Array]] = {}

    def to_text(self) -> str:
        """Convert to the canonical JSON stored in the index."""
        about = [
            {"rows": one.stop - one.start, "bytes": one.size, "frame": one.digest, "store": one.store_digest}
            for one in self.files
        ]
        files = [{key: value for key, value in one.items() if value} for one in about]
        values: dict[str, Any] = {"columns": {name: vars(one) for name, one in self.columns.items()}, "files": files}
        return canonical_json({**values, "sha256": json_digest(values)})

    @classmethod
    def parse(cls, index: Path, text: str) -> Shards:
        """Parse the output of ``to_text``; ``ValueError`` if it is invalid."""
        values = reading.parse_json(text)
        try:
            digest = values.pop("sha256")
            columns = {name: ShardColumn(**about) for name, about in values["columns"].items()}
            stops = np.cumsum([0, *(about["rows"] for about in values["files"])]).tolist()
            files = [
                Shard(number, stops[number], stops[number + 1], about["bytes"], about["frame"], about.get("store", ""))
                for number, about in enumerate(values["files"])
            ]
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"{error} is missing, or has another type") from error
        if digest != json_digest(values):
            raise ValueError("its digest differs")
        if not files or not all(SHARD_NAME.fullmatch(one.name) for one in files):
            raise ValueError("it lists no shards")
        return cls(index, columns, tuple(files))

    def check(self) -> None:
        """Check that every shard exists and has the right size, without reading it."""
        for shard in self.files:
            self.checked_path(shard)

    def find_faults(self) -> Iterator[StoreError]:
        """Read all shards, and yield an error for each missing or damaged shard."""
        for shard in self.files:
            try:
                self._columns_of(shard)
            except StoreError as error:
                yield error

    def read(self, column: str, where: slice | NDArray[np.int64]) -> Array:
        """Read a range of rows of a column, or rows at indices of shape (...,), into a new array (..., width)."""
        found, rows = self.columns[column], range(self.rows)[where] if isinstance(where, slice) else where
        values = np.empty((*np.shape(rows), found.width), found.dtype)
        for shard in self.files:
            if isinstance(rows, range):
                here: Any = slice(max(0, shard.start - rows.start), max(0, shard.stop - rows.start))
                inside: Any = slice(max(0, rows.start - shard.start), max(0, rows.stop - shard.start))
                is_used = rows.start < shard.stop and shard.start < rows.stop
            else:
                here = (rows >= shard.start) & (rows < shard.stop)
                inside, is_used = rows[here] - shard.start, here.any()
            if is_used:
                values[here] = self._columns_of(shard)[column][inside]
        return values

    def _columns_of(self, shard: Shard) -> dict[str, Array]:
        if shard.number not in self._read:
            path = self.checked_path(shard)
            try:
                with open_checked_file(path, schema.FORMAT_SHARD) as file:
                    root = file.attributes[""]
                    owner = shard.store_digest or self.store_digest
                    if (root.get("store_digest"), root.get("row_start")) != (owner, shard.start):
                        raise Mismatch(str(path), "is a shard of another store", self.remedy)
                    self._read[shard.number] = {name: file.make_row_reader(name)() for name in self.columns}
            except (StoreError, KeyError) as error:
                problem = error.problem if isinstance(error, StoreError) else f"lacks {error}"
                problem += f" (rows {shard.start}-{shard.stop - 1})"
                raise Damaged(str(path), problem, self.remedy) from error
        return self._read[shard.number]

    def checked_path(self, shard: Shard) -> Path:
        """Return the path of a shard, after checking its size against the index."""
        path = self.folder / shard.name
        size = path.stat().st_size if path.is_file() else None
        if size != shard.size:
            problem = "the shard does not exist" if size is None else f"has {size} bytes, expected {shard.size}"
            raise Damaged(str(path), f"{problem} (it contains rows {shard.start}-{shard.stop - 1})", self.remedy)
        return path


def shards_folder(index: Path) -> Path:
    """Return the folder of a store's shards; if ``index`` is a link, the folder is next to the file it points to."""
    real = Path(os.path.realpath(index)) if index.is_symlink() else index
    return real.with_name(real.name + ".shards")
