"""Where a command compares rows: on the processor, or on a GPU that is asked for."""

from __future__ import annotations

from labelkit.engine.launched import local_rank


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
    rank = local_rank()
    if found.type == "cuda" and found.index is None and rank is not None:
        import torch

        return f"cuda:{rank % torch.cuda.device_count()}"
    return str(found)
