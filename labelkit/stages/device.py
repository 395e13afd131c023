"""Where a command compares rows: on the processor, or on a GPU that is asked for."""

from __future__ import annotations

import os


def products_device(device: str) -> str | None:
    """Return the device of torch to compare rows on, ``None`` for the processor; torch loads for others alone.

    Processes of one machine that are told no number take one GPU each, in turn.

    Raises:
        ResourceError: no such device.
    """
    if device == "cpu":
        return None
    from labelkit.engine.compute_device import compute_device

    found = compute_device(device)
    if found.type == "cpu":
        return None
    if found.type == "cuda" and found.index is None and "LOCAL_RANK" in os.environ:
        import torch

        return f"cuda:{int(os.environ['LOCAL_RANK']) % torch.cuda.device_count()}"
    return str(found)
