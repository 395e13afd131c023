"""ADE20K as it is scored: the scene parsing benchmark with 150 classes, from its official files.

Source: Zhou et al., "Scene Parsing through ADE20K Dataset" (CVPR 2017).
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from labelkit.data.datasets import ImageDataset
from labelkit.data.mask_files import IGNORE
from labelkit.data.named.layouts import Layout, Listed, attach_masks, find_root, list_files, list_images, read_lines
from labelkit.errors import DatasetError

_SPLITS: Final = {"training": "train", "validation": "val"}
_NAMES: Final = "objectInfo150.txt"
_FOLDERS: Final = tuple(f"{kind}/{split}/" for kind in ("annotations", "images") for split in _SPLITS)
ADE20K: Final = Layout(
    name="ade20k",
    folders=("ADEChallengeData2016", "ade20k"),
    needs=((_NAMES,), *((folder,) for folder in _FOLDERS)),
    archives={"ADEChallengeData2016.zip": (_NAMES, *_FOLDERS)},
    fetch="Fetch ADEChallengeData2016.zip from http://sceneparsing.csail.mit.edu/ and unpack it in",
)


def load_ade20k(data_root: Path) -> ImageDataset:
    """List ADE20K: splits ``train`` and ``val``; class = value - 1, and 0, everything else, is ignored.

    Raises:
        DatasetAbsent, DatasetIncomplete: it is not there, not unpacked, or images lack their mask.
        DatasetError: the list of classes is damaged.
    """
    root = find_root(ADE20K, data_root)
    names = [line.split("\t")[-1].strip() for line in read_lines(root / _NAMES)[1:] if line]
    if not names or len(names) >= IGNORE:
        raise DatasetError(str(root / _NAMES), f"names {len(names)} classes after its first line", "Unpack it again.")
    listed = [
        Listed(name, -1, number)
        for number, folder in enumerate(_SPLITS)
        for name in list_images(root, f"images/{folder}")
    ]
    dataset = list_files(
        ADE20K, root, listed, class_names=(), split_names=tuple(_SPLITS.values()), where=root / "images"
    )
    return attach_masks(
        ADE20K,
        dataset,
        lambda name: "annotations/" + name.removeprefix("images/").rpartition(".")[0] + ".png",
        {0: IGNORE} | {i + 1: i for i in range(len(names))},
        names,
    )
