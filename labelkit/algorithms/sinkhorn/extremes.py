"""Look once at all scores: whether they are finite, how large they are, and the largest of each row."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from labelkit.algorithms.sinkhorn.passes import Reduce, combine
from labelkit.algorithms.sinkhorn.scores import Source
from labelkit.algorithms.sinkhorn.workers import Scratch, Workers


@dataclass(frozen=True, slots=True)
class Extremes:
    """What scores range over.

    Attributes:
        size: largest absolute value, over all processes.
        spread: largest range within a row, over all processes.
        row_largest: (n_local,) float64 on the CPU, largest score of each row.
    """

    size: float
    spread: float
    row_largest: Tensor


def find_extremes(source: Source, workers: Workers, chunk_rows: int, reduce: Reduce | None) -> Extremes:
    """Read all scores once.

    Raises:
        ValueError: scores are not finite; names the first such row of this process.
    """
    lows, highs = torch.empty((2, source.num_rows), dtype=torch.float64)

    def work(where: slice, block: Tensor, totals: Tensor, scratch: Scratch) -> None:
        lows[where], highs[where] = block.amin(dim=1), block.amax(dim=1)

    workers.over(source, chunk_rows, work, width=1)
    # numpy: after an operation on n numbers torch's own threads would wait busily beside the workers
    low, high = lows.numpy(), highs.numpy()
    with np.errstate(invalid="ignore", over="ignore"):
        ranges = high - low
    # not a number and infinity both reach one of the two
    bad_rows = np.flatnonzero(~np.isfinite(ranges))
    bad_row = int(bad_rows[0]) if len(bad_rows) else -1
    size = max(-low.min(initial=0), high.max(initial=0))
    spread = ranges.max(initial=0)
    extremes = combine(torch.tensor([bad_row, size, spread], dtype=torch.float64), "max", reduce)
    if bad_row >= 0:
        raise ValueError(f"scores: row {bad_row} holds NaN or infinite values")
    if extremes[0] >= 0:
        raise ValueError("scores: another process holds NaN or infinite values")
    return Extremes(float(extremes[1]), float(extremes[2]), highs)
