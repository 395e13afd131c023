"""The folder for files that labelkit can create again."""

import contextlib
import os
import time
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

Arrays = TypeVar("Arrays", bound=tuple[NDArray[Any], ...])

_MIN_NUMBERS = 1 << 20
#: Days that results are kept after they were used last.
_DAYS_KEPT = 7


def cache_folder() -> Path:
    """Return the user's cache folder, which may not exist yet.

    It is ``$LABELKIT_CACHE``, else ``$XDG_CACHE_HOME/labelkit``, else ``~/.cache/labelkit``.
    """
    named = os.environ.get("LABELKIT_CACHE")
    if named:
        return Path(named).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base).expanduser() if base else Path.home() / ".cache") / "labelkit"


def remember(function: Callable[..., Arrays], rows: NDArray[Any], *arguments: object) -> Arrays:
    """Return ``function(rows, *arguments)``, from the cache folder if an earlier call had equal arguments.

    Args:
        function: of a module; returns a tuple of arrays that depend on nothing but the arguments. Results of another
            version of labelkit are not taken: while you change a function, empty the folder.
        rows: (n, d); with fewer than a million numbers, nothing is kept.
        arguments: numbers and texts.
    """
    if rows.size < _MIN_NUMBERS:
        return function(rows, *arguments)
    (path,) = result_files("computed", function, (rows, *arguments))
    kept = read_arrays(path)
    if kept is not None:
        return cast(Arrays, kept)
    found = function(rows, *arguments)
    write_arrays(path, found)
    return found


def result_files(kind: str, function: Callable[..., object], arguments: object, count: int = 1) -> list[Path]:
    """Return the files that cache a call's results, named by a digest of its inputs; delete those unused for a week.

    Args:
        kind: name of their folder.
        function: of a module, or a ``partial`` of one.
        arguments: read once, however many files there are.
        count: of results.
    """
    import joblib

    from labelkit import __version__

    folder = cache_folder() / kind
    for file in folder.glob("*"):  # also the temporary ones of processes that were killed
        with contextlib.suppress(OSError):
            if time.time() - file.stat().st_mtime > _DAYS_KEPT * 86400:
                file.unlink()
    digest = joblib.hash((__version__, function, arguments))
    return [folder / f"{digest}-{part}.npz" for part in range(count)]


def read_arrays(path: Path) -> tuple[NDArray[Any], ...] | None:
    """Return the arrays in a file, or ``None`` if there is no complete file."""
    try:
        with path.open("rb") as file, np.load(file) as arrays:
            found = tuple(arrays.values())
        os.utime(path)
    except (OSError, EOFError, ValueError, zipfile.BadZipFile):
        return None
    return found


def write_arrays(path: Path, arrays: Sequence[ArrayLike]) -> bool:
    """Write arrays to a file atomically, and return whether that was possible."""
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            np.savez(file, *arrays)
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        return False
    return True
