"""Compute device and default batch size for inference."""

import torch

from labelkit.errors import ResourceError


def resolve_device(device: str) -> torch.device:
    """Return the torch device named ``auto`` (a GPU if available), ``cpu``, ``cuda``, ``cuda:NUMBER`` or ``mps``.

    Raises:
        ResourceError: the device is not available.
    """
    wanted, _, number = device.partition(":")
    if wanted == "cuda" and not torch.cuda.is_available():
        problem = "no CUDA device is visible to torch"
        raise ResourceError(f"--device {device}", problem, "Use --device cpu, or install torch for your GPU.")
    if number and int(number) >= torch.cuda.device_count():
        num_gpus = torch.cuda.device_count()
        problem = f"does not exist: only {num_gpus} GPU(s), numbered from 0, are visible to torch"
        raise ResourceError(f"--device {device}", problem, f"Use cuda:0 to cuda:{num_gpus - 1}.")
    if device == "mps" and not torch.backends.mps.is_available():
        raise ResourceError("--device mps", "no Metal device is visible to torch", "Use --device cpu.")
    if device != "auto":
        return torch.device(device)
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def default_batch_size(device: torch.device) -> int:
    """Return the default number of images per forward pass for a device.

    A CPU is as fast with 16 images as with 64, and uses less memory; a GPU needs large batches.
    """
    return 16 if device.type == "cpu" else 256
