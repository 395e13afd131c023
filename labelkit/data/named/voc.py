"""The segmentation part of PASCAL VOC 2012 from its official files.

Source: http://host.robots.ox.ac.uk/pascal/VOC/voc2012/ (the development kit).
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from labelkit.data.datasets import ImageDataset
from labelkit.data.named.layouts import Layout, Listed, attach_masks, find_root, list_files, read_lines

CLASSES: Final = (
    "background", "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow",
    "diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor",
)  # fmt: skip
_SPLITS: Final = ("train", "val")
_LISTS: Final = tuple(f"ImageSets/Segmentation/{split}.txt" for split in _SPLITS)
VOC_2012: Final = Layout(
    name="voc_2012",
    folders=("VOCdevkit/VOC2012", "VOC2012"),
    needs=((_LISTS[0],), (_LISTS[1],), ("JPEGImages/",), ("SegmentationClass/",)),
    archives={"VOCtrainval_11-May-2012.tar": (*_LISTS, "JPEGImages/", "SegmentationClass/")},
    fetch="Fetch VOCtrainval_11-May-2012.tar from http://host.robots.ox.ac.uk/pascal/VOC/voc2012/ and unpack it in",
)


def load_voc_2012(data_root: Path) -> ImageDataset:
    """List the images of VOC 2012 that have a mask: splits ``train`` and ``val``; borders (255) are ignored.

    Raises:
        DatasetAbsent, DatasetIncomplete: it is not there, not unpacked, or lacks files that its lists name.
    """
    root = find_root(VOC_2012, data_root)
    listed = [
        Listed(f"JPEGImages/{name}.jpg", -1, number)
        for number, path in enumerate(_LISTS)
        for name in read_lines(root / path)
        if name
    ]
    dataset = list_files(VOC_2012, root, listed, class_names=(), split_names=_SPLITS, where=root / _LISTS[0])
    return attach_masks(
        VOC_2012,
        dataset,
        lambda name: name.replace("JPEGImages/", "SegmentationClass/", 1).removesuffix(".jpg") + ".png",
        {i: i for i in range(len(CLASSES))},
        CLASSES,
    )
