"""Views of images: where they are cut (geometry) and how their colors change (photometry).

A view is made in three stages, each with random numbers keyed by seed, epoch, sample and view:
    1. a box of the original is resized to ``size x size``     ``crop_boxes``
    2. zoom, shift, rotation, mirror: one affine map           ``affine_matrices``
       and, for a second view that follows a first, a homography  ``data.pair_views``
    3. jitter, gray, blur, solarize on tensors, per sample     ``change_colors``
RandAugment adds to 2 and 3 (``labelkit.data.views.random_augment``), Cutout comes last.
Images in memory go through 1 and 2 in one interpolation, in batches on the training device. Files
go through 1 one by one, with an antialiased resize, where they are decoded.
Which numbers a method takes is in ``labelkit.data.views.recipes``; the meaning of each operation and of its numbers is
torchvision's.
Departure: in memory, random crops are enlarged by ``grid_sample`` (bicubic with a = -0.75, where
Pillow has -0.5).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import ArrayLike, NDArray
from PIL import Image
from torch import Tensor

from labelkit.data.batch import ViewGeometry
from labelkit.data.keyed_random import keyed_normal, keyed_uniform
from labelkit.data.views.colors import adjust_brightness, gaussian_blur, jitter_colors, rgb_to_gray, solarize
from labelkit.data.views.multi_crop import overlapping_boxes
from labelkit.data.views.pairs import PairPlan, PairTransform, pair_homographies
from labelkit.data.views.random_augment import Pool, change_tones, choose_operations, cut_out, geometric_matrices

Interpolation = Literal["bicubic", "bilinear"]
Padding = Literal["zeros", "border", "reflection"]

_AREA_TRIES: Final = 10
_AREA_DRAWS: Final = 2 * _AREA_TRIES + 2
_AFFINE_DRAWS: Final = 5
_COLOR_DRAWS: Final = 11
_RESAMPLING: Final = {"bicubic": Image.Resampling.BICUBIC, "bilinear": Image.Resampling.BILINEAR}


@dataclass(frozen=True, slots=True)
class Normalize:
    """Per-channel ``(x - mean) / std`` of values in ``[0, 1]``."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.std) or not all(value > 0 for value in self.std):
            raise ValueError(f"mean {self.mean} and std {self.std} must be equally long, std positive")

    def __call__(self, images: Tensor) -> Tensor:
        """Normalize ``(b, c, h, w)`` float32 in ``[0, 1]``.

        Raises:
            ValueError: c differs from the number of means.
        """
        if images.shape[1] != len(self.mean):
            raise ValueError(f"{images.shape[1]} channels, {len(self.mean)} means")
        # Plain numbers for one channel and for equal ones: no tiny tensors to move to the device.
        if len(set(self.mean)) == 1 and len(set(self.std)) == 1:
            return (images - self.mean[0]) / self.std[0]
        mean = images.new_tensor(self.mean)[:, None, None]
        std = images.new_tensor(self.std)[:, None, None]
        return (images - mean) / std


@dataclass(frozen=True, slots=True)
class ViewSpec:
    """How one view of an image is made; every default leaves the image as it is.

    Attributes:
        size: height and width of the view, pixels.
        resize_ratio: the shorter side becomes ``int(size * resize_ratio)``, then a square is cropped.
        crop: where that square lies.
        area_range: instead of resize and crop, a box with this share of the image's area is resized
            (RandomResizedCrop).
        aspect_range: width over height of that box.
        shift_px: shift of up to so many pixels of the view along each axis, uniform.
        whole_pixels: shift by whole pixels, as a random crop of the padded image does.
        zoom_range: magnification, uniform; below 1 shows padding.
        rotation_rad: rotation of up to this angle both ways, uniform.
        hflip: probability of a mirror image.
        jitter_prob: probability of color jitter.
        jitter: strengths of brightness, contrast, saturation and hue, as ``ColorJitter``; random order.
        brightness_range: factor on all values, uniform, for every image.
        gray_prob: probability of losing color.
        blur_prob: probability of Gaussian blur.
        blur_sigma: range of its standard deviation in pixels, uniform.
        blur_kernel: its width in pixels, odd.
        solarize_prob: probability of inverting all values at or above the threshold.
        solarize_threshold: in ``[0, 1]``.
        random_operations: operations of RandAugment for each image.
        operation_pool: what they are drawn from.
        cutout: side of the largest square that is painted over, share of ``size``; 0 = none.
        cutout_fill: its value, in ``[0, 1]``.
        noise: standard deviation of normal noise on the normalized values, which come last.
        interpolation: of both geometric stages.
        padding: what lies outside of the image in stage 2.
        follows: the view has box and affine map of the view before it, which must be made alike, and is then moved by
            one of these transforms.
        anchors: numbers of earlier views that the box must have a part in common with.
        min_overlap: that part, as a share of the image's area.
        mirror_as: number of the view that decides whether this one is mirrored; default: itself.
        partner: show the other image of a pair, as views do that follow another.

    Raises:
        ValueError: a number out of its range.
    """

    size: int
    resize_ratio: float = 1.0
    crop: Literal["center", "random"] = "center"
    area_range: tuple[float, float] | None = None
    aspect_range: tuple[float, float] = (3 / 4, 4 / 3)
    shift_px: float = 0.0
    whole_pixels: bool = False
    zoom_range: tuple[float, float] = (1.0, 1.0)
    rotation_rad: float = 0.0
    hflip: float = 0.0
    jitter_prob: float = 0.0
    jitter: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)
    brightness_range: tuple[float, float] = (1.0, 1.0)
    gray_prob: float = 0.0
    blur_prob: float = 0.0
    blur_sigma: tuple[float, float] = (0.1, 2.0)
    blur_kernel: int = 3
    solarize_prob: float = 0.0
    solarize_threshold: float = 128 / 255
    random_operations: int = 0
    operation_pool: Pool = "photo"
    cutout: float = 0.0
    cutout_fill: float = 0.5
    noise: float = 0.0
    interpolation: Interpolation = "bicubic"
    padding: Padding = "border"
    follows: PairTransform | None = None
    anchors: tuple[int, ...] = ()
    min_overlap: float = 0.0
    mirror_as: int | None = None
    partner: bool = False

    def __post_init__(self) -> None:
        for name in ("hflip", "jitter_prob", "gray_prob", "blur_prob", "solarize_prob"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} is {getattr(self, name)}, must be in [0, 1]")
        for name in ("aspect_range", "zoom_range", "blur_sigma"):
            low, high = getattr(self, name)
            if not 0 < low <= high:
                raise ValueError(f"{name} is {(low, high)}, must be positive and ordered")
        if self.size < 1 or self.resize_ratio < 1:
            raise ValueError(f"size {self.size} and resize_ratio {self.resize_ratio} must be at least 1")
        if self.area_range is not None and not 0 < self.area_range[0] <= self.area_range[1] <= 1:
            raise ValueError(f"area_range is {self.area_range}, must be ordered in (0, 1]")
        if self.random_operations < 0 or not 0 <= self.cutout <= 1 or not 0 <= self.cutout_fill <= 1:
            raise ValueError(
                f"random_operations {self.random_operations} must not be negative, cutout {self.cutout} and "
                f"cutout_fill {self.cutout_fill} must be in [0, 1]"
            )
        if self.noise < 0:
            raise ValueError(f"noise is {self.noise}, must not be negative")
        if self.anchors and (not 0 < self.min_overlap < 1 or self.area_range is None):
            raise ValueError(f"min_overlap is {self.min_overlap}, must be in (0, 1), and a box be drawn")
        if self.blur_kernel % 2 == 0 or self.blur_kernel // 2 >= self.size:
            raise ValueError(f"blur_kernel is {self.blur_kernel}, must be odd and below twice the size")
        if not (0 <= self.brightness_range[0] <= self.brightness_range[1]):
            raise ValueError(f"brightness_range is {self.brightness_range}, must be ordered and not negative")
        if min(self.jitter) < 0 or self.jitter[3] > 0.5 or min(self.shift_px, self.rotation_rad) < 0:
            raise ValueError(
                f"jitter {self.jitter}, shift_px {self.shift_px} and rotation_rad {self.rotation_rad} must not be "
                "negative, hue at most 0.5"
            )

    @property
    def resized_side(self) -> int:
        """Shorter side before the square crop, in pixels."""
        # The addend keeps 32 * (36 / 32) from falling below 36.
        return int(self.size * self.resize_ratio + 1e-6)

    def drawn_as(self, number: int) -> int:
        """Return the view whose random numbers choose box and affine map of view ``number``."""
        return number if self.follows is None else number - 1

    @property
    def shows_partner(self) -> bool:
        """Whether a pair's other image is shown."""
        return self.partner or self.follows is not None

    @property
    def has_random_box(self) -> bool:
        """Whether stage 1 depends on random numbers."""
        return self.area_range is not None or (self.crop == "random" and self.resized_side > 0)

    @property
    def has_warp(self) -> bool:
        """Whether stage 2 is more than a mirror image."""
        moves = self.shift_px > 0 or self.rotation_rad > 0 or self.zoom_range != (1.0, 1.0)
        return moves or self.random_operations > 0 or self.follows is not None

    def at_strength(self, strength: float) -> ViewSpec:
        """Return a weaker spec, for augmentation that grows during training.

        Probabilities, blur, rotation and the distances of zoom and brightness from 1 are multiplied by the strength;
        the smallest area is ``1 - (1 - low) * strength``. Shift and mirror stay, as the weak views have them too.

        Args:
            strength: in ``[0, 1]``; 1 returns an equal spec.
        """
        if not 0 <= strength <= 1:
            raise ValueError(f"strength is {strength}, must be in [0, 1]")
        if strength == 1:
            return self
        low, high = self.area_range or (1.0, 1.0)
        tiny = 1e-3  # a sigma of zero has no kernel
        return replace(
            self,
            area_range=None
            if self.area_range is None
            else (1 - (1 - low) * strength, max(high, 1 - (1 - low) * strength)),
            zoom_range=_toward_one(self.zoom_range, strength),
            rotation_rad=self.rotation_rad * strength,
            brightness_range=_toward_one(self.brightness_range, strength),
            jitter_prob=self.jitter_prob * strength,
            gray_prob=self.gray_prob * strength,
            blur_prob=self.blur_prob * strength,
            blur_sigma=(max(self.blur_sigma[0] * strength, tiny), max(self.blur_sigma[1] * strength, tiny)),
            solarize_prob=self.solarize_prob * strength,
        )


def _toward_one(limits: tuple[float, float], strength: float) -> tuple[float, float]:
    return 1 + (limits[0] - 1) * strength, 1 + (limits[1] - 1) * strength


# --- stage 1: boxes ------------------------------------------------------------------------------


def _draws(spec: ViewSpec) -> int:
    if spec.area_range is not None:
        return _AREA_DRAWS
    return 2 if spec.crop == "random" else 0


def crop_boxes(
    spec: ViewSpec,
    heights: ArrayLike,
    widths: ArrayLike,
    keys: ArrayLike,
    *,
    seed: int,
    epoch: int,
    view: int,
    draw: int = 0,
) -> NDArray[np.float64]:
    """Choose the part of each original that becomes the view, whatever other views show.

    Args:
        spec: the view.
        heights: (b,) heights of the originals, pixels.
        widths: (b,) widths.
        keys: (b,) int64 keys of the random numbers, one per drawn sample.
        seed: seed of the run.
        epoch: pass over the data set.
        view: number of the view.
        draw: number of the draw, for boxes that are drawn again.

    Returns:
        (b, 4) float64 left, top, right, bottom in pixels of the originals.
    """
    h, w = np.asarray(heights, dtype=np.float64), np.asarray(widths, dtype=np.float64)
    count = _draws(spec)
    purpose = f"crop {draw}" if draw else "crop"
    u = keyed_uniform(seed, epoch, keys, view, purpose, count).astype(np.float64) if count else np.zeros((len(h), 0))
    if spec.area_range is not None:
        return _area_boxes(spec, h, w, u)
    side = float(spec.resized_side)
    # As torchvision: the longer side is truncated to whole pixels, offsets are whole pixels.
    shorter = np.minimum(h, w)
    rows, columns = np.floor(side * h / shorter + 1e-9), np.floor(side * w / shorter + 1e-9)
    if spec.crop == "random":
        top = np.floor(u[:, 0] * (rows - spec.size + 1))
        left = np.floor(u[:, 1] * (columns - spec.size + 1))
    else:
        top, left = np.rint((rows - spec.size) / 2), np.rint((columns - spec.size) / 2)
    step_y, step_x = h / rows, w / columns
    edges = (left * step_x, top * step_y, (left + spec.size) * step_x, (top + spec.size) * step_y)
    return np.stack(edges, axis=1)


def boxes_of_views(
    views: Sequence[ViewSpec],
    sizes: tuple[ArrayLike, ArrayLike],
    partner_sizes: tuple[ArrayLike, ArrayLike],
    keys: ArrayLike,
    *,
    seed: int,
    epoch: int,
) -> list[NDArray[np.float64]]:
    """Choose the parts of the originals that become views, those that must overlap after one another.

    Args:
        views: all views of an image.
        sizes: (b,) heights and (b,) widths of the originals, pixels.
        partner_sizes: likewise, of what views show that show a partner.
        keys: (b,) int64 keys of the random numbers.
        seed: seed of the run.
        epoch: pass over the data set.

    Returns:
        for each view (b, 4) float64 left, top, right, bottom in pixels of what it shows.
    """
    rows = np.asarray(keys, dtype=np.int64)
    made: list[NDArray[np.float64]] = []
    for number, spec in enumerate(views):
        heights, widths = (np.asarray(side) for side in (partner_sizes if spec.shows_partner else sizes))
        source = spec.drawn_as(number)
        boxes = crop_boxes(spec, heights, widths, rows, seed=seed, epoch=epoch, view=source)
        if spec.anchors:

            def again(
                draw: int, at: NDArray[np.int64], spec: ViewSpec = spec, view: int = source
            ) -> NDArray[np.float64]:
                h, w = (np.asarray(side)[at] for side in sizes)
                return crop_boxes(spec, h, w, rows[at], seed=seed, epoch=epoch, view=view, draw=draw)

            def spare(at: NDArray[np.int64], view: int = source) -> NDArray[np.float64]:
                return keyed_uniform(seed, epoch, rows[at], view, "crop inside", 4).astype(np.float64)

            anchors = [made[anchor] for anchor in spec.anchors]
            boxes = overlapping_boxes(boxes, anchors, spec.min_overlap * heights * widths, again, spare)
        made.append(boxes)
    return made


def _area_boxes(
    spec: ViewSpec, h: NDArray[np.float64], w: NDArray[np.float64], u: NDArray[np.float64]
) -> NDArray[np.float64]:
    """``RandomResizedCrop``: the first of ten boxes that fits, else the largest allowed one in the center."""
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


def box_matrices(boxes: NDArray[np.float64], heights: ArrayLike, widths: ArrayLike) -> NDArray[np.float64]:
    """Return (b, 2, 3) maps from normalized coordinates of a box to those of its original."""
    h, w = np.asarray(heights, dtype=np.float64), np.asarray(widths, dtype=np.float64)
    left, top, right, bottom = boxes.T
    matrices = np.zeros((len(boxes), 2, 3))
    matrices[:, 0, 0] = (right - left) / w
    matrices[:, 1, 1] = (bottom - top) / h
    matrices[:, 0, 2] = (left + right) / w - 1
    matrices[:, 1, 2] = (top + bottom) / h - 1
    return matrices


def resize_box(image: NDArray[np.uint8], box: ArrayLike, spec: ViewSpec) -> NDArray[np.uint8]:
    """Resize a box of (h, w, c) uint8 to (size, size, c) uint8, antialiased."""
    height, width, channels = image.shape
    left, top, right, bottom = (float(edge) for edge in np.asarray(box))
    # Sums of steps may pass the edge by a rounding error, which Pillow refuses.
    edges = (max(left, 0.0), max(top, 0.0), min(right, float(width)), min(bottom, float(height)))
    if edges == (0.0, 0.0, float(spec.size), float(spec.size)) and (width, height) == (spec.size, spec.size):
        return image
    single = channels == 1
    picture = Image.fromarray(image[:, :, 0] if single else image)
    resized = np.array(
        picture.resize((spec.size, spec.size), _RESAMPLING[spec.interpolation], box=edges), dtype=np.uint8
    )
    return resized[:, :, None] if single else resized


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
    by_column = _resize_weights(width, columns, interpolation)[kept_columns].to(images.device)
    by_row = _resize_weights(height, rows, interpolation)[kept_rows].to(images.device)
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


# --- stage 2: affine maps ------------------------------------------------------------------------


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
        matrices = compose(matrices, geometric_matrices(*_operations(spec, rows, seed=seed, epoch=epoch, view=view)))
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


def _operations(
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


def warp(images: Tensor, matrices: NDArray[np.float64], spec: ViewSpec) -> Tensor:
    """Look up each pixel of the view in its image.

    Args:
        images: (b, c, h, w) uint8, or float32 in ``[0, 1]``.
        matrices: (b, 2, 3) or (b, 3, 3), from the view to the image.
        spec: size, interpolation and padding.

    Returns:
        (b, c, size, size) float32 in ``[0, 1]``.
    """
    values = images.float().div_(255) if images.dtype == torch.uint8 else images
    theta = torch.from_numpy(matrices.astype(np.float32)).to(images.device)
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


# --- stage 3: colors -----------------------------------------------------------------------------


def change_colors(images: Tensor, spec: ViewSpec, keys: ArrayLike, *, seed: int, epoch: int, view: int) -> Tensor:
    """Apply jitter, brightness, gray, blur and solarize with numbers of their own for each sample.

    Args:
        images: (b, c, size, size) float32 in ``[0, 1]``; may be changed in place.
        spec: the view.
        keys: (b,) int64 keys of the random numbers.
        seed: seed of the run.
        epoch: pass over the data set.
        view: number of the view.

    Returns:
        (b, c, size, size) float32 in ``[0, 1]``.
    """
    has_jitter = spec.jitter_prob > 0 and max(spec.jitter) > 0
    has_brightness = spec.brightness_range != (1.0, 1.0)
    has_gray = spec.gray_prob > 0 and images.shape[1] == 3
    if not (has_jitter or has_brightness or has_gray or spec.blur_prob or spec.solarize_prob):
        return _operate(images, spec, keys, seed=seed, epoch=epoch, view=view)
    u = keyed_uniform(seed, epoch, keys, view, "color", _COLOR_DRAWS)
    device = images.device

    def rows_where(column: int, probability: float) -> NDArray[np.int64]:
        return np.flatnonzero(u[:, column] < probability)

    def on_device(values: NDArray[np.float32]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32)).to(device)

    if has_jitter:
        images = jitter_colors(images, spec.jitter, u[:, 1:6], rows_where(0, spec.jitter_prob))
    if has_brightness:
        low, high = spec.brightness_range
        images = adjust_brightness(images, on_device(low + (high - low) * u[:, 6]))
    if has_gray:
        rows = torch.from_numpy(rows_where(7, spec.gray_prob)).to(device)
        images[rows] = rgb_to_gray(images[rows]).expand(-1, 3, -1, -1)
    chosen = rows_where(8, spec.blur_prob)
    if len(chosen):
        low, high = spec.blur_sigma
        rows = torch.from_numpy(chosen).to(device)
        images[rows] = gaussian_blur(images[rows], on_device(low + (high - low) * u[chosen, 9]), spec.blur_kernel)
    chosen = rows_where(10, spec.solarize_prob)
    if len(chosen):
        rows = torch.from_numpy(chosen).to(device)
        images[rows] = solarize(images[rows], spec.solarize_threshold)
    return _operate(images, spec, keys, seed=seed, epoch=epoch, view=view)


def _operate(images: Tensor, spec: ViewSpec, keys: ArrayLike, *, seed: int, epoch: int, view: int) -> Tensor:
    """What RandAugment does to colors, and Cutout."""
    rows = np.asarray(keys, dtype=np.int64)
    if spec.random_operations:
        images = change_tones(images, *_operations(spec, rows, seed=seed, epoch=epoch, view=view))
    if spec.cutout:
        draws = keyed_uniform(seed, epoch, rows, view, "cutout", 3)
        images = cut_out(images, draws, spec.cutout, spec.cutout_fill)
    return images


def add_noise(images: Tensor, spec: ViewSpec, keys: ArrayLike, *, seed: int, epoch: int, view: int) -> Tensor:
    """Add the noise of the view to (b, c, size, size) normalized images, with numbers of its own for each sample."""
    if not spec.noise:
        return images
    drawn = keyed_normal(seed, epoch, keys, view, "noise", images[0].numel() if len(images) else 0, images.device)
    return images + spec.noise * drawn.view_as(images)


# --- all stages ----------------------------------------------------------------------------------


def apply_views(
    images: Tensor,
    keys: ArrayLike,
    views: Sequence[ViewSpec],
    *,
    seed: int,
    epoch: int,
    normalize: Normalize,
    pairs: PairPlan | None = None,
    partners: Tensor | None = None,
) -> tuple[tuple[Tensor, ...], tuple[ViewGeometry, ...]]:
    """Make all views of equally large images in memory.

    Args:
        images: (b, c, h, w) uint8, on the device where the views shall be.
        keys: (b,) int64 keys of the random numbers, one per drawn sample.
        views: what to make.
        seed: seed of the run.
        epoch: pass over the data set.
        normalize: applied last.
        pairs: boxes of first and second views that show two matching images.
        partners: (b, c, h, w) uint8, what views show that show a partner, with ``pairs``.

    Returns:
        one (b, c, size, size) float32 tensor and one geometry per view.
    """
    rows = np.asarray(keys, dtype=np.int64)
    heights, widths = (np.full(len(rows), side) for side in images.shape[-2:])
    made, geometries = [], []
    every = boxes_of_views(views, (heights, widths), (heights, widths), rows, seed=seed, epoch=epoch)
    for number, spec in enumerate(views):
        boxes = paired_boxes(every[number], pairs, number, heights, widths)
        whole = None if pairs is None else pairs.links >= 0
        inner = view_matrices(spec, rows, seed=seed, epoch=epoch, view=number, whole=whole)
        total = compose(box_matrices(boxes, heights, widths), inner)
        shown = partners if spec.shows_partner and partners is not None else images
        if spec.has_random_box or spec.has_warp or pairs is not None:
            pixels = warp(shown, total, spec)
        else:
            pixels = _mirror(resize_center(shown, spec), inner)
        pixels = change_colors(pixels, spec, rows, seed=seed, epoch=epoch, view=number)
        made.append(add_noise(normalize(pixels), spec, rows, seed=seed, epoch=epoch, view=number))
        geometries.append(ViewGeometry(torch.from_numpy(total.astype(np.float32)).to(images.device)))
    return tuple(made), tuple(geometries)


def paired_boxes(
    boxes: NDArray[np.float64], pairs: PairPlan | None, view: int, heights: ArrayLike, widths: ArrayLike
) -> NDArray[np.float64]:
    """Put the boxes of matching images in the place of those that were chosen at random, (b, 4) in pixels."""
    if pairs is None or view > 1:
        return boxes
    sides = np.stack([np.asarray(side, dtype=np.float64) for side in (widths, heights, widths, heights)], axis=1)
    return np.where((pairs.links >= 0)[:, None], (pairs.boxes[:, view] + 1) / 2 * sides, boxes)


def finish_view(
    crops: Tensor,
    boxes: NDArray[np.float64],
    sizes: NDArray[np.int64],
    spec: ViewSpec,
    keys: ArrayLike,
    *,
    seed: int,
    epoch: int,
    view: int,
    normalize: Normalize,
    pairs: PairPlan | None = None,
) -> tuple[Tensor, ViewGeometry]:
    """Make one view from boxes that were already cut and resized.

    Args:
        crops: (b, c, size, size) uint8, the resized boxes.
        boxes: (b, 4) their edges in the originals.
        sizes: (b, 2) height and width of the originals.
        spec: the view.
        keys: (b,) int64 keys of the random numbers.
        seed: seed of the run.
        epoch: pass over the data set.
        view: number of the view.
        normalize: applied last.
        pairs: which samples show two matching images.
    """
    whole = None if pairs is None else pairs.links >= 0
    inner = view_matrices(spec, keys, seed=seed, epoch=epoch, view=view, whole=whole)
    pixels = warp(crops, inner, spec) if spec.has_warp else _mirror(crops.float().div_(255), inner)
    pixels = change_colors(pixels, spec, keys, seed=seed, epoch=epoch, view=view)
    total = compose(box_matrices(boxes, sizes[:, 0], sizes[:, 1]), inner)
    finished = add_noise(normalize(pixels), spec, keys, seed=seed, epoch=epoch, view=view)
    return finished, ViewGeometry(torch.from_numpy(total.astype(np.float32)).to(crops.device))


def _mirror(images: Tensor, matrices: NDArray[np.float64]) -> Tensor:
    """Flip the images whose affine map is a mirror; exact, unlike an interpolation."""
    rows = np.flatnonzero(matrices[:, 0, 0] < 0)
    if len(rows):
        at = torch.from_numpy(rows).to(images.device)
        images[at] = images[at].flip(-1)
    return images
