"""Small array files with the same digests as stores, which detect damage: matches, neighbors and prototypes.

The formats are described in ``docs/inside/file_format.txt``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelkit.store import schema
from labelkit.store.reader import open_checked_file
from labelkit.store.writer import MADE_BY, FileContents, encode_strings, write_small_file

MAX_KEYPOINTS = 50


@dataclass(frozen=True)
class Matches:
    """Matched image pairs, as arrays with one row per pair; see ``labelkit.store.schema`` for shapes."""

    pairs: NDArray[np.int64]
    inliers: NDArray[np.int64]
    homographies: NDArray[np.float64]
    boxes: NDArray[np.float32]
    keypoints: NDArray[np.float32]
    keypoint_counts: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.pairs)

    def select(self, selection: NDArray[np.int64] | NDArray[np.bool_]) -> Matches:
        """Return the pairs selected by positions or by a boolean mask."""
        return Matches(**{field.name: getattr(self, field.name)[selection] for field in fields(self)})

    def reversed(self) -> Matches:
        """Return the same pairs with the first and second image swapped."""
        back = np.linalg.inv(self.homographies) if len(self) else self.homographies
        pairs, boxes, keypoints = self.pairs[:, ::-1], self.boxes[:, ::-1], self.keypoints[:, :, ::-1]
        return replace(self, pairs=pairs, homographies=back / back[:, 2:, 2:], boxes=boxes, keypoints=keypoints)


def build_empty_matches() -> Matches:
    """Build an empty set of matches."""
    return build_match(0, 1, np.eye(3), np.zeros((1, 2, 2))).select(np.arange(0))


def join_matches(parts: Sequence[Matches]) -> Matches:
    """Concatenate several sets of matches."""
    listed = [build_empty_matches(), *parts]
    return Matches(**{f.name: np.concatenate([getattr(part, f.name) for part in listed]) for f in fields(Matches)})


def build_match(first: int, second: int, homography: NDArray[np.float64], points: NDArray[np.float64]) -> Matches:
    """Build the match of a single pair of images from its homography and inliers.

    Args:
        first: row of the first image.
        second: row of the second image.
        homography: (3, 3), from first to second.
        points: (k, 2, 2) inliers in both images, best first.
    """
    kept = np.zeros((1, MAX_KEYPOINTS, 2, 2), np.float32)
    count = min(len(points), MAX_KEYPOINTS)
    kept[0, :count] = points[:count]
    return Matches(
        np.array([[first, second]], dtype=np.int64),
        np.array([len(points)], dtype=np.int64),
        homography[None].astype(np.float64),
        np.concatenate((points.min(axis=0), points.max(axis=0)), axis=1)[None].astype(np.float32),
        kept,
        np.array([count], dtype=np.int64),
    )


@dataclass(frozen=True)
class MatchFile:
    """Content of a match file: the matched pairs, all images compared, and the matching settings.

    Attributes:
        matches: matched pairs; their rows are indices into ``sample_ids``.
        sample_ids: the n images examined.
        sha256: (n, 32) uint8 digests of the image files.
        image_sizes: (n, 2) height and width.
        num_keypoints: (n,) int64, number of keypoints found in each image.
        recipe: how the matches were computed.
        content_digest: digest that identifies the content.
    """

    matches: Matches
    sample_ids: tuple[str, ...]
    sha256: NDArray[np.uint8]
    image_sizes: NDArray[np.uint32]
    num_keypoints: NDArray[np.int64]
    recipe: dict[str, Any]
    content_digest: str


def write_matches(path: Path, match_file: MatchFile, *, overwrite: bool = False) -> str:
    """Write matches to a file atomically and return its content digest; see ``write_prototypes``."""
    images = _stored(schema.MATCHED_IMAGE_COLUMNS, match_file)
    datasets = {
        **_stored(schema.MATCH_COLUMNS, match_file.matches),
        **images,
        "sample_ids": encode_strings(match_file.sample_ids),
    }
    contents = FileContents.create(schema.FORMAT_MATCHES, datasets, created_by=MADE_BY, recipe=match_file.recipe)
    return write_small_file(path, contents, overwrite=overwrite)


def read_matches(path: Path) -> MatchFile:
    """Read a match file and verify all its digests.

    Raises:
        StoreError: the file is damaged or of another kind.
        ResourceError: the file cannot be read, for example for lack of permission.
    """
    columns = {**schema.MATCH_COLUMNS, **schema.MATCHED_IMAGE_COLUMNS}
    with open_checked_file(path, schema.FORMAT_MATCHES) as file:
        file.check_axes(columns, required=columns)
        matches = Matches(**{name: file.read(name) for name in schema.MATCH_COLUMNS})
        sha256, sizes, counts = (file.read(name) for name in ("sha256", "image_sizes", "num_keypoints"))
        names, recipe = tuple(file.read_strings("sample_ids")), file.read_json("", "recipe", "{}")
        return MatchFile(matches, names, sha256, sizes, counts, recipe, file.content_digest)


def _stored(columns: schema.Columns, values: object) -> dict[str, NDArray[Any]]:
    """Return the attributes that are numeric columns, in their stored types."""
    kinds = {name: f"<{column.types[0]}" for name, column in columns.items() if column.types[0] != "S"}
    return {name: np.ascontiguousarray(getattr(values, name), dtype=kind) for name, kind in kinds.items()}


@dataclass(frozen=True)
class NeighborFile:
    """Content of a nearest-neighbor file, with the recipe that produced it.

    Attributes:
        query_rows: (q,) int64 rows of the dataset, increasing.
        neighbor_rows: (q, k) int64 rows of the dataset, nearest first; no row is its own neighbor.
        scores: (q, k) float32 cosines.
        recipe: everything on which the neighbors depend.
    """

    query_rows: NDArray[np.int64]
    neighbor_rows: NDArray[np.int64]
    scores: NDArray[np.float32]
    recipe: dict[str, Any]


def write_neighbors(path: Path, neighbor_file: NeighborFile) -> None:
    """Write nearest neighbors to a file atomically, replacing an existing file."""
    datasets = _stored(schema.NEIGHBOR_COLUMNS, neighbor_file)
    contents = FileContents.create(schema.FORMAT_NEIGHBORS, datasets, created_by=MADE_BY, recipe=neighbor_file.recipe)
    write_small_file(path, contents, overwrite=True)


def read_neighbors(path: Path) -> NeighborFile:
    """Read a nearest-neighbor file and verify all its digests."""
    with open_checked_file(path, schema.FORMAT_NEIGHBORS) as file:
        file.check_axes(schema.NEIGHBOR_COLUMNS, required=schema.NEIGHBOR_COLUMNS)
        query, neighbors, scores = (file.read(name) for name in schema.NEIGHBOR_COLUMNS)
        return NeighborFile(query, neighbors, scores, file.read_json("", "recipe", "{}"))


@dataclass(frozen=True)
class PrototypeFile:
    """Content of a prototype file, with the recipe that produced it.

    Attributes:
        prototypes: (k, d) float32, unit rows.
        recipe: how the prototypes were computed, including the seed.
        content_digest: digest that identifies the content.
        path: path of the file.
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
    """Write prototypes (k, d) float32, with unit-norm rows, to a file atomically and return its content digest.

    ``recipe`` records how they were computed, and ``spread`` how well they are spread; both contain JSON values only.
    Other content is replaced only with ``overwrite``; writing the same content twice is not an error.
    """
    datasets = {"prototypes": prototypes.astype("<f4")}
    contents = FileContents.create(schema.FORMAT_PROTOTYPES, datasets, created_by=MADE_BY, recipe=recipe, spread=spread)
    return write_small_file(path, contents, overwrite=overwrite)


def read_prototypes(path: Path) -> PrototypeFile:
    """Read a prototype file and verify all its digests.

    Raises:
        StoreError: the file is damaged or of another kind.
        ResourceError: the file cannot be read, for example for lack of permission.
    """
    with open_checked_file(path, schema.FORMAT_PROTOTYPES) as file:
        file.check_axes(schema.PROTOTYPE_COLUMNS, required=schema.PROTOTYPE_COLUMNS)
        return PrototypeFile(file.read("prototypes"), file.read_json("", "recipe", "{}"), file.content_digest, path)
