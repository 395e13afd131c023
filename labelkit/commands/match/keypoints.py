"""Keypoints of images and matches of pairs, found once: each is in the user's cache as soon as it is there.

A file of the cache is known by everything it depends on: digests of the image files, and the version of OpenCV. So the
same command goes on where it was stopped, and another one with the same images finds the work done.
"""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context, copy_context
from dataclasses import fields
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from labelkit.algorithms.affine_sift import Keypoints, find_keypoints, match_images, opencv_version
from labelkit.cache import cache_folder
from labelkit.data.datasets import ImageDataset
from labelkit.data.decode import BadImage
from labelkit.errors import DatasetError, LabelkitError
from labelkit.files import open_regular
from labelkit.progress import Task, current_progress
from labelkit.store.array_files import Matches, join_matches, one_match
from labelkit.store.commit import canonical_json, commit_file

# Pairs whose matches share a file: what is lost at a stop, at most.
_PAIRS_PER_PART = 512
# Images whose keypoints are held: some 300 KB each.
_HELD_IMAGES = 2048
# Of the way they are found; a change makes old files unused.
_VERSION = 2

T = TypeVar("T")
Arrays = dict[str, NDArray[Any]]


def cached_arrays(folder: str, of: Mapping[str, object], make: Callable[[], Arrays]) -> tuple[Arrays, bool]:
    """Return arrays from the cache of matches, or compute and cache them; also return whether they were cached.

    Args:
        folder: of the cache.
        of: what they depend on.
        make: makes them.
    """
    recipe = {"version": _VERSION, "opencv": opencv_version(), **of}
    name = hashlib.sha256(canonical_json(recipe).encode()).hexdigest()[:32]
    path = cache_folder() / "matches" / folder / f"{name}.npz"
    try:
        with open_regular(path) as opened, np.load(opened, allow_pickle=False) as file:
            return {key: file[key] for key in file.files}, True
    except FileNotFoundError:
        pass
    except (OSError, EOFError, ValueError, zipfile.BadZipFile) as error:
        current_progress().warning(f"{path}: {error}; recomputed")
    made = make()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        commit_file(path, lambda file: np.savez(file, **made))  # type: ignore[arg-type] # names are texts
    except (OSError, LabelkitError) as error:
        current_progress().warning(f"could not cache the matches: {error}")
    return made, False


def _in_contexts(items: Sequence[T] | NDArray[Any]) -> tuple[Sequence[T] | NDArray[Any], list[Context]]:
    """Items of threads, and a context for each: what they say reaches the progress of this thread."""
    return items, [copy_context() for _ in items]


class KeypointReader:
    """Reader of the keypoints of a store's images, with a cache.

    Args:
        dataset: the images.
        dataset_rows: (n,) row of the data set of each row of the store.
        sha256: (n, 32) digests of the files as they were embedded.

    Attributes:
        num_keypoints: (n,) int64 of each image, 0 until ``find_all_keypoints``; -1 = it could not be read.
        from_cache: images that were found in the cache.
    """

    def __init__(self, dataset: ImageDataset, dataset_rows: NDArray[np.int64], sha256: NDArray[np.uint8]) -> None:
        self._dataset, self._dataset_rows, self._sha256 = dataset, dataset_rows, sha256
        self.num_keypoints: NDArray[np.int64] = np.zeros(len(sha256), dtype=np.int64)
        self.from_cache = 0
        self.of_image = lru_cache(_HELD_IMAGES)(lambda row: self._found(row)[0])

    def find_all_keypoints(self, pool: ThreadPoolExecutor, task: Task) -> None:
        """Find the keypoints of all images, reusing cached ones.

        Raises:
            DatasetError: an image is not the one that was embedded.
        """

        def work(row: int) -> tuple[int, bool | str]:
            try:
                keypoints, is_cached = self._found(row)
            except BadImage as error:
                return -1, f"{self._dataset.sample_ids[self._dataset_rows[row]]}: {error.reason}; it is not matched"
            return len(keypoints.points), is_cached

        found = pool.map(lambda row, context: context.run(work, row), *_in_contexts(range(len(self._sha256))))
        for row, (number, told) in enumerate(found):
            self.num_keypoints[row] = number
            self.from_cache += told is True
            if isinstance(told, str):
                current_progress().warning(told)
            task.advance(1, cached=self.from_cache)

    def _found(self, row: int) -> tuple[Keypoints, bool]:
        def make() -> Arrays:
            name = self._dataset.sample_ids[self._dataset_rows[row]]
            encoded = self._dataset.source.read(int(self._dataset_rows[row]))
            if encoded.sha256 != self._sha256[row].tobytes():
                raise DatasetError(
                    name, "is no longer the image that was embedded", "Embed again, or restore the image."
                )
            keypoints = find_keypoints(encoded.decode(self._dataset.in_channels))
            return {"points": keypoints.points, "descriptors": keypoints.descriptors, "size": np.array(keypoints.size)}

        of = {"image": self._sha256[row].tobytes().hex(), "channels": self._dataset.in_channels}
        arrays, is_cached = cached_arrays("keypoints", of, make)
        height, width = arrays["size"].tolist()
        return Keypoints(arrays["points"], arrays["descriptors"], (height, width)), is_cached


def match_pairs(
    keypoints: KeypointReader, pairs: NDArray[np.int64], sha256: NDArray[np.uint8], pool: ThreadPoolExecutor, task: Task
) -> tuple[Matches, int]:
    """Match the keypoints of image pairs, reusing cached matches.

    Args:
        keypoints: of all images, found.
        pairs: (p, 2) int64 rows of the store.
        sha256: (n, 32) digests of the files.
        pool: threads to work in.
        task: is told of every pair.

    Returns:
        What matches, in the order of ``pairs``; and how many pairs were found in the cache.
    """
    found: list[Matches] = []
    num_cached = 0

    def try_one(pair: NDArray[np.int64]) -> Matches | None:
        first, second = pair.tolist()
        if keypoints.num_keypoints[pair].min() < 1:
            return None
        match = match_images(keypoints.of_image(first), keypoints.of_image(second))
        return None if match is None else one_match(first, second, match.homography, match.points)

    for start in range(0, len(pairs), _PAIRS_PER_PART):
        part = pairs[start : start + _PAIRS_PER_PART]

        def make(part: NDArray[np.int64] = part) -> Arrays:
            made = []
            for one in pool.map(lambda pair, context: context.run(try_one, pair), *_in_contexts(part)):
                if one is not None:
                    made.append(one)
                task.advance(1, matched=sum(map(len, found)) + len(made))
            return dict(vars(join_matches(made)))

        digests = [sha256[rows].tobytes() for rows in part.T] + [np.ascontiguousarray(part, dtype="<i8").tobytes()]
        arrays, is_cached = cached_arrays("pairs", {"pairs": hashlib.sha256(b"".join(digests)).hexdigest()}, make)
        found.append(Matches(**{field.name: arrays[field.name] for field in fields(Matches)}))
        if is_cached:
            num_cached += len(part)
            task.advance(len(part), matched=sum(map(len, found)))
    return join_matches(found), num_cached
