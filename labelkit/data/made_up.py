"""Made-up images in place of a named data set that is not here: to count and to time a training, not to learn from."""

from __future__ import annotations

import io
from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from labelkit.data.datasets import EncodedImage, ImageDataset
from labelkit.data.registry import DatasetSpec

PHOTO: Final = (375, 500)
"""Height and width of a photo: the usual ones of ImageNet."""

#: Sides of the square images of sets that are kept as arrays or have one small size.
_SIDES: Final = {"cifar10": 32, "cifar100": 32, "svhn": 32, "imagenet_200": 64, "stl10": 96}
#: Classes of the split train, in sets whose other splits have other classes.
_TRAIN_CLASSES: Final = {"sop": 11_318, "in_shop": 3_997}
#: Sets whose mirrored images mean something else.
_CHIRAL: Final = ("svhn",)
_PHOTOS: Final = 16
_QUALITY: Final = 90


@dataclass(frozen=True, slots=True, eq=False)
class MadeUpImages:
    """Noise: pixels if images are small, else one of a few JPEG files, so that decoding takes its time.

    Attributes:
        size: height and width of every image.
        rows: (n,) int64, what the noise of each image is drawn by.
    """

    size: tuple[int, int]
    rows: NDArray[np.int64]

    @property
    def is_file(self) -> bool:
        """Whether images are encoded."""
        return self.size == PHOTO

    def read(self, index: int) -> EncodedImage:
        """Return the image of row ``index``."""
        row = int(self.rows[index])
        if self.is_file:
            return EncodedImage(_photo(row % _PHOTOS))
        return EncodedImage(np.random.default_rng(row).integers(0, 256, (*self.size, 3), dtype=np.uint8))

    def select(self, rows: NDArray[np.int64]) -> MadeUpImages:
        """Return the images of ``rows``."""
        return MadeUpImages(self.size, self.rows[rows])


@cache
def _photo(number: int) -> bytes:
    """A JPEG of smooth noise, about as many bytes as a photo of that size."""
    from PIL import Image

    generator = np.random.default_rng(number)
    height, width = PHOTO
    coarse = generator.integers(0, 256, (height // 12, width // 12, 3), dtype=np.uint8)
    smooth = np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC), dtype=np.int16)
    pixels = np.clip(smooth + generator.integers(-22, 23, smooth.shape), 0, 255).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=_QUALITY)
    return buffer.getvalue()


def made_up_dataset(spec: DatasetSpec) -> ImageDataset:
    """Return a listing with the published numbers of images and classes; classes are equally large.

    Args:
        spec: row of the table of named data sets. Of a number that is published rounded, the lowest counts.

    """
    counts = {split: count.low for split, count in spec.num_images.items()}
    splits = np.repeat(np.arange(len(counts), dtype=np.int16), list(counts.values()))
    labels = [_labels(spec, split, count) for split, count in counts.items()]
    total = len(splits)
    names = tuple(f"class_{i:06d}" for i in range(spec.num_classes))
    side = _SIDES.get(spec.name)
    return ImageDataset(
        name=spec.name,
        root=None,
        sample_ids=tuple(f"made-up/{i:08d}" for i in range(total)),
        labels=np.concatenate(labels),
        given=np.full(total, spec.num_classes > 0),
        class_names=names,
        splits=splits,
        split_names=tuple(counts),
        in_channels=3,
        chiral=spec.name in _CHIRAL,
        photographic=True,
        source=MadeUpImages(PHOTO if side is None else (side, side), np.arange(total)),
        notes=(f"{spec.name} is not here: {total:,} made-up images stand for it",),
    )


def _labels(spec: DatasetSpec, split: str, count: int) -> NDArray[np.int64]:
    if not spec.num_classes:
        return np.full(count, -1, dtype=np.int64)
    trained = _TRAIN_CLASSES.get(spec.name)
    if trained is None:
        return np.arange(count, dtype=np.int64) % spec.num_classes
    if split == "train":
        return np.arange(count, dtype=np.int64) % trained
    return trained + np.arange(count, dtype=np.int64) % (spec.num_classes - trained)
