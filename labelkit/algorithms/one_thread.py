"""Run numpy's linear algebra in the calling thread, without BLAS threads."""

import functools
import sys
import threading
from types import TracebackType
from typing import Any

from threadpoolctl import ThreadpoolController


def _find_libraries() -> ThreadpoolController:
    """Return the loaded BLAS libraries: numpy loads its own, scipy adds another."""
    return _loaded_libraries("scipy.linalg" in sys.modules)


@functools.cache
def _loaded_libraries(with_scipy: bool) -> ThreadpoolController:
    # searching for them takes milliseconds
    return ThreadpoolController().select(user_api="blas")


class _OneThread:
    """Thread limit shared by all ``with`` blocks of a process: the first sets it, the last lifts it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._limit: Any = None

    def __enter__(self) -> None:
        with self._lock:
            if not self._users:
                self._limit = _find_libraries().limit(limits=1)
            self._users += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._users -= 1
            if not self._users:
                self._limit.restore_original_limits()


one_blas_thread = _OneThread()
"""``with one_blas_thread:`` limits the BLAS libraries of numpy and scipy to one thread, in the whole process.

Threads that each process their own rows call BLAS at the same time. If BLAS used threads of its own, they would
busy-wait for each other after every product of microseconds: with other work on the machine, 17 regressions of 200 rows
took five times the CPU time, and no less wall time. ``with`` blocks of several threads may overlap.
"""
