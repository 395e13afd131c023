"""Read image files, and find the images from which a store was created."""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from labelkit.commands.common.locations import find_image_location
from labelkit.data.datasets import FileSource, ImageDataset, build_dataset
from labelkit.data.decode import BadImageError
from labelkit.data.registry import DATASETS, load_dataset
from labelkit.data.tables import path_exists
from labelkit.errors import DatasetError, LabelkitError
from labelkit.progress import current_progress
from labelkit.store.embeddings import EmbeddingStore

# Maximum number of items submitted to the threads at a time.
_TOGETHER = 512

Item = TypeVar("Item")
Found = TypeVar("Found")


def map_in_threads(function: Callable[[Item], Found], items: Sequence[Item], description: str) -> Iterator[Found]:
    """Apply a function to items in threads, and yield the results in order; a progress bar shows ``description``."""
    with (
        ThreadPoolExecutor(os.cpu_count() or 1) as pool,
        current_progress().task(description, total=len(items)) as task,
    ):
        for start in range(0, len(items), _TOGETHER):
            for found in pool.map(function, items[start : start + _TOGETHER]):
                task.advance(1)
                yield found


def open_single_image(path: Path) -> ImageDataset:
    """Open an image file as a dataset of one unlabeled image.

    Raises:
        DatasetError: the file does not exist or is not an image.
    """
    if not path_exists(path):
        raise DatasetError(str(path), "does not exist", "Pass an image file, a folder of images, or a store.")
    source = FileSource(path.parent, (path.name,))
    try:
        source.read(0).decode(3)
    except BadImageError as error:
        raise DatasetError(str(path), f"cannot be read as an image: {error}", "Pass a JPEG or PNG file.") from error
    return build_dataset(path.name, path.parent, (path.name,), [None], [None], source)


def open_source_dataset(store: EmbeddingStore, dataset: str | None, data_root: Path) -> ImageDataset:
    """Open the dataset from which a store was created; without ``dataset``, at the location recorded for the store.

    Raises:
        DatasetError: the location of the images is unknown, or they are no longer there.
    """
    place = find_image_location(store.content_digest) if dataset is None else (dataset, data_root)
    if place is None:
        remedy = "Pass --dataset (and --data-root), or set LABELKIT_CACHE to its value in the `labelkit embed` run."
        raise DatasetError(str(store.path), "the location of its images on this machine is unknown", remedy)
    try:
        return load_dataset(place[0], data_root=place[1])
    except LabelkitError as error:
        problem = f"the images of {store.path} cannot be listed: {error}"
        raise DatasetError(place[0], problem, "Pass --dataset (and --data-root).") from error


def find_image_folder(store: EmbeddingStore) -> Path | None:
    """Return the folder to which the sample ids of a store are relative; ``None`` if unknown or missing."""
    place = find_image_location(store.content_digest)
    if place is None or place[0] in DATASETS:
        return None
    path = Path(place[0])
    if path.is_dir():
        return path
    try:
        return load_dataset(place[0], data_root=place[1]).root
    except LabelkitError:  # the CSV or its images were moved
        return None


def read_store_image(
    images: ImageDataset, row: int | None, sha256: NDArray[np.uint8], channels: Literal[1, 3], min_side: int
) -> NDArray[np.uint8] | str:
    """Read an image of a store; if it is missing, changed or unreadable, return the reason instead.

    Args:
        images: the dataset.
        row: row of the image in the dataset; ``None`` if it is not in the dataset.
        sha256: (32,) uint8 digest of the file when it was embedded.
        channels: 1 or 3.
        min_side: minimum side length in pixels to which the decoder may downscale the image.
    """
    if row is None:
        return "not in the dataset"
    try:
        encoded = images.source.read(row)
        if encoded.sha256 != sha256.tobytes():
            return "not the image that was embedded"
        return encoded.decode(channels, min_side=min_side)
    except BadImageError as error:
        return error.reason


def read_image_pixels(images: ImageDataset, row: int) -> NDArray[np.uint8] | None:
    """Read an image as (h, w, c) uint8; return ``None`` if it cannot be read."""
    try:
        return images.source.read(row).decode(images.in_channels)
    except BadImageError:
        return None


def make_pixel_reader(images: ImageDataset) -> Callable[[str], NDArray[np.uint8] | None]:
    """Return a function that maps a sample id to pixels (h, w, c) uint8, or to ``None`` if it cannot be read."""
    position = {sample_id: row for row, sample_id in enumerate(images.sample_ids)}
    return lambda name: read_image_pixels(images, position[name]) if name in position else None
