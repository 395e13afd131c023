"""Commit files and folders: they appear under their final name, complete and durable, or not at all.

The protocol: write to a new temporary file in the same folder, fsync it, rename it, fsync the
folder. A failed fsync is final: the temporary file is deleted and the error is reported, because a
second fsync of the same file may report success for lost bytes.
"""

import contextlib
import errno
import hashlib
import json
import os
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import portalocker
from portalocker import LockFlags

from labelkit.errors import convert_os_error, output_exists_error
from labelkit.files import open_regular_file

_SURROGATE = re.compile("[\ud800-\udfff]")
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK)


def canonical_json(obj: object) -> str:
    r"""Serialize an object to canonical JSON: sorted keys, no spaces, no NaN.

    The text can always be encoded as UTF-8: bytes of a file name that are not UTF-8 (surrogate escapes)
    are written as ``\udcXX``, and parsing the text restores them.

    Raises:
        ValueError: a number is not finite.
        TypeError: a value cannot be represented in JSON.
    """
    text = json.dumps(obj, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    # decode escaped bytes that form valid UTF-8, which a locale could not represent
    with contextlib.suppress(UnicodeEncodeError):  # a lone surrogate that does not stand for a byte
        text = text.encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape")
    return _SURROGATE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def json_digest(obj: object) -> str:
    """Return the SHA-256 of an object's canonical JSON as 64 hexadecimal digits."""
    return hashlib.sha256(canonical_json(obj).encode()).hexdigest()


def to_plain_json(obj: Mapping[str, object]) -> dict[str, Any]:
    """Convert an object to plain JSON values by serializing and parsing it; for example, tuples become lists."""
    return dict(json.loads(canonical_json(dict(obj))))


@contextlib.contextmanager
def translate_os_errors(path: str | os.PathLike[str]) -> Iterator[None]:
    """Inside a ``with`` block, convert operating-system errors to errors with a remedy for the user."""
    try:
        yield
    except OSError as error:
        raise convert_os_error(error, os.fspath(path)) from error


def fsync_folder(path: str | os.PathLike[str]) -> None:
    """Sync a folder to disk, if the system supports it, so that the file names in it are durable."""
    if os.name == "nt":
        return
    with translate_os_errors(path):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        except OSError as error:
            # Some network file systems refuse to sync a folder and are then responsible for its names.
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):
                raise
        finally:
            os.close(descriptor)


def temporary_name() -> str:
    """Return a unique name for a temporary file, in the form ``.tmp-<pid>-<random>``."""
    return f".tmp-{os.getpid()}-{secrets.token_hex(8)}"


def move_into_place(temporary: Path, path: Path, *, replace: bool) -> None:
    """Rename a complete, synced temporary file to its final name, and make the name durable.

    If ``path`` exists and ``replace`` is false, a ``FileExistsError`` is raised and nothing is changed.
    """
    if replace:
        temporary.replace(path)
    else:
        try:
            path.hardlink_to(temporary)
        except (OSError, NotImplementedError, AttributeError) as error:
            if isinstance(error, OSError) and error.errno not in _NO_LINKS:
                raise
            # Hard links are unavailable. A writer that does not hold our lock may create the file between the check
            # and the rename; both files are complete.
            if path.exists():
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from error
            temporary.replace(path)
        else:
            temporary.unlink()
    fsync_folder(path.parent)


def commit_bytes(
    path: str | os.PathLike[str], data: bytes | bytearray | memoryview | Iterable[bytes], *, replace: bool = True
) -> str:
    """Write bytes to a file atomically and durably, and return their SHA-256 as 64 hexadecimal digits.

    The folder must exist. ``data`` is the content, whole or in chunks. If the file exists and ``replace`` is false, an
    ``OutputExistsError`` is raised; a full disk raises a ``ResourceError``. No temporary file remains.
    """
    digest = hashlib.sha256()

    def fill(file: BinaryIO) -> None:
        for chunk in [data] if isinstance(data, bytes | bytearray | memoryview) else data:
            digest.update(chunk)
            file.write(chunk)

    commit_file(path, fill, replace=replace)
    return digest.hexdigest()


def commit_file(
    path: str | os.PathLike[str],
    write: Callable[[BinaryIO], object],
    *,
    replace: bool = True,
    temporary: Path | None = None,
) -> None:
    """Write a file atomically and durably by calling ``write`` with the file, open for random reading and writing.

    See ``commit_bytes`` for errors. ``temporary`` is an unused path on the same file system, by default in its folder.
    """
    temporary = temporary or Path(path).parent / temporary_name()
    try:
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
        try:
            with os.fdopen(descriptor, "w+b", closefd=False) as file:
                write(file)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        move_into_place(temporary, Path(path), replace=replace)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, FileExistsError):
            raise output_exists_error(path) from error
        if isinstance(error, OSError):
            raise convert_os_error(error, str(path)) from error
        raise


def commit_json(path: str | os.PathLike[str], obj: object) -> str:
    """Write an object as canonical JSON with a final line break atomically, and return the SHA-256 of the file."""
    return commit_bytes(path, (canonical_json(obj) + "\n").encode())


def commit_folder(tmp_dir: str | os.PathLike[str], final_dir: str | os.PathLike[str]) -> None:
    """Sync every file and folder in ``tmp_dir``, rename ``tmp_dir`` to ``final_dir``, and sync the parent folder.

    Both must be on the same file system. ``final_dir`` must not exist, or be an empty folder. After a failure,
    ``tmp_dir`` remains, and the caller must remove it.
    """
    source, target = Path(tmp_dir), Path(final_dir)
    with translate_os_errors(target):
        for path in sorted(source.rglob("*"), reverse=True):
            if path.is_dir():
                fsync_folder(path)
                continue
            # Windows can only sync files that are open for writing.
            descriptor = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        fsync_folder(source)
        source.replace(target)
    fsync_folder(target.parent)


_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)


def try_lock(descriptor: int) -> bool:
    """Try to lock an open file for this process, and return whether this succeeded.

    On network file systems without locks, every call succeeds, which is harmless because all writers write the same.
    """
    return _locked(descriptor, LockFlags.EXCLUSIVE)


def is_locked(path: Path) -> bool:
    """Return whether any process holds the lock on a file; processes that request it during the check have to wait."""
    if not path.is_file():
        return False
    with open_regular_file(path) as file:
        return not _locked(file.fileno(), LockFlags.SHARED)


def _locked(descriptor: int, kind: LockFlags) -> bool:
    try:
        portalocker.lock(descriptor, kind | LockFlags.NON_BLOCKING)
    except portalocker.AlreadyLocked:
        return False
    except portalocker.LockException as error:
        cause = error.__cause__
        if not isinstance(cause, OSError):
            raise OSError(errno.EIO, f"cannot be locked: {error}") from error
        if cause.errno not in _NO_LOCKS:
            raise cause from None
    return True
