"""Say that labels contradict the images, where they do."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from labelkit.data.keyed_random import keyed_generator
from labelkit.formatting import percent

_MOST_LABELS = 3000
#: Fewer labels do not tell chance from agreement.
_FEWEST_LABELS = 10


def contradiction(
    rows_at: Callable[[NDArray[np.int64]], NDArray[np.float32]], labels: NDArray[np.int64], seed: int
) -> str | None:
    """Return what to say if near images with a label agree no more often than by chance.

    Args:
        rows_at: the rows at some places.
        labels: (n,), -1 = none; of more than 3,000 labels, so many are drawn.
        seed: of that draw.
    """
    places = np.flatnonzero(labels >= 0)
    if len(places) > _MOST_LABELS:
        places = np.sort(keyed_generator(seed, "label agreement").permutation(places)[:_MOST_LABELS])
    known = labels[places]
    _, own, counts = np.unique(known, return_inverse=True, return_counts=True)
    others = counts[own] - 1  # with the same label
    asked = others > 0
    count = int(asked.sum())
    if count < _FEWEST_LABELS or len(counts) < 2:
        return None
    rows = rows_at(places)
    unit = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), np.float32(1e-12))
    cosines = unit @ unit.T
    np.fill_diagonal(cosines, -np.inf)
    share = float((known == known[cosines.argmax(axis=1)])[asked].mean())
    by_chance = float(others[asked].mean() / (len(places) - 1))
    if share >= by_chance + 2 * np.sqrt(by_chance * (1 - by_chance) / count):
        return None
    return (
        f"labels contradict the images: the nearest labeled image has the same label in {percent(share)} % of "
        f"cases, and in {percent(by_chance)} % if labels were drawn at random"
    )
