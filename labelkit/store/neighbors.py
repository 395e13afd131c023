"""Neighbors of the images of a data set as a file: HDF5 by the rules of stores, so that wrong bytes are found.

The format is described in ``labelkit.store.schema``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelkit.errors import Refused
from labelkit.store import schema
from labelkit.store.digests import RESTORE
from labelkit.store.reader import open_file
from labelkit.store.writer import Contents, write_once


@dataclass(frozen=True)
class NeighborFile:
    """Neighbors as they were read.

    Attributes:
        query_rows: (q,) int64 rows of the data set, increasing.
        neighbor_rows: (q, k) int64 rows of the data set, the nearest first; none is its own.
        scores: (q, k) float32 cosines.
        recipe: what they depend on.
    """

    query_rows: NDArray[np.int64]
    neighbor_rows: NDArray[np.int64]
    scores: NDArray[np.float32]
    recipe: dict[str, Any]


def write_neighbors(path: Path, found: NeighborFile) -> None:
    """Write neighbors, complete or not at all; another file of that name is replaced.

    Raises:
        ResourceError: the disk is full, no permission, ...
    """
    datasets = {
        "query_rows": found.query_rows.astype("<i8"),
        "neighbor_rows": found.neighbor_rows.astype("<i8"),
        "scores": found.scores.astype("<f4"),
    }
    write_once(path, Contents.made(schema.FORMAT_NEIGHBORS, datasets, recipe=found.recipe), overwrite=True)


def read_neighbors(path: Path) -> NeighborFile:
    """Read neighbors; all digests are compared.

    Raises:
        StoreError: not such a file, damaged, or with values that neighbors cannot have.
        ResourceError: the system does not let us read it.
    """
    with open_file(path, schema.FORMAT_NEIGHBORS) as file:
        file.require(schema.NEIGHBOR_COLUMNS)
        query, neighbors, scores = (file.read(name) for name in schema.NEIGHBOR_COLUMNS)
        if (np.diff(query) <= 0).any() or (len(query) and query[0] < 0):
            raise Refused(file.place("query_rows"), "rows do not increase", RESTORE)
        if not np.isin(neighbors, query).all() or (neighbors == query[:, None]).any():
            raise Refused(file.place("neighbor_rows"), "rows that are not listed, or an image with itself", RESTORE)
        return NeighborFile(query, neighbors, scores, file.read_json("", "recipe", "{}"))
