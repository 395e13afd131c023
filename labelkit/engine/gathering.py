"""A batch that is dealt out over processes, put together again, so that losses over pairs see all of it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class _Gather(torch.autograd.Function):
    """All parts of a batch in its order; the gradient of every process reaches the part it is about."""

    @staticmethod
    def forward(ctx: Any, part: Tensor) -> Tensor:
        world_size = torch.distributed.get_world_size()
        parts = [torch.empty_like(part) for _ in range(world_size)]
        torch.distributed.all_gather(parts, part.contiguous())
        # images are dealt out one by one
        return torch.stack(parts, dim=1).flatten(0, 1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        summed = gradients[0].contiguous().clone()
        torch.distributed.all_reduce(summed)
        rank, world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()
        return summed[rank::world_size]


def gather_batch(part: Tensor) -> Tensor:
    """Return a value of every image of the batch, in the order of the batch, on every process.

    Every process computes the same loss of the result; its gradient is then that of the whole batch once the
    gradients of the parameters are averaged, since each part gets the sum over processes.

    Args:
        part: (b, ...) of this process's images; equally many on each.

    Returns:
        (b * processes, ...); gradients flow.
    """
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return part
    if torch.distributed.get_world_size() == 1:
        return part
    gathered: Tensor = _Gather.apply(part)
    return gathered
