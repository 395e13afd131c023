"""Rows of many dimensions as points in a plane."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

# t-SNE's usual neighborhood; it needs three times as many rows.
_PERPLEXITY = 30.0


def principal_plane(x: ArrayLike) -> tuple[NDArray[np.float64], tuple[float, float]]:
    """Project rows on the two directions in which they vary most.

    Args:
        x: (n, d) numbers, n >= 1.

    Returns:
        ((n, 2) float64 centered at 0, shares of the variance). The largest entry of a direction is positive, so that
        the same rows give the same picture.

    Raises:
        ValueError: another shape.
    """
    rows = np.asarray(x, dtype=np.float64)
    if rows.ndim != 2 or 0 in rows.shape:
        raise ValueError(f"x must have shape (n, d) with n, d >= 1, got {rows.shape}")
    rows = rows - rows.mean(axis=0)
    variances, directions = np.linalg.eigh(rows.T @ rows)
    plane = np.zeros((rows.shape[1], 2))
    plane[:, : min(2, rows.shape[1])] = directions[:, ::-1][:, :2]
    tops = np.abs(plane).argmax(axis=0)
    plane *= np.where(plane[tops, [0, 1]] < 0, -1, 1)
    total = float(variances.sum())
    first, second = [*(float(v) / total if total > 0 else 0.0 for v in variances[::-1][:2]), 0.0][:2]
    return rows @ plane, (first, second)


def tsne_plane(x: ArrayLike, *, seed: int = 0) -> NDArray[np.float64]:
    """Place rows in a plane so that neighbors stay neighbors (t-SNE); distances between groups mean little.

    Args:
        x: (n, d) numbers, n >= 2.
        seed: of the optimization.

    Returns:
        (n, 2) float64.

    Raises:
        ValueError: fewer than two rows.
    """
    from sklearn.manifold import TSNE

    rows = np.asarray(x, dtype=np.float32)
    if rows.ndim != 2 or len(rows) < 2:
        raise ValueError(f"x must have shape (n, d) with n >= 2, got {rows.shape}")
    perplexity = min(_PERPLEXITY, (len(rows) - 1) / 3)
    # started from principal directions, as they are: sklearn's own start divides by a spread that may be 0
    start, _ = principal_plane(rows)
    spread = float(start[:, 0].std())
    start = (start / spread if spread > 0 else start) * 1e-4
    found = TSNE(perplexity=perplexity, init=start.astype(np.float32), random_state=seed).fit_transform(rows)
    return np.asarray(found, dtype=np.float64)
