"""Files at an address, such as ``s3://bucket/photos`` or ``hf://datasets/owner/name/train.parquet``: by fsspec.

A folder is listed once; a file is read when its image is asked for, and never written to the disk. A read that fails
or brings other than the listed number of bytes is tried again; what fails each time ends the command with the name, for
a file that could not be fetched is not a bad image. The one import of fsspec.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import PurePosixPath
from typing import Any, BinaryIO, Final, TypeVar, cast

from labelkit.data.decode import MAX_FILE_BYTES, BadImage, EncodedImage
from labelkit.errors import DatasetError

ATTEMPTS: Final = 3
_WAITS: Final = (0.5, 2.0)
# Files whose sizes are asked for at a time, where a listing does not have them.
_ASKED_AT_ONCE: Final = 16
# Bytes that are read ahead while an archive is listed.
_AHEAD: Final = 1 << 20
_ADDRESS: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_OF_THE_EXTRA: Final = ("s3", "s3a", "gs", "gcs", "hf", "http", "https")
_GO_ON: Final = "Check the connection and call the same command again; one that keeps its work goes on."

T = TypeVar("T")


def is_address(text: str) -> bool:
    """Return whether a text is the address of a remote file system, such as ``s3://bucket``."""
    return _ADDRESS.match(text) is not None


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """File on a remote file system.

    Attributes:
        protocol: of the file system, such as ``s3``.
        path: as that file system names it.
        size: bytes when it was listed.
    """

    protocol: str
    path: str
    size: int

    @property
    def name(self) -> str:
        """Name of the file, the last part of its path."""
        return PurePosixPath(self.path).name

    @property
    def suffix(self) -> str:
        """Suffix of the file name, with its dot."""
        return PurePosixPath(self.path).suffix

    def __str__(self) -> str:
        """Return the address; paths of HTTP are addresses."""
        return self.path if is_address(self.path) else f"{self.protocol}://{self.path.lstrip('/')}"

    def read(self, start: int, stop: int) -> bytes:
        """Read the bytes from ``start`` up to ``stop``, retrying if the transfer fails.

        Raises:
            FileNotFoundError: the file is gone.
            DatasetError: it may not be read, or cannot in several attempts.
        """
        system = _system(self.protocol)

        def part() -> bytes:
            whole = (start, stop) == (0, self.size)
            content = system.cat_file(self.path, **({} if whole else {"start": start, "end": stop}))
            if len(content) == self.size > stop - start:
                problem = "the server sends the whole file when only a part is requested"
                raise DatasetError(str(self), problem, "Download it to a local folder.")
            if len(content) != stop - start:
                raise OSError(f"{len(content):,} bytes came where {stop - start:,} are listed")
            return bytes(content)

        return _persistently(part, str(self))

    def open(self) -> BinaryIO:
        """Open the file for reading with random access."""
        from fsspec.spec import AbstractBufferedFile

        opened = AbstractBufferedFile(None, self.path, block_size=_AHEAD, cache_type="readahead", size=self.size)
        opened.cache.fetcher = self.read
        return cast(BinaryIO, opened)


@dataclass(frozen=True, slots=True, eq=False)
class RemoteSource:
    """Image files on remote file systems.

    Attributes:
        files: one for each row.
    """

    files: tuple[RemoteFile, ...]

    def read(self, index: int) -> EncodedImage:
        """Read the image at ``index``. Raises :class:`BadImage`, or `DatasetError` if it cannot be fetched."""
        file = self.files[index]
        if file.size > MAX_FILE_BYTES:
            raise BadImage(f"file of {file.size:,} bytes is above the limit of {MAX_FILE_BYTES:,}")
        if file.size == 0:
            raise BadImage("empty file")
        try:
            return EncodedImage(file.read(0, file.size))
        except FileNotFoundError as error:
            raise BadImage("the file is gone") from error


def find_files(address: str) -> tuple[str, list[RemoteFile]]:
    """List all files below a remote folder.

    Returns:
        The path of the folder as its file system names it, and the files, in any order.

    Raises:
        DatasetError: nothing is there, it may not be listed, or the package for such addresses is not installed.
    """
    system, protocol, path = _opened(address)
    found = _persistently(lambda: system.find(path, detail=True), address, gone_is_fault=True)
    entries = {name: entry for name, entry in found.items() if entry.get("type") == "file"}
    if not entries:
        raise DatasetError(address, "the folder does not exist or is empty", "Check the address.")
    unsized = [name for name, entry in entries.items() if entry.get("size") is None]
    if unsized:  # a page of links says no sizes
        with ThreadPoolExecutor(_ASKED_AT_ONCE) as pool:
            told = pool.map(lambda name: _persistently(lambda: system.info(name), name), unsized)
            entries |= dict(zip(unsized, told, strict=True))
    return path, [_file(protocol, name, entry) for name, entry in entries.items()]


def expand_addresses(text: str, names: Sequence[str], is_pattern: Callable[[str], bool]) -> list[RemoteFile]:
    """Return the remote files that addresses or patterns stand for, sorted by name.

    Args:
        text: as the user wrote it, for messages.
        names: addresses; ``*`` and ``?`` in one stand for what is there.
        is_pattern: whether an address has such signs.

    Raises:
        DatasetError: none, or one that is named is not there; or as for :func:`find_files`.
    """
    found: dict[str, RemoteFile] = {}
    missing = []
    for name in names:
        system, protocol, path = _opened(name)
        entries = _persistently(lambda at=path, fs=system: _entries(fs, at, is_pattern(at)), name)  # type: ignore[misc]
        missing += [name] * (not entries)
        found |= {place: _file(protocol, place, entry) for place, entry in entries.items()}
    if missing:
        shown = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
        raise DatasetError(text, f"{len(missing)} of {len(names)} files are missing: {shown}", "Check the address.")
    return [found[name] for name in sorted(found, key=str.encode)]


def _entries(system: Any, path: str, is_pattern: bool) -> dict[str, Any]:
    if is_pattern:
        found: dict[str, Any] = system.glob(path, detail=True)
        return {name: entry for name, entry in found.items() if entry.get("type") == "file"}
    try:
        return {path: system.info(path)}
    except FileNotFoundError:
        return {}


def _file(protocol: str, path: str, entry: dict[str, Any]) -> RemoteFile:
    size = entry.get("size")
    if not isinstance(size, int):
        problem = "does not state its size, so incomplete downloads could not be detected"
        raise DatasetError(str(RemoteFile(protocol, path, 0)), problem, "Download it to a local folder.")
    return RemoteFile(protocol, path, size)


def _opened(address: str) -> tuple[Any, str, str]:
    """File system, its protocol, and the path in it."""
    protocol = address.partition("://")[0].lower()
    system = _system(protocol)
    return system, protocol, str(system._strip_protocol(address)).rstrip("/")


@cache
def _system(protocol: str) -> Any:
    """Return the file system of a protocol, with the settings of fsspec and of its package."""
    import fsspec

    where = f"{protocol}://"
    try:
        return fsspec.filesystem(protocol)
    except ImportError as error:
        remedy = "pip install gcsfs huggingface_hub s3fs." if protocol in _OF_THE_EXTRA else "Install it."
        raise DatasetError(where, f"needs a package: {error}", remedy) from error
    except ValueError as error:
        known = "s3, gs, hf, http, https, file"
        raise DatasetError(where, "is not an address that fsspec supports", f"Use, for example, {known}.") from error


def _persistently(work: Callable[[], T], where: str, *, gone_is_fault: bool = False) -> T:
    """Try several times.

    Raises:
        FileNotFoundError: there is no such file, unless that is a fault.
        DatasetError: no permission, or it failed each time.
    """
    for attempt in range(ATTEMPTS):
        try:
            return work()
        except DatasetError:
            raise
        except FileNotFoundError as error:
            if not gone_is_fault:
                raise
            raise DatasetError(where, "the folder does not exist or is empty", "Check the address.") from error
        except PermissionError as error:
            problem = f"may not be read: {_reason(error)}"
            raise DatasetError(where, problem, "Check the credentials and the permissions of the bucket.") from error
        except Exception as error:  # those of the packages have no class in common
            if attempt == ATTEMPTS - 1:
                problem = f"cannot be read in {ATTEMPTS} attempts: {_reason(error)}"
                raise DatasetError(where, problem, _GO_ON) from error
            time.sleep(_WAITS[attempt])
    raise AssertionError("unreachable: the last attempt returns or raises")


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())[:200]
    return text or type(error).__name__
