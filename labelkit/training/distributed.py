"""Communication between the processes of a training run that torchrun started."""

import os
from datetime import timedelta
from typing import Any, Final

import torch
from torch import Tensor

from labelkit.errors import ConfigError

# Processes wait while one of them searches neighbors, computes scores or writes files, for hours on large datasets.
# By default, NCCL times out after ten minutes and gloo after thirty.
LONGEST_WAIT: Final = timedelta(hours=24)


def count_processes() -> int:
    """Return the number of processes started by the launcher, without creating a process group."""
    return int(os.environ.get("WORLD_SIZE") or "1")


def check_divisible(option: str, count: int) -> None:
    """Check that an option's number of images can be divided evenly among the processes; else raise ``ConfigError``."""
    processes = count_processes()
    if count % processes:
        problem = f"{count} cannot be divided among {processes} processes"
        raise ConfigError(option, problem, "Use a multiple of the number of processes.")


def get_rank_and_world_size() -> tuple[int, int]:
    """Return the rank of this process and the number of processes in its group; (0, 1) without a group."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return 0, 1


class _Gather(torch.autograd.Function):
    """Differentiable gathering of a batch in order; each part receives gradients from all processes."""

    @staticmethod
    def forward(ctx: Any, part: Tensor) -> Tensor:
        parts = [torch.empty_like(part) for _ in range(torch.distributed.get_world_size())]
        torch.distributed.all_gather(parts, part.contiguous())
        # images are distributed to the processes one by one
        return torch.stack(parts, dim=1).flatten(0, 1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        summed = gradients[0].contiguous().clone()
        torch.distributed.all_reduce(summed)
        return summed[torch.distributed.get_rank() :: torch.distributed.get_world_size()]


def gather_batch(part: Tensor) -> Tensor:
    """Gather the per-image values of a batch from all processes, in batch order.

    Every process must compute the same loss from the result. Averaging the parameter gradients then yields the gradient
    of the whole batch, since each part gets the sum over processes. ``part`` is (b, ...), with the same b on each
    process; the result is (b * processes, ...) and differentiable.
    """
    if get_rank_and_world_size()[1] == 1:
        return part
    return _Gather.apply(part)
