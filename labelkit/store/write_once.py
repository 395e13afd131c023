"""Small HDF5 files that are written whole: never over other content, and the same content twice is no error."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from labelkit.errors import StoreError, output_exists
from labelkit.store.commit import commit_bytes
from labelkit.store.hdf5.writing import Contents, Image


def write_once(path: Path, contents: Contents, read_digest: Callable[[Path], str], *, overwrite: bool) -> str:
    """Write a file and return its content digest.

    Args:
        path: file to write.
        contents: what it shall hold.
        read_digest: reads the content digest of a file that is there.
        overwrite: replace other content.

    Raises:
        OutputExistsError: the file is there and has other content.
        ResourceError: the disk is full, no permission, ...
    """
    image = Image(contents)
    try:
        commit_bytes(path, image.to_bytes(), replace=overwrite)
    except FileExistsError as error:
        try:
            same = read_digest(path) == image.content_digest
        except StoreError as fault:
            raise output_exists(path, state=f"and cannot be used ({fault.problem})") from error
        if not same:
            raise output_exists(path, state="and has other content") from error
    return image.content_digest
