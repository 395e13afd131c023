"""Open HDF5 files of anybody, and look at how their datasets are stored before any of their data is used.

Types, filters, storage and sizes that a format does not allow are refused. The formats are described in
``docs/inside/file_format.txt``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import h5py
import numpy as np

from labelkit import files as reading
from labelkit.errors import Damaged, NotAStore, resource_error
from labelkit.store import schema
from labelkit.store.digests import RESTORE

Refuse = Callable[[str], NoReturn]

_FILTERS = {h5py.h5z.FILTER_DEFLATE, h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_FLETCHER32}


# ---- the file


def _remedy(path: Path) -> str:
    """What to give in the place of what is no regular file."""
    near = path.with_name(path.name + ".h5")
    if near.is_file():
        return f"Did you mean `{near}`?"
    inside = [file for file in path.glob("*.h5") if file.is_file()] if path.is_dir() else []
    if inside:
        return f"Pass a file in this folder: the newest is `{max(inside, key=lambda file: file.stat().st_mtime)}`."
    return "Pass a file written by labelkit."


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading, and reject others such as named pipes instead of blocking.

    Raises:
        NotAStore: there is no such file, or it is not a regular one.
        ResourceError: the system does not let us read it.
    """
    try:
        return reading.open_regular(path, buffering=0)
    except (reading.NotRegularError, IsADirectoryError) as error:
        raise NotAStore(str(path), "a folder" if path.is_dir() else "not a regular file", _remedy(path)) from error
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotAStore(str(path), "does not exist", reading.missing_store_remedy(path)) from error
    except OSError as error:
        raise resource_error(error, str(path)) from error


def open_hdf5(handle: BinaryIO, where: str) -> h5py.File:
    """Open an untrusted HDF5 file.

    Raises:
        NotAStore: it is no HDF5 file.
        Damaged: HDF5 cannot open it.
    """
    handle.seek(0)
    if handle.read(len(schema.SIGNATURE)) != schema.SIGNATURE:
        raise NotAStore(where, "is not an HDF5 file", "Pass a file written by labelkit.")
    try:
        return h5py.File(handle, "r")
    except Exception as error:
        short = "truncated" in str(error)
        problem = "is incomplete: it was cut off" if short else f"HDF5 cannot open it ({one_line(error)})"
        raise Damaged(where, problem, RESTORE) from error


def one_line(error: BaseException) -> str:
    """Return an error message of HDF5 in one line of limited length."""
    return " ".join(str(error).split())[:300] or type(error).__name__


# ---- what is allowed


@dataclass(frozen=True)
class DatasetInfo:
    """Type, shape and storage of a dataset in a checked file.

    Attributes:
        dtype: type of its values, as NumPy sees it.
        shape: its shape.
        offset: where its bytes begin in the file, or ``None`` where they are not in one piece.
        block_rows: rows per digest in ``digests/PATH``, or 0 where the content digest covers its bytes.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int | None
    block_rows: int = 0

    @property
    def nbytes(self) -> int:
        """Size of all values in bytes."""
        return self.dtype.itemsize * math.prod(self.shape)


def plain_type(dtype: np.dtype[Any], refuse: Refuse) -> np.dtype[Any]:
    """Convert h5py's type to a plain NumPy type, and refuse all but numbers and fixed-length strings."""
    if dtype.kind not in "iufS":
        refuse(f"a type other than numbers and strings of fixed length: {dtype}")
    return np.dtype(dtype.str)


def inspect_dataset(
    dataset: h5py.Dataset,
    size: int,
    refuse: Refuse,
    *,
    may_filter: bool,
    type_of: Callable[[np.dtype[Any], Refuse], np.dtype[Any]] = plain_type,
) -> DatasetInfo:
    """Check how a dataset is stored, without reading it.

    Args:
        dataset: it.
        size: bytes of the file.
        refuse: raises the error, given what is wrong.
        may_filter: whether it may be compressed.
        type_of: gets h5py's type and ``refuse``; returns NumPy's type.
    """
    # Before anything else: asking a virtual dataset for its shape opens other files.
    if dataset.is_virtual or dataset.external:
        refuse("a virtual dataset, or storage outside of the file")
    dtype, shape = type_of(dataset.dtype, refuse), dataset.shape
    if shape is None:
        refuse("no data space")
    create = dataset.id.get_create_plist()
    filters = [create.get_filter(i)[0] for i in range(create.get_nfilters())]
    if filters and (not may_filter or any(code not in _FILTERS for code in filters)):
        refuse(f"filters that are not allowed here: {filters}")
    if dataset.chunks is not None and dtype.itemsize * math.prod(dataset.chunks) > schema.CHUNK_BYTES:
        refuse(f"chunks above {schema.CHUNK_BYTES >> 20} MiB")
    offset = dataset.id.get_offset() if dataset.chunks is None else None
    stored, declared = dataset.id.get_storage_size(), dtype.itemsize * math.prod(shape)
    inside = stored <= size and (offset is None or offset + declared <= size)
    if not inside or declared > stored * (schema.FILTER_RATIO if filters else 1):
        refuse(f"{declared} bytes declared, {stored} bytes stored in a file of {size}")
    return DatasetInfo(dtype, shape, offset)
