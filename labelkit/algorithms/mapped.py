"""Memory maps: which one an array is a view of, and how its pages are given back."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np


def map_of(array: Any) -> np.memmap[Any, Any] | None:
    """The memory map that an array is a view of, or None."""
    found = None
    while isinstance(array, np.ndarray):
        if isinstance(array, np.memmap) and isinstance(array.base, mmap.mmap):
            found = array
        array = array.base
    return found


def release(view: Any, mapped: np.memmap[Any, Any]) -> None:
    """Take the pages of a view out of this process's memory; they stay in the system's cache of the file.

    Args:
        view: contiguous part of the map; of others nothing is given back.
        mapped: the map, as :func:`map_of` found it.
    """
    file_map = mapped.base
    # a private (copy-on-write) map would lose what was written to it
    if not isinstance(file_map, mmap.mmap) or mapped.mode == "c" or not hasattr(file_map, "madvise"):
        return
    if not view.flags.c_contiguous or view.nbytes == 0:
        return
    offset = view.__array_interface__["data"][0] - mapped.__array_interface__["data"][0]
    # a map begins at a multiple of the allocation granularity, its first number perhaps later
    offset += mapped.offset % mmap.ALLOCATIONGRANULARITY
    start = offset // mmap.PAGESIZE * mmap.PAGESIZE
    length = min(offset + view.nbytes, len(file_map)) - start
    file_map.madvise(mmap.MADV_DONTNEED, start, length)
