"""Objects in images: a box and a class each, perhaps an outline, as detectors learn them and are scored by them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Scoring = Literal["coco", "voc"]


@dataclass(frozen=True, eq=False)
class Objects:
    """What is in one image.

    Attributes:
        boxes: (m, 4) float64 left, top, right, bottom in pixels; a pixel reaches from its number to the next.
        labels: (m,) int64 class of each.
        ignored: (m,) bool: a crowd or a difficult object, which is neither learned nor missed.
        areas: (m,) float64 in pixels, of the outline where there is one.
        outlines: of each, as COCO writes it: polygons or run lengths; ``None`` without.
    """

    boxes: NDArray[np.float64]
    labels: NDArray[np.int64]
    ignored: NDArray[np.bool_]
    areas: NDArray[np.float64]
    outlines: tuple[Any, ...] | None = None

    def __len__(self) -> int:
        """Return the number of objects."""
        return len(self.labels)

    def learnable(self) -> NDArray[np.int64]:
        """Return which can be learned: not ignored, and with a box that has an area."""
        wide = (self.boxes[:, 2:] > self.boxes[:, :2]).all(axis=1)
        return np.flatnonzero(wide & ~self.ignored)

    def select(self, places: NDArray[np.int64]) -> Objects:
        """Return some of them."""
        outlines = None if self.outlines is None else tuple(self.outlines[place] for place in places)
        return Objects(self.boxes[places], self.labels[places], self.ignored[places], self.areas[places], outlines)


@dataclass(frozen=True, slots=True, eq=False)
class ListedObjects:
    """The objects of a set, in one table.

    Attributes:
        rows: ``Objects`` of each image.
        sizes: (n, 2) int64 height and width of each image as its annotation has it; 0 = not said.
        scoring: the rules that score detections: ``coco`` (AP over IoU .5 to .95) or ``voc`` (AP at IoU .5).
    """

    rows: tuple[Objects, ...]
    sizes: NDArray[np.int64]
    scoring: Scoring

    @property
    def has_outlines(self) -> bool:
        """Whether each object has an outline."""
        return all(objects.outlines is not None for objects in self.rows if len(objects))

    def read(self, index: int) -> Objects:
        """Return the objects of row ``index``."""
        return self.rows[index]

    def select(self, rows: NDArray[np.int64]) -> ListedObjects:
        """Return the objects of ``rows``."""
        return ListedObjects(tuple(self.rows[row] for row in rows), self.sizes[rows], self.scoring)


def find_outside(boxes: NDArray[np.float64], size: tuple[int, int]) -> int | None:
    """Return the first box of which less than half lies in its image; ``None`` without, or if the size is not said.

    A few pixels beyond the border are common in published sets; coordinates of another meaning are what this finds.
    """
    if not size[0] or not len(boxes):
        return None
    ends = np.array([size[1], size[0], size[1], size[0]], dtype=np.float64)
    inside, whole = (np.prod(corners[:, 2:] - corners[:, :2], axis=1) for corners in (np.clip(boxes, 0, ends), boxes))
    outside = np.flatnonzero(2 * inside < whole)
    return int(outside[0]) if len(outside) else None


def no_objects() -> Objects:
    """Return what is in an image without objects."""
    return Objects(np.zeros((0, 4)), np.zeros(0, np.int64), np.zeros(0, np.bool_), np.zeros(0), None)
