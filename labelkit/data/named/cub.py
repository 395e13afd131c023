"""CUB-200-2011 from its official files.

Source: https://www.vision.caltech.edu/datasets/cub_200_2011/ (the README in the archive).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from labelkit.data.datasets import ImageDataset
from labelkit.data.named.layouts import Layout, Listed, find_root, list_files, read_pairs
from labelkit.errors import DatasetError

CUB: Final = Layout(
    name="cub",
    folders=("CUB_200_2011",),
    needs=(
        ("images.txt",),
        ("image_class_labels.txt",),
        ("train_test_split.txt",),
        ("classes.txt",),
        ("images/",),
    ),
    archives={
        "CUB_200_2011.tgz": ("images.txt", "images/"),
        "CUB_200_2011.tar.gz": ("images.txt", "images/"),
        "images.tgz": ("images/",),
    },
    fetch="Fetch CUB_200_2011.tgz from https://data.caltech.edu/records/65de6-vp158 and unpack it into",
)
_REMEDY: Final = "Unpack CUB_200_2011.tgz again: its text files do not belong together."


def load_cub(data_root: Path) -> ImageDataset:
    """List CUB-200-2011: class = number in ``classes.txt`` minus 1, splits ``train`` and ``test``.

    Raises:
        DatasetAbsent, DatasetIncomplete: it is not there, not unpacked, or lacks images that ``images.txt`` names.
        DatasetError: its text files contradict each other.
    """
    root = find_root(CUB, data_root)
    paths = _read_unique(root / "images.txt")
    classes = _read_unique(root / "classes.txt")
    if classes.keys() != {str(i) for i in range(1, len(classes) + 1)}:
        raise DatasetError(str(root / "classes.txt"), f"does not count from 1 to {len(classes)}", _REMEDY)
    class_names = [classes[str(i)] for i in range(1, len(classes) + 1)]
    labels = _read_for_images(root / "image_class_labels.txt", paths, classes, "class")
    flags = _read_for_images(root / "train_test_split.txt", paths, {"0": "", "1": ""}, "split")
    listed = []
    for key, path in paths.items():
        label = int(labels[key]) - 1
        if path.split("/", 1)[0] != class_names[label]:
            raise DatasetError(
                str(root / "image_class_labels.txt"),
                f"image {key} is {path}, its class {class_names[label]} has another folder",
                _REMEDY,
            )
        listed.append(Listed(f"images/{path}", label, 0 if flags[key] == "1" else 1))
    return list_files(
        CUB, root, listed, class_names=class_names, split_names=("train", "test"), where=root / "images.txt"
    )


def _read_unique(path: Path) -> dict[str, str]:
    pairs = read_pairs(path)
    values = dict(pairs)
    if len(values) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise DatasetError(str(path), f"{twice} occurs {keys.count(twice)} times", _REMEDY)
    return values


def _read_for_images(path: Path, images: Mapping[str, str], allowed: Mapping[str, str], what: str) -> dict[str, str]:
    """Read one value per image, each one of the allowed ones."""
    values = _read_unique(path)
    if values.keys() != images.keys():
        differ = sorted(values.keys() ^ images.keys(), key=lambda key: (len(key), key))
        raise DatasetError(
            str(path),
            f"expected the {len(images):,} images of images.txt, found {len(values):,}; the first that is not in both: "
            f"{differ[0]}",
            _REMEDY,
        )
    for key, value in values.items():
        if value not in allowed:
            raise DatasetError(str(path), f"image {key} has {what} {value}, which does not exist", _REMEDY)
    return values
