"""Arrays to the device of training, without waiting for it.

A copy from ordinary memory waits until a GPU has done all that it was asked for, dozens of times a step. Arrays are
packed into one piece of pinned memory instead, and copied while the GPU goes on; torch keeps the piece until then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_ALIGNED: Final = 64  # bytes; any type may begin there


def send(values: NDArray[Any], device: torch.device) -> Tensor:
    """Return an array on a device; on the CPU it is the same memory."""
    return send_all((values,), device)[0]


def send_all(arrays: Sequence[NDArray[Any]], device: torch.device) -> list[Tensor]:
    """Return arrays on a device, for which they travel together; on the CPU they are the same memory."""
    tensors = [torch.from_numpy(np.ascontiguousarray(values)) for values in arrays]
    if device.type == "cpu":
        return tensors
    sizes = [tensor.numel() * tensor.element_size() for tensor in tensors]
    starts = np.cumsum([0, *(-(-size // _ALIGNED) * _ALIGNED for size in sizes)]).tolist()
    parcel = torch.empty(starts[-1], dtype=torch.uint8, pin_memory=device.type == "cuda")
    for tensor, start, size in zip(tensors, starts, sizes, strict=False):
        parcel[start : start + size] = tensor.reshape(-1).view(torch.uint8)
    there = parcel.to(device, non_blocking=True)
    return [
        there[start : start + size].view(tensor.dtype).view(tensor.shape)
        for tensor, start, size in zip(tensors, starts, sizes, strict=False)
    ]


def send_tensor(values: Tensor, device: torch.device) -> Tensor:
    """Return a tensor of the CPU on a device; on the CPU it is the same one."""
    if device.type == "cpu":
        return values
    return (values.pin_memory() if device.type == "cuda" else values).to(device, non_blocking=True)
