"""Share out the rows of several blocks, so that each block's batch statistics come from all of them.

Source: ``google-research/mixmatch:libml/layers.py`` (``interleave``).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def interleave(blocks: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Swap part j of block 0 with part j of block j; doing it again undoes it.

    Args:
        blocks: k tensors (b, ...) of one shape; each is cut into k parts of b / k rows, rounded down, the last parts
            one row longer.

    Raises:
        ValueError: no block, or blocks that differ in their number of rows.
    """
    if len({len(block) for block in blocks}) != 1:
        raise ValueError(f"blocks have {[len(block) for block in blocks]} rows, must be equally long")
    count, rows = len(blocks), len(blocks[0])
    sizes = [rows // count + (part >= count - rows % count) for part in range(count)]
    parts = [list(torch.split(block, sizes)) for block in blocks]
    for other in range(1, count):
        parts[0][other], parts[other][other] = parts[other][other], parts[0][other]
    return tuple(torch.cat(pieces) for pieces in parts)
