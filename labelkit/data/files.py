"""Files that a user names: whether they are there, and their bytes, without waiting or filling the memory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from labelkit.errors import DatasetError
from labelkit.files import NotRegularError, open_regular

MAX_TABLE_BYTES: Final = 1 << 30


def is_there(path: Path) -> bool:
    """Whether something has this name; a name that no file can have, such as one too long, is not there."""
    return os.path.exists(path)  # noqa: PTH110 - Path.exists raises where a name is too long


def is_folder(path: Path) -> bool:
    """Whether a folder has this name; likewise."""
    return os.path.isdir(path)  # noqa: PTH112 - as above


def is_file(path: Path) -> bool:
    """Whether a regular file has this name; likewise."""
    return os.path.isfile(path)  # noqa: PTH113 - as above


def read_table(path: Path) -> bytes:
    """Read a regular file of at most 1 GiB whole.

    Raises:
        DatasetError: no such file, no regular one (a pipe would be waited for), too large, unreadable.
    """
    where = str(path)
    try:
        with open_regular(path) as file:
            if os.fstat(file.fileno()).st_size > MAX_TABLE_BYTES:
                raise DatasetError(where, f"larger than {MAX_TABLE_BYTES:,} bytes", "Split it.")
            return file.read(MAX_TABLE_BYTES)
    except NotRegularError as error:
        raise DatasetError(where, "is not a regular file", "Write the table to a file first.") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise DatasetError(where, f"cannot be read: {reason}", "Check its name and permissions.") from error
