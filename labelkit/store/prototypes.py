"""Prototypes as a file: HDF5 by the rules of stores, so that wrong bytes are found and h5py alone reads it.

The format is described in ``labelkit.store.schema``.
"""

from __future__ import annotations

from collections.abc import Mapping
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

_LENGTH_TOLERANCE = 1e-3


@dataclass(frozen=True)
class PrototypeFile:
    """Prototypes as they were read.

    Attributes:
        prototypes: (k, d) float32, rows of length 1.
        recipe: how they were made, with the seed.
        content_digest: identity of the file.
        path: the file.
    """

    prototypes: NDArray[np.float32]
    recipe: dict[str, Any]
    content_digest: str
    path: Path


def write_prototypes(
    path: Path,
    prototypes: NDArray[np.float32],
    recipe: Mapping[str, object],
    spread: Mapping[str, object],
    *,
    overwrite: bool = False,
) -> str:
    """Write prototypes, complete or not at all; return the content digest.

    Args:
        path: file to write.
        prototypes: (k, d) float32, rows of length 1.
        recipe: how they were made; JSON values only.
        spread: how well they are spread, for readers; JSON values only.
        overwrite: replace other content. The same content written twice is no error.

    Raises:
        OutputExistsError: the file is there and has other content.
        ResourceError: the disk is full, no permission, ...
    """
    datasets = {"prototypes": prototypes.astype("<f4")}
    contents = Contents.made(schema.FORMAT_PROTOTYPES, datasets, recipe=recipe, spread=spread)
    return write_once(path, contents, overwrite=overwrite)


def read_prototypes(path: Path) -> PrototypeFile:
    """Read prototypes; all digests are compared.

    Raises:
        StoreError: not such a file, damaged, or rows that are not of length 1.
        ResourceError: the system does not let us read it.
    """
    with open_file(path, schema.FORMAT_PROTOTYPES) as file:
        file.require(schema.PROTOTYPE_COLUMNS)
        prototypes = file.read("prototypes")
        lengths = np.linalg.norm(prototypes.astype(np.float64), axis=1)
        if not np.all(np.abs(lengths - 1) <= _LENGTH_TOLERANCE):
            raise Refused(file.place("prototypes"), "rows are not of length 1", RESTORE)
        return PrototypeFile(prototypes, file.read_json("", "recipe", "{}"), file.content_digest, path)
