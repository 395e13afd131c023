"""Made-up photos: pictures with structure at every scale, no two alike, and pixels as a dataset."""

from pathlib import Path
from typing import Any

import numpy as np
from labelkit.data.datasets import ArraySource, ImageDataset
from numpy.typing import ArrayLike, NDArray
from PIL import Image

SIZE = (160, 120)


def photo(seed: int) -> Image.Image:
    """A colored picture of 160 x 120 pixels."""
    generator = np.random.default_rng(seed)
    values = np.zeros((SIZE[1], SIZE[0], 3))
    for cells in (3, 6, 12, 24, 48):
        for channel in range(3):
            noise = Image.fromarray(generator.normal(size=(cells, cells)).astype(np.float32))
            values[:, :, channel] += np.asarray(noise.resize(SIZE, Image.Resampling.BICUBIC)) * (3 / cells) ** 0.5
    return Image.fromarray(np.clip(128 + 35 * values, 0, 255).astype(np.uint8))


def write_noise(folder: Path, count: int) -> Path:
    """Write numbered pictures of 50 x 40 random pixels; returns the folder."""
    generator = np.random.default_rng(0)
    for number in range(count):
        Image.fromarray(generator.integers(0, 256, (40, 50, 3), dtype=np.uint8)).save(folder / f"{number}.png")
    return folder


def dataset_of(images: NDArray[np.uint8], labels: ArrayLike, **changes: Any) -> ImageDataset:
    """A dataset of pixels, (n, height, width, channels), whose labels are all given, in one split."""
    known = np.asarray(labels, dtype=np.int64)
    values: dict[str, Any] = {
        "name": "made",
        "root": None,
        "sample_ids": tuple(f"{row:03d}" for row in range(len(images))),
        "labels": known,
        "given": known >= 0,
        "class_names": tuple(f"class {label}" for label in range(known.max() + 1)),
        "splits": np.zeros(len(images), dtype=np.int16),
        "split_names": ("train",),
        "in_channels": images.shape[3],
        "source": ArraySource(images),
    }
    return ImageDataset(**{**values, **changes})
