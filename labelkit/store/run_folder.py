"""What the runs that make large files have in common: a folder with a plan, its lock, free space, the last step."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from labelkit.errors import BusyError, Damaged, Mismatch, ResourceError, resource_error
from labelkit.files import NotRegularError, read_json
from labelkit.store.commit import fsync_folder, is_locked, try_lock
from labelkit.store.embeddings import differing_keys

LOCK_SECONDS = 2.0
_WORKER_SECONDS = 60.0
_LEFT_SECONDS = 60.0


def read_plan(folder: Path) -> dict[str, Any] | None:
    """Read ``plan.json`` of a run folder; ``None`` if there is none.

    Raises:
        Damaged: it is no plan.
        ResourceError: it cannot be read.
    """
    path = folder / "plan.json"
    try:
        loaded = read_json(path)
    except FileNotFoundError:
        return None
    except (NotRegularError, ValueError):
        loaded = None
    except OSError as error:
        raise resource_error(error, str(path)) from error
    if not isinstance(loaded, dict):
        problem = "is not a plan, the file was changed or the disk is failing"
        raise Damaged(str(path), problem, "Delete the run folder.")
    return loaded


def compare_plans(folder: Path, loaded: dict[str, Any] | None, own: dict[str, Any]) -> None:
    """Refuse to go on with a run of another plan.

    Raises:
        Mismatch: the plan in the folder is not ours; names the keys.
    """
    if loaded is not None and loaded != own:
        keys = ", ".join(differing_keys(loaded, own))
        remedy = "Repeat the first command to go on with it, or pass --overwrite to drop it and start over."
        raise Mismatch(str(folder), f"an unfinished run differs in: {keys}", remedy)


def check_space(folder: Path, needed: int, out: Path, what: str) -> None:
    """Check that parts and result will fit, what is there already deducted.

    Args:
        folder: of the run.
        needed: bytes of all parts and all that is made of them.
        out: where the result goes.
        what: what is needed, for the message.

    Raises:
        ResourceError: less is free.
    """
    with translated(folder):
        free = shutil.disk_usage(next(place for place in (folder, *folder.resolve().parents) if place.exists())).free
        there = sum(size_of(path) for path in (folder / "parts").glob("*.h5"))
    needed -= there
    if free < needed:
        problem = f"{free / 1e6:.1f} MB free where this run needs {needed / 1e6:.1f} MB ({what})"
        raise ResourceError(str(out.parent), problem, "Free some space or choose another --out.")


def size_of(path: Path) -> int:
    """Return the bytes of a file, 0 if it is gone."""
    try:
        return path.stat().st_size
    except FileNotFoundError:  # another worker renamed it just now
        return 0


@contextlib.contextmanager
def translated(place: Path) -> Iterator[None]:
    """Turn what the system reports into what a user can act on."""
    try:
        yield
    except OSError as error:
        raise resource_error(error, str(place)) from error


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[bool]:
    """Hold the lock of a run folder; the system lets go of it when the process ends, however it ends.

    Gives whether the folder is still there: the one who had the lock before may have removed it.

    Raises:
        BusyError: a live process holds it for longer than a moment.
        ResourceError: the lock file cannot be made.
    """
    with translated(folder):
        descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o666)
    try:
        _wait_for_lock(descriptor, folder)
        yield _is_same_file(descriptor, folder / "lock")
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def working(folder: Path) -> Iterator[None]:
    """Be counted as a process that makes parts, until the block ends or the process does.

    Raises:
        ResourceError: the file cannot be made.
    """
    path = folder / f"worker-{os.getpid()}-{secrets.token_hex(4)}.lock"
    with translated(folder):
        for left in folder.glob("worker-*.lock"):
            with contextlib.suppress(OSError):  # its process ended just now
                if not is_locked(left) and time.time() - left.stat().st_mtime > _WORKER_SECONDS:
                    left.unlink(missing_ok=True)  # of a process that was killed
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        try_lock(descriptor)
        yield
    finally:
        os.close(descriptor)
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def count_workers(folder: Path) -> int:
    """Return how many processes make parts of a run now."""
    found = 0
    for path in folder.glob("worker-*.lock"):
        with contextlib.suppress(OSError):  # it ended just now
            found += is_locked(path)
    return found


def remove_leftovers(folder: Path) -> None:
    """Remove temporary files of writers that were killed: their process is gone, and a minute has passed."""
    import psutil  # servers need it, what only opens a store does not

    for left in folder.glob(".tmp-*"):
        found = re.fullmatch(r"\.tmp-(\d+)-[0-9a-f]{16}", left.name)
        with contextlib.suppress(OSError):  # another one removes it just now
            old = time.time() - left.stat().st_mtime > _LEFT_SECONDS
            if found is not None and old and not psutil.pid_exists(int(found[1])):
                left.unlink(missing_ok=True)


def _is_same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _wait_for_lock(descriptor: int, folder: Path) -> None:
    deadline = time.monotonic() + LOCK_SECONDS
    with translated(folder):
        while not try_lock(descriptor):
            if time.monotonic() > deadline:
                problem = "another process is working on this output"
                raise BusyError(str(folder), problem, "Wait for it to end, or choose another output.")
            time.sleep(0.02)


def clear(folder: Path, *, keep_lock: bool = False) -> None:
    """Remove a run folder; the plan goes last, so that what a kill leaves still says what it is.

    Raises:
        ResourceError: something in it cannot be removed.
    """
    last = ["plan.json"] if keep_lock else ["plan.json", "lock"]
    with translated(folder):
        if (folder / "parts").exists():
            shutil.rmtree(folder / "parts")
        for entry in sorted(folder.iterdir()):
            if entry.name not in ("plan.json", "lock"):
                entry.unlink()
        for name in last:
            (folder / name).unlink(missing_ok=True)
        if not keep_lock:
            folder.rmdir()
    if not keep_lock:
        fsync_folder(folder.parent)
