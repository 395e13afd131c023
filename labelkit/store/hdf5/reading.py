"""Read HDF5 files that labelkit wrote: structure, types, sizes and digests are checked before any data is used.

Files from elsewhere go through ``labelkit.store.opening``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import BinaryIO, Self

import h5py
import numpy as np

from labelkit.errors import Damaged
from labelkit.store import schema
from labelkit.store.digests import (
    RESTORE,
    dataset_line,
    digest_of_lines,
    group_line,
    sha256_of,
    verify_block,
)
from labelkit.store.hdf5.structure import Array, DatasetInfo, UntrustedFile, in_results
from labelkit.store.schema import name_bytes, name_text
from labelkit.store.shards import Shards, ShardTable


class CheckedFile(UntrustedFile):
    """An HDF5 file whose structure, sizes, types and content digest were found right.

    Made by ``labelkit.store.opening.open_file``. All reading goes through one descriptor, so that a file
    replaced meanwhile does not mix with this one.

    Of a store in shards this is the index. It shows all that the store holds, as if it were in one file: columns in
    shards are there once ``attach`` said where the shards are.

    Attributes:
        content_digest: as stored and recomputed.
        table: what an index says about its shards; ``None``: all is in this file.
        shards: that were attached.
    """

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
        super().__init__(handle, where, file_format or "", group)
        self._outer = outer
        self.table: ShardTable | None = None
        self.shards: Shards | None = None
        try:
            self._file = self._open() if outer is None else outer._file
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

    def attach(self, shards: Shards) -> None:
        """Say where the shards are that the index names."""
        self.shards = shards

    def _read_table(self) -> None:
        """Take what the index says about its shards out of what is shown, and show what is in them."""
        try:
            self.table = ShardTable.parse(self.read_text("", "shards"))
        except ValueError as error:
            self._refuse("shards", f"what is no table of shards ({error})")
        self.datasets.pop("shards", None)
        for path in self.table.columns:
            if path in self.datasets or path in self.groups:
                self._refuse(path, "a column that is in its shards too")
        for name, column in self.table.columns.items():
            block_rows = self.table.rows if column.sha256 else 0
            self.datasets[name] = DatasetInfo(column.dtype, (self.table.rows, column.width), None, block_rows)
        self._forget_attribute("", "shards")
        left = ",".join(word for word in self.features if word != schema.FEATURE_SHARDED)
        self._forget_attribute("", "requires")
        self._show_attribute("", "requires", np.array(name_bytes(left), f"S{len(left) or 1}"))

    def is_sharded(self, path: str) -> bool:
        """Say whether a dataset lies in shards."""
        return self.table is not None and path in self.table.columns

    def _in_shards(self) -> Shards:
        if self.shards is None:
            raise ValueError(f"{self.where} is the index of shards, and they were not attached")
        return self.shards

    def _check_digest(self) -> str:
        lines = [group_line(path) for path in self.groups if not in_results(path)]
        lines.extend(self._attribute_lines)
        for path, info in list(self.datasets.items()):
            if in_results(path):
                continue
            with self._translated(path):
                digests = self.datasets.get(f"digests/{path}")
                column = self.table.columns.get(path) if self.table is not None else None
                if column is not None and bool(column.sha256) == (digests is not None):
                    self._refuse("shards", f"{path} with two digests, or with none")
                if digests is None:
                    digest = sha256_of(self._blocks(path)).hexdigest() if column is None else column.sha256
                else:
                    rows = self.attributes[f"digests/{path}"].get("block_rows")
                    blocks = -(-info.shape[0] // rows) if isinstance(rows, int) and rows > 0 and info.shape else -1
                    if digests.shape != (blocks, 32) or digests.dtype != np.uint8:
                        self._refuse(f"digests/{path}", f"shape {digests.shape} with block_rows {rows}")
                    self.datasets[path] = DatasetInfo(info.dtype, info.shape, info.offset, int(rows or 0))
                    digest = sha256_of(self._blocks(f"digests/{path}")).hexdigest()
                lines.append(dataset_line(path, info.dtype, info.shape, digest))
        found, stored = digest_of_lines(lines), self.attributes[""].get("content_digest")
        if found != stored:
            problem = "content digest differs, the file was changed or the disk is failing"
            raise Damaged(self.place(""), problem, RESTORE)
        return found

    def _blocks(self, path: str, step: int = 0) -> Iterator[Array]:
        """Read a dataset in pieces of ``step`` rows, by default of about 4 MiB."""
        info = self.datasets[path]
        if not info.shape:
            scalar = np.empty((), info.dtype)
            dataset = h5py.h5d.open(self._file.id, name_bytes(f"{self._root}/{path}"))
            # The stored type, not h5py's idea of it: the bytes come as they are.
            dataset.read(h5py.h5s.ALL, h5py.h5s.ALL, scalar, dataset.get_type())
            yield scalar
            return
        step = step or max(1, schema.BLOCK_BYTES * info.shape[0] // max(1, info.nbytes))
        for start in range(0, info.shape[0] if info.nbytes else 0, step):
            yield self._rows(path, start, min(start + step, info.shape[0]))

    def _rows(self, path: str, start: int, stop: int) -> Array:
        """Read rows of a dataset."""
        if self.is_sharded(path):
            return self._in_shards().read(path, start, stop)
        info = self.datasets[path]
        dataset = h5py.h5d.open(self._file.id, name_bytes(f"{self._root}/{path}"))
        block = np.empty((stop - start, *info.shape[1:]), info.dtype)
        space = dataset.get_space()
        space.select_hyperslab((start, *(0 for _ in info.shape[1:])), block.shape)
        dataset.read(h5py.h5s.create_simple(block.shape), space, block, dataset.get_type())
        return block

    def verified_blocks(self, path: str, faults: list[Damaged] | None = None) -> Iterator[Array]:
        """Yield a dataset in pieces of whole rows, each compared with its digest; a scalar in one piece.

        Args:
            path: of the dataset.
            faults: gets what is wrong, and the damaged rows are yielded all the same; ``None``: it is raised, and
                names the shard that they are in.

        Raises:
            Damaged: a digest differs; names the rows.
        """
        expected = self.digests(path)
        start = 0
        try:
            with self._translated(path):
                for number, block in enumerate(self._blocks(path, self.datasets[path].block_rows)):
                    digest = None if expected is None else expected[number]
                    if faults is None:
                        self.verify_block(path, block, start, digest)
                    else:
                        with _gathered(faults):
                            verify_block(self.place(path), block, start, digest)
                    yield block
                    start += len(block) if block.ndim else 0
        except Damaged as error:
            if faults is None:
                raise
            faults.append(error)

    def verified_rows(self, path: str, start: int, stop: int) -> Iterator[Array]:
        """Yield the rows [start, stop) of a dataset in pieces; each block that they lie in is compared with its digest.

        Raises:
            StoreError: a digest differs; names the rows.
        """
        info, expected = self.datasets[path], self.digests(path)
        step = info.block_rows or info.shape[0]
        with self._translated(path):
            for number in range(start // step, -(-stop // step)):
                first = number * step
                block = self._rows(path, first, min(first + step, info.shape[0]))
                self.verify_block(path, block, first, None if expected is None else expected[number])
                yield block[max(0, start - first) : stop - first]

    def read(self, path: str, *, verify: bool = True) -> Array:
        """Return a dataset as a new array.

        Raises:
            Damaged: its digests differ, or HDF5 cannot read it.
        """
        info = self.datasets[path]
        with self._translated(path):
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
        if self.table is not None and self.is_sharded(path) and self.table.columns[path].sha256:
            return np.frombuffer(bytes.fromhex(self.table.columns[path].sha256), np.uint8).reshape(1, 32)
        return self.read(f"digests/{path}") if self.datasets[path].block_rows else None

    def verify_block(self, path: str, block: Array, start: int, expected: Array | None) -> None:
        """Compare rows of a dataset with their digest.

        Args:
            path: of the dataset.
            block: (m, ...) rows.
            start: number of the first one.
            expected: (32,) uint8, or ``None`` where there is nothing to compare.

        Raises:
            Damaged: it differs; names the rows, or the shard that they are in.
        """
        verify_sharded_block(self.shards if self.is_sharded(path) else None, self.place(path), block, start, expected)

    def verify(self, path: str, value: Array) -> None:
        """Compare a dataset with its block digests.

        Raises:
            Damaged: a block differs; names the dataset and its rows.
        """
        digests, step = self.digests(path), self.datasets[path].block_rows
        for number, expected in enumerate(() if digests is None else digests):
            self.verify_block(path, value[number * step : (number + 1) * step], number * step, expected)


@contextmanager
def _gathered(faults: list[Damaged]) -> Iterator[None]:
    try:
        yield
    except Damaged as error:
        faults.append(error)


def verify_sharded_block(shards: Shards | None, place: str, block: Array, start: int, expected: Array | None) -> None:
    """Compare rows with their digest, as ``CheckedFile.verify_block`` does, also after the file was closed.

    Args:
        shards: that the rows are in; ``None``: they are in the file itself.
        place: name of the dataset in messages; its last part is the name of the column.
        block: (m, ...) rows.
        start: number of the first one.
        expected: (32,) uint8, or ``None``.

    Raises:
        StoreError: it differs.
    """
    try:
        verify_block(place, block, start, expected)
    except Damaged as error:
        named = None if shards is None else shards.blame(place.rpartition("/")[2], start, start + len(block))
        if named is None:
            raise
        raise named from error
