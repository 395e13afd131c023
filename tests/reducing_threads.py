"""Threads that stand for processes whose small tensors are combined, as those of a training are."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Literal, TypeVar

import torch
from labelkit.algorithms.sinkhorn import Reduce
from torch import Tensor

T = TypeVar("T")


def run_in_threads(parts: int, work: Callable[[int, Reduce], T]) -> list[T]:
    """Run ``work(number, reduce)`` for every part at once; reduce combines over the parts."""
    barrier = threading.Barrier(parts, timeout=60)
    given: list[Tensor] = [torch.empty(0)] * parts

    def one(number: int) -> T:
        def reduce(values: Tensor, how: Literal["sum", "max"]) -> Tensor:
            given[number] = values.clone()
            barrier.wait()
            stacked = torch.stack(given)
            barrier.wait()
            return stacked.sum(dim=0) if how == "sum" else stacked.amax(dim=0)

        return work(number, reduce)

    with ThreadPoolExecutor(parts) as pool:
        return list(pool.map(one, range(parts)))
