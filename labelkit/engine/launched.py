"""How many processes torchrun started for one command, and how long they wait for each other; loads no torch."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Final

# Processes wait for each other while one finds neighbors, scores or publishes, which takes hours of a large set. NCCL
# gives up after ten minutes, gloo after thirty.
LONGEST_WAIT: Final = timedelta(hours=24)

# Processes start together, and a machine that is busy may take minutes to load what they need.
JOIN_WAIT: Final = timedelta(minutes=5)


def process_count() -> int:
    """Processes of this run as the launcher says, without starting a process group."""
    return int(os.environ.get("WORLD_SIZE") or "1")


def local_rank() -> int | None:
    """Number of this process on its machine, from 0; None without a launcher."""
    text = os.environ.get("LOCAL_RANK")
    return None if not text else int(text)


def processes_here() -> int:
    """Those of them on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE") or "1")
