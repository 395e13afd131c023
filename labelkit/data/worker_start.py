"""Imported first by the clean process from which workers start: it loads what they need, once.

A worker is handed its work through semaphores of the main process. When that ends before the worker has begun, as after
Ctrl-C, they are gone. This is no fault, and no traceback is shown; a main process that lives says that a worker ended.
"""

from __future__ import annotations

import sys
from traceback import walk_tb
from types import TracebackType

import labelkit.data.workers  # noqa: F401  loads torch


def _hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    # once a worker runs, multiprocessing shows its errors itself, and none comes here
    starting = any(frame.f_code.co_name == "_serve_one" for frame, _ in walk_tb(trace))
    if not (starting and isinstance(error, OSError | EOFError)):
        sys.__excepthook__(kind, error, trace)


sys.excepthook = _hook
