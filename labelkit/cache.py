"""The user's cache folder, for files that labelkit can recreate."""

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

_MIN_VALUES = 1 << 20
#: Number of days after the last use until results are deleted.
_MAX_AGE_DAYS = 7


def cache_folder() -> Path:
    """Return the user's cache folder, which may not exist yet.

    It is ``$LABELKIT_CACHE``, otherwise ``$XDG_CACHE_HOME/labelkit``, otherwise ``~/.cache/labelkit``.
    """
    named = os.environ.get("LABELKIT_CACHE")
    if named:
        return Path(named).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base).expanduser() if base else Path.home() / ".cache") / "labelkit"


def call_cached(function: Callable[..., Arrays], rows: NDArray[Any], *arguments: object) -> Arrays:
    """Return ``function(rows, *arguments)``, read from the cache if it was called with the same arguments before.

    Args:
        function: module-level function that returns a tuple of arrays that depend only on the arguments. The cache is
            specific to the version of labelkit; empty it when you change the function.
        rows: (n, d); results for fewer than about a million values are not cached.
        arguments: numbers and strings.
    """
    if rows.size < _MIN_VALUES:
        return function(rows, *arguments)
    (path,) = cache_files("computed", function, (rows, *arguments))
    cached = read_arrays(path)
    if cached is not None:
        return cast(Arrays, cached)
    result = function(rows, *arguments)
    write_arrays(path, result)
    return result


def cache_files(kind: str, function: Callable[..., object], arguments: object, count: int = 1) -> list[Path]:
    """Return the paths of a call's cache files, named by a digest of its inputs; delete files unused for a week.

    Args:
        kind: name of the folder in the cache folder.
        function: module-level function, or a ``partial`` of one.
        arguments: arguments of the call, which are hashed once for all files.
        count: number of files.
    """
    import joblib

    from labelkit import __version__

    folder = cache_folder() / kind
    for file in folder.glob("*"):  # including temporary files of killed processes
        with contextlib.suppress(OSError):
            if time.time() - file.stat().st_mtime > _MAX_AGE_DAYS * 86400:
                file.unlink()
    digest = joblib.hash((__version__, function, arguments))
    return [folder / f"{digest}-{part}.npz" for part in range(count)]


def read_arrays(path: Path) -> tuple[NDArray[Any], ...] | None:
    """Read the arrays in a file; return ``None`` if it is missing or incomplete."""
    try:
        with path.open("rb") as file, np.load(file) as arrays:
            found = tuple(arrays.values())
        os.utime(path)
    except (OSError, EOFError, ValueError, zipfile.BadZipFile):
        return None
    return found


def write_arrays(path: Path, arrays: Sequence[ArrayLike]) -> bool:
    """Write arrays to a file atomically; return whether this succeeded."""
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
