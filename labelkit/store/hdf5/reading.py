"""Read HDF5 files that labelkit wrote: structure, types, sizes and digests are checked before any data is used.

Files from elsewhere go through ``labelkit.store.opening``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
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
    verify_blocks,
)
from labelkit.store.hdf5.structure import Array, DatasetInfo, UntrustedFile, in_results
from labelkit.store.schema import name_bytes, name_text


class CheckedFile(UntrustedFile):
    """An HDF5 file whose structure, sizes, types and content digest were found right.

    Made by ``labelkit.store.opening.open_file``. All reading goes through one descriptor, so that a file
    replaced meanwhile does not mix with this one.

    Attributes:
        content_digest: as stored and recomputed.
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
        try:
            self._file = self._open() if outer is None else outer._file
            with self._translated(""):
                root = h5py.h5g.open(self._file.id, name_bytes(self._root) or b"/")
                self._check_header(root, file_format)
                self._walk(root, "", 0)
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

    def _check_digest(self) -> str:
        lines = [group_line(path) for path in self.groups if not in_results(path)]
        lines.extend(self._attribute_lines)
        for path, info in list(self.datasets.items()):
            if in_results(path):
                continue
            with self._translated(path):
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
                with self._translated(path):
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
            with self._translated(path):
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
        return self.read(f"digests/{path}") if self.datasets[path].block_rows else None

    def verify(self, path: str, value: Array) -> None:
        """Compare a dataset with its block digests.

        Raises:
            Damaged: a block differs; names the dataset and its rows.
        """
        verify_blocks(self.place(path), value, self.datasets[path].block_rows, self.digests(path))
