"""Both products of a pass with a block of rows, while it is in the cache."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

# Rows of a block on a GPU, of millions, that are added in float32.
_ADDED_ROWS = 256

Products = Callable[[slice, Tensor, Tensor], None]
"""Called with (rows, their block E, totals to add to), as :func:`make_products` says."""


def make_products(scale: Tensor, row_weights: Tensor | None, row_totals: Tensor) -> Products:
    """Make a function that sets ``t = E a`` of its rows and adds ``E^T (c / t)`` to totals.

    Args:
        scale: a, (k,).
        row_weights: c, (n,) of the dtype and device of ``scale``; None for ones.
        row_totals: t, (n,) likewise, for the results.

    Returns:
        The function; totals are (k,) float64 on the CPU.
    """
    if scale.device.type == "cpu":
        return _on_cpu(scale, row_weights, row_totals)

    def products(where: slice, rows: Tensor, totals: Tensor) -> None:
        weights = torch.mv(rows, scale, out=row_totals[where]).reciprocal()
        if row_weights is not None:
            weights *= row_weights[where]
        totals += weighted_sum(rows, weights).cpu()

    return products


def _on_cpu(scale: Tensor, row_weights: Tensor | None, row_totals: Tensor) -> Products:
    # numpy's products take half the time of torch's; and a block takes so little that operations on views count
    by_column, by_row = scale.numpy(), row_totals.numpy()
    given = None if row_weights is None else row_weights.numpy()

    def products(where: slice, rows: Tensor, totals: Tensor) -> None:
        block = rows.numpy()
        sums = np.dot(block, by_column, out=by_row[where])
        columns = totals.numpy()
        columns += np.dot(np.reciprocal(sums) if given is None else given[where] / sums, block)

    return products


def weighted_sum(rows: Tensor, weights: Tensor) -> Tensor:
    """Return the (k,) float64 sum of (m, k) rows by (m,) weights; float32 adds a few hundred of them at most."""
    m, k = rows.shape
    whole = m // _ADDED_ROWS * _ADDED_ROWS
    groups = rows[:whole].reshape(-1, _ADDED_ROWS, k).transpose(1, 2) @ weights[:whole].view(-1, _ADDED_ROWS, 1)
    return groups.double().sum(dim=(0, 2)) + torch.mv(rows[whole:].T, weights[whole:]).double()
