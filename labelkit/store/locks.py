"""Locks of files that the system releases when their process ends, however it ends; portalocker asks the system."""

from __future__ import annotations

import errno
from pathlib import Path

import portalocker
from portalocker import LockFlags

from labelkit.files import open_regular

_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)


def try_lock(descriptor: int) -> bool:
    """Lock an open file for this process alone; ``False``: another one holds it.

    Some network file systems have no locks: there everybody gets one, which is harmless, as what two write is equal.

    Raises:
        OSError: the system reports a failure.
    """
    return _locked(descriptor, LockFlags.EXCLUSIVE)


def is_locked(path: Path) -> bool:
    """Say whether a process holds a lock file; nothing is written, and a process that wants it just now waits.

    Raises:
        OSError: the file cannot be opened.
    """
    if not path.is_file():
        return False
    with open_regular(path) as file:
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
