"""The map of a page: a place in the plane for each image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from labelkit.algorithms.projection import principal_directions, principal_plane, tsne_plane
from labelkit.formatting import percent
from labelkit.progress import current_progress

_STEPS = 65_535
# t-SNE sees at most this number of principal directions, as is usual: the others are noise and cost time
_TSNE_DIRECTIONS = 50


@dataclass(frozen=True)
class Places:
    """Where the images stand.

    Attributes:
        points: (m, 2) uint16, x right and y down, one scale for both.
        words: how they were made.
    """

    points: NDArray[np.uint16]
    words: str


def place_images(features: NDArray[np.float32], projection: Literal["pca", "tsne"], seed: int) -> Places:
    """Return the places of images by their features, (m, d)."""
    if projection == "tsne" and len(features) >= 2:
        with current_progress().task(f"t-SNE of {len(features):,} images", total=None):
            rows = features.astype(np.float64)
            words = "t-SNE: near each other means alike; distances between far groups mean little"
            if rows.shape[1] > _TSNE_DIRECTIONS:
                directions, shares = principal_directions(rows, _TSNE_DIRECTIONS)
                rows = (rows - rows.mean(axis=0)) @ directions
                words += f". Of {_TSNE_DIRECTIONS} principal directions ({percent(shares.sum())} % of the variance)"
            return Places(_quantized(tsne_plane(rows, seed=seed)), words)
    points, shares_of_two = principal_plane(features)
    first, second = (f"{percent(share)} %" for share in shares_of_two)
    words = f"PCA: the two directions in which the embeddings vary most ({first} and {second} of the variance)"
    return Places(_quantized(points), words)


def _quantized(points: NDArray[np.float64]) -> NDArray[np.uint16]:
    low, high = points.min(axis=0), points.max(axis=0)
    scale = float((high - low).max())
    centered = (points - (low + high) / 2) / (scale if scale > 0 else 1.0)
    centered[:, 1] *= -1  # a page counts downward
    return np.asarray(np.rint((centered + 0.5) * _STEPS).clip(0, _STEPS), dtype=np.uint16)
