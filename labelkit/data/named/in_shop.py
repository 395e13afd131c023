"""In-Shop Clothes Retrieval (DeepFashion) from its official files.

Source: Z. Liu et al., "DeepFashion" (CVPR 2016), the In-shop Clothes Retrieval Benchmark.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from labelkit.data.datasets import ImageDataset
from labelkit.data.named.layouts import Layout, Listed, find_root, list_files, read_lines
from labelkit.errors import DatasetError

_LISTS: Final = ("Eval/list_eval_partition.txt", "Anno/list_eval_partition.txt", "list_eval_partition.txt")
_IMAGES: Final = ("Img/img/", "img/")
SPLITS: Final = ("train", "query", "gallery")
IN_SHOP: Final = Layout(
    name="in_shop",
    folders=("In-shop Clothes Retrieval Benchmark", "In-shop_Clothes_Retrieval_Benchmark", "inshop"),
    needs=(_LISTS, _IMAGES),
    archives={"Img/img.zip": ("Img/img/",), "img.zip": ("Img/img/",)},
    fetch="Fetch the In-shop Clothes Retrieval Benchmark (list_eval_partition.txt and img.zip) from "
    "https://mmlab.ie.cuhk.edu.hk/projects/DeepFashion/InShopRetrieval.html and unpack it into",
)


def load_in_shop(data_root: Path) -> ImageDataset:
    """List In-Shop: splits ``train``, ``query`` and ``gallery``; classes are items, those of training first.

    Query and gallery have the same classes, training has others.

    Raises:
        DatasetAbsent, DatasetIncomplete: it is not there, not unpacked, or lacks images that its list names.
        DatasetError: the list is damaged, or an item is in training and in another part.
    """
    root = find_root(IN_SHOP, data_root)
    path = next(root / name for name in _LISTS if (root / name).is_file())
    images = next(name for name in _IMAGES if (root / name).is_dir())
    rows: list[tuple[str, str, int]] = []
    lines = read_lines(path)
    # how many there are, and the names of the columns
    if len(lines) < 2 or not lines[0].isdecimal() or lines[1].split()[:1] != ["image_name"]:
        raise DatasetError(
            str(path), "does not begin with a number of images and a line of columns", "Unpack it again."
        )
    for number, line in enumerate(lines[2:], start=3):
        words = line.split()
        if len(words) != 3 or words[2] not in SPLITS or not words[0].startswith("img/"):
            raise DatasetError(
                str(path), f"line {number}: {line!r} is not an image, its item and its part", "Unpack it again."
            )
        rows.append((images + words[0].removeprefix("img/"), words[1], SPLITS.index(words[2])))
    if len(rows) != int(lines[0]):
        raise DatasetError(str(path), f"names {len(rows):,} images, its first line says {lines[0]}", "Unpack it again.")
    trained = {item for _, item, split in rows if split == 0}
    others = {item for _, item, split in rows if split != 0}
    if trained & others:
        raise DatasetError(
            str(path), f"{min(trained & others)} is in training and in query or gallery", "Unpack it again."
        )
    class_names = [*sorted(trained), *sorted(others)]
    label = {item: i for i, item in enumerate(class_names)}
    listed = [Listed(sample_id, label[item], split) for sample_id, item, split in rows]
    return list_files(IN_SHOP, root, listed, class_names=class_names, split_names=SPLITS, where=path)
