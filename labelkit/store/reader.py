"""Read HDF5 files of labelkit: structure, types, sizes and digests are checked before any data is used.

The formats are described in ``docs/inside/file_format.txt``.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, NoReturn, Self

import h5py
import numpy as np
from numpy.typing import NDArray

from labelkit import files as reading
from labelkit.errors import Damaged, Mismatch, NotAStore, Refused, VersionError
from labelkit.store import schema
from labelkit.store.digests import (
    RESTORE,
    attribute_line,
    dataset_line,
    digest_of_lines,
    group_line,
    sha256_of,
)
from labelkit.store.schema import name_bytes, name_text
from labelkit.store.shards import Shards
from labelkit.store.structure import (
    DatasetInfo,
    Refuse,
    checked_shape,
    checked_type,
    look_at,
    one_line,
    open_hdf5,
    open_regular,
)

Array = NDArray[Any]

_HEADER = ("format", "format_version", "requires")


def open_file(path: Path, file_format: str | None) -> CheckedFile:
    """Open a file by one descriptor and check everything about it but large arrays.

    Args:
        path: the file.
        file_format: what it must be, such as ``labelkit.store``; ``None`` for any format of labelkit.

    Raises:
        NotAStore: missing, not a regular file, not HDF5, or of another format.
        VersionError: made by a newer labelkit.
        Refused: holds what a file of this format must not hold.
        Damaged: cut off or changed.
        ResourceError: the system does not let us read it.
    """
    return CheckedFile(open_regular(path), str(path), file_format)


def in_results(path: str) -> bool:
    """Say whether an object belongs to a packed result: the digest of the store leaves it out."""
    return path == "results" or path.startswith("results/")


class CheckedFile:
    """An HDF5 file whose structure, sizes, types and content digest were found right.

    All reading goes through one descriptor, so that a file replaced meanwhile does not mix with this one. Of a store
    in shards this is the index; it shows all that the store holds, as if it were in one file.

    Attributes:
        where: the name used in messages.
        format: what it is, such as ``labelkit.store``.
        datasets: what was looked at, by path without a leading slash.
        attributes: by path of the object (the root is the empty path), then by name; texts as ``str``,
            numbers as ``int`` or ``float``. Attributes that are arrays are left out.
        stored_attributes: the same as they are stored, arrays too.
        groups: paths of all groups.
        features: words of ``requires``.
        content_digest: as stored and recomputed.
        shards: files that columns lie in; ``None``: all is in this file.
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
            handle: the file; closed with this, also after an error.
            where: the name used in messages.
            file_format: what it must be; ``None`` for any format of labelkit.
            outer: the checked file that ``group`` is in.
            group: path of the group.
        """
        self.where = where
        self.format = file_format or ""
        self.datasets: dict[str, DatasetInfo] = {}
        self.attributes: dict[str, dict[str, Any]] = {}
        self.stored_attributes: dict[str, dict[str, Array]] = {}
        self.groups: list[str] = []
        self.features: tuple[str, ...] = ()
        self.shards: Shards | None = None
        self._handle = handle
        self._outer = outer
        self._root = f"/{group}" if group else ""
        self._objects = 0
        try:
            self._size = handle.seek(0, os.SEEK_END)
            self._file = open_hdf5(handle, where) if outer is None else outer._file
            with self._translated(""):
                root = h5py.h5g.open(self._file.id, name_bytes(self._root) or b"/")
                self._check_header(root, file_format)
                self._walk(root, "", 0)
            if outer is None and schema.FEATURE_SHARDED in self.features:
                self._read_table()
            self.content_digest = self._check_digest()
        except BaseException:
            self.close()
            raise

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

    def place(self, path: str) -> str:
        """Return how messages call an object of the file."""
        inner = f"{self._root}/{path}" if path else self._root
        return f"{self.where}:{inner}" if inner else self.where

    # ---- structure

    def _check_header(self, group: Any, file_format: str | None) -> None:
        there = [name for name in _HEADER if h5py.h5a.exists(group, name.encode())]
        root = {name: self._attribute(h5py.h5a.open(group, name.encode()), "") for name in there}
        texts = {name: _plain(value) for name, value in root.items() if not value.shape}
        found = str(texts.get("format", "nothing"))
        if found != file_format and (file_format is not None or found not in schema.FORMATS):
            expected = f"format {file_format}" if file_format else "a format of labelkit"
            raise NotAStore(self.place(""), f"expected {expected}, found {found}", "Give a file written by labelkit.")
        self.format = found
        version = str(texts.get("format_version", ""))
        major = version.partition(".")[0]
        if not major.isdecimal() or not major.isascii():
            self._refuse("", f"format_version is {version!r}")
        if int(major) > schema.MAJOR_VERSION:
            problem = f"written in format {version}; this labelkit reads up to {schema.FORMAT_VERSION}"
            raise VersionError(self.place(""), problem, "Update labelkit.")
        self.features = tuple(word for word in str(texts.get("requires", "")).split(",") if word)
        known = schema.KNOWN_FEATURES | ({schema.FEATURE_SHARDED} if found == schema.FORMAT_STORE else set())
        if unknown := sorted(set(self.features) - known):
            problem = f"needs features this labelkit lacks: {', '.join(unknown)}"
            raise VersionError(self.place(""), problem, "Update labelkit.")

    def _walk(self, group: Any, path: str, depth: int) -> None:
        self.groups.append(path)
        self._read_attributes(group, path)
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
                    dataset = h5py.h5d.open(group, name)
                    may_filter = self.format == schema.FORMAT_RESULT or in_results(child)
                    refuse = self._refusing(child)
                    self.datasets[child] = look_at(dataset, self._size, refuse, may_filter=may_filter)
                    self._read_attributes(dataset, child)
                else:
                    self._refuse(child, "a named type")

    def _read_attributes(self, item: Any, path: str) -> None:
        count = h5py.h5a.get_num_attrs(item)
        # before the first is opened: finding one of very many takes HDF5 long
        if count > schema.MAX_OBJECTS:
            self._refuse(path, f"more than {schema.MAX_OBJECTS} attributes")
        self.attributes[path] = {}
        for index in range(count):
            attribute = h5py.h5a.open(item, index=index)
            if any(byte < 0x20 for byte in attribute.name):
                self._refuse(path, "a name with control characters")
            self._set_attribute(path, name_text(attribute.name), self._attribute(attribute, path))

    def _attribute(self, attribute: Any, path: str) -> Array:
        """Read an attribute once it was looked at."""
        refuse = self._refusing(f"{path}@{name_text(attribute.name)}")
        dtype = checked_type(attribute.get_type(), self._size, refuse)
        shape = checked_shape(attribute.get_space(), refuse)
        if dtype.itemsize * math.prod(shape) > schema.ATTRIBUTE_BYTES:
            refuse(f"an attribute above {schema.ATTRIBUTE_BYTES >> 10} KiB")
        value = np.empty(shape, dtype)
        attribute.read(value, attribute.get_type())
        return value

    def _set_attribute(self, path: str, name: str, value: Array) -> None:
        self.stored_attributes.setdefault(path, {})[name] = value
        if not value.shape:
            self.attributes[path][name] = _plain(value)

    def _read_table(self) -> None:
        """Take what the index says about its shards out of what is shown, and show what is in them."""
        try:
            shards = Shards.parse(Path(self.where), self.read_text("", "shards"))
        except ValueError as error:
            self._refuse("shards", f"what is no table of shards ({error})")
        self.shards = shards
        self.datasets.pop("shards", None)
        for path in shards.columns:
            if path in self.datasets or path in self.groups:
                self._refuse(path, "a column that is in its shards too")
        for name, column in shards.columns.items():
            block_rows = shards.rows if column.sha256 else 0
            self.datasets[name] = DatasetInfo(column.dtype, (shards.rows, column.width), None, block_rows)
        for values in (self.attributes[""], self.stored_attributes[""]):
            values.pop("shards", None)
        left = ",".join(word for word in self.features if word != schema.FEATURE_SHARDED)
        self._set_attribute("", "requires", np.array(name_bytes(left), f"S{len(left) or 1}"))

    def is_sharded(self, path: str) -> bool:
        """Say whether a dataset lies in shards."""
        return self.shards is not None and path in self.shards.columns

    def _check_digest(self) -> str:
        lines = [group_line(path) for path in self.groups if not in_results(path)]
        for path, values in self.stored_attributes.items():
            if not in_results(path):
                named = [(name, value) for name, value in values.items() if (path, name) != ("", "content_digest")]
                lines.extend(attribute_line(path, name, value) for name, value in named)
        for path, info in list(self.datasets.items()):
            if in_results(path):
                continue
            with self._translated(path):
                lines.append(dataset_line(path, info.dtype, info.shape, self._digest_of(path, info)))
        found, stored = digest_of_lines(lines), self.attributes[""].get("content_digest")
        if found != stored:
            problem = "content digest differs, the file was changed or the disk is failing"
            raise Damaged(self.place(""), problem, RESTORE)
        return found

    def _digest_of(self, path: str, info: DatasetInfo) -> str:
        digests = self.datasets.get(f"digests/{path}")
        if self.shards is not None and self.is_sharded(path):
            column = self.shards.columns[path]
            if bool(column.sha256) == (digests is not None):
                self._refuse("shards", f"{path} with two digests, or with none")
            if column.sha256:
                return column.sha256
        if digests is None:
            return str(sha256_of(block for _, block in self._blocks(path)).hexdigest())
        rows = self.attributes[f"digests/{path}"].get("block_rows")
        blocks = -(-info.shape[0] // rows) if isinstance(rows, int) and rows > 0 and info.shape else -1
        if digests.shape != (blocks, 32) or digests.dtype != np.uint8:
            self._refuse(f"digests/{path}", f"shape {digests.shape} with block_rows {rows}")
        self.datasets[path] = replace(info, block_rows=int(rows or 0))
        return str(sha256_of([self._rows(f"digests/{path}")]).hexdigest())

    def check_axes(
        self, columns: schema.Columns, lengths: Mapping[str, int] | None = None, prefix: str = ""
    ) -> dict[str, int]:
        """Check types and shapes of the known datasets against each other.

        Args:
            columns: known datasets, as in ``labelkit.store.schema``.
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
        for name, (axes, kinds) in columns.items():
            info = self.datasets.get(prefix + name)
            if info is None:
                continue
            kind = "S" if info.dtype.kind == "S" else info.dtype.str[1:]
            if kind not in kinds or info.dtype.byteorder == ">" or len(info.shape) != len(axes):
                problem = f"type {info.dtype} of shape {info.shape}, expected {kinds[0]} ({', '.join(axes)})"
                raise Refused(self.place(prefix + name), problem, RESTORE)
            for axis, length in zip(axes, info.shape, strict=True):
                expected = int(axis) if axis.isdecimal() else known.setdefault(axis, length)
                if length != expected:
                    problem = f"{length} rows where {owner.get(axis, 'the format')} has {expected}"
                    raise Mismatch(self.place(prefix + name), problem, RESTORE)
                owner.setdefault(axis, f"/{prefix}{name}")
        return known

    def require(self, columns: schema.Columns) -> dict[str, int]:
        """Check that datasets are there, and their axes; return the length of each letter.

        Raises:
            Refused: one is missing, or as ``check_axes``.
            Mismatch: as ``check_axes``.
        """
        for name in columns:
            if name not in self.datasets:
                raise Refused(self.place(name), "is missing", RESTORE)
        return self.check_axes(columns)

    # ---- data

    def _rows(self, path: str, start: int = 0, stop: int | None = None) -> Array:
        """Read rows of a dataset, by default all; nothing is compared."""
        info = self.datasets[path]
        if self.shards is not None and self.is_sharded(path):
            return self.shards.read(path, start, info.shape[0] if stop is None else stop)
        dataset = h5py.h5d.open(self._file.id, name_bytes(f"{self._root}/{path}"))
        shape = info.shape if stop is None else (stop - start, *info.shape[1:])
        values = np.empty(shape, info.dtype)
        if values.nbytes:
            space = dataset.get_space()
            if stop is not None:
                space.select_hyperslab((start, *(0 for _ in shape[1:])), shape)
            memory = h5py.h5s.create_simple(shape) if shape else h5py.h5s.create(h5py.h5s.SCALAR)
            # The stored type, not h5py's idea of it: the bytes come as they are.
            dataset.read(memory, space, values, dataset.get_type())
        return values

    def _blocks(self, path: str, start: int = 0, stop: int | None = None) -> Iterator[tuple[int, Array]]:
        """Read the blocks that the rows [start, stop) lie in, each with its first row: those of its digests."""
        info = self.datasets[path]
        if not info.shape:
            yield 0, self._rows(path)
            return
        rows = info.shape[0]
        step = info.block_rows or max(1, schema.BLOCK_BYTES * rows // max(1, info.nbytes))
        for first in range(start - start % step, (rows if stop is None else stop) if info.nbytes else 0, step):
            yield first, self._rows(path, first, min(first + step, rows))

    def verified_blocks(self, path: str, start: int = 0, stop: int | None = None) -> Iterator[Array]:
        """Yield a dataset, or its rows start to stop, in pieces, each compared with its digest; a scalar in one piece.

        Raises:
            Damaged: a digest differs; names the rows, or the shard that they are in.
        """
        expected, info = self.digests(path), self.datasets[path]
        stop = info.shape[0] if stop is None and info.shape else stop
        shards = self.shards if self.is_sharded(path) else None
        with self._translated(path):
            for first, block in self._blocks(path, start, stop):
                wanted = None if expected is None else expected[first // info.block_rows]
                verify_rows(shards, self.place(path), block, first, wanted)
                yield block if stop is None else block[max(0, start - first) : stop - first]

    def read(self, path: str, *, verify: bool = True) -> Array:
        """Return a dataset as a new array.

        Raises:
            Damaged: its digests differ, or HDF5 cannot read it.
        """
        with self._translated(path):
            value = self._rows(path)
        digests, step = (self.digests(path) if verify else None), self.datasets[path].block_rows
        shards = self.shards if self.is_sharded(path) else None
        for number, expected in enumerate(() if digests is None else digests):
            start = number * step
            verify_rows(shards, self.place(path), value[start : start + step], start, expected)
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

    def read_json(self, group: str, name: str, default: str = "") -> dict[str, Any]:
        """Return a JSON object that is kept as a text.

        Args:
            group: its path.
            name: of the text.
            default: text in place of one that is missing.

        Raises:
            Refused: it is none.
        """
        place = self.place(f"{group}@{name}")
        try:
            found = reading.parse_json(self.read_text(group, name) or default)
        except ValueError as error:
            raise Refused(place, "is not JSON", RESTORE) from error
        if not isinstance(found, dict):
            raise Refused(place, "is not a JSON object", RESTORE)
        return found

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
        if self.shards is not None and self.is_sharded(path) and self.shards.columns[path].sha256:
            digest = bytes.fromhex(self.shards.columns[path].sha256)
            return np.frombuffer(digest, np.uint8).reshape(1, 32)
        return self.read(f"digests/{path}") if self.datasets[path].block_rows else None

    # ---- errors

    def _refusing(self, path: str) -> Refuse:
        return lambda problem: self._refuse(path, problem)

    def _refuse(self, path: str, problem: str) -> NoReturn:
        raise Refused(self.place(path), f"holds what it must not hold: {problem}", RESTORE)

    @contextmanager
    def _translated(self, path: str) -> Iterator[None]:
        """Turn what h5py raises on a damaged object into ``Damaged``."""
        try:
            yield
        except (OSError, RuntimeError, KeyError, ValueError, TypeError, OverflowError, MemoryError) as error:
            raise Damaged(self.place(path), f"HDF5 cannot read it ({one_line(error)})", RESTORE) from error


class LazyRows:
    """A large dataset of numbers, mapped, or read when it is first used where it lies in shards.

    Each block is compared with its digest when it is first used.
    """

    def __init__(self, file: CheckedFile, path: str, *, verify: bool) -> None:
        self._place, self._column = file.place(path), path
        self._shards = file.shards if file.is_sharded(path) else None
        self._array = None if self._shards is not None else file.map(path)
        self._digests = file.digests(path)
        self._length = file.datasets[path].shape[0]
        self._block_rows = file.datasets[path].block_rows or max(1, self._length)
        self._unchecked = np.full(-(-self._length // self._block_rows), verify, dtype=np.bool_)

    def get(self, start: int = 0, stop: int | None = None) -> Array:
        """Return rows start to stop, read-only; by default all.

        Raises:
            Damaged: a block is not as it was written.
            Refused: a number in it is not finite.
        """
        if self._array is None:
            assert self._shards is not None  # all else is a map of the file
            self._array = self._shards.read(self._column, 0, self._length)
            self._array.flags.writeable = False
        first, last = start // self._block_rows, None if stop is None else -(-stop // self._block_rows)
        for number in (first + np.flatnonzero(self._unchecked[first:last])).tolist():
            begin = number * self._block_rows
            block = self._array[begin : begin + self._block_rows]
            verify_rows(
                self._shards, self._place, block, begin, None if self._digests is None else self._digests[number]
            )
            finite = np.isfinite(block).all(axis=1)
            if not finite.all():
                where = f"{self._place} row {begin + int(np.argmin(finite))}"
                raise Refused(where, "holds a number that is not finite", RESTORE)
            self._unchecked[number] = False
        return self._array[start:stop]


def _plain(value: Array) -> Any:
    return name_text(value.item()) if value.dtype.kind == "S" else value.item()


def verify_rows(shards: Shards | None, place: str, block: Array, start: int, expected: Array | None) -> None:
    """Compare rows with their digest, also after the file was closed.

    Args:
        shards: that the rows are in; ``None``: they are in the file itself.
        place: name of the dataset in messages; its last part is the name of the column.
        block: (m, ...) rows.
        start: number of the first one.
        expected: (32,) uint8, or ``None`` where there is nothing to compare.

    Raises:
        StoreError: it differs; names the rows, or the shard that they are in.
    """
    if expected is not None and sha256_of([block]).digest() != expected.tobytes():
        named = None if shards is None else shards.blame(place.rpartition("/")[2], start, start + len(block))
        problem = "digest differs, the file was changed or the disk is failing"
        raise named or Damaged(f"{place} rows {start}-{start + len(block) - 1}", problem, RESTORE)
