"""Which of the 20 classes of PASCAL VOC 2007 are in an image, from the official lists.

Source: http://host.robots.ox.ac.uk/pascal/VOC/voc2007/ (the development kit).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from labelkit.data.datasets import ImageDataset
from labelkit.data.named.layouts import Layout, Listed, find_root, list_files, read_lines
from labelkit.data.named.voc import CLASSES
from labelkit.errors import DatasetError

_CLASSES: Final = CLASSES[1:]  # without background
#: Split to the end of the names of its lists.
_SPLITS: Final = {"train": "trainval", "test": "test"}
_VALUES: Final = {"1": 1, "-1": 0, "0": -1}  # 0: only in objects marked as difficult
_FIRST: Final = tuple(f"ImageSets/Main/{_CLASSES[0]}_{name}.txt" for name in _SPLITS.values())
VOC_2007_CLASSES: Final = Layout(
    name="voc_2007_classes",
    folders=("VOCdevkit/VOC2007", "VOC2007"),
    needs=((_FIRST[0],), (_FIRST[1],), ("JPEGImages/",)),
    archives={
        "VOCtrainval_06-Nov-2007.tar": (_FIRST[0], "JPEGImages/"),
        "VOCtest_06-Nov-2007.tar": (_FIRST[1], "JPEGImages/"),
    },
    fetch="Fetch VOCtrainval_06-Nov-2007.tar and VOCtest_06-Nov-2007.tar from "
    "http://host.robots.ox.ac.uk/pascal/VOC/voc2007/ and unpack them in",
)


def load_voc_2007_classes(data_root: Path) -> ImageDataset:
    """List the images of VOC 2007: splits ``train`` (trainval of the set) and ``test``, with ``presence``.

    Raises:
        DatasetAbsent, DatasetIncomplete: it is not there, not unpacked, or lacks files that its lists name.
        DatasetError: lists that do not name the same images, or say something else than 1, 0 or -1.
    """
    root = find_root(VOC_2007_CLASSES, data_root)
    presence: dict[str, list[int]] = {}
    listed: list[Listed] = []
    for number, ending in enumerate(_SPLITS.values()):
        first: list[str] = []
        for label, name in enumerate(_CLASSES):
            path = root / "ImageSets/Main" / f"{name}_{ending}.txt"
            found = _read(path)
            first = first or list(found)
            if list(found) != first:
                raise DatasetError(str(path), f"names other images than the list of {_CLASSES[0]}", "Unpack it again.")
            for image, value in found.items():
                presence.setdefault(image, [0] * len(_CLASSES))[label] = value
        listed += [Listed(f"JPEGImages/{image}.jpg", -1, number) for image in first]
    dataset = list_files(
        VOC_2007_CLASSES, root, listed, class_names=(), split_names=tuple(_SPLITS), where=root / _FIRST[0]
    )
    rows = [presence[Path(sample_id).stem] for sample_id in dataset.sample_ids]
    return replace(dataset, presence=np.array(rows, dtype=np.int8), presence_classes=_CLASSES)


def _read(path: Path) -> dict[str, int]:
    """Read the list of one class: image to 1 (there), 0 (not there) or -1 (left out)."""
    found: dict[str, int] = {}
    for number, line in enumerate(read_lines(path), 1):
        words = line.split()
        if not words:
            continue
        if len(words) != 2 or words[1] not in _VALUES:
            raise DatasetError(f"{path}:{number}", f"{line!r} is not an image and 1, 0 or -1", "Unpack it again.")
        found[words[0]] = _VALUES[words[1]]
    return found
