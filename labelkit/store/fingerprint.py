"""Fingerprint of a network's weights: the same weights give the same text, whatever file they came in."""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Tensor = tuple[str, str, Sequence[int], "bytes | bytearray | memoryview | NDArray[Any]"]


def weights_fingerprint(tensors: Iterable[Tensor]) -> str:
    """Return SHA-256 over ``name NUL dtype NUL shape NUL bytes`` of every tensor, sorted by name.

    Args:
        tensors: (name, dtype, shape, data) of each tensor, in any order. ``dtype`` is the name that
            NumPy and torch share, such as ``float32`` or ``bfloat16``; the shape enters as numbers
            joined by commas, and a scalar's shape as nothing. ``data`` is an array in any layout, or the
            little-endian bytes in C order; bytes are also the way for types that NumPy lacks.

    Returns:
        64 hexadecimal digits.

    Raises:
        ValueError: a name comes twice, or an array has another shape than stated.
    """
    digest = hashlib.sha256()
    previous: str | None = None
    for name, dtype, shape, data in sorted(tensors, key=lambda tensor: tensor[0].encode()):
        if name == previous:
            raise ValueError(f"two tensors are named {name!r}")
        previous = name
        digest.update(f"{name}\0{dtype}\0{','.join(map(str, shape))}\0".encode())
        if isinstance(data, np.ndarray):
            if data.size != math.prod(shape):
                raise ValueError(f"tensor {name!r} has {data.size} values, its shape {tuple(shape)} says otherwise")
            digest.update(np.ascontiguousarray(_little_endian(data)).reshape(-1).view(np.uint8).data)
        else:
            digest.update(data)
    return digest.hexdigest()


def _little_endian(array: NDArray[Any]) -> NDArray[Any]:
    big = array.dtype.byteorder == ">" or (array.dtype.byteorder == "=" and sys.byteorder == "big")
    return array.astype(array.dtype.newbyteorder("<")) if big else array
