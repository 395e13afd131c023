"""Blocks of patches that are hidden from a network which is to guess them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

#: Tries to place a block before a mask is left as it is.
_TRIES: Final = 10
#: Smallest height of a block over its width; the largest is its inverse.
SMALLEST_ASPECT: Final = 0.3


def draw_mask_ratio(ratios: Sequence[float], spreads: Sequence[float], generator: np.random.Generator) -> float:
    """Return one of some ratios, moved by up to its spread in both directions.

    Args:
        ratios: shares of hidden patches; one is taken at random.
        spreads: of each; the move is uniform.
        generator: of the random numbers.
    """
    chosen = int(generator.integers(len(ratios)))
    return float(ratios[chosen] + spreads[chosen] * generator.uniform(-1, 1))


def block_mask(rows: int, columns: int, ratio: float, generator: np.random.Generator) -> NDArray[np.bool_]:
    """Hide rectangles until a share of the patches is hidden, or no further one fits.

    The area of a rectangle is uniform between a ninth of the shorter side's square and what is still to be hidden;
    height over width is log-uniform in [0.3, 1 / 0.3]. One that would hide too many patches, or no new one, is drawn
    again; after 10 such draws the mask is left as it is. So never more than the share is hidden, and often less.

    Args:
        rows: of the map of patches.
        columns: likewise.
        ratio: share to hide, in [0, 1).
        generator: of the random numbers.

    Returns:
        (rows, columns), true = hidden.

    Raises:
        ValueError: the ratio is outside [0, 1).

    Source:
        H. Bao et al., "BEiT" (ICLR 2022), Alg. 1, with the limits that iBOT (J. Zhou et al., ICLR 2022) sets: no
        smallest block of 16 patches, and a share that is not exceeded.
    """
    if not 0 <= ratio < 1:
        raise ValueError(f"ratio must be in [0, 1), got {ratio}")
    mask = np.zeros((rows, columns), dtype=np.bool_)
    wanted, smallest = ratio * rows * columns, (min(rows, columns) // 3) ** 2
    while True:
        left = wanted - mask.sum()
        if left < 1 or not _add_block(mask, smallest, left, generator):
            return mask


def _add_block(mask: NDArray[np.bool_], smallest: float, left: float, generator: np.random.Generator) -> bool:
    rows, columns = mask.shape
    bound = math.log(SMALLEST_ASPECT)
    for _ in range(_TRIES):
        area = smallest + (left - smallest) * generator.random()
        aspect = math.exp(generator.uniform(bound, -bound))
        height, width = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if not (0 < height < rows and 0 < width < columns):
            continue
        top, start = int(generator.integers(rows - height + 1)), int(generator.integers(columns - width + 1))
        block = mask[top : top + height, start : start + width]
        if 0 < (~block).sum() <= left:
            block[:] = True
            return True
    return False
