"""Registered datasets with mask files or with several classes per image (PASCAL VOC), read from their official files.

Each function lists one dataset of `labelkit.data.registry.DATASETS`, see ``DatasetSpec.reader``.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Final

import numpy as np

from labelkit.data.datasets import IGNORE, ImageDataset, sort_by_bytes
from labelkit.data.named.layouts import (
    DatasetSpec,
    ListedImage,
    attach_masks,
    build_registered_dataset,
    list_images,
    list_images_by_class,
    read_lines,
)
from labelkit.errors import DatasetError, DatasetIncomplete

CAMVID_CLASSES: Final = (
    "sky", "building", "pole", "road", "pavement", "tree", "sign", "fence", "car", "pedestrian", "bicyclist",
)  # fmt: skip
# The number of each class in the files, in the order of the classes; cityscapesScripts/helpers/labels.py.
CITYSCAPES_CLASSES: Final = {
    "road": 7, "sidewalk": 8, "building": 11, "wall": 12, "fence": 13, "pole": 17, "traffic light": 19,
    "traffic sign": 20, "vegetation": 21, "terrain": 22, "sky": 23, "person": 24, "rider": 25, "car": 26,
    "truck": 27, "bus": 28, "train": 31, "motorcycle": 32, "bicycle": 33,
}  # fmt: skip
VOC_CLASSES: Final = (
    "background", "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow",
    "diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor",
)  # fmt: skip
# Labels of each supercategory of COCO-Stuff; things first, then stuff, both in the order of their first label. Source:
# Caesar et al., "COCO-Stuff: Thing and Stuff Classes in Context" (CVPR 2018), its table of labels.
COCO_STUFF_CLASSES: Final[dict[str, tuple[int, ...]]] = {
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


def _with_masks(
    spec: DatasetSpec,
    root: Path,
    images: Iterable[Iterable[str]],
    mask_of: Callable[[str], str],
    meaning: Mapping[int, int],
    classes: Iterable[str] = (),
) -> ImageDataset:
    """List the images of each split, in the order of the splits, with their masks; see ``attach_masks``."""
    rows = [ListedImage(name, -1, split) for split, part in enumerate(images) for name in part]
    dataset = build_registered_dataset(spec, root, rows)
    return attach_masks(dataset, mask_of, meaning, tuple(classes), spec.remedy(root.parent))


def _png_in(images: str, masks: str) -> Callable[[str], str]:
    """Return a function that maps an image to its mask, a PNG file of the same name in another folder."""
    return lambda name: str(PurePosixPath(name.replace(images, masks, 1)).with_suffix(".png"))


def read_camvid(spec: DatasetSpec, root: Path) -> ImageDataset:
    """Read CamVid (11 classes; value 11 is ignored) from image and mask folders or the SegNet tutorial's layout."""
    nested = (root / "train/masks").is_dir()
    folders = [f"{split}/images" if nested else split for split in spec.num_images]

    mask_of = _png_in("/images/", "/masks/") if nested else _png_in("/", "annot/")
    meaning = {i: i for i in range(len(CAMVID_CLASSES))} | {len(CAMVID_CLASSES): IGNORE}
    images = [sort_by_bytes(list_images(root, folder)) for folder in folders]
    return _with_masks(spec, root, images, mask_of, meaning, CAMVID_CLASSES)


def read_coco_stuff_27(spec: DatasetSpec, root: Path) -> ImageDataset:
    """Read COCO-Stuff with its 27 supercategories; masks store label numbers minus 1, and 255 is ignored."""
    images = [list_images(root, f"images/{split}2017") for split in spec.num_images]
    meaning = {label - 1: i for i, labels in enumerate(COCO_STUFF_CLASSES.values()) for label in labels}
    return _with_masks(spec, root, images, _png_in("images/", "annotations/"), meaning, COCO_STUFF_CLASSES)


def read_ade20k(spec: DatasetSpec, root: Path) -> ImageDataset:
    """Read ADE20K with the 150 scored classes; a class is the mask value minus 1, and value 0 is ignored."""
    names = [line.split("\t")[-1].strip() for line in read_lines(root / "objectInfo150.txt")[1:] if line]
    if not 0 < len(names) < IGNORE:
        raise ValueError(f"objectInfo150.txt lists {len(names)} classes after its first line")
    images = [list_images(root, f"images/{folder}") for folder in ("training", "validation")]
    meaning = {0: IGNORE} | {i + 1: i for i in range(len(names))}
    return _with_masks(spec, root, images, _png_in("images/", "annotations/"), meaning, names)


def read_cityscapes(spec: DatasetSpec, root: Path) -> ImageDataset:
    """Read Cityscapes with its 19 classes, ignoring the values that the benchmark does not score."""
    images = [
        [
            f"leftImg8bit/{split}/{city}/{file}"
            for city, files in list_images_by_class(root / "leftImg8bit" / split).items()
            for file in files
        ]
        for split in spec.num_images
    ]
    meaning = dict.fromkeys(range(34), IGNORE) | {value: i for i, value in enumerate(CITYSCAPES_CLASSES.values())}

    def mask_of(name: str) -> str:
        return name.replace("leftImg8bit/", "gtFine/", 1).replace("_leftImg8bit.png", "_gtFine_labelIds.png")

    return _with_masks(spec, root, images, mask_of, meaning, CITYSCAPES_CLASSES)


def read_voc_2012(spec: DatasetSpec, root: Path) -> ImageDataset:
    """Read the list of VOC 2012 images with a segmentation mask; object borders (255) are ignored."""
    images = [[f"JPEGImages/{i}.jpg" for i in read_lines(root / need[0]) if i] for need in spec.required_files[:2]]
    mask_of = _png_in("JPEGImages/", "SegmentationClass/")
    return _with_masks(spec, root, images, mask_of, {i: i for i in range(len(VOC_CLASSES))}, VOC_CLASSES)


def read_davis_2017(spec: DatasetSpec, root: Path) -> ImageDataset:
    """Read DAVIS 2017 at 480p, with one folder per video and masks in which its objects are numbered from 1."""
    images: list[list[str]] = []
    for (path,) in spec.required_files[:2]:
        films = list(filter(None, read_lines(root / path)))
        for film in films:
            if not (root / "JPEGImages/480p" / film).is_dir():
                problem = f"{path} lists {film}, but JPEGImages/480p/{film}/ is missing"
                raise DatasetIncomplete(str(root), problem, spec.remedy(root.parent))
        images.append([name for film in films for name in list_images(root, f"JPEGImages/480p/{film}")])
    return _with_masks(spec, root, images, _png_in("JPEGImages/", "Annotations/"), {i: i for i in range(IGNORE)})


_CLASSES: Final = VOC_CLASSES[1:]  # without background
_PRESENCE: Final = {"1": 1, "-1": 0, "0": -1}  # 0: only in objects marked as difficult


def read_voc_2007_classes(spec: DatasetSpec, root: Path) -> ImageDataset:
    """Read VOC 2007 for multi-label classification; ``presence`` states which classes each image contains."""
    presence: dict[str, list[int]] = {}
    rows: list[ListedImage] = []
    for split, ending in enumerate(("trainval", "test")):
        columns = [_read_presence(root / f"ImageSets/Main/{name}_{ending}.txt") for name in _CLASSES]
        for name, column in zip(_CLASSES, columns, strict=True):
            if list(column) != list(columns[0]):
                raise ValueError(f"the lists of {name} and {_CLASSES[0]} contain different images")
        for image in columns[0]:
            presence[f"JPEGImages/{image}.jpg"] = [column[image] for column in columns]
            rows.append(ListedImage(f"JPEGImages/{image}.jpg", -1, split))
    dataset = build_registered_dataset(spec, root, rows)
    values = np.array([presence[sample_id] for sample_id in dataset.sample_ids], dtype=np.int8)
    return replace(dataset, presence=values, presence_classes=_CLASSES)


def _read_presence(path: Path) -> dict[str, int]:
    """Read the list of one class: image name -> 1 (present), 0 (absent) or -1 (not counted)."""
    found: dict[str, int] = {}
    for number, line in enumerate(read_lines(path), 1):
        words = line.split()
        if words and (len(words) != 2 or words[1] not in _PRESENCE):
            problem = f"{line!r} is not an image name followed by 1, 0 or -1"
            raise DatasetError(f"{path}:{number}", problem, "Unpack the file again.")
        if words:
            found[words[0]] = _PRESENCE[words[1]]
    return found
