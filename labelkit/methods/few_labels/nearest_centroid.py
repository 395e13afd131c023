"""Rows by their nearest class mean: distances and order that snowball and LMCS have in common.

Source: dissertation "Deep Learning with Very Few and No Labels", Eq. 2.8 and 3.8 (the same equation). Everything is
computed in float64 from differences, block by block, and ordered by numbers rounded to 9 decimals with ties to the
lowest row, so that neither BLAS nor threads nor block sizes change what is found.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

BLOCK_ROWS = 4096
_DECIMALS = 9


class Rows:
    """Checked rows of one feature array, handed out as float64.

    Args:
        array: (n, d) numbers, d >= 1.
        name: for messages.

    Raises:
        ValueError: another shape or type, or a value that is not finite, with its row.
    """

    def __init__(self, array: ArrayLike, *, name: str = "features") -> None:
        found = np.asarray(array)
        if found.ndim != 2 or found.shape[1] == 0:
            raise ValueError(f"{name} must have shape (n, d) with d >= 1, got {found.shape}")
        if found.dtype.kind not in "fiub":
            raise ValueError(f"{name} must be real numbers, got {found.dtype}")
        for start in range(0, len(found), BLOCK_ROWS):
            bad = ~np.isfinite(found[start : start + BLOCK_ROWS]).all(axis=1)
            if bad.any():
                raise ValueError(f"{name} has a value that is not finite in row {start + int(bad.argmax())}")
        self._array = found

    def __len__(self) -> int:
        return len(self._array)

    @property
    def dim(self) -> int:
        """D."""
        return int(self._array.shape[1])

    def take(self, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return some rows, (m, d) float64."""
        return np.asarray(self._array[rows], dtype=np.float64)

    def is_constant(self) -> bool:
        """Return whether all rows are the same."""
        return len(self) > 0 and bool((self._array == self._array[:1]).all())


def spread_warnings(parts: Sequence[Rows]) -> tuple[str, ...]:
    """Warn of features that cannot tell rows apart."""
    if all(rows.is_constant() for rows in parts):
        return ("zero feature spread: all rows are the same, the first ones are taken",)
    return ()


def class_means(rows: Rows, labels: NDArray[np.int64], num_classes: int) -> NDArray[np.float64]:
    """Mean row of each class (Eq. 2.8, 3.8), (c, d) float64; NaN for a class without rows."""
    means = []
    for label in range(num_classes):
        members = np.flatnonzero(labels == label)
        blocks = [members[start : start + BLOCK_ROWS] for start in range(0, max(len(members), 1), BLOCK_ROWS)]
        total = sum((rows.take(block).sum(axis=0) for block in blocks[1:]), start=rows.take(blocks[0]).sum(axis=0))
        means.append(total / len(members) if len(members) else np.full_like(total, np.nan))
    return np.stack(means)


def distances_between(rows: NDArray[np.float64], others: NDArray[np.float64]) -> NDArray[np.float64]:
    """Euclidean distances of (m, d) to (j, d) rows, (m, j).

    By differences and not by squares of the sums, so that exact ties stay exact.
    """
    from scipy.spatial.distance import cdist

    return np.asarray(cdist(rows, others))


def mean_distances(rows: NDArray[np.float64], means: NDArray[np.float64]) -> NDArray[np.float64]:
    """Euclidean distances of (m, d) rows to (c, d) means, (m, c); infinite to a mean that is not there."""
    there = ~np.isnan(means).any(axis=1)
    distances = np.full((len(rows), len(means)), np.inf)
    distances[:, there] = distances_between(rows, means[there])
    return distances


def order_keys(distance: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
    """Return distances over their median, rounded to order by, and that median (1 if it is 0)."""
    scale = float(np.median(distance)) if len(distance) else 1.0
    scale = scale if scale > 0 else 1.0
    return np.round(distance / scale, _DECIMALS), scale


def rounded(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return values as they are compared: without the noise of their last digits."""
    return np.round(values, _DECIMALS)
