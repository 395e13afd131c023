"""Find the nearest other rows of each row, block by block."""

import numpy as np
from numpy.typing import NDArray

from labelkit.algorithms.neighbors import ExactSearch
from labelkit.algorithms.row_blocks import Rows, StoredRows
from labelkit.commands.common.embeddings import find_zero_embeddings
from labelkit.progress import current_progress

_QUERIES = 1024


def find_nearest_other_embeddings(
    rows: Rows,
    k: int,
    description: str,
    may_be_neighbor: NDArray[np.bool_] | None = None,
    queries: NDArray[np.int64] | None = None,
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Find the k nearest other rows of each row by cosine similarity, nearest first.

    Args:
        rows: (n, d), not necessarily normalized.
        k: number of neighbors; fewer if there are fewer rows.
        description: label of the progress bar.
        may_be_neighbor: (n,) mask of rows that may be neighbors; ``None``: all.
        queries: (m,) positions of the query rows; ``None``: all n.

    Returns:
        cosines (m, k) float32 and positions (m, k) int64; NaN and -1 where there are no more neighbors, and for zero
        rows, which have no direction and are never neighbors.
    """
    query_rows = np.arange(len(rows)) if queries is None else queries
    cosines = np.full((len(query_rows), k), np.nan, dtype=np.float32)
    places = np.full((len(query_rows), k), -1, dtype=np.int64)
    directed = ~find_zero_embeddings(rows)
    gallery = np.flatnonzero(directed if may_be_neighbor is None else directed & may_be_neighbor)
    number = min(k, len(gallery) - int(np.isin(query_rows, gallery).any()))
    if number < 1:
        return cosines, places
    search = ExactSearch(rows.subset(gallery) if isinstance(rows, StoredRows) else rows[gallery], metric="cosine")
    lines = np.flatnonzero(directed[query_rows])
    with current_progress().task(description, total=len(lines)) as task:
        for start in range(0, len(lines), _QUERIES):
            part = lines[start : start + _QUERIES]
            own = query_rows[part]
            scores, found = search.search(rows[own], min(number + 1, len(gallery)))
            # sort the row itself to the end, so that it is cut off
            kept = np.argsort(gallery[found] == own[:, None], axis=1, kind="stable")[:, :number]
            cosines[part, :number] = np.take_along_axis(scores, kept, 1)
            places[part, :number] = gallery[np.take_along_axis(found, kept, 1)]
            task.advance(len(part))
    return cosines, places
