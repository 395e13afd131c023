"""ImageNet-200 (Tiny ImageNet) from its official folder.

Source: Stanford CS231N. Papers that pool its 110,000 labeled images and draw 10,000 of them for testing do not publish
the draw. ``--pool-splits --holdout 0.0909090909`` makes one, 50 of each class; else its own validation images, as many,
are the ones held out.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from labelkit.data.datasets import ImageDataset
from labelkit.data.named.layouts import (
    Count,
    Layout,
    Listed,
    compare_counts,
    fetch_remedy,
    find_root,
    list_class_folders,
    list_files,
    name_some,
    read_lines,
)
from labelkit.errors import DatasetError, DatasetIncomplete

_LIST: Final = "val/val_annotations.txt"
TINY_IMAGENET: Final = Layout(
    name="imagenet_200",
    folders=("tiny-imagenet-200", "imagenet_200"),
    needs=(("wnids.txt",), ("train/",), (_LIST,)),
    archives={"tiny-imagenet-200.zip": ("wnids.txt", "train/", _LIST)},
    fetch="Fetch http://cs231n.stanford.edu/tiny-imagenet-200.zip and unpack it in",
)


def load_tiny_imagenet(
    data_root: Path, *, expected: Mapping[str, Count] | None = None, num_classes: int | None = None
) -> ImageDataset:
    """List ImageNet-200: class = rank of the WordNet id, splits ``train`` and ``val``; its test images have no labels.

    Args:
        data_root: where it lies.
        expected: published number of images of each split; none are checked by default.
        num_classes: published number of classes; not checked by default.

    Raises:
        DatasetAbsent, DatasetIncomplete: it is not there, not unpacked, or lacks classes or images.
        DatasetError: its lists are damaged.
    """
    root = find_root(TINY_IMAGENET, data_root)
    names = sorted(line for line in read_lines(root / "wnids.txt") if line)
    rank = {name: i for i, name in enumerate(names)}
    if len(rank) != len(names) or not names:
        raise DatasetError(str(root / "wnids.txt"), "names no class, or one twice", "Unpack it again.")
    images = {name: (root / "train" / name / "images") for name in names}
    missing = [name for name, folder in images.items() if not folder.is_dir()]
    if missing or (num_classes is not None and len(names) != num_classes):
        raise DatasetIncomplete(
            str(root / "train"),
            f"expected {num_classes or len(names)} class folders with images/, found {len(names) - len(missing)}"
            + (f"; missing: {name_some(missing)}" if missing else ""),
            fetch_remedy(TINY_IMAGENET, root.parent),
            num_classes=len(names) - len(missing),
        )
    listed = [
        Listed(f"train/{name}/images/{file}", rank[name], 0)
        for name, folder in images.items()
        for file in list_class_folders(folder.parent)["images"]
    ]
    for number, line in enumerate(read_lines(root / _LIST), start=1):
        file, name = (*line.split("\t"), "", "")[:2]
        if line and name not in rank:
            raise DatasetError(
                str(root / _LIST), f"line {number}: {name!r} is no class of wnids.txt", "Unpack it again."
            )
        if line:
            listed.append(Listed(f"val/images/{file}", rank[name], 1))
    found = {split: sum(row.split == i for row in listed) for i, split in enumerate(("train", "val"))}
    if expected is not None and not all(count.agrees(found[split]) for split, count in expected.items()):
        raise DatasetIncomplete(
            str(root),
            compare_counts(found, expected),
            fetch_remedy(TINY_IMAGENET, root.parent),
            found=found,
            num_classes=len(names),
        )
    return list_files(TINY_IMAGENET, root, listed, class_names=names, split_names=("train", "val"), where=root / _LIST)
