"""Keypoints of images and matches of pairs, found once: in parts, each kept in the user's cache as soon as it is there.

A part is known by everything it depends on: digests of the image files, options, version of OpenCV. So the same
command goes on where it was stopped, and another one with the same images and options finds the work done.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from labelkit.algorithms.affine_sift import OPENCV_VERSION, Keypoints, find_keypoints, match_images
from labelkit.cache import cache_folder
from labelkit.data.datasets import ImageDataset
from labelkit.data.decode import BadImage
from labelkit.errors import DatasetError, LabelkitError, StoreError
from labelkit.stages.progress import Task, current_progress
from labelkit.store.commit import canonical_json
from labelkit.store.matches import (
    KeypointPart,
    Matches,
    join_matches,
    one_match,
    read_keypoints,
    read_tried,
    write_keypoints,
    write_tried,
)

#: Images, and pairs, of a part: what is lost at a stop, at most.
IMAGES_PER_PART = 32
PAIRS_PER_PART = 512
# Keypoints held at a time; a part of large images has about 4 MiB.
_MEMORY_BYTES = 2 << 30
# Of the way they are found; a change makes old parts unused.
_VERSION = 1

T = TypeVar("T")


@dataclass
class _Cache:
    """The cache of parts, and what is said about it only once."""

    use: bool
    told: set[str] = field(default_factory=set)

    def look(self, path: Path, read: Callable[[Path], T]) -> T | None:
        if not self.use or not path.exists():
            return None
        try:
            return read(path)
        except (StoreError, OSError) as error:
            problem = error.problem if isinstance(error, StoreError) else str(error)
            current_progress().warning(f"{path}: {problem}; made again")
            return None

    def keep(self, path: Path, write: Callable[[Path], None]) -> None:
        if not self.use:
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write(path)
        except (OSError, LabelkitError) as error:
            if "write" not in self.told:
                current_progress().warning(f"could not keep what was found in {path.parent}: {error}")
            self.told.add("write")


@dataclass(frozen=True)
class MatchingOptions:
    """What keypoints and matches depend on, beside the images; see ``labelkit.algorithms.affine_sift``."""

    shorter_side: int
    max_tilt: int
    max_keypoints: int
    ratio: float
    min_inliers: int
    min_inlier_ratio: float

    def of_keypoints(self) -> dict[str, object]:
        """The part that keypoints depend on."""
        return {
            "version": _VERSION,
            "opencv": OPENCV_VERSION,
            "shorter_side": self.shorter_side,
            "max_tilt": self.max_tilt,
            "max_keypoints": self.max_keypoints,
        }

    def of_matches(self) -> dict[str, object]:
        """All of it."""
        return {
            **self.of_keypoints(),
            "ratio": self.ratio,
            "min_inliers": self.min_inliers,
            "min_inlier_ratio": self.min_inlier_ratio,
        }


def _key(recipe: Mapping[str, object]) -> str:
    return hashlib.sha256(canonical_json(dict(recipe)).encode()).hexdigest()[:32]


class KeypointReader:
    """Keypoints of the images of a store, by row.

    Args:
        dataset: the images.
        dataset_rows: (n,) row of the data set of each row of the store.
        sha256: (n, 32) digests of the files as they were embedded.
        options: how to look.
        use_cache: look in the user's cache, and put there what was found.

    Attributes:
        num_keypoints: (n,) int64 of each image, 0 until ``find_all``; -1 = it could not be read.
        from_cache: images that were found in the cache.
    """

    def __init__(
        self,
        dataset: ImageDataset,
        dataset_rows: NDArray[np.int64],
        sha256: NDArray[np.uint8],
        options: MatchingOptions,
        *,
        use_cache: bool,
    ) -> None:
        self._bad: list[str] = []
        self._dataset, self._dataset_rows, self._sha256 = dataset, dataset_rows, sha256
        self._options = options
        self._cache = _Cache(use_cache)
        self._held: OrderedDict[int, KeypointPart] = OrderedDict()
        self.num_keypoints: NDArray[np.int64] = np.zeros(len(sha256), dtype=np.int64)
        self.from_cache = 0

    def _rows(self, part: int) -> range:
        return range(part * IMAGES_PER_PART, min((part + 1) * IMAGES_PER_PART, len(self._sha256)))

    def _recipe(self, part: int) -> dict[str, object]:
        rows = self._rows(part)
        digests = hashlib.sha256(self._sha256[rows.start : rows.stop].tobytes()).hexdigest()
        return {**self._options.of_keypoints(), "images": digests}

    def find_all(self, pool: ThreadPoolExecutor, task: Task) -> None:
        """Find the keypoints of all images; parts of the cache are not done again.

        Raises:
            DatasetError: an image is not the one that was embedded.
        """
        for part in range(-(-len(self._sha256) // IMAGES_PER_PART)):
            rows, recipe = self._rows(part), self._recipe(part)
            found = self._cache.look(self._path(recipe), partial(read_keypoints, recipe=recipe))
            if found is not None and len(found.num_keypoints) == len(rows):
                self.from_cache += len(rows)
                task.advance(len(rows), cached=self.from_cache)
            else:
                made = []
                for keypoints in pool.map(self._of_row, rows):
                    made.append(keypoints)
                    task.advance(1, cached=self.from_cache)
                found = _joined(made)
                self._cache.keep(
                    self._path(recipe),
                    partial(write_keypoints, part=found, recipe=recipe),
                )
            self.num_keypoints[rows.start : rows.stop] = found.num_keypoints
            self._hold(part, found)
        for line in self._bad:
            current_progress().warning(line)

    def _of_row(self, row: int) -> Keypoints | None:
        name = self._dataset.sample_ids[self._dataset_rows[row]]
        try:
            encoded = self._dataset.source.read(int(self._dataset_rows[row]))
            if encoded.sha256 != self._sha256[row].tobytes():
                raise DatasetError(name, "is not the image that was embedded", "Embed again, or restore the image.")
            image = encoded.decode(self._dataset.in_channels)
        except BadImage as error:
            self._bad.append(f"{name}: {error.reason}; it gets no partner")
            return None
        options = self._options
        return find_keypoints(
            image,
            shorter_side=options.shorter_side,
            max_tilt=options.max_tilt,
            max_keypoints=options.max_keypoints,
        )

    def of_image(self, row: int) -> Keypoints:
        """Keypoints of one image after ``find_all``; none of one that could not be read."""
        part, place = divmod(row, IMAGES_PER_PART)
        found = self._part(part)
        start = int(np.maximum(found.num_keypoints[:place], 0).sum())
        end = start + max(0, int(found.num_keypoints[place]))
        height, width = found.resized[place].tolist()
        return Keypoints(found.points[start:end], found.descriptors[start:end], (height, width))

    def _part(self, part: int) -> KeypointPart:
        found = self._held.get(part)
        if found is not None:
            self._held.move_to_end(part)
            return found
        recipe = self._recipe(part)
        found = self._cache.look(self._path(recipe), partial(read_keypoints, recipe=recipe))
        if found is None:  # the cache was emptied meanwhile
            found = _joined([self._of_row(row) for row in self._rows(part)])
        self._hold(part, found)
        return found

    def _hold(self, part: int, found: KeypointPart) -> None:
        self._held[part] = found
        # without a cache there is nowhere else to keep them
        while self._cache.use and len(self._held) > 1 and self._held_bytes() > _MEMORY_BYTES:
            self._held.popitem(last=False)

    def _held_bytes(self) -> int:
        return sum(part.descriptors.nbytes + part.points.nbytes for part in self._held.values())

    def _path(self, recipe: Mapping[str, object]) -> Path:
        return cache_folder() / "matches" / "keypoints" / f"{_key(recipe)}.h5"


def _joined(made: list[Keypoints | None]) -> KeypointPart:
    counts = np.array([-1 if found is None else len(found.points) for found in made], dtype=np.int64)
    kept = [found for found in made if found is not None]
    return KeypointPart(
        counts,
        np.array([(1, 1) if found is None else found.size for found in made], dtype=np.uint32).reshape(-1, 2),
        np.concatenate([np.zeros((0, 2), np.float32), *(found.points for found in kept)]),
        np.concatenate([np.zeros((0, 128), np.uint8), *(found.descriptors for found in kept)]),
    )


def try_pairs(
    keypoints: KeypointReader,
    pairs: NDArray[np.int64],
    sha256: NDArray[np.uint8],
    options: MatchingOptions,
    pool: ThreadPoolExecutor,
    task: Task,
    *,
    use_cache: bool,
) -> tuple[Matches, int]:
    """Match pairs of images.

    Args:
        keypoints: of all images.
        pairs: (p, 2) int64 rows of the store.
        sha256: (n, 32) digests of the files.
        options: what makes a match.
        pool: threads to work in.
        task: is told of every pair.
        use_cache: look in the user's cache, and put there what was found.

    Returns:
        What matches, in the order of ``pairs``; and how many pairs were found in the cache.
    """
    cache = _Cache(use_cache)
    images = hashlib.sha256(np.ascontiguousarray(sha256).tobytes()).hexdigest()
    found: list[Matches] = []
    matched = cached = 0
    for start in range(0, len(pairs), PAIRS_PER_PART):
        part = pairs[start : start + PAIRS_PER_PART]
        recipe = {
            **options.of_matches(),
            "images": images,
            "pairs": hashlib.sha256(np.ascontiguousarray(part, dtype="<i8").tobytes()).hexdigest(),
        }
        path = cache_folder() / "matches" / "pairs" / f"{_key(recipe)}.h5"
        tried = cache.look(path, partial(read_tried, recipe=recipe, num_images=len(sha256)))
        if tried is not None:
            cached += len(part)
            task.advance(len(part), matched=matched + len(tried))
        else:
            # read here, so that threads do not turn the order of what is held upside down
            listed = [(int(i), int(j), keypoints.of_image(int(i)), keypoints.of_image(int(j))) for i, j in part]
            made = []
            for one in pool.map(partial(_try, options=options), listed):
                if one is not None:
                    made.append(one)
                task.advance(1, matched=matched + len(made))
            tried = join_matches(made)
            cache.keep(path, partial(write_tried, matches=tried, recipe=recipe))
        matched += len(tried)
        found.append(tried)
    return join_matches(found), cached


def _try(pair: tuple[int, int, Keypoints, Keypoints], options: MatchingOptions) -> Matches | None:
    i, j, first, second = pair
    found = match_images(
        first,
        second,
        ratio=options.ratio,
        min_inliers=options.min_inliers,
        min_inlier_ratio=options.min_inlier_ratio,
    )
    return None if found is None else one_match(i, j, found.homography, found.points)
