"""Second views that follow a first one: transformed by a known homography, or cut from another image that matches.

Source: TAC-CCL, Sec. 4.3.1 (crop, rotation, zoom, perspective) and 4.3.4 (matching sub-images). Ranges are ours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from labelkit.algorithms.homographies import (
    crop_homographies,
    mirrored,
    perspective_homographies,
    rotation_homographies,
    zoom_homographies,
)
from labelkit.data.keyed_random import keyed_uniform

PairKind = Literal["crop", "rotation", "zoom", "perspective"]
PAIR_KINDS: Final[tuple[PairKind, ...]] = get_args(PairKind)
_DRAWS: Final = 10
_CORNERS: Final = np.array([[-1.0, -1], [1, -1], [1, 1], [-1, 1]])


@dataclass(frozen=True, slots=True)
class PairTransform:
    """What may happen to a second view: one kind, all equally likely, then a mirror image.

    Attributes:
        kinds: to choose from; with none of them nothing but the mirror image is left.
        crop_area: share of the area of a square box, uniform.
        rotation_rad: largest angle both ways, uniform.
        zoom: range of the magnification, its logarithm uniform.
        perspective: corners move inward by up to this along each axis, uniform; sides are 2 long.
        hflip: probability of a mirror image.

    Raises:
        ValueError: a number out of its range, or an unknown kind.
    """

    kinds: tuple[PairKind, ...] = PAIR_KINDS
    crop_area: tuple[float, float] = (0.36, 1.0)
    rotation_rad: float = math.radians(30)
    zoom: tuple[float, float] = (0.7, 1.4)
    perspective: float = 0.3
    hflip: float = 0.5

    def __post_init__(self) -> None:
        unknown = set(self.kinds) - set(PAIR_KINDS)
        if unknown:
            raise ValueError(f"unknown kind {sorted(unknown)[0]!r}")
        if not 0 < self.crop_area[0] <= self.crop_area[1] <= 1:
            raise ValueError(f"crop_area is {self.crop_area}, must be ordered in (0, 1]")
        if not 0 < self.zoom[0] <= self.zoom[1]:
            raise ValueError(f"zoom is {self.zoom}, must be positive and ordered")
        if not (0 <= self.perspective < 0.9 and 0 <= self.hflip <= 1 and self.rotation_rad >= 0):
            raise ValueError(
                f"perspective {self.perspective}, hflip {self.hflip} and rotation_rad {self.rotation_rad} must not be "
                "negative, perspective below 0.9, hflip at most 1"
            )


def pair_homographies(
    transform: PairTransform, keys: NDArray[np.int64], *, seed: int, epoch: int, view: int
) -> NDArray[np.float64]:
    """Choose the transforms of a batch.

    Args:
        transform: what may happen.
        keys: (b,) int64 keys of the random numbers.
        seed: seed of the run.
        epoch: pass over the data set.
        view: number of the second view.

    Returns:
        (b, 3, 3) float64, from normalized coordinates of the first views to those of the second ones.
    """
    u = keyed_uniform(seed, epoch, keys, view, "pair", _DRAWS).astype(np.float64)
    made = np.tile(np.eye(3), (len(u), 1, 1))
    chosen = (u[:, 0] * len(transform.kinds)).astype(np.int64)
    for number, kind in enumerate(transform.kinds):
        rows = np.flatnonzero(chosen == number)
        made[rows] = _homographies_of(kind, transform, u[rows, 1:9])
    return np.where((u[:, 9] < transform.hflip)[:, None, None], mirrored(made), made)


def _homographies_of(kind: PairKind, transform: PairTransform, u: NDArray[np.float64]) -> NDArray[np.float64]:
    if kind == "crop":
        low, high = transform.crop_area
        side = 2 * np.sqrt(low + (high - low) * u[:, 0])
        left, top = (-1 + (2 - side) * u[:, i] for i in (1, 2))
        return crop_homographies(np.stack((left, top, left + side, top + side), axis=1))
    if kind == "rotation":
        return rotation_homographies((2 * u[:, 0] - 1) * transform.rotation_rad)
    if kind == "zoom":
        low, high = (math.log(limit) for limit in transform.zoom)
        return zoom_homographies(np.exp(low + (high - low) * u[:, 0]))
    inward = transform.perspective * u.reshape(-1, 4, 2)
    return perspective_homographies(_CORNERS * (1 - inward))


# --- two images ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PairPlan:
    """What the second views of a batch show.

    Attributes:
        rows: (b,) int64, rows of the data set; those of the first views where an image follows itself.
        links: (b,) int64, match that a sample uses, in the caller's numbering; -1 = the image itself.
        boxes: (b, 2, 4) float64 left, top, right, bottom of both views in normalized coordinates of their
            originals; read only where there is a link, and then nothing else is done to either view.
    """

    rows: NDArray[np.int64]
    links: NDArray[np.int64]
    boxes: NDArray[np.float64]

    def take(self, position: int) -> PairPlan:
        """Return the plan of one sample."""
        part = slice(position, position + 1)
        return PairPlan(self.rows[part], self.links[part], self.boxes[part])


class Pairing(Protocol):
    """Says what the second views show."""

    def plan(self, rows: NDArray[np.int64], keys: NDArray[np.int64], *, seed: int, epoch: int) -> PairPlan:
        """Return the plan of a batch; an image's part depends on its row, key, seed and epoch alone."""
        ...
