"""Say that labels contradict the images, where they do."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from labelkit.algorithms.labeled_share import label_agreement
from labelkit.data.keyed_random import keyed_generator
from labelkit.percent import percent

_MOST_LABELS = 3000


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
    if len(places) < 2:
        return None
    found = label_agreement(rows_at(places), labels[places])
    if found is None or not found.is_chance:
        return None
    return (
        f"labels contradict the images: the nearest labeled image has the same label in {percent(found.share)} % of "
        f"cases, and in {percent(found.by_chance)} % if labels were drawn at random"
    )
