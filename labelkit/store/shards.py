"""Shards: the large columns of a store in several files, named and described by the store's own file, the index.

The format is described in ``docs/inside/file_format.txt``. The index says where in each shard its rows lie, so that
they are read without HDF5; what is read is compared with digests of the index like the rows of any store.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from labelkit.errors import Damaged, Refused, StoreError, resource_error
from labelkit.files import NotRegularError, check_keys, open_regular, parse_object
from labelkit.store import schema
from labelkit.store.commit import canonical_json

Array = NDArray[Any]

SHARD_RESTORE = (
    "Restore it from a copy, or repeat the command that made the store, `labelkit embed`, `import` or `pack`, with "
    "--overwrite."
)
"""What to do about a shard that is lost or damaged."""
SHARD_NAME = re.compile(r"\d{5}-[0-9a-f]{16}\.h5")
_DIGEST = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True)
class ShardColumn:
    """A column that lies in shards.

    Attributes:
        dtype: of its values.
        width: values per row.
        sha256: of its bytes where the content digest covers them; else empty, and the index has digests of its blocks.
    """

    dtype: np.dtype[Any]
    width: int
    sha256: str

    @property
    def row_bytes(self) -> int:
        """Bytes per row."""
        return self.dtype.itemsize * self.width


@dataclass(frozen=True)
class Shard:
    """A shard, as the index describes it.

    Attributes:
        number: from 0.
        start, stop: its first row, and the row after its last one.
        size: bytes of the file.
        frame: SHA-256 of all of the file but its rows.
        offsets: where the rows of each column begin in the file.
        sha256: of the rows of each column.
    """

    number: int
    start: int
    stop: int
    size: int
    frame: str
    offsets: Mapping[str, int]
    sha256: Mapping[str, str]

    @property
    def name(self) -> str:
        """Name of the file: other content has another name, so that a store can be replaced while it is read."""
        return f"{self.number:05d}-{self.frame[:16]}.h5"


@dataclass(frozen=True)
class Shards:
    """The shards of a store, for reading. No file is held open.

    Attributes:
        index: file of the store.
        columns: that lie in shards, by name.
        files: the shards in the order of their rows.
    """

    index: Path
    columns: Mapping[str, ShardColumn]
    files: tuple[Shard, ...]

    @property
    def rows(self) -> int:
        """Rows of all shards."""
        return self.files[-1].stop

    @property
    def folder(self) -> Path:
        """Where they lie."""
        return shards_folder(self.index)

    def to_text(self) -> str:
        """Return the canonical JSON that the index holds."""
        columns = {
            name: {"dtype": column.dtype.str, "width": column.width, "sha256": column.sha256}
            for name, column in self.columns.items()
        }
        files = [
            {
                "rows": shard.stop - shard.start,
                "bytes": shard.size,
                "frame": shard.frame,
                "offsets": dict(shard.offsets),
                "sha256": dict(shard.sha256),
            }
            for shard in self.files
        ]
        values: dict[str, Any] = {"columns": columns, "files": files}
        return canonical_json({**values, "sha256": _digest_of(values)})

    @classmethod
    def parse(cls, index: Path, text: str) -> Shards:
        """Read what ``to_text`` gave.

        Raises:
            ValueError: it is something else.
        """
        values = parse_object(text, {"columns": dict, "files": list, "sha256": str})
        if values.pop("sha256") != _digest_of(values):
            raise ValueError("its digest differs")
        columns = {name: _column(name, entry) for name, entry in values["columns"].items()}
        if "embeddings" not in columns or not 1 <= len(values["files"]) <= schema.MAX_SHARDS:
            raise ValueError(f"{len(values['files'])} shards of {', '.join(columns) or 'no columns'}")
        files: list[Shard] = []
        for number, entry in enumerate(values["files"]):
            files.append(_shard(number, files[-1].stop if files else 0, entry, columns))
        return cls(index, columns, tuple(files))

    def check(self) -> None:
        """Look at every shard, not at its rows.

        Raises:
            StoreError: one is absent, or has another size.
            ResourceError: the system does not let us read one.
        """
        for shard in self.files:
            self._open(shard).close()

    def faults(self) -> Iterator[StoreError]:
        """Yield what is wrong with each shard that is lost or damaged; all rows are read.

        Raises:
            ResourceError: the system does not let us read one.
        """
        for shard in self.files:
            errors = (self._fault_in(shard, column) for column in self.columns)
            yield from [error for error in errors if error is not None][:1]

    def blame(self, column: str, start: int, stop: int) -> StoreError | None:
        """Return the error that names the damaged shard among those with the rows [start, stop); ``None``: none is.

        Raises:
            ResourceError: the system does not let us read one.
        """
        overlapping = (shard for shard in self.files if shard.start < stop and start < shard.stop)
        faults = (self._fault_in(shard, column) for shard in overlapping)
        return next((error for error in faults if error is not None), None)

    def read(self, column: str, start: int, stop: int) -> Array:
        """Return the rows [start, stop) of a column as a new array; nothing is compared.

        Raises:
            StoreError: a shard is absent, or has another size.
            ResourceError: the system does not let us read one.
        """
        found = self.columns[column]
        values = np.empty((stop - start, found.width), found.dtype)
        for shard in self.files:
            first, last = max(start, shard.start), min(stop, shard.stop)
            if first >= last:
                continue
            part = values[first - start : last - start]
            with self._open(shard) as handle:
                try:
                    handle.seek(shard.offsets[column] + (first - shard.start) * found.row_bytes)
                    if handle.readinto(part) != part.nbytes:  # type: ignore[attr-defined]  # files on disk have it
                        raise OSError("ends early")
                except OSError as error:
                    raise resource_error(error, str(self.folder / shard.name)) from error
        return values

    def _fault_in(self, shard: Shard, column: str) -> StoreError | None:
        digest, step = hashlib.sha256(), max(1, schema.BLOCK_BYTES // self.columns[column].row_bytes)
        try:
            for first in range(shard.start, shard.stop, step):
                digest.update(self.read(column, first, min(first + step, shard.stop)).data)
        except StoreError as error:
            return error
        if digest.hexdigest() == shard.sha256[column]:
            return None
        problem = f"digest of {column} differs, the file was changed or the disk is failing"
        where = str(self.folder / shard.name)
        return Damaged(where, f"{problem} (rows {shard.start}-{shard.stop - 1})", SHARD_RESTORE)

    def _open(self, shard: Shard) -> BinaryIO:
        """Open a shard that has the size which the index says.

        Raises:
            Damaged: it is absent, or has another size.
            Refused: it is a link, or no regular file: a store names no files of others.
            ResourceError: the system does not let us read it.
        """
        path = self.folder / shard.name
        rows = f"rows {shard.start}-{shard.stop - 1} are in it"
        try:
            if self.folder.is_symlink() or path.is_symlink():
                raise Refused(str(path), f"is a link, or its folder is one ({rows})", "Put the file itself there.")
            handle = open_regular(path)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise Damaged(str(path), f"there is no such shard ({rows})", SHARD_RESTORE) from error
        except (NotRegularError, IsADirectoryError) as error:
            raise Refused(str(path), f"is not a regular file ({rows})", SHARD_RESTORE) from error
        except OSError as error:
            raise resource_error(error, str(path)) from error
        size = os.fstat(handle.fileno()).st_size
        if size != shard.size:
            handle.close()
            raise Damaged(str(path), f"has {size} bytes, expected {shard.size} ({rows})", SHARD_RESTORE)
        return handle


def shards_folder(index: Path) -> Path:
    """Return where the shards of a store lie: beside the file itself, where ``index`` is a link to it."""
    real = Path(os.path.realpath(index)) if index.is_symlink() else index
    return real.with_name(real.name + ".shards")


def _digest_of(values: Mapping[str, Any]) -> str:
    return hashlib.sha256(canonical_json(values).encode()).hexdigest()


def _column(name: str, entry: Any) -> ShardColumn:
    if not isinstance(entry, dict) or not schema.WORD.fullmatch(name):
        raise ValueError(f"the column {name[:80]!r} is none")
    check_keys(entry, {"dtype": str, "width": int, "sha256": str})
    if entry["dtype"] not in ("<f4", "<f2") or entry["width"] < 1:
        raise ValueError(f"{name} has {entry['width']} values of type {entry['dtype'][:20]!r}")
    if entry["sha256"] and not _DIGEST.fullmatch(entry["sha256"]):
        raise ValueError(f"{name} has a digest that is none")
    return ShardColumn(np.dtype(entry["dtype"]), entry["width"], entry["sha256"])


def _shard(number: int, start: int, entry: Any, columns: Mapping[str, ShardColumn]) -> Shard:
    if not isinstance(entry, dict):
        raise ValueError(f"shard {number} is no object")
    check_keys(entry, {"rows": int, "bytes": int, "frame": str, "offsets": dict, "sha256": dict})
    check_keys(entry["offsets"], dict.fromkeys(columns, int))
    check_keys(entry["sha256"], dict.fromkeys(columns, str))
    rows = entry["rows"]
    if rows < 1 or not all(_DIGEST.fullmatch(digest) for digest in (entry["frame"], *entry["sha256"].values())):
        raise ValueError(f"shard {number} has {rows} rows, or a digest that is none")
    spans = sorted((entry["offsets"][name], rows * column.row_bytes) for name, column in columns.items())
    end = 0
    for offset, size in spans:
        if offset < end:
            raise ValueError(f"columns of shard {number} lie over each other")
        end = offset + size
    if end > entry["bytes"]:
        raise ValueError(f"shard {number} has {entry['bytes']} bytes, and rows up to {end}")
    return Shard(number, start, start + rows, entry["bytes"], entry["frame"], entry["offsets"], entry["sha256"])
