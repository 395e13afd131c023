"""FGVC-Aircraft 2013b, variants, from its official files.

Source: "Fine-Grained Visual Classification of Aircraft" (Maji et al., 2013) and the README in the archive.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from labelkit.data.datasets import ImageDataset
from labelkit.data.named.layouts import Layout, Listed, find_root, list_files, name_some, read_lines, read_pairs
from labelkit.errors import DatasetError

_TRAIN: Final = "data/images_variant_trainval.txt"
_TEST: Final = "data/images_variant_test.txt"
_VARIANTS: Final = "data/variants.txt"
AIRCRAFT: Final = Layout(
    name="aircraft",
    folders=("fgvc-aircraft-2013b",),
    needs=((_TRAIN,), (_TEST,), (_VARIANTS,), ("data/images/",)),
    archives={"fgvc-aircraft-2013b.tar.gz": (_TRAIN, "data/images/")},
    fetch="Fetch fgvc-aircraft-2013b.tar.gz from https://www.robots.ox.ac.uk/~vgg/data/fgvc-aircraft/ and unpack it "
    "into",
)


def load_aircraft(data_root: Path) -> ImageDataset:
    """List FGVC-Aircraft: class = rank of the variant's name, splits ``train`` (trainval) and ``test``.

    Raises:
        DatasetAbsent, DatasetIncomplete: it is not there, not unpacked, or lacks images that its lists name.
        DatasetError: its lists contradict each other.
    """
    root = find_root(AIRCRAFT, data_root)
    parts = [read_pairs(root / _TRAIN), read_pairs(root / _TEST)]
    # Ranks in trainval, as in the released code of the benchmark; variants.txt may stand in another order.
    class_names = sorted({variant for _, variant in parts[0]})
    variants = {line for line in read_lines(root / _VARIANTS) if line}
    for part, name in zip(parts, (_TRAIN, _TEST), strict=True):
        differ = sorted({variant for _, variant in part} ^ variants)
        if differ:
            raise DatasetError(
                str(root / name),
                f"expected the {len(variants)} variants of variants.txt, found "
                f"{len({variant for _, variant in part})}; not in both: {name_some(differ)}",
                "Unpack fgvc-aircraft-2013b.tar.gz again: its text files do not belong together.",
            )
    rank = {name: i for i, name in enumerate(class_names)}
    listed = [
        Listed(f"data/images/{image}.jpg", rank[variant], split)
        for split, part in enumerate(parts)
        for image, variant in part
    ]
    return list_files(
        AIRCRAFT, root, listed, class_names=class_names, split_names=("train", "test"), where=root / _TRAIN
    )
