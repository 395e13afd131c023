"""Threads that stand for processes which share rows: they exchange arrays through a list, with barriers around it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
from labelkit.algorithms.shared_rows import Processes
from numpy.typing import NDArray

T = TypeVar("T")
_SECONDS = 60


class _Thread:
    def __init__(self, rank: int, barrier: threading.Barrier, board: list[NDArray[Any]]) -> None:
        self.rank, self.size = rank, len(board)
        self._barrier, self._board = barrier, board

    def _exchanged(self, part: NDArray[Any]) -> list[NDArray[Any]]:
        self._board[self.rank] = np.array(part)
        self._barrier.wait(_SECONDS)
        found = list(self._board)
        self._barrier.wait(_SECONDS)
        return found

    def sum(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        parts = self._exchanged(values)
        assert len({part.shape for part in parts}) == 1, [part.shape for part in parts]
        # not in the order of one process
        total = parts[-1]
        for part in parts[-2::-1]:
            total = total + part
        return np.asarray(total)

    def join(self, part: NDArray[Any]) -> NDArray[Any]:
        return np.concatenate(self._exchanged(part))


def in_threads(size: int, work: Callable[[Processes], T]) -> list[T]:
    """Run the same work in so many threads; return what each found, by rank."""
    barrier, board = threading.Barrier(size), [np.zeros(0)] * size

    def one(rank: int) -> T:
        try:
            return work(_Thread(rank, barrier, board))
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(size) as pool:
        futures = [pool.submit(one, rank) for rank in range(size)]
    broken = [future.exception() for future in futures]
    for error in broken:
        if error is not None and not isinstance(error, threading.BrokenBarrierError):
            raise error
    return [future.result() for future in futures]
