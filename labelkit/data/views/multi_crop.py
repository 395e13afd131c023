"""Crops of one image that show a part of it in common: drawn again until they do, and never without end.

Source: ``MkuuWaUjinga/leopart``; the limit of redraws and what follows it are ours (specification 5).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

MAX_DRAWS: Final = 50


def overlap_areas(first: NDArray[np.float64], second: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the area that boxes (b, 4) have in common, (b,); 0 without an overlap."""
    low, high = np.maximum(first[:, :2], second[:, :2]), np.minimum(first[:, 2:], second[:, 2:])
    return np.asarray(np.prod(np.clip(high - low, 0, None), axis=1), dtype=np.float64)


def overlapping_boxes(
    boxes: NDArray[np.float64],
    anchors: Sequence[NDArray[np.float64]],
    smallest: NDArray[np.float64],
    redraw: Callable[[int, NDArray[np.int64]], NDArray[np.float64]],
    spare: Callable[[NDArray[np.int64]], NDArray[np.float64]],
) -> NDArray[np.float64]:
    """Draw boxes again that have too little in common with those of other views.

    After `MAX_DRAWS` draws, a box becomes that of the one anchor; or, of several, a random box inside of what the
    anchors have in common, with sides of half to all of it.

    Args:
        boxes: (b, 4) left, top, right, bottom as drawn first.
        anchors: boxes (b, 4) of the other views.
        smallest: (b,) area that a box and each anchor must have in common.
        redraw: number of the draw, from 1, and positions (m,) to new boxes (m, 4).
        spare: positions (m,) to (m, 4) uniform numbers.

    Returns:
        (b, 4) boxes; one depends on its own image alone.
    """
    made = boxes.copy()
    left = _short(made, anchors, smallest, np.arange(len(made)))
    for draw in range(1, MAX_DRAWS):
        if not len(left):
            return made
        made[left] = redraw(draw, left)
        left = _short(made, anchors, smallest, left)
    if len(left):
        made[left] = anchors[0][left] if len(anchors) == 1 else _inside(anchors, left, spare(left))
    return made


def _short(
    boxes: NDArray[np.float64],
    anchors: Sequence[NDArray[np.float64]],
    smallest: NDArray[np.float64],
    where: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Of some positions, those whose boxes have too little in common with an anchor."""
    fits = np.ones(len(where), dtype=np.bool_)
    for anchor in anchors:
        fits &= overlap_areas(boxes[where], anchor[where]) >= smallest[where]
    return where[~fits]


def _inside(
    anchors: Sequence[NDArray[np.float64]], where: NDArray[np.int64], u: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Random boxes inside of what the anchors have in common."""
    low = np.max([anchor[where, :2] for anchor in anchors], axis=0)
    high = np.min([anchor[where, 2:] for anchor in anchors], axis=0)
    sides = (high - low) * (0.5 + 0.5 * u[:, :2])
    start = low + (high - low - sides) * u[:, 2:]
    return np.concatenate((start, start + sides), axis=1)
