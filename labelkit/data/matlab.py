"""Variables of a MATLAB file; the one import of scipy.io."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelkit.errors import DatasetError


def read_matlab(path: Path, variables: Sequence[str], *, max_bytes: int, remedy: str) -> dict[str, NDArray[Any]]:
    """Read some variables, axes of length 1 left out.

    Args:
        path: a file of version 4 to 7.2.
        variables: their names.
        max_bytes: a larger file is not opened.
        remedy: what to do about a file that is not as it should be.

    Raises:
        DatasetError: too large, damaged, or without one of the variables.
    """
    from scipy.io import loadmat

    try:
        if path.stat().st_size > max_bytes:
            raise DatasetError(str(path), f"larger than {max_bytes:,} bytes", remedy)
        content = loadmat(path, squeeze_me=True, variable_names=list(variables))
    except DatasetError:
        raise
    except Exception as error:
        # A damaged file makes the reader trip over anything: ValueError, TypeError, zlib.error, struct.error and more.
        raise DatasetError(str(path), f"cannot be read as a MATLAB file: {error}", remedy) from error
    for variable in variables:
        if variable not in content:
            raise DatasetError(str(path), f"has no variable {variable!r}", remedy)
    return {variable: np.asarray(content[variable]) for variable in variables}
