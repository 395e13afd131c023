"""Rows that several processes share out: each holds a part of them, and may read all of them.

Every process calls the same function with the same arguments and gets the same result. What is summed over rows is
summed over the processes in an order of their own, so that it differs from the sum of one process by rounding alone;
rows, and what follows from single rows, are the same bits for any number of processes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labelkit.algorithms.row_blocks import Rows, StoredRows, checked_rows, column_sums


class Processes(Protocol):
    """Processes that work on the same rows."""

    @property
    def rank(self) -> int:
        """Number of this process, from 0."""
        ...

    @property
    def size(self) -> int:
        """How many they are."""
        ...

    def sum(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Sum over the processes of arrays of equal shape; the same bits on each."""
        ...

    def join(self, part: NDArray[Any]) -> NDArray[Any]:
        """The parts of all processes one after the other, on each; they may differ in length along the first axis."""
        ...


class _Alone:
    """A process that shares its work with none."""

    rank = 0
    size = 1

    def sum(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        return values

    def join(self, part: NDArray[Any]) -> NDArray[Any]:
        return part


ALONE: Final[Processes] = _Alone()
"""One process that does all of the work."""


def part_of(number: int, processes: Processes) -> slice:
    """Return which of so many things this process works on; parts follow each other and differ by one at most."""
    first, last = (number * place // processes.size for place in (processes.rank, processes.rank + 1))
    return slice(first, last)


def largest_part(number: int, processes: Processes) -> int:
    """Return the most of so many things that a process works on."""
    return -(-number // processes.size)


def of_first(values: NDArray[Any], processes: Processes) -> NDArray[Any]:
    """Return what the first process has, on all; of equal type and shape but for the first axis."""
    return processes.join(values if processes.rank == 0 else values[:0])


@dataclass(frozen=True, slots=True)
class SharedRows:
    """All rows, and those of this process.

    Attributes:
        whole: (n, d); with several processes they are read from where they are, not held.
        own: (m, d) those of this process; of one process, the same object.
        where: which these are.
        processes: that share them.
    """

    whole: Rows
    own: Rows
    where: slice
    processes: Processes

    def __len__(self) -> int:
        """Return n."""
        return len(self.whole)

    @property
    def shape(self) -> tuple[int, ...]:
        """(n, d)."""
        return self.whole.shape

    def column_sums(self) -> NDArray[np.float64]:
        """(d,) sums over all rows."""
        return self.processes.sum(column_sums(self.own))

    def total(self, values: NDArray[np.float64]) -> float:
        """Sum over all rows of a number of each, (m,) those of this process."""
        return float(self.processes.sum(np.array([values.sum()]))[0])


def shared_rows(x: ArrayLike | StoredRows, name: str, processes: Processes) -> SharedRows:
    """Check rows and share them out; ``checked_rows`` says what this process holds of its own.

    Args:
        x: (n, d); with several processes float16 or float32, the same on each.
        name: of it, for errors.
        processes: that share it.

    Raises:
        ValueError: as for ``checked_rows``, on every process; float64 with several processes.
    """
    if processes.size == 1:
        rows = checked_rows(x, name)
        return SharedRows(rows, rows, slice(0, len(rows)), processes)
    if not isinstance(x, StoredRows):
        array = np.asarray(x)
        if array.dtype == np.float64:
            raise ValueError(f"{name} is float64; several processes share float16 or float32")
        if array.ndim != 2 or array.shape[1] == 0:
            raise ValueError(f"{name} must have shape (n, d) with d >= 1, got {array.shape}")
        x = StoredRows(array, in_blocks=True)
    where = part_of(len(x), processes)
    fault, own = "", None
    try:
        own = checked_rows(x.part(where), name)
    except ValueError as error:
        fault = str(error)
    # all raise what the first of them found, so that none waits for another
    said = processes.join(np.frombuffer(fault.encode(), dtype=np.uint8)).tobytes().decode()
    lengths = processes.join(np.array([len(fault.encode())]))
    if lengths.any():
        first = int(lengths[np.flatnonzero(lengths)[0]])
        raise ValueError(said.encode()[:first].decode())
    assert own is not None  # there was no fault
    return SharedRows(x, own, where, processes)
