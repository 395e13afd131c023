"""How memory that networks free is kept, on Linux with glibc."""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from typing import Final

# of <malloc.h>
_TRIM_THRESHOLD: Final = -1
_MMAP_MAX: Final = -4
_NEVER: Final = 2**31 - 1


@cache
def keep_freed_memory() -> bool:
    """Let the C library keep large blocks that are freed, instead of handing each back to the system.

    A forward pass frees and takes blocks of many MiB at every layer. glibc maps each anew, and the system clears it
    first, which takes about as long as the network itself. Elsewhere nothing is changed.

    Returns:
        Whether the setting was taken.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return False
    return bool(mallopt(_MMAP_MAX, 0)) and bool(mallopt(_TRIM_THRESHOLD, _NEVER))
