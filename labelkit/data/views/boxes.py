"""Stage 1 of a view: its crop box, the part of the original image that it shows."""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labelkit.data.center_crop import compute_center_boxes, compute_resized_shapes, compute_source_boxes
from labelkit.data.keyed_random import KeyedRNG
from labelkit.data.views.spec import PairPlan, ViewSpec

_AREA_TRIES: Final = 10
_AREA_DRAWS: Final = 2 * _AREA_TRIES + 2
#: Maximum number of draws of a box that must overlap others (``MkuuWaUjinga/leopart``); limit and fallback are ours.
MAX_DRAWS: Final = 50


def draw_crop_boxes(
    spec: ViewSpec, heights: ArrayLike, widths: ArrayLike, draws: KeyedRNG, view: int, attempt: int = 0
) -> NDArray[np.float64]:
    """Sample the crop box of one view for each original image, independently of the other views.

    Heights and widths are (b,), in pixels of the originals, as are the boxes, (b, 4) float64 left, top, right, bottom.
    ``attempt`` is the number of the attempt, if boxes are drawn repeatedly.
    """
    h, w = np.asarray(heights, dtype=np.float64), np.asarray(widths, dtype=np.float64)
    count = _AREA_DRAWS if spec.area_range is not None else 2 if spec.crop == "random" else 0
    purpose = f"crop {attempt}" if attempt else "crop"
    u = draws.uniform(view, purpose, count).astype(np.float64) if count else np.zeros((len(h), 0))
    if spec.area_range is not None:
        return _area_boxes(spec, h, w, u)
    if spec.crop == "center":
        return compute_center_boxes(spec.size, spec.resized_side, h, w)
    rows, columns = compute_resized_shapes(spec.resized_side, h, w)
    # as in torchvision, offsets are whole pixels
    top = np.floor(u[:, 0] * (rows - spec.size + 1))
    left = np.floor(u[:, 1] * (columns - spec.size + 1))
    return compute_source_boxes(spec.size, top, left, h / rows, w / columns)


def sample_crop_boxes(
    views: Sequence[ViewSpec],
    sizes: tuple[ArrayLike, ArrayLike],
    partner_sizes: tuple[ArrayLike, ArrayLike],
    draws: KeyedRNG,
) -> list[NDArray[np.float64]]:
    """Sample crop boxes for all views in order, since some must overlap earlier ones.

    ``sizes`` are (b,) heights and (b,) widths of the originals in pixels, ``partner_sizes`` those of the images of
    views that show a partner. The boxes of a view are as in :func:`draw_crop_boxes`, in pixels of the image it shows.
    """
    made: list[NDArray[np.float64]] = []
    for number, spec in enumerate(views):
        heights, widths = (np.asarray(side) for side in (partner_sizes if spec.shows_partner else sizes))
        source = spec.find_source_view(number) if spec.box_as is None else spec.box_as
        boxes = draw_crop_boxes(spec, heights, widths, draws, source)
        if spec.anchors:
            anchors = [made[anchor] for anchor in spec.anchors]
            boxes = _overlapping_boxes(spec, boxes, anchors, sizes, draws, source)
        made.append(boxes)
    return made


def _area_boxes(
    spec: ViewSpec, h: NDArray[np.float64], w: NDArray[np.float64], u: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the boxes of ``RandomResizedCrop``: the first of ten that fits, otherwise the largest center box."""
    assert spec.area_range is not None
    tries = u[:, :-2].reshape(len(h), _AREA_TRIES, 2)
    low, high = spec.area_range
    area = (low + (high - low) * tries[..., 0]) * (h * w)[:, None]
    log_low, log_high = math.log(spec.aspect_range[0]), math.log(spec.aspect_range[1])
    aspect = np.exp(log_low + (log_high - log_low) * tries[..., 1])
    box_w, box_h = np.rint(np.sqrt(area * aspect)), np.rint(np.sqrt(area / aspect))
    fits = (box_w > 0) & (box_h > 0) & (box_w <= w[:, None]) & (box_h <= h[:, None])
    first = fits.argmax(axis=1)
    every = np.arange(len(h))
    box_w, box_h = box_w[every, first], box_h[every, first]
    top = np.floor(u[:, -2] * (h - box_h + 1))
    left = np.floor(u[:, -1] * (w - box_w + 1))
    none = ~fits.any(axis=1)
    if none.any():
        ratio = w / h
        full_w = np.where(ratio > spec.aspect_range[1], np.rint(h * spec.aspect_range[1]), w)
        full_h = np.where(ratio < spec.aspect_range[0], np.rint(w / spec.aspect_range[0]), h)
        box_w, box_h = np.where(none, full_w, box_w), np.where(none, full_h, box_h)
        top = np.where(none, np.floor((h - box_h) / 2), top)
        left = np.where(none, np.floor((w - box_w) / 2), left)
    return np.stack((left, top, left + box_w, top + box_h), axis=1)


def box_to_image_matrices(boxes: NDArray[np.float64], heights: ArrayLike, widths: ArrayLike) -> NDArray[np.float64]:
    """Return affine maps (b, 2, 3) from normalized coordinates in each box to those in its original image."""
    h, w = np.asarray(heights, dtype=np.float64), np.asarray(widths, dtype=np.float64)
    left, top, right, bottom = boxes.T
    matrices = np.zeros((len(boxes), 2, 3))
    matrices[:, 0, 0] = (right - left) / w
    matrices[:, 1, 1] = (bottom - top) / h
    matrices[:, 0, 2] = (left + right) / w - 1
    matrices[:, 1, 2] = (top + bottom) / h - 1
    return matrices


def replace_paired_boxes(
    boxes: NDArray[np.float64], pairs: PairPlan | None, view: int, heights: ArrayLike, widths: ArrayLike
) -> NDArray[np.float64]:
    """Replace the random boxes (b, 4) of images that have a match with the boxes of that match, in pixels."""
    if pairs is None or view > 1:
        return boxes
    sides = np.stack([np.asarray(side, dtype=np.float64) for side in (widths, heights, widths, heights)], axis=1)
    return np.where((pairs.links >= 0)[:, None], (pairs.boxes[:, view] + 1) / 2 * sides, boxes)


def compute_overlap_areas(first: NDArray[np.float64], second: NDArray[np.float64]) -> NDArray[np.float64]:
    """Compute the overlap area (b,) of each pair of boxes (b, 4); 0 if they do not overlap."""
    low, high = np.maximum(first[:, :2], second[:, :2]), np.minimum(first[:, 2:], second[:, 2:])
    return np.asarray(np.prod(np.clip(high - low, 0, None), axis=1), dtype=np.float64)


def _overlapping_boxes(
    spec: ViewSpec,
    boxes: NDArray[np.float64],
    anchors: Sequence[NDArray[np.float64]],
    sizes: tuple[ArrayLike, ArrayLike],
    draws: KeyedRNG,
    view: int,
) -> NDArray[np.float64]:
    """Redraw the boxes (b, 4) that overlap too little with those of other views; each depends only on its own image.

    After `MAX_DRAWS` draws, a box becomes that of its only anchor; with several anchors, it becomes a random box inside
    their intersection, with sides of half to all of its length.
    """
    heights, widths = (np.asarray(side) for side in sizes)
    smallest = spec.min_overlap * heights * widths
    left = np.arange(len(boxes))
    for draw in range(MAX_DRAWS):
        if draw:
            boxes[left] = draw_crop_boxes(spec, heights[left], widths[left], draws.subset(left), view, draw)
        fits = [compute_overlap_areas(boxes[left], anchor[left]) >= smallest[left] for anchor in anchors]
        left = left[~np.all(fits, axis=0)]
        if not len(left):
            return boxes
    if len(anchors) == 1:
        boxes[left] = anchors[0][left]
        return boxes
    low = np.max([anchor[left, :2] for anchor in anchors], axis=0)
    high = np.min([anchor[left, 2:] for anchor in anchors], axis=0)
    u = draws.subset(left).uniform(view, "crop inside", 4).astype(np.float64)
    sides = (high - low) * (0.5 + 0.5 * u[:, :2])
    start = low + (high - low - sides) * u[:, 2:]
    boxes[left] = np.concatenate((start, start + sides), axis=1)
    return boxes
