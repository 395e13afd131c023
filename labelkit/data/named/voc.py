"""The segmentation part of PASCAL VOC 2012, and the objects of VOC 2007, from their official files.

Source: http://host.robots.ox.ac.uk/pascal/VOC/voc2012/ and voc2007/ (the development kits).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

import numpy as np

from labelkit.data.datasets import ImageDataset
from labelkit.data.named.layouts import Layout, Listed, attach_masks, find_root, list_files, read_lines
from labelkit.data.objects import ListedObjects, Objects, find_outside, no_objects
from labelkit.errors import DatasetError
from labelkit.reading import read_bytes

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


_OBJECT_SPLITS: Final = ("train", "test")
_OBJECT_LISTS: Final = ("ImageSets/Main/trainval.txt", "ImageSets/Main/test.txt")
_MAX_XML_BYTES: Final = 1 << 20
VOC_2007: Final = Layout(
    name="voc_2007",
    folders=("VOCdevkit/VOC2007", "VOC2007"),
    needs=((_OBJECT_LISTS[0],), (_OBJECT_LISTS[1],), ("Annotations/",), ("JPEGImages/",)),
    archives={
        "VOCtrainval_06-Nov-2007.tar": (_OBJECT_LISTS[0], "Annotations/", "JPEGImages/"),
        "VOCtest_06-Nov-2007.tar": (_OBJECT_LISTS[1], "Annotations/", "JPEGImages/"),
    },
    fetch="Fetch VOCtrainval_06-Nov-2007.tar and VOCtest_06-Nov-2007.tar from "
    "http://host.robots.ox.ac.uk/pascal/VOC/voc2007/ and unpack them in",
)


def load_voc_2007(data_root: Path) -> ImageDataset:
    """List VOC 2007 with the boxes of its objects: splits ``train`` (the official trainval) and ``test``.

    Difficult objects are ignored: neither learned nor missed.

    Raises:
        DatasetError: an annotation cannot be used.
        DatasetAbsent, DatasetIncomplete: it is not there, not unpacked, or lacks files that its lists name.
    """
    root = find_root(VOC_2007, data_root)
    listed = [
        Listed(f"JPEGImages/{name}.jpg", -1, number)
        for number, path in enumerate(_OBJECT_LISTS)
        for name in read_lines(root / path)
        if name
    ]
    dataset = list_files(
        VOC_2007, root, listed, class_names=(), split_names=_OBJECT_SPLITS, where=root / _OBJECT_LISTS[0]
    )
    found = [_read_xml(root / "Annotations" / f"{Path(name).stem}.xml") for name in dataset.sample_ids]
    if not any(len(objects) for objects, _ in found):
        raise DatasetError(str(root / "Annotations"), "have no boxes", "Unpack the archives again.")
    objects = ListedObjects(
        tuple(objects for objects, _ in found), np.array([size for _, size in found], np.int64), "voc"
    )
    return replace(dataset, objects=objects, object_classes=CLASSES[1:])


def _read_xml(path: Path) -> tuple[Objects, tuple[int, int]]:
    """Return the objects of an image, and its height and width."""
    try:
        tree = ElementTree.fromstring(read_bytes(path, _MAX_XML_BYTES))
    except OSError as error:
        raise DatasetError(str(path), f"cannot be read: {error.strerror}", "Unpack the archives again.") from error
    except ElementTree.ParseError as error:
        raise DatasetError(str(path), f"is no XML: {error}", "Unpack the archives again.") from error
    boxes, labels, difficult = [], [], []
    for place, entry in enumerate(tree.findall("object"), start=1):
        name = entry.findtext("name", "").strip()
        if name not in CLASSES[1:]:
            raise DatasetError(str(path), f"object {place} is of class {name!r}, which VOC has not", "Unpack it again.")
        left, top, right, bottom = (_number(path, place, entry, side) for side in ("xmin", "ymin", "xmax", "ymax"))
        # pixels are counted from 1, and a box has its last ones inside
        boxes.append((left - 1, top - 1, right, bottom))
        labels.append(CLASSES.index(name) - 1)
        difficult.append(entry.findtext("difficult", "0").strip() == "1")
    size = tuple(int(tree.findtext(f"size/{side}", "0") or 0) for side in ("height", "width"))
    if not boxes:
        return no_objects(), (size[0], size[1])
    corners = np.array(boxes, dtype=np.float64)
    outside = find_outside(corners, (size[0], size[1]))
    if outside is not None:
        problem = f"object {outside + 1} lies mostly outside of its image of {size[1]} x {size[0]} pixels"
        raise DatasetError(str(path), problem, "Unpack the archives again.")
    areas = np.prod(corners[:, 2:] - corners[:, :2], axis=1)
    return Objects(corners, np.array(labels, np.int64), np.array(difficult), areas), (size[0], size[1])


def _number(path: Path, place: int, entry: ElementTree.Element, side: str) -> float:
    text = entry.findtext(f"bndbox/{side}", "")
    try:
        return float(text)
    except ValueError as error:
        problem = f"object {place}: {side} {text!r} is no number"
        raise DatasetError(str(path), problem, "Unpack the archives again.") from error
