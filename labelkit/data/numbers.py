"""A list of numbers in a file."""

from __future__ import annotations

from pathlib import Path
from tokenize import TokenError

import numpy as np
from numpy.typing import NDArray

from labelkit.data.files import is_file, is_there
from labelkit.errors import DatasetError
from labelkit.reading import read_bytes

MAX_BYTES = 64 << 20


def read_numbers(path: Path) -> NDArray[np.float64]:
    """Read a one-dimensional .npy file, or a text of numbers apart by white space or commas.

    Returns:
        (k,) float64; NaN and infinities are left to the caller.

    Raises:
        DatasetError: it cannot be read, is too large, or holds something else.
    """
    where, remedy = str(path), "Give a .npy file of one dimension, or a text file of numbers."
    if is_there(path) and not is_file(path):
        raise DatasetError(where, "is not a regular file", remedy)
    try:
        if path.stat().st_size > MAX_BYTES:
            raise DatasetError(where, f"larger than {MAX_BYTES:,} bytes", remedy)
        if path.suffix == ".npy":
            values = np.load(path, mmap_mode="r", allow_pickle=False)
            if not isinstance(values, np.ndarray) or values.ndim != 1 or values.dtype.kind not in "fiu":
                raise DatasetError(where, "holds no one-dimensional array of numbers", remedy)
            return np.array(values, dtype=np.float64)
        words = read_bytes(path, MAX_BYTES).decode().replace(",", " ").split()
        return np.array([float(word) for word in words], dtype=np.float64)
    except (OSError, EOFError) as error:
        raise DatasetError(where, f"cannot be read: {getattr(error, 'strerror', None) or error}", remedy) from error
    except (
        ValueError,
        SyntaxError,
        TokenError,
        TypeError,
        OverflowError,
    ) as error:  # a damaged header; also a text that is not UTF-8, and an .npy file of objects
        raise DatasetError(where, f"holds no list of numbers: {error}", remedy) from error
