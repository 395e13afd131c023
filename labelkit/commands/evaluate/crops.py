"""The center, or ten crops of an image, that a classifier is scored on."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

_RESIZED = 256 / 224


def resized(size: int) -> int:
    """Side from which crops of a size are taken: 256 for 224."""
    return round(size * _RESIZED)


def crops_of(images: Tensor, size: int, *, ten: bool, mirror: bool) -> Sequence[Tensor]:
    """Center, or corners and center and their mirror images, of (b, c, s, s)."""
    far = images.shape[-1] - size
    middle = round(far / 2)
    places = [(0, 0), (0, far), (far, 0), (far, far)] if ten else []
    seen = [images, images.flip(-1)] if ten and mirror else [images]
    return [one[..., y : y + size, x : x + size] for one in seen for y, x in [*places, (middle, middle)]]
