"""Folders of images with annotated regions: boxes in COCO's JSON files, or masks next to the images.

Source of the box format: https://cocodataset.org/#format-data (object detection).
"""

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any, Final, NamedTuple

import numpy as np
from pydantic import BaseModel, NonNegativeFloat, ValidationError

from labelkit.data.datasets import (
    IGNORE,
    SPLIT_WORDS,
    DatasetObjects,
    ImageDataset,
    ImageObjects,
    find_box_outside_image,
    list_splits_in_order,
)
from labelkit.data.folders import infer_split, walk_images
from labelkit.data.named.layouts import DatasetSpec, ListedImage, attach_masks, build_listed_dataset, read_lines
from labelkit.errors import DatasetError
from labelkit.files import MAX_JSON_BYTES, read_bytes

ANNOTATIONS: Final = "annotations"
_FILES: Final = "instances_*.json"
_YEAR: Final = re.compile(r"\d{4}$")
_REMEDY: Final = "Compare the file with https://cocodataset.org/#format-data."


class _Category(BaseModel, strict=True):
    id: int
    name: str


class _Image(BaseModel, strict=True):
    id: int
    file_name: str
    height: int = 0
    width: int = 0


class _Annotation(BaseModel, strict=True, allow_inf_nan=False):
    id: Any = "?"
    image_id: int
    category_id: int
    bbox: tuple[float, float, NonNegativeFloat, NonNegativeFloat]
    area: float | None = None
    iscrowd: int = 0
    segmentation: Any = None


class _Table(BaseModel, strict=True):
    categories: list[_Category] = []
    images: list[_Image] = []
    annotations: list[_Annotation] = []


class _File(NamedTuple):
    path: Path
    part: str
    categories: dict[int, str]
    images: dict[int, _Image]
    objects: dict[int, list[_Annotation]]


def has_coco_annotations(root: Path) -> bool:
    """Return whether a folder has instance annotations in COCO's JSON format."""
    return any((root / ANNOTATIONS).glob(_FILES))


def read_coco_2017(spec: DatasetSpec, root: Path) -> ImageDataset:
    """Read COCO 2017 with the boxes and outlines of its objects; see ``DatasetSpec.reader``."""
    return load_coco_folder(
        root, name=spec.name, files=[names[0] for names in spec.required_files[:2]], remedy=spec.remedy(root.parent)
    )


def load_coco_folder(root: Path, *, name: str = "", files: Sequence[str] = (), remedy: str = "") -> ImageDataset:
    """Load a folder in COCO format, in which each ``annotations/instances_<part>.json`` defines a split.

    The images of a part are in ``<part>/``, ``images/<part>/`` or ``images/``; its split has the name of the part,
    without the year. Classes are in the order of their category numbers. By default, the dataset is named after the
    folder and includes all such files.

    Raises:
        DatasetError: a file is not COCO JSON, has no categories, or refers to an unknown image or category; or the
            files differ in their categories or contain no boxes.
        DatasetIncomplete: images are missing.
    """
    paths = [root / name for name in files] or sorted((root / ANNOTATIONS).glob(_FILES))
    read = [_read(path) for path in paths]
    first = read[0]
    for file in read[1:]:
        if file.categories != first.categories:
            problem = f"its categories differ from those of {first.path.name}"
            raise DatasetError(str(file.path), problem, "Use the same categories in both files.")
    splits = tuple(dict.fromkeys(_split(file.part) for file in read))
    number = {category: label for label, category in enumerate(sorted(first.categories))}
    listed: list[ListedImage] = []
    known: dict[str, tuple[ImageObjects, tuple[int, int]]] = {}
    for file in read:
        places = (f"{file.part}/", f"images/{file.part}/", "images/")
        folder = next((place for place in places if (root / place).is_dir()), places[0])
        for image, about in file.images.items():
            sample_id = f"{folder}{about.file_name}"
            listed.append(ListedImage(sample_id, -1, splits.index(_split(file.part))))
            size = about.height, about.width
            known[sample_id] = _parse_objects(file, image, number), size
            outside = find_box_outside_image(known[sample_id][0].boxes, size)
            if outside is not None:
                entry = file.objects[image][outside]
                problem = f"bbox {list(entry.bbox)} is mostly outside its image of {size[1]} x {size[0]} pixels"
                remedy = "Correct or remove this bbox (left, top, width, height in pixels)."
                raise DatasetError(str(file.path), f"annotation {entry.id}: {problem}", remedy)
    if not any(len(objects) for objects, _ in known.values()):
        remedy = "Use the annotation file with instances, not the one with captions."
        raise DatasetError(str(first.path), "has no boxes", remedy)
    remedy = remedy or f"Put the images into {root}, or remove them from the annotations."
    dataset = build_listed_dataset(name or root.resolve().name, root, listed, split_names=splits, remedy=remedy)
    rows = [known[sample_id] for sample_id in dataset.sample_ids]
    objects = DatasetObjects(tuple(row for row, _ in rows), np.array([size for _, size in rows], np.int64))
    names = tuple(first.categories[category] for category in sorted(first.categories))
    return replace(dataset, objects=objects, object_classes=names)


def _split(part: str) -> str:
    word = _YEAR.sub("", part) or part
    return SPLIT_WORDS.get(word.lower(), word)


def _read(path: Path) -> _File:
    try:
        table = _Table.model_validate_json(read_bytes(path, MAX_JSON_BYTES))
    except OSError as error:
        raise DatasetError(str(path), f"cannot be read: {error.strerror}", "Unpack the file again.") from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise DatasetError(str(path), f"{place}: {first['msg']}".removeprefix(": "), _REMEDY) from error
    for kind, listed in (("category", table.categories), ("image", table.images)):
        number, count = Counter(entry.id for entry in listed).most_common(1)[0] if listed else (0, 0)
        if count > 1:
            raise DatasetError(str(path), f"lists {kind} {number} twice", _REMEDY)
    categories = {entry.id: entry.name for entry in table.categories}
    if not categories:
        raise DatasetError(str(path), "has no categories", "Add the classes of the boxes as categories.")
    if len(set(categories.values())) < len(categories):
        raise DatasetError(str(path), "contains two categories with the same name", _REMEDY)
    images = {entry.id: entry for entry in table.images}
    objects: dict[int, list[_Annotation]] = defaultdict(list)
    for entry in table.annotations:
        for kind, number, known in (("image", entry.image_id, images), ("category", entry.category_id, categories)):
            if number not in known:
                problem = f"annotation {entry.id} refers to {kind} {number}, which is not in the file"
                raise DatasetError(str(path), problem, f"Add the {kind} to the file, or remove the annotation.")
        objects[entry.image_id].append(entry)
    return _File(path, path.stem.removeprefix("instances_"), categories, images, objects)


def _parse_objects(file: _File, image: int, number: Mapping[int, int]) -> ImageObjects:
    entries = file.objects.get(image, [])
    boxes = np.array([entry.bbox for entry in entries], dtype=np.float64).reshape(-1, 4)
    boxes[:, 2:] += boxes[:, :2]
    outlines = tuple(entry.segmentation for entry in entries)
    sizes = np.prod(boxes[:, 2:] - boxes[:, :2], axis=1)
    areas = [sizes[i] if entry.area is None else entry.area for i, entry in enumerate(entries)]
    return ImageObjects(
        boxes,
        np.array([number[entry.category_id] for entry in entries], dtype=np.int64),
        np.array([entry.iscrowd != 0 for entry in entries], dtype=np.bool_),
        np.array(areas, dtype=np.float64),
        outlines if outlines and all(outlines) else None,
    )


CLASS_LIST: Final = "classes.txt"
_NO_CLASS: Final = "-"


def has_masks(root: Path) -> bool:
    """Return whether a folder contains images and segmentation masks."""
    return bool(_list_parts(root))


def load_mask_folder(root: Path) -> ImageDataset:
    """Load a folder of images and masks as a segmentation dataset.

    Images are ``[train|val|test/]images/NAME.jpg``, masks ``[...]/masks/NAME.png`` with 8-bit class numbers.
    ``classes.txt`` names class i in line i + 1; a line ``-`` marks a value to ignore; 255 is always ignored.

    Raises:
        DatasetError: images or masks are missing, a folder cannot be listed, or ``classes.txt`` is missing or invalid.
    """
    parts = _list_parts(root)
    split_names = tuple(dict.fromkeys(split for split, _ in parts if split))
    listed = [
        ListedImage(f"{prefix}images/{name}", -1, split_names.index(split) if split else -1)
        for split, prefix in parts
        for name in walk_images(root / f"{prefix}images")
    ]
    name = root.resolve().name
    remedy = f"Put images and masks into {root}."
    dataset = build_listed_dataset(name, root, listed, split_names=split_names, remedy=remedy)
    meaning, classes = _read_classes(root)
    remedy = "Add the masks, or remove the images."
    return attach_masks(dataset, _mask_path, meaning, classes, remedy)


def _list_parts(root: Path) -> list[tuple[str, str]]:
    """Return the split and folder of each part: ``("", "")``, or pairs such as ``("val", "validation/")``."""
    if (root / "images").is_dir() and (root / "masks").is_dir():
        return [("", "")]
    folders = sorted(path.parent for path in root.glob("*/masks") if path.is_dir())
    found = {path.name: infer_split(path.name) for path in folders if (path / "images").is_dir()}
    order = list_splits_in_order(found.values())
    return [(split, f"{name}/") for split in order for name, own in found.items() if own == split]


def _mask_path(name: str) -> str:
    return str(PurePosixPath(re.sub(r"(^|/)images/", r"\1masks/", name, count=1)).with_suffix(".png"))


def _read_classes(root: Path) -> tuple[dict[int, int], tuple[str, ...]]:
    """Return the class of each value of a mask, and the names of the classes."""
    path = root / CLASS_LIST
    if not path.is_file():
        remedy = f"Write the name of class i on line i + 1, and {_NO_CLASS} for values to ignore."
        raise DatasetError(str(path), "is missing, but is needed to name the class of each mask value", remedy)
    lines = read_lines(path)
    names = tuple(line for line in lines if line != _NO_CLASS)
    if not names or not all(names) or len(lines) > IGNORE or len(set(names)) != len(names):
        problem = f"lists {len(names)} classes on {len(lines)} lines, in an invalid form"
        remedy = f"Write distinct class names, one per line, on at most {IGNORE} lines; {_NO_CLASS} for ignored values."
        raise DatasetError(str(path), problem, remedy)
    number = {name: i for i, name in enumerate(names)}
    return {value: number.get(line, IGNORE) for value, line in enumerate(lines)}, names
