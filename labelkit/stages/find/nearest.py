"""The nearest other rows of each row, found block by block."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from labelkit.algorithms.neighbors import ExactSearch
from labelkit.algorithms.row_blocks import Rows, StoredRows
from labelkit.stages.progress import current_progress
from labelkit.stages.read.rows import zero_rows

_QUERIES = 1024


def nearest_others(rows: Rows, k: int, what: str) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return the k nearest other rows of each row by cosine, nearest first.

    Args:
        rows: (n, d) of any length.
        k: wanted; fewer if there are fewer rows.
        what: for the progress.

    Returns:
        cosines (n, k) float32 and places (n, k) int64; NaN and -1 for rows of zeros, which have no direction and are
        nobody's neighbor, and where there are no more.
    """
    cosines = np.full((len(rows), k), np.nan, dtype=np.float32)
    places = np.full((len(rows), k), -1, dtype=np.int64)
    usable = np.flatnonzero(~zero_rows(rows))
    number = min(k, len(usable) - 1)
    if number < 1:
        return cosines, places
    if len(usable) < len(rows):
        rows = rows.subset(usable) if isinstance(rows, StoredRows) else rows[usable]
    search = ExactSearch(rows, metric="cosine")
    with current_progress().task(what, total=len(usable)) as task:
        for start in range(0, len(usable), _QUERIES):
            own = np.arange(start, min(start + _QUERIES, len(usable)))
            scores, found = search.search(rows[own], number + 1)
            others = found != own[:, None]
            others[others.all(axis=1), -1] = False  # among equal rows a row may not find itself
            shape = (len(own), number)
            cosines[usable[own], :number] = scores[others].reshape(shape)
            places[usable[own], :number] = usable[found[others]].reshape(shape)
            task.advance(len(own))
    return cosines, places
