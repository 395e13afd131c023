"""COCO-Stuff from its official pixel maps, in its 27 supercategories: 12 of things, 15 of stuff.

Source: Caesar et al., "COCO-Stuff: Thing and Stuff Classes in Context" (CVPR 2018), its table of labels. A pixel map
holds the number of a label minus 1.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from labelkit.data.datasets import ImageDataset
from labelkit.data.named.layouts import Layout, Listed, attach_masks, find_root, list_files, list_images

# labels of each supercategory; things first, then stuff, both in the order of their first label
SUPERCATEGORIES: Final[dict[str, tuple[int, ...]]] = {
    "person": (1,),
    "vehicle": tuple(range(2, 10)),
    "outdoor": tuple(range(10, 16)),
    "animal": tuple(range(16, 26)),
    "accessory": tuple(range(26, 34)),
    "sports": tuple(range(34, 44)),
    "kitchen": tuple(range(44, 52)),
    "food": tuple(range(52, 62)),
    "furniture": tuple(range(62, 72)),
    "electronic": tuple(range(72, 78)),
    "appliance": tuple(range(78, 84)),
    "indoor": tuple(range(84, 92)),
    "textile": (92, 93, 104, 105, 109, 131, 137, 141, 152, 167, 168),
    "plant": (94, 97, 119, 124, 129, 134, 142, 163, 169),
    "building": (95, 96, 128, 151, 158, 166),
    "furniture-stuff": (98, 107, 108, 110, 112, 123, 130, 133, 156, 161, 165),
    "structural": (99, 113, 138, 146, 164),
    "raw-material": (100, 132, 139, 143),
    "floor": (101, 114, 115, 116, 117, 118),
    "ceiling": (102, 103),
    "sky": (106, 157),
    "ground": (111, 125, 126, 136, 140, 144, 145, 147, 149, 154, 159),
    "water": (120, 148, 155, 178, 179),
    "food-stuff": (121, 122, 153, 170),
    "solid": (127, 135, 150, 160, 162, 182),
    "wall": tuple(range(171, 178)),
    "window": (180, 181),
}
_SPLITS: Final = {"train2017": "train", "val2017": "val"}
_FOLDERS: Final = tuple(f"{kind}/{split}/" for kind in ("annotations", "images") for split in _SPLITS)
COCO_STUFF_27: Final = Layout(
    name="coco_stuff_27",
    folders=("cocostuff/dataset", "cocostuff", "coco_stuff"),
    needs=tuple((folder,) for folder in _FOLDERS),
    archives={},
    fetch="Fetch train2017.zip, val2017.zip (into images/) and stuffthingmaps_trainval2017.zip (into annotations/) as "
    "https://github.com/nightrome/cocostuff says, and unpack them in cocostuff/dataset/ in",
)


def load_coco_stuff_27(data_root: Path) -> ImageDataset:
    """List COCO-Stuff: splits ``train`` and ``val`` (of 2017); unlabeled pixels (255) are ignored.

    Raises:
        DatasetAbsent, DatasetIncomplete: it is not there, not unpacked, or images lack their pixel map.
    """
    root = find_root(COCO_STUFF_27, data_root)
    listed = [
        Listed(name, -1, number)
        for number, folder in enumerate(_SPLITS)
        for name in list_images(root, f"images/{folder}")
    ]
    dataset = list_files(
        COCO_STUFF_27, root, listed, class_names=(), split_names=tuple(_SPLITS.values()), where=root / "images"
    )
    return attach_masks(
        COCO_STUFF_27,
        dataset,
        lambda name: "annotations/" + name.removeprefix("images/").rpartition(".")[0] + ".png",
        {label - 1: i for i, labels in enumerate(SUPERCATEGORIES.values()) for label in labels},
        tuple(SUPERCATEGORIES),
    )
