"""Which device to compute on."""

from __future__ import annotations

import torch

from labelkit.errors import ResourceError


def compute_device(device: str) -> torch.device:
    """Return the device for ``auto``, ``cpu``, ``cuda`` or ``mps``; auto takes a GPU if there is one.

    Raises:
        ResourceError: the device is not there.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise ResourceError(
            "--device cuda",
            "no CUDA device is visible to torch",
            "Use --device cpu, or install torch for your GPU.",
        )
    if device == "mps" and not torch.backends.mps.is_available():
        raise ResourceError("--device mps", "no Metal device is visible to torch", "Use --device cpu.")
    if device != "auto":
        return torch.device(device)
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
