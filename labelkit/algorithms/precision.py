"""Helpers for formulas that must not run in half precision: promote inputs, switch off autocast."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def promote(tensor: Tensor) -> Tensor:
    """Convert a half-precision tensor to float32; return any other tensor unchanged.

    Args:
        tensor: any shape; floating point.

    Returns:
        float16 and bfloat16 as float32; float32 and float64 unchanged.

    Raises:
        TypeError: the tensor is not floating point.
    """
    if not tensor.is_floating_point():
        raise TypeError(f"tensor must have a floating-point dtype, got {tensor.dtype}")
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def without_autocast(tensor: Tensor) -> AbstractContextManager[object]:
    """Return a context manager that disables autocast on the device of ``tensor``."""
    device = tensor.device.type
    if torch.is_autocast_enabled(device):
        return torch.autocast(device, enabled=False)
    return nullcontext()
