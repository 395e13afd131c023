"""Generated datasets, whose images are drawn when first read and stored in the user's cache."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from labelkit.cache import cache_folder, read_arrays, write_arrays
from labelkit.data.datasets import ImageDataset, build_indexed_dataset
from labelkit.data.decode import EncodedImage
from labelkit.data.named import scenes
from labelkit.data.named.layouts import DatasetSpec

SEED: Final = 0
_BLOCK: Final = 100
# Version of the drawing rules and the file format; increase it on changes, so that older drawings are not used.
_VERSION: Final = 2

Block = tuple[NDArray[np.uint8], NDArray[np.uint8]]
_SHAPES: Final = ("background", *scenes.SHAPES)
# The kind of drawing and the names of the mask values by dataset; no names if the values number a video's objects.
_SETS: Final[dict[str, tuple[int, tuple[str, ...]]]] = {
    "scene_objects": (scenes.OBJECTS, _SHAPES),
    "scenes": (scenes.SCENES, _SHAPES),
    "digit_scenes": (scenes.DIGITS, ("background", *map(str, range(10)))),
    "scene_videos": (scenes.VIDEOS, ()),
}


@dataclass(frozen=True, slots=True, eq=False)
class GeneratedSource:
    """Images or masks of a generated dataset, drawn or read from the cache in blocks of consecutive rows.

    Attributes:
        source: kind of drawing, such as ``scenes.SCENES``.
        splits: (n,) int64, split of each row, a position in ``scenes.SPLITS``.
        numbers: (n,) int64, number of each row in its split.
        masks: whether to return masks instead of images.
    """

    source: int
    splits: NDArray[np.int64]
    numbers: NDArray[np.int64]
    masks: bool

    def read(self, index: int) -> Any:
        """Return the 64 x 64 image at ``index`` or, if ``masks``, its (64, 64) mask."""
        block, place = divmod(int(self.numbers[index]), _BLOCK)
        images, masks = _read_block(self.source, int(self.splits[index]), block)
        return masks[place].copy() if self.masks else EncodedImage(images[place])


def read_generated(spec: DatasetSpec, data_root: Path, download: bool) -> ImageDataset:
    """Return a generated dataset without drawing its images; see ``DatasetSpec.reader``.

    Image i of a split is the same for any number of images.
    """
    source, mask_classes = _SETS[spec.name]
    rows = []
    for split, count in spec.num_images.items():
        assert isinstance(count, int)
        for number in range(count):
            name = f"{number:05d}"
            if source == scenes.VIDEOS:
                name = "{:05d}/{:02d}".format(*divmod(number, scenes.NUM_FRAMES))
            rows.append((f"{split}/{name}.png", scenes.SPLITS.index(split), number))
    rows.sort()  # in the order of the listing, so that masks match images
    splits, numbers = (np.array(column, dtype=np.int64) for column in list(zip(*rows, strict=True))[1:])
    labels = np.full(len(rows), -1, dtype=np.int64)
    if source == scenes.OBJECTS:
        labels = np.array([scenes.find_scene_label(SEED, split, number) for _, split, number in rows], dtype=np.int64)
    present, places = np.unique(splits, return_inverse=True)
    return build_indexed_dataset(
        spec.name,
        None,
        [name for name, _, _ in rows],
        labels,
        places,
        GeneratedSource(source, splits, numbers, masks=False),
        class_names=scenes.SHAPES if source == scenes.OBJECTS else (),
        split_names=tuple(scenes.SPLITS[split] for split in present),
        chiral=source == scenes.DIGITS,
        masks=GeneratedSource(source, splits, numbers, masks=True),
        mask_classes=mask_classes,
    )


@cache  # blocks read by this process stay in memory
def _read_block(source: int, split: int, block: int) -> Block:
    """Return a block of images and masks from the cache, or draw it and store it there."""
    path = cache_folder() / f"scenes-{_VERSION}" / f"{SEED}-{scenes.SPLITS[split]}-{source}-{block:04d}.npz"
    found = read_arrays(path)
    if found is None:
        found = _draw_block(source, split, block)
        write_arrays(path, found)  # a cache that cannot be written only costs time
    return found[0], found[1]


def _draw_block(source: int, split: int, block: int) -> Block:
    numbers = range(block * _BLOCK, (block + 1) * _BLOCK)
    if source == scenes.VIDEOS:
        films = sorted({number // scenes.NUM_FRAMES for number in numbers})
        frames = [frame for film in films for frame in scenes.draw_video(SEED, split, film)]
        skipped = numbers[0] - films[0] * scenes.NUM_FRAMES
        drawn = frames[skipped : skipped + _BLOCK]
        return np.stack([frame.image for frame in drawn]), np.stack([frame.instance for frame in drawn])
    drawn = [scenes.draw_scene(SEED, split, source, number) for number in numbers]
    return np.stack([one.image for one in drawn]), np.stack([one.mask for one in drawn])
