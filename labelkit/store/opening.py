"""Open files that labelkit wrote, maybe another one: by one descriptor, and checked before anything is used."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

from labelkit import reading
from labelkit.errors import NotAStore, resource_error
from labelkit.store.hdf5.reading import CheckedFile
from labelkit.store.shards import Shards


def open_file(path: Path, file_format: str | None) -> CheckedFile:
    """Open a file and check everything about it but large arrays. Shards of a store are read without HDF5.

    Args:
        path: the file.
        file_format: what it must be, such as ``labelkit.store``; ``None`` for any format of labelkit.

    Raises:
        NotAStore: missing, not a regular file, not HDF5, or of another format.
        VersionError: made by a newer labelkit.
        Refused: holds what a file of this format must not hold.
        Damaged: cut off or changed.
        ResourceError: the system does not let us read it.
    """
    handle = open_regular(path)
    try:
        checked = CheckedFile(handle, str(path), file_format)
        if checked.table is not None:
            checked.attach(Shards(path, checked.table))
        return checked
    except BaseException:
        handle.close()
        raise


def _remedy(path: Path) -> str:
    """What to give in the place of what is no regular file."""
    near = path.with_name(path.name + ".h5")
    if near.is_file():
        return f"Did you mean `{near}`?"
    inside = [file for file in path.glob("*.h5") if file.is_file()] if path.is_dir() else []
    if inside:
        return f"Give a file in it: the newest is `{max(inside, key=lambda file: file.stat().st_mtime)}`."
    return "Give a file written by labelkit."


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading; never waits, as opening a named pipe would.

    Raises:
        NotAStore: there is no such file, or it is not a regular one.
        ResourceError: the system does not let us read it.
    """
    try:
        return reading.open_regular(path, buffering=0)
    except (reading.NotRegularError, IsADirectoryError) as error:
        raise NotAStore(str(path), "a folder" if path.is_dir() else "not a regular file", _remedy(path)) from error
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotAStore(str(path), "there is no such file", reading.find_or_make_store(path)) from error
    except OSError as error:
        raise resource_error(error, str(path)) from error
