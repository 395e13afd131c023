"""ImageNet-1k (ILSVRC 2012) and the ImageNet-100 of category discovery from class folders.

Source of the 100 classes: ``sgvaze/generalized-category-discovery:data/imagenet.py``; of the folder names: ILSVRC 2012.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from labelkit.data.datasets import ImageDataset
from labelkit.data.named.benchmark_classes import benchmark_classes
from labelkit.data.named.layouts import (
    Count,
    Layout,
    fetch_remedy,
    find_root,
    list_class_folders,
    list_folders,
    name_some,
)
from labelkit.errors import DatasetIncomplete


def _layout(name: str, folders: tuple[str, ...], *, fewest: int) -> Layout:
    def has_classes(folder: Path) -> bool:
        try:
            with os.scandir(folder / "train") as entries:
                there = {entry.name.removesuffix(".tar") for entry in entries}
        except OSError:
            return False
        return len(there.intersection(benchmark_classes(name).folder_names)) >= fewest

    return Layout(
        name=name,
        folders=folders,
        needs=(("train/",), ("val/",)),
        archives={
            "ILSVRC2012_img_train.tar": ("train/",),
            "ILSVRC2012_img_val.tar": ("val/",),
            "imagenet-object-localization-challenge.zip": ("train/", "val/"),
        },
        fetch="Fetch ILSVRC 2012 from https://image-net.org/download.php and unpack it as imagenet/train/<wnid>/ and "
        "imagenet/val/<wnid>/ in",
        is_it=has_classes,
    )


# More than ImageNet-100 has.
IMAGENET_1K: Final = _layout("imagenet_1k", ("imagenet", "ILSVRC2012"), fewest=101)
IMAGENET_100: Final = _layout("imagenet_100", ("imagenet_100", "imagenet", "ILSVRC2012"), fewest=50)


def load_imagenet(
    layout: Layout,
    data_root: Path,
    *,
    expected: Mapping[str, Count] | None = None,
    folder_names: Sequence[str] | None = None,
) -> ImageDataset:
    """List ImageNet-1k or the 100 classes of ImageNet-100: class = rank of the folder name, splits ``train``, ``val``.

    ImageNet-100 is read from all of ImageNet-1k or from a folder with its 100 classes.

    Args:
        layout: ``IMAGENET_1K`` or ``IMAGENET_100``.
        data_root: where it lies.
        expected: published number of images of each split; none are checked by default.
        folder_names: the class folders; the published ones by default.

    Raises:
        DatasetAbsent, DatasetIncomplete: it is not there, not unpacked, or lacks classes or images.
    """
    names = folder_names or benchmark_classes(layout.name).folder_names
    root = find_root(layout, data_root)
    files = {split: list_class_folders(root / split, frozenset(names)) for split in ("train", "val")}
    for split in files:
        _refuse_missing_classes(layout, root / split, files, names)
    return list_folders(
        layout, root, files, class_names=names, split_names={"train": "train", "val": "val"}, expected=expected or {}
    )


def _refuse_missing_classes(
    layout: Layout, folder: Path, files: Mapping[str, Mapping[str, Sequence[str]]], names: Sequence[str]
) -> None:
    """Raise if a split lacks class folders or their images, and say what seems to have happened."""
    classes = files[folder.name]
    missing = [name for name in names if not classes.get(name)]
    if not missing:
        return
    loose = [path.suffix for path in folder.iterdir() if path.is_file()]
    archives = loose.count(".tar")
    remedy = fetch_remedy(layout, folder.parent.parent)
    if archives:
        remedy = f"{archives:,} archives in {folder} are not unpacked: unpack each into a folder of its name."
    elif len(missing) == len(names) and len(loose) > 1:
        remedy = f"{len(loose):,} files lie in {folder} itself: move each into the folder of its class, <wnid>/."
    elif len(classes) == len(names):
        remedy = f"These are {len(classes):,} other classes; give the folders of all of ImageNet-1k. {remedy}"
    raise DatasetIncomplete(
        str(folder),
        f"expected {len(names):,} class folders with images, found {len(names) - len(missing):,}; "
        f"missing: {name_some(missing)}",
        remedy,
        found={split: sum(len(part.get(name, ())) for name in names) for split, part in files.items()},
        num_classes=len(names) - len(missing),
    )
