"""Threads that go over the rows of a matrix in blocks.

A block fits in the cache, so each of its operations takes microseconds. Sharing every operation between threads would
wait for all of them each time, which a busy machine turns into milliseconds. Threads that take ranges of rows, the next
one when a range is done, wait once per pass, and none waits for a thread that got no processor.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Self

import numpy as np
import torch
from torch import Tensor

from labelkit.algorithms.one_thread import one_blas_thread
from labelkit.algorithms.sinkhorn.scores import Source

# Fewer numbers than this are done faster than threads are started.
_WORTH_THREADS = 1 << 18
# Ranges of rows that threads share, each with totals of its own; and the most numbers in all of these.
_RANGES, _TOTALS = 64, 1 << 21


class Scratch:
    """Temporary blocks of one thread, used again for every block of rows."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, torch.dtype, torch.device], Tensor] = {}

    def like(self, block: Tensor, dtype: torch.dtype, name: str) -> Tensor:
        """An uninitialized tensor of the shape and device of ``block``, valid until the next call with this name."""
        key = (name, dtype, block.device)
        held = self._held.get(key)
        if held is None or held.numel() < block.numel():
            held = self._held[key] = torch.empty(block.numel(), dtype=dtype, device=block.device)
        return held[: block.numel()].view(block.shape)


Work = Callable[[slice, Tensor, Tensor, Scratch], None]
"""Called with (rows, their block, the thread's totals to add to, scratch)."""


class Workers:
    """As many threads as torch uses, each without threads of the libraries; on a GPU, or for little work, none at all.

    Args:
        source: what will be gone over.
    """

    def __init__(self, source: Source) -> None:
        self._count = 1
        self._pool: ThreadPoolExecutor | None = None
        numbers = source.num_rows * source.num_columns
        if source.device.type == "cpu" and numbers > _WORTH_THREADS:
            self._count = torch.get_num_threads()
            # one thread as well, for numbers too small for their type
            self._pool = _single_threaded_pool(self._count)
        self._scratch = [Scratch() for _ in range(self._count)]

    def __enter__(self) -> Self:
        one_blas_thread.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        one_blas_thread.__exit__(kind, error, trace)

    def over(self, source: Source, chunk_rows: int, work: Work, *, width: int) -> Tensor:
        """Call ``work`` for every block of rows; return the (width,) float64 sum of the totals.

        Ranges of rows with totals of their own do not depend on threads: any number of them gives the same bits.
        """
        # numpy: after an operation on so many numbers torch's own threads would wait busily beside the workers
        held = np.zeros((max(2, min(_RANGES, _TOTALS // width)), width))
        totals = torch.from_numpy(held)
        for start, segment in source.segments(chunk_rows):
            ranges = _split(len(segment), chunk_rows, len(totals))
            pending = itertools.count()

            def some(
                scratch: Scratch,
                begin: int = start,
                rows: Tensor = segment,
                cuts: list[int] = ranges,
                numbers: itertools.count[int] = pending,
            ) -> None:
                while (number := next(numbers)) < len(totals):
                    own = totals[number]
                    for first in range(cuts[number], cuts[number + 1], chunk_rows):
                        stop = min(first + chunk_rows, cuts[number + 1])
                        block = source.finish_block(rows[first:stop])
                        work(slice(begin + first, begin + stop), block, own, scratch)

            if self._pool is None:
                some(self._scratch[0])
            else:
                for done in [self._pool.submit(some, scratch) for scratch in self._scratch]:
                    done.result()
        return torch.from_numpy(held.sum(axis=0))


def _single_threaded_pool(count: int) -> ThreadPoolExecutor:
    """Threads in which torch's operations do not start threads; the setting is the thread's own."""
    everywhere = torch.get_num_threads()
    together = threading.Barrier(count)

    def begin() -> None:
        # torch gives a thread the common number at its first question, and afterwards leaves it alone
        torch.get_num_threads()
        torch.set_num_threads(1)
        # products too small for the type count for nothing, but take a hundred times as long
        torch.set_flush_denormal(True)
        together.wait()

    pool = ThreadPoolExecutor(count, thread_name_prefix="sinkhorn")
    for done in [pool.submit(begin) for _ in range(count)]:
        done.result()
    # torch also remembers the last number that was set, for threads to come
    torch.set_num_threads(everywhere)
    return pool


def _split(rows: int, chunk_rows: int, count: int) -> list[int]:
    """Borders of ``count`` ranges of whole blocks."""
    blocks = -(-rows // chunk_rows)
    return [min(rows, blocks * number // count * chunk_rows) for number in range(count)] + [rows]
