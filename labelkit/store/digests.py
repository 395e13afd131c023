"""Digests: of a dataset, of its blocks of rows, and of a whole file's contents.

The lines of the content digest are described in ``docs/inside/file_format.txt``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelkit.store.schema import name_bytes

Array = NDArray[Any]

RESTORE = "Restore the file from a copy or make it again with --overwrite"
"""Advice for a file whose content has changed since it was written."""


def to_contiguous_bytes(array: Array) -> memoryview:
    """Return the bytes of an array in C order, without a copy if it already has that order."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def hash_arrays(blocks: Iterable[Array]) -> Any:
    """Return a SHA-256 object that has hashed the concatenated bytes of several arrays."""
    digest = hashlib.sha256()
    for block in blocks:
        digest.update(to_contiguous_bytes(block))
    return digest


def content_digest(
    groups: Iterable[str],
    attributes: Mapping[str, Mapping[str, Array]],
    datasets: Mapping[str, tuple[np.dtype[Any], tuple[int, ...], str]],
) -> str:
    """Compute the content digest of a file as 64 hexadecimal digits.

    Args:
        groups: paths of all groups without a leading slash; the root is the empty path.
        attributes: by path of their object, then by name; the content digest itself is ignored.
        datasets: by path: type, shape and SHA-256 (hex) of the bytes, or of the block digests.
    """
    lines = [b"G /" + name_bytes(path) for path in groups]
    for path, values in attributes.items():
        for name, value in values.items():
            if (path, name) != ("", "content_digest"):
                place = b"A /" + name_bytes(path) + b"@" + name_bytes(name)
                lines.append(place + _values_text(value.dtype, value.shape, hash_arrays([value]).hexdigest()))
    for path, about in datasets.items():
        lines.append(b"D /" + name_bytes(path) + _values_text(*about))
    return hashlib.sha256(b"".join(line + b"\n" for line in sorted(lines))).hexdigest()


def _values_text(dtype: np.dtype[Any], shape: tuple[int, ...], digest: str) -> bytes:
    return f" {dtype.str} {'x'.join(map(str, shape)) or 'scalar'} {digest}".encode()
