"""The objects of PASCAL VOC 2007, and which of its 20 classes are in an image, from its official files.

Source: http://host.robots.ox.ac.uk/pascal/VOC/voc2007/ (the development kit).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

import numpy as np

from labelkit.data.datasets import ImageDataset
from labelkit.data.named.layouts import DatasetSpec, Listed, list_set, read_lines
from labelkit.data.named.masks import VOC_CLASSES
from labelkit.data.objects import ListedObjects, Objects, find_outside, no_objects
from labelkit.errors import DatasetError
from labelkit.files import read_bytes

_CLASSES: Final = VOC_CLASSES[1:]  # without background
_MAX_XML_BYTES: Final = 1 << 20
_PRESENCE: Final = {"1": 1, "-1": 0, "0": -1}  # 0: only in objects marked as difficult


def read_voc_2007(spec: DatasetSpec, root: Path) -> ImageDataset:
    """List VOC 2007 with the boxes of its objects: splits ``train`` (the official trainval) and ``test``.

    Difficult objects are ignored: neither learned nor missed.
    """
    rows = [
        Listed(f"JPEGImages/{name}.jpg", -1, split)
        for split, need in enumerate(spec.needs[:2])
        for name in read_lines(root / need[0])
        if name
    ]
    dataset = list_set(spec, root, rows)
    found = [_read_xml(root / "Annotations" / f"{Path(name).stem}.xml") for name in dataset.sample_ids]
    if not any(len(objects) for objects, _ in found):
        raise DatasetError(str(root / "Annotations"), "have no boxes", "Unpack the archives again.")
    objects = ListedObjects(
        tuple(objects for objects, _ in found), np.array([size for _, size in found], np.int64), "voc"
    )
    return replace(dataset, objects=objects, object_classes=_CLASSES)


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
        if name not in _CLASSES:
            raise DatasetError(str(path), f"object {place} is of class {name!r}, which VOC has not", "Unpack it again.")
        left, top, right, bottom = (_number(path, place, entry, side) for side in ("xmin", "ymin", "xmax", "ymax"))
        # pixels are counted from 1, and a box has its last ones inside
        boxes.append((left - 1, top - 1, right, bottom))
        labels.append(_CLASSES.index(name))
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


def read_voc_2007_classes(spec: DatasetSpec, root: Path) -> ImageDataset:
    """List VOC 2007 with ``presence``: which classes are in each image, by the lists of the classes."""
    presence: dict[str, list[int]] = {}
    rows: list[Listed] = []
    for split, ending in enumerate(("trainval", "test")):
        columns = [_read_presence(root / f"ImageSets/Main/{name}_{ending}.txt") for name in _CLASSES]
        for name, column in zip(_CLASSES, columns, strict=True):
            if list(column) != list(columns[0]):
                raise ValueError(f"the list of {name} names other images than that of {_CLASSES[0]}")
        for image in columns[0]:
            presence[f"JPEGImages/{image}.jpg"] = [column[image] for column in columns]
            rows.append(Listed(f"JPEGImages/{image}.jpg", -1, split))
    dataset = list_set(spec, root, rows)
    values = np.array([presence[sample_id] for sample_id in dataset.sample_ids], dtype=np.int8)
    return replace(dataset, presence=values, presence_classes=_CLASSES)


def _read_presence(path: Path) -> dict[str, int]:
    """Read the list of one class: image to 1 (there), 0 (not there) or -1 (left out)."""
    found: dict[str, int] = {}
    for number, line in enumerate(read_lines(path), 1):
        words = line.split()
        if words and (len(words) != 2 or words[1] not in _PRESENCE):
            raise DatasetError(f"{path}:{number}", f"{line!r} is not an image and 1, 0 or -1", "Unpack it again.")
        if words:
            found[words[0]] = _PRESENCE[words[1]]
    return found
