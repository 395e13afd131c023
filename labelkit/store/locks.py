"""Locks of files that the system releases when their process ends, however it ends; on POSIX systems and on Windows."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from labelkit.reading import open_regular

_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)


def _module(name: str) -> Any:
    with suppress(ImportError):
        return import_module(name)
    return None


_fcntl, _msvcrt = _module("fcntl"), _module("msvcrt")


def try_lock(descriptor: int) -> bool:
    """Lock an open file for this process alone; ``False``: another one holds it.

    Some network file systems have no locks: there everybody gets one, which is harmless, as what two write is equal.

    Raises:
        OSError: the system reports a failure.
    """
    return _locked(descriptor, shared=False)


def is_locked(path: Path) -> bool:
    """Say whether a process holds a lock file; nothing is written, and a process that wants it just now waits.

    Raises:
        OSError: the file cannot be opened.
    """
    if not path.is_file():
        return False
    with open_regular(path) as file:
        return not _locked(file.fileno(), shared=True)


def _locked(descriptor: int, *, shared: bool) -> bool:
    if _fcntl is not None:
        try:
            _fcntl.flock(descriptor, (_fcntl.LOCK_SH if shared else _fcntl.LOCK_EX) | _fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
    elif _msvcrt is not None:
        os.lseek(descriptor, 0, os.SEEK_SET)
        try:
            _msvcrt.locking(descriptor, _msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        if shared:
            _msvcrt.locking(descriptor, _msvcrt.LK_UNLCK, 1)
    return True
