"""Stanford Online Products from its official files.

Source: H. Oh Song et al., "Deep Metric Learning via Lifted Structured Feature Embedding" (CVPR 2016).
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from labelkit.data.datasets import ImageDataset
from labelkit.data.named.layouts import Layout, Listed, find_root, list_files, read_lines
from labelkit.errors import DatasetError

_LISTS: Final = (("train", "Ebay_train.txt"), ("test", "Ebay_test.txt"))
_HEADER: Final = ["image_id", "class_id", "super_class_id", "path"]
SOP: Final = Layout(
    name="sop",
    folders=("Stanford_Online_Products", "online_products"),
    needs=(("Ebay_train.txt",), ("Ebay_test.txt",)),
    archives={"Stanford_Online_Products.zip": ("Ebay_train.txt", "Ebay_test.txt")},
    fetch="Fetch Stanford_Online_Products.zip from https://cvgl.stanford.edu/projects/lifted_struct/ and unpack it "
    "into",
)


def load_online_products(data_root: Path) -> ImageDataset:
    """List Stanford Online Products: class = number in the lists minus 1, splits ``train`` and ``test``.

    Training and test have different classes.

    Raises:
        DatasetAbsent, DatasetIncomplete: it is not there, not unpacked, or lacks images that its lists name.
        DatasetError: a list is damaged, or a class is in both.
    """
    root = find_root(SOP, data_root)
    listed: list[Listed] = []
    kinds: dict[int, str] = {}
    split_of: dict[int, int] = {}
    for split, (_, name) in enumerate(_LISTS):
        path = root / name
        lines = read_lines(path)
        if not lines or lines[0].split() != _HEADER:
            raise DatasetError(str(path), f"does not begin with `{' '.join(_HEADER)}`", "Unpack it again.")
        for number, line in enumerate(lines[1:], start=2):
            words = line.split()
            if len(words) != 4 or not words[1].isdecimal() or int(words[1]) < 1:
                raise DatasetError(str(path), f"line {number}: {line!r} is not an image and its class", "Unpack again.")
            label = int(words[1]) - 1
            if split_of.setdefault(label, split) != split:
                raise DatasetError(
                    str(path), f"line {number}: class {label + 1} is in both lists", "Take both from one archive."
                )
            kinds[label] = words[3].split("_final/")[0].split("/")[0]
            listed.append(Listed(words[3], label, split))
    lacking = [label + 1 for label in range(max(kinds, default=0) + 1) if label not in kinds]
    if lacking:
        raise DatasetError(
            str(root), f"its lists name no image of class {lacking[0]} ({len(lacking)} such)", "Unpack it again."
        )
    return list_files(
        SOP,
        root,
        listed,
        class_names=[f"{kinds[label]}/{label + 1}" for label in range(len(kinds))],
        split_names=[split for split, _ in _LISTS],
        where=root / _LISTS[0][1],
    )
