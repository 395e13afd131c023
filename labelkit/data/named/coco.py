"""The objects of COCO 2017 from the official files.

Source: https://cocodataset.org/#download.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from labelkit.data.coco_folders import load_coco_folder
from labelkit.data.datasets import ImageDataset
from labelkit.data.named.layouts import Layout, find_root

_FILES: Final = ("annotations/instances_train2017.json", "annotations/instances_val2017.json")
COCO_2017: Final = Layout(
    name="coco_2017",
    folders=("coco",),
    needs=((_FILES[0],), (_FILES[1],), ("train2017/", "images/train2017/"), ("val2017/", "images/val2017/")),
    archives={
        "annotations_trainval2017.zip": _FILES, "train2017.zip": ("train2017/",), "val2017.zip": ("val2017/",),
    },
    fetch="Fetch train2017.zip, val2017.zip and annotations_trainval2017.zip from https://cocodataset.org/#download "
    "and unpack them in coco/ in",
)  # fmt: skip


def load_coco_2017(data_root: Path) -> ImageDataset:
    """List COCO's images with the boxes and outlines of their objects: splits ``train`` and ``val`` (of 2017).

    Raises:
        DatasetError: a JSON file cannot be used.
        DatasetAbsent, DatasetIncomplete: it is not there, not unpacked, or images are missing.
    """
    return load_coco_folder(find_root(COCO_2017, data_root), COCO_2017, _FILES)
