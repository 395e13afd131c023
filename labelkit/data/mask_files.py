"""Masks in image files, one number per pixel, and the check that a mask belongs to its image."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from labelkit.data.datasets import ImageDataset
from labelkit.data.decode import BadImage, decode_mask, read_image_file
from labelkit.errors import DatasetError

IGNORE: Final = 255
_MEANINGLESS: Final = -1


def table_of(meaning: Mapping[int, int]) -> NDArray[np.int16]:
    """Return the (256,) class of each value of a pixel, -1 = it has no meaning; 255 is ``IGNORE`` unless told."""
    table = np.full(256, _MEANINGLESS, dtype=np.int16)
    table[IGNORE] = IGNORE
    for value, label in meaning.items():
        table[value] = label
    return table


@dataclass(frozen=True, slots=True, eq=False)
class FileMasks:
    """Mask files below one folder.

    Attributes:
        root: the folder.
        files: mask of each row, relative to it.
        table: (256,) int16, class of each value, see ``table_of``.
    """

    root: Path
    files: tuple[str, ...]
    table: NDArray[np.int16]

    def read(self, index: int) -> NDArray[np.uint8]:
        """Return the (h, w) uint8 classes of row ``index``, 255 = ignore.

        Raises:
            DatasetError: the file cannot be read, is no mask, or has a value without meaning.
        """
        path = self.root / self.files[index]
        try:
            values = decode_mask(read_image_file(path))
        except BadImage as bad:
            raise DatasetError(str(path), bad.reason, "Masks are PNG files with one number per pixel.") from bad
        classes = self.table[values]
        if classes.min() == _MEANINGLESS:
            row, column = (int(place[0]) for place in np.nonzero(classes == _MEANINGLESS))
            raise DatasetError(
                str(path),
                f"value {values[row, column]} in row {row}, column {column} is no class; known values: "
                f"{_ranges(np.flatnonzero(self.table != _MEANINGLESS))}",
                "Is it the mask of another set, or a picture of a mask?",
            )
        return classes.astype(np.uint8)

    def select(self, rows: NDArray[np.int64]) -> FileMasks:
        """Return the masks of ``rows``."""
        return FileMasks(self.root, tuple(self.files[row] for row in rows), self.table)


def _ranges(values: NDArray[np.int64]) -> str:
    """Return ``0 to 20, 255``."""
    parts = np.split(values, np.flatnonzero(np.diff(values) > 1) + 1)
    return ", ".join(str(part[0]) if len(part) == 1 else f"{part[0]} to {part[-1]}" for part in parts)


def read_pair(dataset: ImageDataset, index: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return an image (h, w, c) and its mask (h, w).

    Raises:
        DatasetError: one of them cannot be read, or their sizes differ; or the set has no masks.
    """
    if dataset.masks is None:
        raise DatasetError(
            dataset.name, "has no masks", "Choose a set that has them (`labelkit datasets`: mask classes)."
        )
    sample_id = dataset.sample_ids[index]
    try:
        pixels = dataset.source.read(index).decode(dataset.in_channels)
    except BadImage as bad:
        raise DatasetError(sample_id, bad.reason, "Repair it or take it out of the set.") from bad
    mask = dataset.masks.read(index)
    if mask.shape != pixels.shape[:2]:
        raise DatasetError(
            sample_id if dataset.root is None else str(dataset.root / sample_id),
            f"the image has {pixels.shape[1]} x {pixels.shape[0]} pixels, its mask {mask.shape[1]} x {mask.shape[0]}",
            "Masks must be as large as their images; was one of them resized?",
        )
    return pixels, mask
