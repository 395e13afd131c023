"""Cityscapes with its 19 classes, from its official files.

Source: Cordts et al., "The Cityscapes Dataset" (CVPR 2016); class numbers of cityscapesScripts/helpers/labels.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from labelkit.data.datasets import ImageDataset
from labelkit.data.mask_files import IGNORE
from labelkit.data.named.layouts import Layout, Listed, attach_masks, find_root, list_class_folders, list_files

# number in the files, in the order of the classes
CLASSES: Final = {
    "road": 7, "sidewalk": 8, "building": 11, "wall": 12, "fence": 13, "pole": 17, "traffic light": 19,
    "traffic sign": 20, "vegetation": 21, "terrain": 22, "sky": 23, "person": 24, "rider": 25, "car": 26,
    "truck": 27, "bus": 28, "train": 31, "motorcycle": 32, "bicycle": 33,
}  # fmt: skip
_NUM_VALUES: Final = 34
_SPLITS: Final = ("train", "val")
_FOLDERS: Final = tuple(f"{kind}/{split}/" for kind in ("leftImg8bit", "gtFine") for split in _SPLITS)
CITYSCAPES: Final = Layout(
    name="cityscapes",
    folders=("cityscapes", "Cityscapes"),
    needs=tuple((folder,) for folder in _FOLDERS),
    archives={"leftImg8bit_trainvaltest.zip": _FOLDERS[:2], "gtFine_trainvaltest.zip": _FOLDERS[2:]},
    fetch="Fetch leftImg8bit_trainvaltest.zip and gtFine_trainvaltest.zip from https://www.cityscapes-dataset.com/ "
    "and unpack them in cityscapes/ in",
)


def load_cityscapes(data_root: Path) -> ImageDataset:
    """List Cityscapes: splits ``train`` and ``val``; what the benchmark does not score is ignored.

    Raises:
        DatasetAbsent, DatasetIncomplete: it is not there, not unpacked, or images lack their mask.
    """
    root = find_root(CITYSCAPES, data_root)
    listed = [
        Listed(f"leftImg8bit/{split}/{city}/{file}", -1, number)
        for number, split in enumerate(_SPLITS)
        for city, files in list_class_folders(root / "leftImg8bit" / split).items()
        for file in files
    ]
    dataset = list_files(CITYSCAPES, root, listed, class_names=(), split_names=_SPLITS, where=root / "leftImg8bit")
    meaning = dict.fromkeys(range(_NUM_VALUES), IGNORE) | {value: i for i, value in enumerate(CLASSES.values())}
    return attach_masks(
        CITYSCAPES,
        dataset,
        lambda name: (
            "gtFine/" + name.removeprefix("leftImg8bit/").removesuffix("_leftImg8bit.png") + "_gtFine_labelIds.png"
        ),
        meaning,
        tuple(CLASSES),
    )
