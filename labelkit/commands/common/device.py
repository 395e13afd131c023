"""Where a command compares rows: on the processor, or on a GPU that is asked for."""

from __future__ import annotations


def products_device(device: str) -> str | None:
    """Return the device of torch to compare rows on, ``None`` for the processor; torch loads for others alone.

    Raises:
        ResourceError: no such device.
    """
    if device == "cpu":
        return None
    from labelkit.training.compute_device import compute_device

    found = compute_device(device)
    return None if found.type == "cpu" else str(found)
