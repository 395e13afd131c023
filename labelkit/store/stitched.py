"""One map over parts of several files: their bytes lie one after the other in memory, and none is copied.

Addresses are reserved by a map without a file; then each part takes the place of its pages there. So a part has to
begin at a page of its file and fill whole pages, the last one excepted. The result is a map like that of one file:
what gives back its pages (``labelkit.algorithms.mapped``) works on it.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import sys
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

_PROT_READ, _MAP_SHARED, _MAP_FIXED = 1, 1, 0x10


@cache
def _system_map() -> Any:
    """The call of the system, as C declares it."""
    call = ctypes.CDLL(None, use_errno=True).mmap
    call.restype = ctypes.c_void_p
    call.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_int64]
    return call


def can_stitch(offsets: Sequence[int], sizes: Sequence[int]) -> bool:
    """Say whether parts of files can be mapped one after the other here.

    Args:
        offsets: where each begins in its file.
        sizes: bytes of each.
    """
    page = mmap.ALLOCATIONGRANULARITY
    known = sys.platform in ("linux", "darwin") and sys.maxsize > 1 << 32
    return known and all(offset % page == 0 for offset in offsets) and all(size % page == 0 for size in sizes[:-1])


class StitchedMap:
    """A read-only array whose rows come from several files; what no file was put into reads as zeros.

    Args:
        dtype: of its values.
        shape: of the whole.
    """

    def __init__(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        size = dtype.itemsize * math.prod(shape)
        self._reserved = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=mmap.PROT_READ)
        array: Any = np.ndarray.__new__(np.memmap, shape, dtype, buffer=self._reserved)
        # what NumPy notes about a map that it makes itself
        array._mmap, array.offset, array.mode, array.filename = self._reserved, 0, "r", None
        self.array: NDArray[Any] = array

    def put(self, descriptor: int, offset: int, size: int, start: int) -> None:
        """Let bytes of a file take their place; the file may be closed afterwards.

        Args:
            descriptor: of the file.
            offset: of the first byte in the file.
            size: bytes.
            start: of the first byte in the array.

        Raises:
            OSError: the system does not map it.
        """
        # inside of the reserved range, so that nothing else is replaced
        if not 0 <= start <= start + size <= len(self._reserved):
            raise ValueError(f"bytes {start} to {start + size} of {len(self._reserved)}")
        address = self.array.__array_interface__["data"][0] + start
        if _system_map()(address, size, _PROT_READ, _MAP_SHARED | _MAP_FIXED, descriptor, offset) != address:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
