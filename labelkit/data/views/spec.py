"""View specifications: augmentation parameters, transforms from first to second views, and normalization.

Source of second views: TAC-CCL, Sec. 4.3.1 (crop, rotation, zoom, perspective) and 4.3.4 (matching sub-images).
Their ranges are ours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final, Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from labelkit.algorithms.homographies import (
    crop_homographies,
    flip_homographies,
    perspective_homographies,
    rotation_homographies,
    zoom_homographies,
)
from labelkit.data.batch import move_arrays_to_device
from labelkit.data.center_crop import Interpolation, compute_resized_side
from labelkit.data.keyed_random import KeyedRNG
from labelkit.data.views.colors import Pool

Padding = Literal["zeros", "border", "reflection"]
PairKind = Literal["crop", "rotation", "zoom", "perspective"]
PAIR_KINDS: Final[tuple[PairKind, ...]] = get_args(PairKind)
_DRAWS: Final = 10
# Ranges of the kinds of `PairTransform`.
_CROP_AREA, _ROTATION_RAD, _ZOOM, _PERSPECTIVE = (0.36, 1.0), math.radians(30), (0.7, 1.4), 0.3
_CORNERS: Final = np.array([[-1.0, -1], [1, -1], [1, 1], [-1, 1]])


@dataclass(frozen=True, slots=True)
class PairTransform:
    """Random geometric transform of a second view: one uniformly drawn kind, then an optional flip.

    Attributes:
        kinds: kinds to choose from; if empty, only the flip is applied. ``crop``: a square box of 36 to 100% of
            the area, uniform; ``rotation``: up to 30 degrees both ways, uniform; ``zoom``: 0.7 to 1.4, log-uniform;
            ``perspective``: corners move inward by up to 0.3 along each axis, in units of half a side, uniform.
        hflip: probability of a horizontal flip.
    """

    kinds: tuple[PairKind, ...] = PAIR_KINDS
    hflip: float = 0.5


@dataclass(frozen=True, slots=True)
class Normalize:
    """Per-channel normalization ``(x - mean) / std`` of values in ``[0, 1]``."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __call__(self, images: Tensor) -> Tensor:
        """Normalize ``(b, c, h, w)`` float32 in ``[0, 1]``.

        Raises:
            ValueError: c differs from the number of means.
        """
        if images.shape[1] != len(self.mean):
            raise ValueError(f"images must have {len(self.mean)} channels, one per mean, got {images.shape[1]}")
        # Plain numbers if all channels are normalized alike, so that no tiny tensors are moved to the device.
        if len(set(self.mean)) == 1 and len(set(self.std)) == 1:
            return (images - self.mean[0]).div_(self.std[0])
        numbers = [np.array(values, dtype=np.float32)[:, None, None] for values in (self.mean, self.std)]
        mean, std = move_arrays_to_device(numbers, images.device)
        return (images - mean).div_(std)


@dataclass(frozen=True, slots=True)
class EmbeddingView:
    """Augmentation of an embedding for one view; the default is none.

    Attributes:
        noise: mean length of the Gaussian noise added to an embedding of length 1.
        dropout: fraction of components set to 0.
        mix: largest weight of a neighbor that is mixed in, drawn uniformly from 0.
        stored: whether to use one of the image's stored views, unchanged, in place of the embedding.
    """

    noise: float = 0.0
    dropout: float = 0.0
    mix: float = 0.0
    stored: bool = False


@dataclass(frozen=True, slots=True)
class ViewSpec:
    """Augmentation of an image for one view; the default only resizes to ``size``.

    Attributes:
        size: height and width of the view in pixels.
        resize_ratio: the shorter side becomes ``int(size * resize_ratio)``, then a square is cropped.
        crop: position of that square.
        area_range: instead of resize and crop, a random box is resized, whose area is in this range, as a fraction of
            the image's (RandomResizedCrop).
        aspect_range: range of width over height of that box.
        shift_px: largest shift along each axis in pixels of the view, uniform.
        whole_pixels: whether to shift by whole pixels, as a random crop of the padded image does.
        zoom_range: range of the magnification, uniform; below 1 shows padding.
        rotation_rad: largest rotation angle in both directions, uniform.
        hflip: probability of a horizontal flip.
        jitter_prob: probability of color jitter.
        jitter: strengths of brightness, contrast, saturation and hue, as for ``ColorJitter``; random order.
        brightness_range: range of the brightness factor, uniform, for every image.
        gray_prob: probability of conversion to grayscale.
        blur_prob: probability of Gaussian blur.
        blur_sigma: range of its standard deviation in pixels, uniform.
        blur_kernel: its width in pixels, odd.
        solarize_prob: probability of inverting all values of at least 128 (of 255).
        random_operations: number of RandAugment operations for each image.
        operation_pool: pool from which they are drawn.
        cutout: largest side of the square that is painted over, as a fraction of ``size``; 0 = none.
        cutout_fill: value of that square, in ``[0, 1]``.
        noise: standard deviation of Gaussian noise added last, to the normalized values.
        interpolation: interpolation in both geometric stages.
        padding: padding outside the image in stage 2.
        follows: the view uses the box and affine map of the previous view, which must have the same other parameters,
            and is then warped by one of these transforms.
        anchors: numbers of earlier views that the box must overlap.
        min_overlap: minimum overlap, as a fraction of the image's area.
        mirror_as: number of the view that decides whether this one is flipped; default: itself.
        box_as: number of the view whose random numbers determine this one's box; default: itself.
        partner: whether to show the other image of a pair, as views with ``follows`` do.
        row: augmentation of an embedding from a store, to which none of the above applies.
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
    box_as: int | None = None
    partner: bool = False
    row: EmbeddingView | None = None

    @property
    def resized_side(self) -> int:
        """Return the size in pixels of the shorter side before the square crop."""
        return compute_resized_side(self.size, self.resize_ratio)

    def find_source_view(self, number: int) -> int:
        """Return which view's random numbers determine the crop box and affine map of view ``number``."""
        return number if self.follows is None else number - 1

    @property
    def shows_partner(self) -> bool:
        """Return whether the view shows the other image of a pair."""
        return self.partner or self.follows is not None

    @property
    def has_warp(self) -> bool:
        """Return whether the view has a geometric transform other than its crop box and horizontal flip."""
        moves = self.shift_px > 0 or self.rotation_rad > 0 or self.zoom_range != (1.0, 1.0)
        return moves or self.random_operations > 0 or self.follows is not None

    def with_strength(self, strength: float) -> ViewSpec:
        """Return a weaker version of the view, for augmentation that becomes stronger during training.

        Probabilities, blur, rotation and the distances of zoom and brightness from 1 are multiplied by the strength, in
        ``[0, 1]``; the smallest area is ``1 - (1 - low) * strength``. Shift and flip stay, because weak views have
        them as well.
        """
        if strength == 1:
            return self

        def scaled(limits: tuple[float, float]) -> tuple[float, float]:
            return 1 + (limits[0] - 1) * strength, 1 + (limits[1] - 1) * strength

        low, high = self.area_range or (1.0, 1.0)
        smallest = 1 - (1 - low) * strength
        tiny = 1e-3  # a sigma of zero has no kernel
        return replace(
            self,
            area_range=None if self.area_range is None else (smallest, max(high, smallest)),
            zoom_range=scaled(self.zoom_range),
            rotation_rad=self.rotation_rad * strength,
            brightness_range=scaled(self.brightness_range),
            jitter_prob=self.jitter_prob * strength,
            gray_prob=self.gray_prob * strength,
            blur_prob=self.blur_prob * strength,
            blur_sigma=(max(self.blur_sigma[0] * strength, tiny), max(self.blur_sigma[1] * strength, tiny)),
            solarize_prob=self.solarize_prob * strength,
        )


def draw_pair_homographies(transform: PairTransform, draws: KeyedRNG, view: int) -> NDArray[np.float64]:
    """Draw homographies that map the first views of a batch to its second views, whose number is ``view``.

    Returns:
        (b, 3, 3) float64, from normalized coordinates of the first views to those of the second ones.
    """
    u = draws.uniform(view, "pair", _DRAWS).astype(np.float64)
    made = np.tile(np.eye(3), (len(u), 1, 1))
    chosen = (u[:, 0] * len(transform.kinds)).astype(np.int64)
    for number, kind in enumerate(transform.kinds):
        rows = np.flatnonzero(chosen == number)
        made[rows] = _homographies_of(kind, u[rows, 1:9])
    return np.where((u[:, 9] < transform.hflip)[:, None, None], flip_homographies(made), made)


def _homographies_of(kind: PairKind, u: NDArray[np.float64]) -> NDArray[np.float64]:
    if kind == "crop":
        low, high = _CROP_AREA
        side = 2 * np.sqrt(low + (high - low) * u[:, 0])
        left, top = (-1 + (2 - side) * u[:, i] for i in (1, 2))
        return crop_homographies(np.stack((left, top, left + side, top + side), axis=1))
    if kind == "rotation":
        return rotation_homographies((2 * u[:, 0] - 1) * _ROTATION_RAD)
    if kind == "zoom":
        low, high = (math.log(limit) for limit in _ZOOM)
        return zoom_homographies(np.exp(low + (high - low) * u[:, 0]))
    inward = _PERSPECTIVE * u.reshape(-1, 4, 2)
    return perspective_homographies(_CORNERS * (1 - inward))


@dataclass(frozen=True, slots=True)
class PairPlan:
    """Plan that determines which images the second views of a batch show.

    Attributes:
        rows: (b,) int64, rows of the dataset; equal to the row of the first view if both show the same image.
        links: (b,) int64, number of the match used, as assigned by the caller; -1 = the image itself.
        boxes: (b, 2, 4) float64 left, top, right, bottom of both views in normalized coordinates of their
            originals; used only for samples with a match, whose views then have no other geometric transform.
    """

    rows: NDArray[np.int64]
    links: NDArray[np.int64]
    boxes: NDArray[np.float64]

    def for_sample(self, position: int) -> PairPlan:
        """Return the plan for a single sample."""
        part = slice(position, position + 1)
        return PairPlan(self.rows[part], self.links[part], self.boxes[part])


class Pairing(Protocol):
    """Protocol for rules that determine which images the second views show."""

    def plan(self, rows: NDArray[np.int64], keys: NDArray[np.int64], *, seed: int, epoch: int) -> PairPlan:
        """Plan the pairs of a batch; each image's entry depends only on its row and key, the seed and the epoch."""
        ...
