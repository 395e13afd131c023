"""A folder of images and masks as a data set: ``images/`` and ``masks/``, or these two in each split folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Final

import numpy as np

from labelkit.data.datasets import ImageDataset
from labelkit.data.folders import split_of_name, splits_in_order, walk_images
from labelkit.data.mask_files import IGNORE, FileMasks, table_of
from labelkit.data.named.layouts import Listed, attach_masks, list_files, read_lines
from labelkit.errors import DatasetError

CLASS_LIST: Final = "classes.txt"
_NO_CLASS: Final = "-"


def has_masks(root: Path) -> bool:
    """Return whether a folder is one of images and masks."""
    return bool(_parts(root))


def load_mask_folder(root: Path, *, follow_links: bool = False) -> ImageDataset:
    """List ``[train|val|test/]images/NAME.jpg`` with its mask ``[...]/masks/NAME.png``, numbers of classes in 8 bits.

    ``classes.txt`` names class i in line i + 1; a line ``-`` is a value to ignore, as 255 always is. Without it,
    classes are 0 to the largest value, and all masks are read once to find it.

    Raises:
        DatasetError: no images, a folder that cannot be listed, an image without mask, or a mask that is none.
    """
    parts = _parts(root)
    split_names = tuple(dict.fromkeys(split for split, _ in parts if split))
    listed = [
        Listed(f"{prefix}images/{name}", -1, split_names.index(split) if split else -1)
        for split, prefix in parts
        for name in walk_images(root / f"{prefix}images", follow_links=follow_links)
    ]
    name = root.resolve().name
    remedy = f"Put images and masks into {root}."
    dataset = list_files(name, root, listed, split_names=split_names, remedy=remedy)
    meaning, classes = _classes(root)
    remedy = "Add them, or take the images out."
    dataset = attach_masks(dataset, _mask_of, meaning or {i: i for i in range(IGNORE)}, classes, remedy)
    if meaning:
        return dataset
    return _with_counted_classes(dataset)


def _parts(root: Path) -> list[tuple[str, str]]:
    """Return split and folder of each part: ``("", "")``, or ``("val", "validation/")`` and so on."""
    if (root / "images").is_dir() and (root / "masks").is_dir():
        return [("", "")]
    folders = sorted(path.parent for path in root.glob("*/masks") if path.is_dir())
    found = {path.name: split_of_name(path.name) for path in folders if (path / "images").is_dir()}
    return [(split, f"{name}/") for split in splits_in_order(found.values()) for name in found if found[name] == split]


def _mask_of(name: str) -> str:
    before, _, after = name.partition("images/")
    return str(PurePosixPath(f"{before}masks/{after}").with_suffix(".png"))


def _classes(root: Path) -> tuple[dict[int, int], tuple[str, ...]]:
    """Return what the values mean and the names of the classes; nothing if there is no list."""
    path = root / CLASS_LIST
    if not path.is_file():
        return {}, ()
    lines = read_lines(path)
    names = tuple(line for line in lines if line != _NO_CLASS)
    if not names or not all(names) or len(lines) > IGNORE or len(set(names)) != len(names):
        raise DatasetError(
            str(path),
            f"names {len(names)} classes in {len(lines)} lines",
            f"Write one name in each line, each another one, at most {IGNORE}; {_NO_CLASS} for a value to ignore.",
        )
    number = {name: i for i, name in enumerate(names)}
    return {value: number.get(line, IGNORE) for value, line in enumerate(lines)}, names


def _with_counted_classes(dataset: ImageDataset) -> ImageDataset:
    masks = dataset.masks
    assert isinstance(masks, FileMasks)
    largest = 0
    for row in range(len(dataset)):
        values = masks.read(row)
        largest = max(largest, int(np.max(values, initial=0, where=values != IGNORE)))
    meaning = {i: i for i in range(largest + 1)}
    return replace(
        dataset,
        masks=FileMasks(masks.root, masks.files, table_of(meaning)),
        mask_classes=tuple(str(i) for i in meaning),
        notes=(f"no {CLASS_LIST}: classes are 0 to {largest}, the largest value in its masks",),
    )
