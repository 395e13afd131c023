"""Memory of this process, as the system counts it."""

from __future__ import annotations

import sys

import psutil


def resident_bytes() -> int:
    """Bytes that this process holds in memory now."""
    return int(psutil.Process().memory_info().rss)


def peak_resident_bytes() -> int:
    """Most bytes that this process held in memory so far."""
    try:
        import resource
    except ImportError:  # Windows
        memory = psutil.Process().memory_info()
        return int(getattr(memory, "peak_wset", memory.rss))
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
