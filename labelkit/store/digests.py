"""Digests: of a dataset, of its blocks of rows, and of a whole file's contents.

The lines of the content digest are described in ``docs/inside/file_format.txt``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelkit.store.schema import name_bytes

Array = NDArray[Any]

RESTORE = "Restore the file from a copy or make it again with --overwrite"
"""What to do about a file that is not as it was written."""


def bytes_of(array: Array) -> memoryview:
    """Return the bytes of an array in C order, without a copy if it already has that order."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def sha256_of(blocks: Iterable[Array]) -> Any:
    """Return the SHA-256 object of several arrays, one after the other."""
    digest = hashlib.sha256()
    for block in blocks:
        digest.update(bytes_of(block))
    return digest


def rows_per_block(row_bytes: int, block_bytes: int) -> int:
    """Return the number of rows that share a digest, for blocks of about ``block_bytes``."""
    return max(1, block_bytes // row_bytes)


class BlockDigester:
    """Incremental SHA-256 of each block of rows of an array that arrives in pieces.

    Args:
        block_bytes: bytes of a block, all of its rows together.
    """

    def __init__(self, block_bytes: int) -> None:
        self._block_bytes = self._room = block_bytes
        self._digest = hashlib.sha256()
        self._digests: list[bytes] = []

    def update(self, rows: Array) -> None:
        """Add the next rows to the digests."""
        view = bytes_of(rows)
        while view:
            self._digest.update(view[: self._room])
            taken = min(self._room, len(view))
            view, self._room = view[taken:], self._room - taken
            if self._room == 0:
                self._digests.append(self._digest.digest())
                self._digest, self._room = hashlib.sha256(), self._block_bytes

    def finish(self) -> bytes:
        """Return the concatenated digests of all blocks."""
        if self._room < self._block_bytes:
            self._digests.append(self._digest.digest())
        return b"".join(self._digests)


def _shape_text(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "scalar"


def group_line(path: str) -> bytes:
    """Return the digest line of a group, whose path has no leading slash and is empty for the root."""
    return b"G /" + name_bytes(path)


def attribute_line(path: str, name: str, value: Array) -> bytes:
    """Return the digest line of an attribute."""
    text = f" {value.dtype.str} {_shape_text(value.shape)} {sha256_of([value]).hexdigest()}"
    return b"A /" + name_bytes(path) + b"@" + name_bytes(name) + text.encode()


def dataset_line(path: str, dtype: np.dtype[Any], shape: tuple[int, ...], digest: str) -> bytes:
    """Return the digest line of a dataset from the SHA-256 (hex) of its bytes or of its block digests."""
    return b"D /" + name_bytes(path) + f" {dtype.str} {_shape_text(shape)} {digest}".encode()


def digest_of_lines(lines: Iterable[bytes]) -> str:
    """Compute the content digest (64 hexadecimal digits) of digest lines in any order."""
    return hashlib.sha256(b"".join(line + b"\n" for line in sorted(lines))).hexdigest()
