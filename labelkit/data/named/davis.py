"""DAVIS 2017, films with masks of their objects, from its official files.

Source: Pont-Tuset et al., "The 2017 DAVIS Challenge on Video Object Segmentation".
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from labelkit.data.datasets import ImageDataset
from labelkit.data.mask_files import IGNORE
from labelkit.data.named.layouts import Layout, Listed, attach_masks, find_root, list_files, list_images, read_lines
from labelkit.errors import DatasetIncomplete

_SPLITS: Final = ("train", "val")
_LISTS: Final = tuple(f"ImageSets/2017/{split}.txt" for split in _SPLITS)
_IMAGES: Final = "JPEGImages/480p"
_MASKS: Final = "Annotations/480p"
DAVIS_2017: Final = Layout(
    name="davis_2017",
    folders=("DAVIS", "davis_2017", "DAVIS2017"),
    needs=((_LISTS[0],), (_LISTS[1],), (f"{_IMAGES}/",), (f"{_MASKS}/",)),
    archives={"DAVIS-2017-trainval-480p.zip": (*_LISTS, f"{_IMAGES}/", f"{_MASKS}/")},
    fetch="Fetch DAVIS-2017-trainval-480p.zip from https://davischallenge.org/davis2017/code.html and unpack it in",
)


def load_davis_2017(data_root: Path) -> ImageDataset:
    """List DAVIS 2017 at 480p: splits ``train`` and ``val``; a film is a folder, masks number its objects from 1.

    Raises:
        DatasetAbsent, DatasetIncomplete: it is not there, not unpacked, or lacks films or masks.
    """
    root = find_root(DAVIS_2017, data_root)
    listed = []
    for number, path in enumerate(_LISTS):
        for film in filter(None, read_lines(root / path)):
            if not (root / _IMAGES / film).is_dir():
                raise DatasetIncomplete(
                    str(root), f"{path} names {film}, {_IMAGES}/{film}/ is missing", f"{DAVIS_2017.fetch} {root.parent}"
                )
            listed += [Listed(name, -1, number) for name in list_images(root, f"{_IMAGES}/{film}")]
    dataset = list_files(DAVIS_2017, root, listed, class_names=(), split_names=_SPLITS, where=root / _LISTS[0])
    return attach_masks(
        DAVIS_2017,
        dataset,
        lambda name: _MASKS + name.removeprefix(_IMAGES).removesuffix(".jpg") + ".png",
        {i: i for i in range(IGNORE)},
        (),
    )
