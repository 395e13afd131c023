"""Open files that another process wrote: a child process meets them first.

A damaged HDF5 file can crash or hang the HDF5 library itself; the child has limits on time and memory, and
this process reports "damaged" instead of dying.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import IO, BinaryIO

from labelkit import errors, reading
from labelkit.errors import Damaged, LabelkitError, NotAStore, StoreError, resource_error
from labelkit.store.digests import RESTORE
from labelkit.store.hdf5.reading import CheckedFile
from labelkit.store.shards import Shards

_CHILD_SECONDS = 10.0
_CHILD_SECONDS_PER_BYTE = 2.0 / (1 << 30)
_CHILD_BYTES = 512 << 20
_CHILD_START_SECONDS = 120.0

_Identity = tuple[int, int, int, int]

# (device, inode, size, time of change) of files that this process wrote or has had checked, oldest first.
_harmless: dict[_Identity, None] = {}
_MOST_HARMLESS = 4096
"""Beyond these the oldest are forgotten, so that a process that writes files for months does not grow."""


def _identity(status: os.stat_result) -> _Identity:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def trust(path: Path) -> None:
    """Note that this process wrote a file, so that opening it needs no child process."""
    _note(_identity(path.stat()))


def _note(identity: _Identity) -> None:
    _harmless.pop(identity, None)
    _harmless[identity] = None
    while len(_harmless) > _MOST_HARMLESS:
        with suppress(KeyError, RuntimeError, StopIteration):  # another thread was faster
            del _harmless[next(iter(_harmless))]


def open_file(path: Path, file_format: str | None) -> CheckedFile:
    """Open a file and check everything about it but large arrays.

    A file that this process did not write is checked in a child process with limits on time and memory
    first, since a damaged file can crash or hang HDF5 itself. Shards of a store are read without HDF5.

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
        identity = _identity(os.fstat(handle.fileno()))
        if identity not in _harmless:
            _check_in_child(handle, str(path), file_format)
            _note(identity)
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
        made = f"A store is made by `labelkit embed --dataset DATA --out {path}`."
        raise NotAStore(str(path), "there is no such file", f"{reading.check_the_name(path)} {made}") from error
    except OSError as error:
        raise resource_error(error, str(path)) from error


def _check_in_child(handle: BinaryIO, where: str, file_format: str | None) -> None:
    size = os.fstat(handle.fileno()).st_size
    seconds = _CHILD_SECONDS + size * _CHILD_SECONDS_PER_BYTE
    raise_verdict(run_in_child(handle, where, "labelkit.store.foreign.check", [file_format or "any"], seconds), where)


def run_in_child(
    handle: BinaryIO, where: str, module: str, arguments: list[str], seconds: float, output: IO[bytes] | None = None
) -> bytes:
    """Let a process of its own meet a file, with limits on time and memory.

    Args:
        handle: the file; it becomes the standard input of ``python -m MODULE ARGUMENTS... SECONDS BYTES``.
        where: how messages call the file.
        module: of labelkit, see ``labelkit.store.foreign.check``.
        arguments: its first arguments.
        seconds: allowed time; bytes allowed are 512 MiB and twice the file.
        output: takes its standard output, instead of this function.

    Returns:
        What it wrote to standard output; to standard error where ``output`` is given. It ended with status 0.

    Raises:
        Damaged: it took too long, or crashed.
        ResourceError: it cannot be started.
    """
    command = [
        sys.executable,
        "-P",
        "-m",
        module,
        *arguments,
        str(seconds),
        str(_CHILD_BYTES + 2 * os.fstat(handle.fileno()).st_size),
    ]
    environment = {
        **os.environ,
        # The child imports what this process would, not what the current folder offers.
        "PYTHONPATH": os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path),
        "OPENBLAS_NUM_THREADS": "1",
        "HDF5_PLUGIN_PRELOAD": "::",  # no filter plugins
    }
    handle.seek(0)
    try:
        child = subprocess.run(
            command,
            stdin=handle,
            stdout=subprocess.PIPE if output is None else output,
            stderr=subprocess.PIPE,
            env=environment,
            timeout=_CHILD_START_SECONDS + seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise Damaged(where, f"checking it did not end within {seconds:.0f} s", RESTORE) from error
    except OSError as error:
        raise resource_error(error, "the process that checks files") from error
    if child.returncode == -getattr(signal, "SIGALRM", -1):
        raise Damaged(where, f"checking it did not end within {seconds:.0f} s", RESTORE)
    if child.returncode < 0:
        raise Damaged(where, f"HDF5 crashed on it (signal {-child.returncode})", RESTORE)
    if child.returncode > 0:
        message = child.stderr.decode("utf-8", "replace").strip()[-2000:]
        raise RuntimeError(f"the process that checks files failed with status {child.returncode}: {message}")
    return child.stderr if child.stdout is None else child.stdout


def raise_verdict(answer: bytes, where: str) -> None:
    """Raise the error that such a process found, if it found one.

    Raises:
        StoreError: it did.
    """
    try:
        verdict = json.loads(answer)
    except ValueError as error:
        raise RuntimeError(f"the process that checks files answered {answer[-2000:]!r}") from error
    if verdict["error"] is not None:
        kind = getattr(errors, verdict["error"])
        if not (isinstance(kind, type) and issubclass(kind, StoreError)):
            raise RuntimeError(f"the process that checks files answered {verdict['error']!r}")
        raise kind(where + verdict["where"], verdict["problem"], verdict["remedy"])


def check_together(paths: Iterable[Path]) -> None:
    """Check files that will be opened soon, each by a child process, at the same time.

    What is wrong with one is said when it is opened.
    """

    def check(path: Path) -> None:
        with suppress(LabelkitError), open_regular(path) as handle:
            identity = _identity(os.fstat(handle.fileno()))
            if identity not in _harmless:
                _check_in_child(handle, str(path), None)
                _note(identity)

    threads = [Thread(target=check, args=(path,)) for path in paths]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
