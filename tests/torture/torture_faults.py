"""A layer over the calls that change the disk: one of them fails, or the process stops there."""

import errno
import io
import os
from collections.abc import Callable
from typing import Any

import pytest
from labelkit.errors import LabelkitError

CALLS = (
    "open", "write", "pwrite", "fsync", "replace", "rename", "link", "unlink", "rmdir", "mkdir", "truncate",
    "ftruncate", "posix_fallocate", "lseek",
)  # fmt: skip
# fails once; stops there; stops there with half of a write done; stops there and loses what was not synced
MODES = ("ENOSPC", "EIO", "kill", "torn", "power")


class Killed(BaseException):
    """Stands for the end of the process: nothing it does afterwards reaches the disk."""


class _Raw(io.RawIOBase):
    """A file whose writes are calls of ``os``, as those of C are not."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def readinto(self, buffer: Any) -> int:
        return os.readv(self._descriptor, [buffer])

    def write(self, data: Any) -> int:
        return os.write(self._descriptor, data)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return os.lseek(self._descriptor, offset, whence)

    def truncate(self, size: int | None = None) -> int:
        assert size is not None
        os.ftruncate(self._descriptor, size)
        return size


_fdopen = os.fdopen


def _opened(descriptor: int, mode: str = "r", *args: Any, **options: Any) -> Any:
    if mode != "w+b":
        return _fdopen(descriptor, mode, *args, **options)
    return io.BufferedRandom(_Raw(descriptor))


class Disk:
    """Counts the calls that change the disk and fails one of them, or it and all later ones.

    Args:
        monkeypatch: puts the layer in place and takes it away.
        at: number of the call that fails; -1: none.
        mode: one of ``MODES``.

    Attributes:
        names: of the calls so far.
        bytes_written: by them.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at: int = -1, mode: str = "count") -> None:
        self.names: list[str] = []
        self.bytes_written = 0
        self.at, self.mode = at, mode
        self._unsynced: dict[tuple[int, int], int] = {}
        self._real = {name: getattr(os, name) for name in CALLS}
        for name in CALLS:
            monkeypatch.setattr(os, name, self._wrap(name))
        monkeypatch.setattr(os, "fdopen", _opened)

    def _wrap(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            real = self._real[name]
            if name == "open" and not args[1] & os.O_CREAT:
                return real(*args, **kwargs)
            number = len(self.names)
            self.names.append(name)
            if number == self.at and self.mode in ("ENOSPC", "EIO"):
                code = errno.EIO if name == "fsync" else getattr(errno, self.mode)
                raise OSError(code, os.strerror(code))
            if number == self.at and self.mode == "torn" and name == "write":
                real(args[0], args[1][: len(args[1]) // 2])
            if number >= self.at >= 0 and self.mode in ("kill", "torn", "power"):
                if number == self.at and self.mode == "power":
                    self._lose_unsynced()
                raise Killed
            return self._note(name, args, real(*args, **kwargs))

        return call

    def _note(self, name: str, args: tuple[Any, ...], value: Any) -> Any:
        if name in ("write", "pwrite"):
            self.bytes_written += value
        if name in ("write", "pwrite", "ftruncate", "posix_fallocate") and self.mode == "power":
            status = os.fstat(args[0])
            if (status.st_dev, status.st_ino) not in self._unsynced:
                # a descriptor of its own, so that the file is found whatever its name is then
                self._unsynced[status.st_dev, status.st_ino] = os.dup(args[0])
        if name == "fsync":
            status = os.fstat(args[0])
            kept = self._unsynced.pop((status.st_dev, status.st_ino), None)
            if kept is not None:
                os.close(kept)
        return value

    def _lose_unsynced(self) -> None:
        for descriptor in self._unsynced.values():
            self._real["ftruncate"](descriptor, os.fstat(descriptor).st_size // 2)
        self.close()

    def close(self) -> None:
        """Let go of the descriptors of files that were never synced."""
        for descriptor in self._unsynced.values():
            os.close(descriptor)
        self._unsynced.clear()


def moments_of(action: Callable[[], object], mode: str) -> list[int]:
    """Number the calls of an undisturbed run at which a fault of this mode can come; only writes can be torn."""
    with pytest.MonkeyPatch.context() as patch:
        disk = Disk(patch)
        action()
    return [number for number, name in enumerate(disk.names) if mode != "torn" or name == "write"]


def fail(action: Callable[[], object], at: int, mode: str) -> type[BaseException] | None:
    """Run an action with a fault; return what it ended with: ``Killed``, an error with a remedy, or nothing.

    Any other exception comes through: it would be a bug to the user.
    """
    with pytest.MonkeyPatch.context() as patch:
        disk = Disk(patch, at, mode)
        try:
            action()
        except (Killed, LabelkitError) as error:
            return type(error)
        finally:
            disk.close()
    return None
