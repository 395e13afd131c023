"""The processes that torchrun started for one training."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

import torch
from torch import Tensor

from labelkit.errors import ConfigError
from labelkit.options.base import StageConfig, shell_name, value_text

# Processes wait for each other while one finds neighbors, scores or publishes, which takes hours of a large set. NCCL
# gives up after ten minutes, gloo after thirty.
LONGEST_WAIT: Final = timedelta(hours=24)
# Where the images lie is a matter of the machine.
_MAY_DIFFER: Final = frozenset({"data_root"})
_REMEDY: Final = "Pass the same options to all processes."


def process_count() -> int:
    """Return the number of processes that the launcher started, without starting a process group."""
    return int(os.environ.get("WORLD_SIZE") or "1")


def this_process() -> tuple[int, int]:
    """Return the number of this process in its process group, and how many there are; (0, 1) without a group."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return 0, 1


class _Gather(torch.autograd.Function):
    """All parts of a batch in its order; the gradient of every process reaches the part it is about."""

    @staticmethod
    def forward(ctx: Any, part: Tensor) -> Tensor:
        parts = [torch.empty_like(part) for _ in range(torch.distributed.get_world_size())]
        torch.distributed.all_gather(parts, part.contiguous())
        # images are dealt out one by one
        return torch.stack(parts, dim=1).flatten(0, 1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        summed = gradients[0].contiguous().clone()
        torch.distributed.all_reduce(summed)
        return summed[torch.distributed.get_rank() :: torch.distributed.get_world_size()]


def gather_batch(part: Tensor) -> Tensor:
    """Gather a value of every image of the batch from all processes, in the order of the batch.

    Every process computes the same loss of the result; its gradient is then that of the whole batch once the
    gradients of the parameters are averaged, since each part gets the sum over processes.

    Args:
        part: (b, ...) of this process's images; equally many on each.

    Returns:
        (b * processes, ...); gradients flow.
    """
    if this_process()[1] == 1:
        return part
    gathered: Tensor = _Gather.apply(part)
    return gathered


def check_same_on_all(config: StageConfig, texts: Callable[[str], list[str]]) -> None:
    """Check that all processes have the same options.

    Args:
        config: of this process.
        texts: gives the text of each process for the one of this.

    Raises:
        ConfigError: on every process, naming the first option that differs.
    """
    own = {"command": list(config.command), **config.to_yaml_dict()}
    first, *others = (json.loads(text) for text in texts(json.dumps(own)))
    for rank, other in enumerate(others, start=1):
        if other["command"] != first["command"]:
            said, there = (" ".join(one["command"]) for one in (first, other))
            raise ConfigError("torchrun", f"process 0 runs {said}, but process {rank} runs {there}", _REMEDY)
        for name, field in type(config).model_fields.items():
            if name not in _MAY_DIFFER and first[name] != other[name]:
                said, there = (value_text(one[name]) for one in (first, other))
                problem = f"is {said} in process 0, but {there} in process {rank}"
                raise ConfigError(shell_name(name, field), problem, _REMEDY)
