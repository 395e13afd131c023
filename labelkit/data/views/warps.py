"""Stage 2 of a view: zoom, shift, rotation and mirror, and a homography for a view that follows another."""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from labelkit.data.keyed_random import keyed_uniform
from labelkit.data.sending import send
from labelkit.data.views.pairs import pair_homographies
from labelkit.data.views.random_augment import choose_operations, geometric_matrices
from labelkit.data.views.spec import ViewSpec

_AFFINE_DRAWS: Final = 5


def affine_matrices(spec: ViewSpec, keys: ArrayLike, *, seed: int, epoch: int, view: int) -> NDArray[np.float64]:
    """Choose zoom, shift, rotation and mirror.

    Returns:
        (b, 2, 3) float64, from normalized coordinates of the view to those of the resized box.
    """
    rows = np.asarray(keys, dtype=np.int64)
    matrices = np.zeros((len(rows), 2, 3))
    matrices[:, 0, 0] = matrices[:, 1, 1] = 1
    if not spec.has_warp and not spec.hflip:
        return matrices
    u = keyed_uniform(seed, epoch, rows, view, "affine", _AFFINE_DRAWS).astype(np.float64)
    scale = 1 / (spec.zoom_range[0] + (spec.zoom_range[1] - spec.zoom_range[0]) * u[:, 0])
    angle = (2 * u[:, 1] - 1) * spec.rotation_rad
    coins = u
    if spec.mirror_as is not None:
        coins = keyed_uniform(seed, epoch, rows, spec.mirror_as, "affine", _AFFINE_DRAWS).astype(np.float64)
    mirror = np.where(coins[:, 2] < spec.hflip, -1.0, 1.0)
    pixels = (2 * u[:, 3:5] - 1) * spec.shift_px
    if spec.whole_pixels:
        pixels = np.floor(u[:, 3:5] * (2 * int(spec.shift_px) + 1)) - int(spec.shift_px)
    shift = pixels * (2 / spec.size)
    linear = np.stack((np.cos(angle), -np.sin(angle), np.sin(angle), np.cos(angle)), axis=1).reshape(-1, 2, 2)
    linear *= scale[:, None, None]
    matrices[:, :, 2] = np.einsum("bij,bj->bi", linear, -shift)
    matrices[:, :, :2] = linear
    matrices[:, :, 0] *= mirror[:, None]
    if spec.random_operations:
        # of the view that the weak part has made
        matrices = compose(
            matrices, geometric_matrices(*drawn_operations(spec, rows, seed=seed, epoch=epoch, view=view))
        )
    return matrices


def view_matrices(
    spec: ViewSpec, keys: ArrayLike, *, seed: int, epoch: int, view: int, whole: ArrayLike | None = None
) -> NDArray[np.float64]:
    """Choose all of stage 2.

    Args:
        spec: the view.
        keys: (b,) int64 keys of the random numbers.
        seed: seed of the run.
        epoch: pass over the data set.
        view: number of the view.
        whole: (b,) bool, views that show their box as it is.

    Returns:
        (b, 2, 3), or (b, 3, 3) for a view that follows another, float64, from normalized coordinates of the view to
        those of the resized box.
    """
    matrices = affine_matrices(spec, keys, seed=seed, epoch=epoch, view=spec.drawn_as(view))
    if spec.follows is not None:
        rows = np.asarray(keys, dtype=np.int64)
        moves = pair_homographies(spec.follows, rows, seed=seed, epoch=epoch, view=view)
        matrices = _square(matrices) @ np.linalg.inv(moves)
    if whole is not None:
        matrices[np.asarray(whole, dtype=np.bool_)] = np.eye(3)[: matrices.shape[1]]
    return matrices


def _square(matrices: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return (b, 3, 3) matrices of (b, 2, 3) ones."""
    last = np.tile(np.array([[[0.0, 0.0, 1.0]]]), (len(matrices), 1, 1))
    return np.concatenate((matrices, last), axis=1)


def drawn_operations(
    spec: ViewSpec, rows: NDArray[np.int64], *, seed: int, epoch: int, view: int
) -> tuple[NDArray[np.int64], NDArray[np.float64], tuple[str, ...]]:
    """RandAugment's draws, the same in stages 2 and 3."""
    u = keyed_uniform(seed, epoch, rows, view, "operations", 2 * spec.random_operations)
    return choose_operations(u, spec.operation_pool)


def compose(outer: NDArray[np.float64], inner: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the maps that apply ``inner``, (b, 2, 3) or (b, 3, 3), before ``outer``, (b, 2, 3)."""
    if inner.shape[1] == 3:
        return _square(outer) @ inner
    linear = outer[:, :, :2] @ inner[:, :, :2]
    offset = outer[:, :, :2] @ inner[:, :, 2:] + outer[:, :, 2:]
    return np.concatenate((linear, offset), axis=2)


def warp(images: Tensor, matrices: NDArray[np.float64] | Tensor, spec: ViewSpec) -> Tensor:
    """Look up each pixel of the view in its image.

    Args:
        images: (b, c, h, w) uint8, or float32 in ``[0, 1]``.
        matrices: (b, 2, 3) or (b, 3, 3), from the view to the image; a tensor is float32 on the device of the images.
        spec: size, interpolation and padding.

    Returns:
        (b, c, size, size) float32 in ``[0, 1]``.
    """
    values = images.float().div_(255) if images.dtype == torch.uint8 else images
    theta = matrices if isinstance(matrices, Tensor) else send(matrices.astype(np.float32), images.device)
    # As affine_grid, without its matrix product, which costs as much as the sampling.
    centers = (torch.arange(spec.size, device=images.device, dtype=torch.float32) + 0.5) * (2 / spec.size) - 1
    along_x = centers[None, None, :, None] * theta[:, None, None, :, 0]
    along_y = centers[None, :, None, None] * theta[:, None, None, :, 1] + theta[:, None, None, :, 2]
    grid = along_x + along_y  # (b, size, size, 2), or 3 for a homography
    if matrices.shape[1] == 3:
        # a pixel behind the camera shows nothing of the image; any place outside stands for it
        grid = grid[..., :2] / grid[..., 2:].clamp(min=1e-3)
    warped = F.grid_sample(values, grid, mode=spec.interpolation, padding_mode=spec.padding, align_corners=False)
    return warped.clamp_(0, 1)
