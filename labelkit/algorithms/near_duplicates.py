"""Tell copies of an image (saved again, resized or slightly cropped) from different photos of one scene.

Images are resized to 64 x 64 gray pixels, whatever their original shape. One is aligned to the other by scale and shift
along each axis, found from coarse to fine by the inverse compositional algorithm of S. Baker and I. Matthews,
"Lucas-Kanade 20 Years On: A Unifying Framework" (2004), for correlation instead of squared differences. Copies then
agree in fine detail everywhere; photos of one scene agree in much of it, but not where something has moved.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import convolve1d

from labelkit.algorithms.row_blocks import row_slices

Floats = NDArray[np.float32]

SIDE = 64
"""Pixels along each side of an image."""

# resolution of each search level, and number of steps
_STEPS = ((16, 6), (32, 4), (64, 3))
# range of scale and shift (in half sides) that is searched: crops of at least 85% of each side
_MIN_SCALE, _MAX_SCALE, _MAX_SHIFT = 0.85, 1.18, 0.18
# minimum correlations of a pair before and after it is aligned on the coarsest level
_MIN_BEFORE, _MIN_GRAY, _MIN_DETAIL = 0.3, 0.6, 0.25
# pixels that an image needs for comparison at a level, relative to that level: if one image was shrunk more than the
# other, which loses its finest detail; and if both have about the same size (at least this ratio)
_ENOUGH_PIXELS, _ENOUGH_ALIKE, _ALIKE_SIZE = 1.25, 0.85, 0.8
# parts along a side; parts with less than this fraction of the mean structure are ignored
_PARTS, _MIN_STRUCTURE = 4, 0.2
_PAIRS_TOGETHER = 128
# standard deviation, in gray values, below which an image counts as blank
_EMPTY = 1e-3


@dataclass(frozen=True)
class AlignedPairCorrelations:
    """Correlations between the two images of each pair after one is aligned to the other."""

    levels: NDArray[np.int64]  # (p,) int64, resolution in pixels at which they are compared: 16, 32 or 64
    gray: Floats  # (p,) float32 in [-1, 1], correlation of the gray values
    # (p,) float32 in [-1, 1], correlation of the differences from the local mean. For pairs too different to be
    # aligned, ``gray``, ``detail`` and ``weakest`` are 0.
    detail: Floats
    weakest: Floats  # (p,) float32 in [-1, 1], second lowest correlation of detail among the 16 parts of an image


def compute_thumbnail_vectors(images: NDArray[np.uint8]) -> Floats:
    """Compute vectors (n, 256) whose inner products are image correlations at 16 x 16 pixels; 0 for a blank image.

    Args:
        images: (n, 64, 64).
    """
    rows = np.empty((len(images), 256), dtype=np.float32)
    for start in range(0, len(images), _PAIRS_TOGETHER):
        part = slice(start, start + _PAIRS_TOGETHER)
        small = _shrink(images[part], 16)
        rows[part] = _normalize(small, np.ones_like(small)).reshape(len(small), -1)
    return rows


def compare_image_pairs(
    images: NDArray[np.uint8],
    shorter_sides: NDArray[np.integer],
    pairs: NDArray[np.int64],
    report: Callable[[int], None] = lambda done: None,
) -> AlignedPairCorrelations:
    """Align the images of each pair, and measure their correlation.

    Args:
        images: (n, 64, 64).
        shorter_sides: (n,) shorter side of each original image, in pixels.
        pairs: (p, 2) image indices.
        report: called with the number of pairs completed since the last call.
    """
    levels = _comparison_levels(shorter_sides[pairs].reshape(len(pairs), 2))
    gray, detail, weakest = (np.zeros(len(pairs), dtype=np.float32) for _ in range(3))
    rows = compute_thumbnail_vectors(images)
    before = np.concatenate(
        [np.einsum("ij,ij->i", *rows[pairs[block].T]) for block in row_slices(len(pairs), 2 * rows.shape[1])] or [gray]
    )
    report(int((before < _MIN_BEFORE).sum()))
    alike = np.flatnonzero(before >= _MIN_BEFORE)
    for start in range(0, len(alike), _PAIRS_TOGETHER):
        together = alike[start : start + _PAIRS_TOGETHER]
        places, boxes = _align_pairs(images, pairs, together)
        for level in np.unique(levels[places]).tolist():
            here = levels[places] == level
            at = places[here]
            first, second = (images[pairs[at, side]].astype(np.float32) for side in (0, 1))
            gray[at], detail[at], weakest[at] = _measure_agreement(first, second, boxes[here], level)
        report(len(together))
    return AlignedPairCorrelations(levels, gray, detail, weakest)


def _comparison_levels(sides: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return the finest level, (p,), at which images with these shorter sides (p, 2) can be compared."""
    smaller, larger = sides.min(axis=1), sides.max(axis=1)
    enough = np.where(smaller >= _ALIKE_SIZE * larger, _ENOUGH_ALIKE, _ENOUGH_PIXELS)
    return np.select([smaller >= enough * level for level in (64, 32)], [64, 32], 16).astype(np.int64)


def _align_pairs(
    pictures: NDArray[np.uint8], pairs: NDArray[np.int64], places: NDArray[np.int64]
) -> tuple[NDArray[np.int64], Floats]:
    """Return the pairs that are similar enough, and the position of the second image relative to the first.

    Returns:
        (m,) remaining places, and (m, 4) vertical scale and shift, horizontal scale and shift: y in the first image
        corresponds to ``scale * y + shift`` in the second, from -1 at one edge to 1 at the other.
    """
    boxes = np.tile(np.array([1, 0, 1, 0], dtype=np.float32), (len(places), 1))
    for level, steps in _STEPS:
        first, second = (_shrink(pictures[pairs[places, side]], level) for side in (0, 1))
        boxes = _refine_boxes(first, second, boxes, steps)
        if level != SIDE:
            moved, inside = _sample_boxes(second, boxes, _linear_kernel)
            alike = _correlate(first, moved, inside) >= _MIN_GRAY
            alike &= _correlate(_extract_detail(first), _extract_detail(moved), inside) >= _MIN_DETAIL
            places, boxes = places[alike], boxes[alike]
    return places, boxes


def _refine_boxes(first: Floats, second: Floats, boxes: Floats, steps: int) -> Floats:
    """Refine the boxes so that the second images are aligned with the first; all (m, s, s) of one level."""
    count, side = first.shape[:2]
    at = (np.arange(side, dtype=np.float32) + np.float32(0.5)) / side * 2 - 1
    template = _normalize(first, np.ones_like(first))
    down = np.gradient(template, axis=1) * np.float32(side / 2)
    across = np.gradient(template, axis=2) * np.float32(side / 2)
    slopes = np.stack([down * at[:, None], down, across * at, across], axis=1)  # (m, 4, s, s)
    # changes explained by brightness and contrast are not evidence of motion
    slopes -= slopes.mean(axis=(2, 3), keepdims=True)
    slopes -= (slopes * template[:, None]).sum(axis=(2, 3), keepdims=True) * template[:, None]
    flat = slopes.reshape(count, 4, side * side)
    squares = flat @ flat.transpose(0, 2, 1)
    # images without structure along an axis carry no information about motion along it
    damping = np.float32(0.01 / 4) * np.trace(squares, axis1=1, axis2=2) + np.float32(1e-6)
    inverse = np.linalg.inv(squares + damping[:, None, None] * np.eye(4, dtype=np.float32))
    for _ in range(steps):
        moved, inside = _sample_boxes(second, boxes, _linear_kernel)
        left, right = _normalize(first, inside), _normalize(moved, inside)
        alike = np.maximum((left * right).sum(axis=(1, 2), keepdims=True), np.float32(0.3))
        error = (right / alike - left).reshape(count, side * side, 1)
        step = np.clip((inverse @ (flat @ error))[:, :, 0], -0.1, 0.1)
        scales = boxes[:, ::2] / (1 + step[:, ::2])
        shifts = boxes[:, 1::2] - scales * step[:, 1::2]
        boxes = np.empty_like(boxes)
        boxes[:, ::2] = np.clip(scales, _MIN_SCALE, _MAX_SCALE)
        boxes[:, 1::2] = np.clip(shifts, -_MAX_SHIFT, _MAX_SHIFT)
    return boxes


def _measure_agreement(first: Floats, second: Floats, boxes: Floats, level: int) -> tuple[Floats, Floats, Floats]:
    """Return correlations of gray values, of detail, and the second lowest correlation of detail among the parts."""
    moved, inside = _sample_boxes(second, boxes, _cubic_kernel)
    first, moved, inside = _shrink(first, level), _shrink(moved, level), np.floor(_shrink(inside, level))
    gray = _correlate(first, moved, inside)
    left, right = _extract_detail(first) * inside, _extract_detail(moved) * inside
    detail = _correlate(left, right, inside)

    def parts(values: Floats) -> Floats:
        cells = values.reshape(len(values), _PARTS, level // _PARTS, _PARTS, level // _PARTS)
        return cells.sum(axis=(2, 4)).reshape(len(values), _PARTS * _PARTS)

    structure = np.sqrt(parts(left * left) * parts(right * right))
    each = parts(left * right) / np.maximum(structure, np.float32(1e-6))
    each[structure < _MIN_STRUCTURE * structure.mean(axis=1, keepdims=True)] = 1
    return gray, detail, np.sort(each, axis=1)[:, 1]


def _sample_boxes(pictures: Floats, boxes: Floats, kernel: Callable[[Floats], Floats]) -> tuple[Floats, Floats]:
    """Sample images (m, s, s) through their boxes; also return 1 where the samples lie inside, otherwise 0."""
    side = pictures.shape[1]
    at = (np.arange(side, dtype=np.float32) + np.float32(0.5)) / side * 2 - 1

    def along(scale: Floats, shift: Floats) -> tuple[Floats, Floats]:
        where = (scale[:, None] * at + shift[:, None] + 1) * np.float32(side / 2) - np.float32(0.5)  # (m, s) pixels
        within: Floats = ((where > -0.5) & (where < side - 0.5)).astype(np.float32)
        distances = np.clip(where, 0, side - 1)[:, :, None] - np.arange(side, dtype=np.float32)
        weights = kernel(distances.astype(np.float32, copy=False))
        weights /= weights.sum(axis=2, keepdims=True)
        return weights, within

    rows, rows_inside = along(boxes[:, 0], boxes[:, 1])
    columns, columns_inside = along(boxes[:, 2], boxes[:, 3])
    moved = np.asarray(rows @ pictures @ columns.transpose(0, 2, 1), dtype=np.float32)
    inside: Floats = rows_inside[:, :, None] * columns_inside[:, None, :]
    return moved, inside


def _linear_kernel(distance: Floats) -> Floats:
    """Return the weights of linear interpolation."""
    return np.maximum(np.float32(0), 1 - np.abs(distance))


def _cubic_kernel(distance: Floats) -> Floats:
    """Return the weights of cubic interpolation (Catmull-Rom), which preserves more detail."""
    x = np.abs(distance)
    near, far = 1 + x * x * (1.5 * x - 2.5), 2 + x * (-4 + x * (2.5 - 0.5 * x))
    return np.where(x < 1, near, np.where(x < 2, far, 0)).astype(np.float32)


def _extract_detail(pictures: Floats) -> Floats:
    """Subtract the local mean, which is a blur by (1, 4, 6, 4, 1) / 16 along each axis."""
    weights = np.array([1, 4, 6, 4, 1]) / 16
    smooth = convolve1d(convolve1d(pictures, weights, axis=1, mode="nearest"), weights, axis=2, mode="nearest")
    return np.asarray(pictures - smooth, dtype=np.float32)


def _correlate(left: Floats, right: Floats, inside: Floats) -> Floats:
    """Return the correlations (m,) of images (m, s, s) where ``inside`` is 1; 0 if one is blank."""
    return (_normalize(left, inside) * _normalize(right, inside)).sum(axis=(1, 2))


def _normalize(pictures: Floats, inside: Floats) -> Floats:
    """Return images with mean 0 and unit norm where ``inside`` is 1; 0 elsewhere and for blank images."""
    count = np.maximum(inside.sum(axis=(1, 2), keepdims=True), 1)
    centered = (pictures - (pictures * inside).sum(axis=(1, 2), keepdims=True) / count) * inside
    lengths = np.sqrt((centered * centered).sum(axis=(1, 2), keepdims=True))
    normalized: Floats = np.where(lengths > _EMPTY * np.sqrt(count), centered / np.maximum(lengths, _EMPTY), 0)
    return normalized.astype(np.float32, copy=False)


def _shrink(pictures: NDArray[Any], level: int) -> Floats:
    """Average images (m, s, s) to (m, level, level)."""
    part = pictures.shape[1] // level
    return pictures.reshape(len(pictures), level, part, level, part).mean(axis=(2, 4), dtype=np.float32)
