"""Herbarium 2019 (FGVC6), the small edition, from its class folders.

Source: "The Herbarium Challenge 2019 Dataset" (Tan et al., 2019) and ``visipedia/herbarium_comp:2019/README_2019.md``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from labelkit.data.datasets import ImageDataset
from labelkit.data.named.layouts import (
    Count,
    Layout,
    fetch_remedy,
    find_root,
    list_class_folders,
    list_folders,
    name_some,
)
from labelkit.errors import DatasetError, DatasetIncomplete

HERBARIUM: Final = Layout(
    name="herbarium_19",
    folders=("herbarium_19", "herbarium-2019-fgvc6"),
    needs=(("small-train/",), ("small-validation/",)),
    archives={
        "small-train.tar.gz": ("small-train/",),
        "small-validation.tar.gz": ("small-validation/",),
        "herbarium-2019-fgvc6.zip": ("small-train/", "small-validation/"),
    },
    fetch="Fetch small-train.tar.gz and small-validation.tar.gz as https://github.com/visipedia/herbarium_comp says "
    "and unpack them into herbarium_19/ in",
)


def load_herbarium(
    data_root: Path, *, expected: Mapping[str, Count] | None = None, num_classes: int | None = None
) -> ImageDataset:
    """List Herbarium 2019: class = rank of its folder in ``small-train``, as text; splits ``train`` and ``val``.

    Args:
        data_root: where it lies.
        expected: published number of images of each split; none are checked by default.
        num_classes: published number of classes; not checked by default.

    Raises:
        DatasetAbsent, DatasetIncomplete: it is not there, not unpacked, or lacks classes or images.
        DatasetError: validation images of a class that training does not have.
    """
    root = find_root(HERBARIUM, data_root)
    files = {folder: list_class_folders(root / folder) for folder in ("small-train", "small-validation")}
    class_names = sorted((name for name, images in files["small-train"].items() if images), key=os.fsencode)
    found = {
        split: sum(map(len, files[folder].values()))
        for split, folder in (("train", "small-train"), ("val", "small-validation"))
    }
    empty = sorted(name for name, images in files["small-train"].items() if not images)
    if (num_classes is not None and len(class_names) != num_classes) or empty or not class_names:
        problem = f"expected {num_classes or 'some'} class folders with images, found {len(class_names)}"
        raise DatasetIncomplete(
            str(root / "small-train"),
            f"{problem}; empty: {name_some(empty)}" if empty else problem,
            fetch_remedy(HERBARIUM, data_root),
            found=found,
            num_classes=len(class_names),
        )
    extra = sorted(set(files["small-validation"]) - set(class_names))
    if extra:
        raise DatasetError(
            str(root / "small-validation"),
            f"classes that small-train does not have: {name_some(extra)}",
            "Unpack both archives again.",
        )
    return list_folders(
        HERBARIUM,
        root,
        files,
        class_names=class_names,
        split_names={"small-train": "train", "small-validation": "val"},
        expected=expected or {},
    )
