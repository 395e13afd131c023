"""Products of numpy's linear algebra by the thread that asks for them, without threads of the library's own."""

from __future__ import annotations

import functools
import threading
from types import TracebackType
from typing import Any

from threadpoolctl import ThreadpoolController


@functools.cache
def _libraries() -> ThreadpoolController:
    # to look for the loaded libraries takes milliseconds; numpy's is loaded with it
    return ThreadpoolController().select(user_api="blas")


class _OneThread:
    """The limit that all blocks of a process share: set by the first, taken back by the last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._limit: Any = None

    def __enter__(self) -> None:
        with self._lock:
            if not self._users:
                self._limit = _libraries().limit(limits=1)
            self._users += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._users -= 1
            if not self._users:
                self._limit.restore_original_limits()


one_blas_thread = _OneThread()
"""``with one_blas_thread:`` lets the library behind numpy use one thread, in the whole process; and others of its kind
that were loaded when this was first used.

Threads that each own rows call the library at the same time. Threads of its own would wait for each other after every
product of microseconds. Blocks of several threads may overlap.
"""
