"""The nearest other rows of each row, found block by block."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from labelkit.algorithms.neighbors import ExactSearch
from labelkit.algorithms.row_blocks import Rows, StoredRows
from labelkit.commands.common.embeddings import zero_rows
from labelkit.progress import current_progress

_QUERIES = 1024


def nearest_others(
    rows: Rows, k: int, what: str, among: NDArray[np.bool_] | None = None
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Find the k nearest other rows of each row by cosine, nearest first.

    Args:
        rows: (n, d) of any length.
        k: wanted; fewer if there are fewer rows.
        what: for the progress.
        among: (n,) which rows may be neighbors; ``None``: all.

    Returns:
        cosines (n, k) float32 and places (n, k) int64; NaN and -1 for rows of zeros, which have no direction and are
        nobody's neighbor, and where there are no more.
    """
    cosines = np.full((len(rows), k), np.nan, dtype=np.float32)
    places = np.full((len(rows), k), -1, dtype=np.int64)
    directed = ~zero_rows(rows)
    gallery = np.flatnonzero(directed if among is None else directed & among)
    number = min(k, len(gallery) - 1)
    if number < 1:
        return cosines, places
    search = ExactSearch(rows.subset(gallery) if isinstance(rows, StoredRows) else rows[gallery], metric="cosine")
    queries = np.flatnonzero(directed)
    with current_progress().task(what, total=len(queries)) as task:
        for start in range(0, len(queries), _QUERIES):
            own = queries[start : start + _QUERIES]
            scores, found = search.search(rows[own], number + 1)
            others = gallery[found] != own[:, None]
            others[others.all(axis=1), -1] = False  # a row that is no neighbor, or not the first of equal ones
            cosines[own, :number] = scores[others].reshape(len(own), number)
            places[own, :number] = gallery[found[others]].reshape(len(own), number)
            task.advance(len(own))
    return cosines, places
