"""Resize images as Pillow does: one by one with Pillow itself, or in batches on any device, to the same bytes.

Embeddings of an image must not depend on whether it came from memory or from a file. Boxes that were drawn at random
are resized by torch, which is several times faster and differs from Pillow by a level here and there.
"""

from __future__ import annotations

import functools

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch.nn import functional

from labelkit.data.batch import send_tensor
from labelkit.data.center_crop import Interpolation, resize_part
from labelkit.data.views.spec import ViewSpec


def resize_box(image: NDArray[np.uint8], box: ArrayLike, spec: ViewSpec) -> NDArray[np.uint8]:
    """Resize a box of (h, w, c) uint8 to (size, size, c) uint8, antialiased."""
    return resize_part(image, box, spec.size, spec.interpolation)


def cut_view(image: NDArray[np.uint8], box: ArrayLike, spec: ViewSpec) -> NDArray[np.uint8]:
    """Cut a box of (h, w, c) uint8 out and resize it to (size, size, c) uint8, antialiased.

    A box of whole pixels that was drawn at random is cut first and then resized by torch, as torchvision does it with
    tensors; any other is resized as :func:`resize_box` does. At least nine of ten bytes are Pillow's, the others are at
    most 2 away. It takes a fraction of Pillow's time.
    """
    edges = np.asarray(box, dtype=np.float64)
    left, top, right, bottom = (int(edge) for edge in edges.tolist())
    inside = 0 <= left < right <= image.shape[1] and 0 <= top < bottom <= image.shape[0]
    if spec.area_range is None or not inside or edges.tolist() != [left, top, right, bottom]:
        return resize_box(image, box, spec)
    # Copied by NumPy, so that torch finds the layout it is fast with and starts no team of threads to make it.
    part = torch.from_numpy(np.ascontiguousarray(image[top:bottom, left:right])).permute(2, 0, 1)[None]
    resized = functional.interpolate(
        part, size=(spec.size, spec.size), mode=spec.interpolation, antialias=True, align_corners=False
    )
    return np.asarray(resized[0].permute(1, 2, 0).numpy())


def resize_images(images: Tensor, rows: int, columns: int, interpolation: Interpolation) -> Tensor:
    """Resize as Pillow does, antialiased and with its rounding, but in batches and on any device.

    Embeddings of an image must not depend on whether it came from memory or from a file.

    Args:
        images: (b, c, h, w) uint8.
        rows: new height.
        columns: new width.
        interpolation: kernel.

    Returns:
        (b, c, rows, columns) float32, whole numbers in ``[0, 255]``.
    """
    return _resize_part(images, rows, columns, interpolation, slice(None), slice(None))


def resize_center(images: Tensor, spec: ViewSpec) -> Tensor:
    """Resize equally large images and crop their center, as :func:`resize_box` does one by one.

    Args:
        images: (b, c, h, w) uint8.
        spec: a view without random box.

    Returns:
        (b, c, size, size) float32 in ``[0, 1]``.
    """
    height, width = images.shape[-2:]
    shorter = min(height, width)
    rows, columns = (int(spec.resized_side * side / shorter + 1e-9) for side in (height, width))
    top, left = round((rows - spec.size) / 2), round((columns - spec.size) / 2)
    kept_rows, kept_columns = slice(top, top + spec.size), slice(left, left + spec.size)
    return _resize_part(images, rows, columns, spec.interpolation, kept_rows, kept_columns).div_(255)


def _resize_part(
    images: Tensor, rows: int, columns: int, interpolation: Interpolation, kept_rows: slice, kept_columns: slice
) -> Tensor:
    height, width = images.shape[-2:]
    if (rows, columns) == (height, width):
        return images[..., kept_rows, kept_columns].float()
    # Resizing is linear in each direction, so resize and crop are two small matrix products.
    by_column = send_tensor(_resize_weights(width, columns, interpolation)[kept_columns], images.device)
    by_row = send_tensor(_resize_weights(height, rows, interpolation)[kept_rows], images.device)
    # One flat product: a batched one of many small matrices is several times slower.
    across = _round_to_bytes(images.double().reshape(-1, width) @ by_column.T.contiguous())
    return _round_to_bytes(by_row @ across.view(*images.shape[:3], len(by_column))).float()


def _round_to_bytes(values: Tensor) -> Tensor:
    """Round halves up and clip, as Pillow does after each of its two passes."""
    return values.add_(0.5).floor_().clamp_(0, 255)


@functools.lru_cache(maxsize=32)
def _resize_weights(old: int, new: int, interpolation: Interpolation) -> Tensor:
    """Return the (new, old) float64 matrix of Pillow's resize along one axis (``precompute_coeffs``)."""
    scale = old / new
    stretch = max(scale, 1.0)
    support = (2.0 if interpolation == "bicubic" else 1.0) * stretch
    centers = (np.arange(new)[:, None] + 0.5) * scale
    inputs = np.arange(old)[None, :]
    first = np.maximum(np.trunc(centers - support + 0.5), 0)
    stop = np.minimum(np.trunc(centers + support + 0.5), old)
    x = np.abs((inputs + 0.5 - centers) / stretch)
    if interpolation == "bicubic":
        near, far = (1.5 * x - 2.5) * x * x + 1, ((-0.5 * x + 2.5) * x - 4) * x + 2  # a = -0.5
        weights = np.where(x < 1, near, np.where(x < 2, far, 0.0))
    else:
        weights = np.maximum(1 - x, 0.0)
    weights = np.where((inputs >= first) & (inputs < stop), weights, 0.0)
    weights /= weights.sum(axis=1, keepdims=True)
    # Pillow's weights have 22 binary digits; in float64 all sums with bytes are exact then.
    return torch.from_numpy(np.rint(weights * 2**22) / 2**22)
