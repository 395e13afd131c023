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
