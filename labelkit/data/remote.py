"""Local and remote files (such as ``s3://bucket/photos``), opened by fsspec, which only this module imports.

A folder is listed once; a file is read when its image is requested, and never written to disk. If a file cannot be
fetched, the command fails and names it, because the image itself is not bad; the backends of fsspec do the retries.
"""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, BinaryIO, Final, cast

from labelkit.data.decode import EncodedImage
from labelkit.errors import DatasetError, LabelkitError
from labelkit.formatting import join_first_few, to_one_line

# Number of bytes read ahead while an archive is listed.
_AHEAD: Final = 1 << 20
_ADDRESS: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_GO_ON: Final = "Check the file or the connection, and run the command again; it continues if it saves its progress."


def is_remote_url(text: str) -> bool:
    """Return whether a string is the URL of a remote file system, such as ``s3://bucket``."""
    return _ADDRESS.match(text) is not None


@dataclass(frozen=True, slots=True)
class FileLocation:
    """File on this machine or at a URL.

    Attributes:
        system: the fsspec file system.
        path: path in that file system.
    """

    system: Any
    path: str

    @property
    def name(self) -> str:
        """Return the file name, which is the last part of the path."""
        return PurePosixPath(self.path).name

    @property
    def stem(self) -> str:
        """Return the name of the file without its suffix."""
        return PurePosixPath(self.path).stem

    def __str__(self) -> str:
        if "file" in self.system.protocol:
            return self.path
        return str(self.system.unstrip_protocol(self.path)).replace(":///", "://")

    def read(self, start: int | None = None, stop: int | None = None) -> bytes:
        """Read the whole file, or the bytes from ``start`` up to ``stop``.

        Raises:
            DatasetError: it no longer exists, cannot be read, or ends before ``stop``.
        """
        with translate_errors(str(self)):
            content = bytes(self.system.cat_file(self.path, start=start, end=stop))
        if start is not None and stop is not None and len(content) != stop - start:
            problem = f"returned {len(content):,} bytes instead of {stop - start:,}"
            remedy = "Restore the file; if the server does not support range requests, download the file."
            raise DatasetError(str(self), problem, remedy)
        return content

    def open(self) -> BinaryIO:
        """Open the file for random-access reading; exceptions of any type may be raised."""
        return cast(BinaryIO, self.system.open(self.path, "rb", block_size=_AHEAD, cache_type="readahead"))


@dataclass(frozen=True, slots=True, eq=False)
class RemoteSource:
    """Image files at URLs, one per row."""

    files: tuple[FileLocation, ...]

    def read(self, index: int) -> EncodedImage:
        """Read the image at ``index``, or raise `DatasetError` if it cannot be fetched."""
        return EncodedImage(self.files[index].read())


def list_remote_files(address: str) -> tuple[str, list[FileLocation]]:
    """List all files under a remote folder.

    Returns:
        The path of the folder in its file system, and the files in any order.

    Raises:
        DatasetError: it does not exist, is empty, or cannot be listed, or the package for such URLs is missing.
    """
    with translate_errors(address):
        system, path = open_file_system(address)
        found = system.find(path, detail=True)
        files = [FileLocation(system, name) for name, entry in found.items() if entry.get("type") == "file"]
        if not files:
            raise FileNotFoundError
    return path.rstrip("/"), files


def match_files(argument: str, names: Iterable[str]) -> list[FileLocation]:
    """Return the files that match the given paths or URLs, sorted by name.

    Names may contain the wildcards ``*`` and ``?``; ``argument`` is what the user passed, for error messages.

    Raises:
        DatasetError: there are no files, or a named one is missing; or as for :func:`list_remote_files`.
    """
    found: dict[str, FileLocation] = {}
    missing = []
    named = list(names)
    for name in named:
        with translate_errors(name):
            system, path = open_file_system(name)
            pattern = re.search(r"[*?\[]", path) is not None
            matches = system.glob(path) if pattern and not system.isfile(path) else [path]
            matches = [one for one in matches if system.isfile(one)]
        missing += [name] * (not matches)
        found |= {one: FileLocation(system, one) for one in matches}
    if missing:
        problem = f"{len(missing)} of {len(named)} files are missing: {join_first_few(missing)}"
        raise DatasetError(argument, problem, "Check the folder and the pattern, or list fewer files.")
    return [found[name] for name in sorted(found, key=lambda one: one.encode("utf-8", "surrogateescape"))]


def open_file_system(address: str) -> tuple[Any, str]:
    """Return the file system of a URL, set up by fsspec's own configuration, and the path in it."""
    from fsspec.core import url_to_fs

    try:
        system, path = url_to_fs(address)
    except ImportError as error:
        remedy = "Run `pip install gcsfs huggingface_hub s3fs`, or install the named package."
        raise DatasetError(address, f"requires a package that is not installed: {error}", remedy) from error
    except ValueError as error:
        remedy = "Use, for example, s3://, gs://, hf://, https:// or file://."
        raise DatasetError(address, "is not a URL that fsspec supports", remedy) from error
    return system, path


@contextmanager
def translate_errors(where: str) -> Iterator[None]:
    """Inside a ``with`` block, convert all errors to a :class:`DatasetError` that names the unreadable file."""
    try:
        yield
    except LabelkitError:
        raise
    except FileNotFoundError as error:
        raise DatasetError(where, "does not exist or is empty", "Check the URL.") from error
    except PermissionError as error:
        remedy = "Check the credentials and the permissions."
        raise DatasetError(where, f"access is denied: {to_one_line(error)}", remedy) from error
    except Exception as error:  # errors of the backends have no common base class
        raise DatasetError(where, f"cannot be read: {to_one_line(error)}", _GO_ON) from error
