"""Draw predicted masks beside true ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from labelkit.commands.common.images.contact_sheet import Picture, write_contact_sheet
from labelkit.data.datasets import IGNORE
from labelkit.formatting import percent
from labelkit.metrics.segmentation import SegmentationCounts

_WHITE = np.array([255, 255, 255], dtype=np.uint8)
_LEGEND_WIDTH = 4


class MaskPicture(NamedTuple):
    """One image with both masks.

    Attributes:
        name: below the image.
        pixels: (h, w, c) uint8.
        truth: (h, w) uint8, 255 = ignored, drawn white.
        prediction: (h, w) uint8.
    """

    name: str
    pixels: NDArray[np.uint8]
    truth: NDArray[np.uint8]
    prediction: NDArray[np.uint8]


def mask_colors(number: int) -> NDArray[np.uint8]:
    """Return (number, 3) colors, black first, that neighbors can be told apart by: those of the PASCAL VOC masks."""
    colors = np.zeros((number, 3), dtype=np.uint8)
    for label in range(number):
        for bit in range(8):
            for channel in range(3):
                colors[label, channel] |= ((label >> (3 * bit + channel)) & 1) << (7 - bit)
    return colors


def paint_mask(mask: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return a mask in color, (h, w, 3) uint8."""
    painted: NDArray[np.uint8] = mask_colors(IGNORE + 1)[mask]
    painted[mask == IGNORE] = _WHITE
    return painted


def write_mask_sheet(path: Path, pictures: Sequence[MaskPicture], names: Sequence[str]) -> Path:
    """Write a PNG with a row per image: it, its true mask, the predicted one; then the colors of the classes.

    Args:
        path: PNG to write; an existing file is replaced.
        pictures: what to draw.
        names: of the classes; of those that occur the colors are shown.

    Raises:
        ResourceError: it cannot be written.
    """
    rows: list[list[Picture]] = []
    met: set[int] = set()
    for name, pixels, truth, prediction in pictures:
        met |= set(np.unique(truth)) | set(np.unique(prediction))
        counts = SegmentationCounts(IGNORE)
        counts.add(prediction, truth)
        right = f"{percent(counts.scores().pixel_accuracy)} % of pixels right" if counts.counts.any() else "ignored"
        rows.append(
            [
                Picture(pixels, ("/".join(name.split("/")[-2:]),)),
                Picture(paint_mask(truth), ("truth",)),
                Picture(paint_mask(prediction), ("prediction", right)),
            ]
        )
    colors = mask_colors(IGNORE + 1)
    legend = [
        Picture(
            np.full((8, 8, 3), colors[label], dtype=np.uint8), (names[label] if label < len(names) else str(label),)
        )
        for label in sorted(met - {IGNORE})
    ]
    rows += [legend[start : start + _LEGEND_WIDTH] for start in range(0, len(legend), _LEGEND_WIDTH)]
    return write_contact_sheet(path, rows)
