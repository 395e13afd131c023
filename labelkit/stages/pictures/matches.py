"""Draw matches: two images side by side, and lines between the keypoints that match."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from labelkit.data.datasets import ImageDataset
from labelkit.stages.pictures.png import write_png
from labelkit.store.matches import Matches

_SIDE, _GAP, _TEXT, _MOST = 192, 8, 16, 12


def write_match_sheet(path: Path, matches: Matches, images: ImageDataset, dataset_rows: NDArray[np.int64]) -> Path:
    """Draw up to 12 matches, from those with most inliers to those with fewest.

    Raises:
        ResourceError: it cannot be written.
    """
    order = np.argsort(-matches.inliers, kind="stable")
    shown = order[np.unique(np.linspace(0, len(order) - 1, min(_MOST, len(order))).round().astype(np.int64))]
    font = ImageFont.load_default(size=11)
    sheet = Image.new("RGB", (3 * _GAP + 2 * _SIDE, _GAP + len(shown) * (_SIDE + _TEXT + _GAP)), "white")
    draw = ImageDraw.Draw(sheet)
    for i, number in enumerate(shown.tolist()):
        top = _GAP + i * (_SIDE + _TEXT + _GAP)
        places = []
        for side, row in enumerate(matches.pairs[number].tolist()):
            left = _GAP + side * (_SIDE + _GAP)
            pixels = images.source.read(int(dataset_rows[row])).decode(images.in_channels)
            picture = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels).convert("RGB")
            sheet.paste(picture.resize((_SIDE, _SIDE)), (left, top))
            points = matches.keypoints[number, : matches.keypoint_counts[number], side]
            places.append((points + 1) / 2 * _SIDE + (left, top))
        for (x0, y0), (x1, y1) in zip(*places, strict=True):
            draw.line((x0, y0, x1, y1), fill="#2ca02c")
        draw.text((_GAP, top + _SIDE + 1), f"{int(matches.inliers[number])} inliers", fill="black", font=font)
    write_png(path, sheet)
    return path
