"""Check the file on standard input, as a process of its own.

Usage: ``python -m labelkit.store.foreign.check FORMAT SECONDS BYTES``.

A damaged HDF5 file can crash or hang the HDF5 library, so ``labelkit.store.opening.open_file`` lets
this process meet it first. It writes one JSON object: ``error`` (the class, or null), ``where`` (what follows
the name of the file), ``problem``, ``remedy``.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable

from labelkit.errors import Damaged, StoreError
from labelkit.sandbox import confine
from labelkit.store.hdf5.reading import CheckedFile


def limit(seconds: float, size: int) -> None:
    """Let the system end this process, also while it is inside a C function, after ``seconds``."""
    if hasattr(signal, "setitimer"):
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, seconds)
    if sys.platform == "linux":
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (size, size))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def verdict_of(check: Callable[[], None]) -> str:
    """Return what a check found, as JSON."""
    try:
        try:
            check()
        except MemoryError as error:
            problem = "checking it needs more memory than a file of this size should"
            raise Damaged("", problem, "Restore the file from a copy or make it again with --overwrite") from error
    except StoreError as error:
        found = {"error": type(error).__name__, "where": error.where, "problem": error.problem, "remedy": error.remedy}
        return json.dumps(found)
    return json.dumps({"error": None})


def main() -> None:
    """Check standard input and write the verdict to standard output."""
    name, seconds, size = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
    limit(seconds, size)
    confine()
    handle = os.fdopen(0, "rb", buffering=0, closefd=False)

    def check() -> None:
        with CheckedFile(handle, "", None if name == "any" else name) as file:
            file.read_chunked()

    sys.stdout.write(verdict_of(check))


if __name__ == "__main__":
    main()
