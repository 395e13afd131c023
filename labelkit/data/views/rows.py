"""Views of the rows of a store: there are no pixels to crop or to color, so that features themselves are changed.

A row of length 1 is moved on the sphere in three ways, each with random numbers keyed by seed, epoch, sample and view:
    1. a share of one of its nearest rows is mixed in
    2. noise is added, a step of one length on average
    3. some of its numbers are set to 0
and the result is brought to length 1 again.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from labelkit.data.keyed_random import keyed_normal, keyed_uniform
from labelkit.data.sending import send
from labelkit.data.views.spec import RowView


def change_rows(
    rows: Tensor, neighbors: Tensor | None, how: RowView, keys: NDArray[np.int64], *, seed: int, epoch: int, view: int
) -> Tensor:
    """Return rows as one view shows them.

    Args:
        rows: (b, d) float32 of length 1.
        neighbors: (b, k, d) the nearest rows of each; needed if ``how`` mixes.
        how: the view.
        keys: (b,) int64 keys of the random numbers.
        seed: seed of the run.
        epoch: pass over the rows.
        view: number of the view.

    Returns:
        (b, d) float32 of length 1.
    """
    changed = rows
    if how.mix:
        assert neighbors is not None
        drawn = keyed_uniform(seed, epoch, keys, view, "row-mix", 2)
        chosen = (drawn[:, 0] * neighbors.shape[1]).astype(np.int64)
        share = send(how.mix * drawn[:, 1:], rows.device)
        other = neighbors[torch.arange(len(rows), device=rows.device), send(chosen, rows.device)]
        changed = F.normalize((1 - share) * changed + share * other, dim=1)
    width = rows.shape[1]
    if how.noise:
        noise = keyed_normal(seed, epoch, keys, view, "row-noise", width, rows.device)
        changed = changed + how.noise / width**0.5 * noise
    if how.dropout:
        # from normal numbers, which are made on the device: P(|x| < t) = dropout
        limit = 2**0.5 * float(torch.erfinv(torch.tensor(how.dropout, dtype=torch.float64)))
        drop = keyed_normal(seed, epoch, keys, view, "row-dropout", width, rows.device).abs() < limit
        changed = changed.masked_fill(drop, 0.0)
    return F.normalize(changed, dim=1)
