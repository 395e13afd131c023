"""Draw boxes that were found beside the true ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from labelkit.stages.pictures.contact_sheet import Picture, outlined, write_contact_sheet
from labelkit.stages.pictures.masks import mask_colors

_SURE = 0.5
_LEGEND_WIDTH = 4


class BoxPicture(NamedTuple):
    """One image with both kinds of boxes.

    Attributes:
        name: below the image.
        pixels: (h, w, c) uint8.
        truth: box and class of each object.
        found: box, class and score of each detection, in any order.
    """

    name: str
    pixels: NDArray[np.uint8]
    truth: Sequence[tuple[Sequence[float], int]]
    found: Sequence[tuple[Sequence[float], int, float]]


def shown_boxes(picture: BoxPicture) -> list[tuple[Sequence[float], int, float]]:
    """Return the detections that are drawn: those with a score of 0.5 or more; without any, the surest one."""
    ranked = sorted(picture.found, key=lambda entry: -entry[2])
    return [entry for entry in ranked if entry[2] >= _SURE] or ranked[:1]


def write_box_sheet(path: Path, pictures: Sequence[BoxPicture], names: Sequence[str]) -> Path:
    """Write a PNG with a row per image: true boxes, found ones; then the colors of the classes that occur.

    Args:
        path: PNG to write; an existing file is replaced.
        pictures: what to draw.
        names: of the classes.

    Raises:
        ResourceError: it cannot be written.
    """
    colors = mask_colors(len(names) + 1)
    rows: list[list[Picture]] = []
    met: set[int] = set()
    for picture in pictures:
        shown = shown_boxes(picture)
        met |= {label for _, label in picture.truth} | {label for _, label, _ in shown}
        true, found = (
            outlined(picture.pixels, [(box, _color(colors[label + 1])) for box, label in boxes])
            for boxes in (picture.truth, [(box, label) for box, label, _ in shown])
        )
        least = f", {shown[-1][2]:.2f} or more" if shown else ""
        rows.append(
            [
                Picture(true, ("/".join(picture.name.split("/")[-2:]), f"{len(picture.truth)} objects")),
                Picture(found, ("found", f"{len(shown)} boxes{least}")),
            ]
        )
    legend = [Picture(np.full((8, 8, 3), colors[label + 1], dtype=np.uint8), (names[label],)) for label in sorted(met)]
    rows += [legend[start : start + _LEGEND_WIDTH] for start in range(0, len(legend), _LEGEND_WIDTH)]
    return write_contact_sheet(path, rows)


def _color(channels: NDArray[np.uint8]) -> tuple[int, int, int]:
    red, green, blue = (int(value) for value in channels)
    return red, green, blue
