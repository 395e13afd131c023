"""ImageNet-LT: ImageNet-1k with a long tail, from its official lists and the folders of ImageNet-1k.

Source: "Large-Scale Long-Tailed Recognition in an Open World" (Liu et al., CVPR 2019),
``zhmiao/OpenLongTailRecognition-OLTR``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from labelkit.data.datasets import ImageDataset
from labelkit.data.named.benchmark_classes import benchmark_classes
from labelkit.data.named.imagenet import IMAGENET_1K
from labelkit.data.named.layouts import Layout, Listed, fetch_remedy, find_root, list_files, read_pairs
from labelkit.errors import DatasetError, DatasetIncomplete

_LISTS: Final = {"train": "ImageNet_LT_train.txt", "val": "ImageNet_LT_val.txt", "test": "ImageNet_LT_test.txt"}
IMAGENET_LT: Final = Layout(
    name="imagenet_lt",
    folders=("imagenet_lt", "ImageNet_LT", "imagenet"),
    needs=tuple((file,) for file in _LISTS.values()),
    archives={},
    fetch="Fetch ImageNet_LT_{train,val,test}.txt as https://github.com/zhmiao/OpenLongTailRecognition-OLTR says and "
    "put them into imagenet_lt/ in",
)


def load_imagenet_lt(data_root: Path, *, folder_names: Sequence[str] | None = None) -> ImageDataset:
    """List ImageNet-LT: class = rank of the folder name, splits ``train``, ``val`` and ``test`` of its lists.

    Args:
        data_root: where the lists and ImageNet-1k lie.
        folder_names: the class folders; those of ImageNet-1k by default.

    Raises:
        DatasetAbsent, DatasetIncomplete: lists or images are not there.
        DatasetError: a list is damaged, or names a class otherwise than its folder does.
    """
    lists = find_root(IMAGENET_LT, data_root)
    root = next(
        (base for base in _places(data_root, lists) if (base / "train").is_dir() and (base / "val").is_dir()), None
    )
    if root is None:
        raise DatasetIncomplete(
            IMAGENET_LT.name,
            f"the lists are in {lists}, but there is no imagenet/ with train/ and val/ in {data_root}",
            fetch_remedy(IMAGENET_1K, data_root),
        )
    names = tuple(folder_names or benchmark_classes(IMAGENET_LT.name).folder_names)
    rank = {name: str(i) for i, name in enumerate(names)}
    listed = []
    for split, file in enumerate(_LISTS.values()):
        for number, (sample_id, label) in enumerate(read_pairs(lists / file), start=1):
            folder = sample_id.split("/")[1] if sample_id.count("/") > 1 else ""
            if rank.get(folder) != label:
                raise DatasetError(
                    str(lists / file),
                    f"line {number}: {sample_id} has label {label}, its folder is class {rank.get(folder, 'none')}",
                    "Take all lists from the same release, with images in train/<wnid>/ and val/<wnid>/.",
                )
            listed.append(Listed(sample_id, int(label), split))
    where = lists / _LISTS["train"]
    return list_files(IMAGENET_LT, root, listed, class_names=names, split_names=tuple(_LISTS), where=where)


def _places(data_root: Path, lists: Path) -> list[Path]:
    """Where ImageNet-1k may lie."""
    return [lists, *(data_root / folder for folder in IMAGENET_1K.folders), data_root / "imagenet_1k", data_root]
