"""Dataset listings: the images, their labels and splits, and access to each image and its mask.

Listing a dataset decodes nothing. :mod:`labelkit.data.registry` creates a listing from a name or a path.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labelkit.data.decode import BadImageError, Channels, EncodedImage, decode_mask, read_image_file
from labelkit.errors import DatasetError

SPLIT_WORDS: Final = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "val"),
    **dict.fromkeys(("test", "testing", "eval", "evaluation"), "test"),
    **dict.fromkeys(("unlabeled", "unlabelled", "no_label"), "unlabeled"),
}
"""Standard split name for each lower-case synonym, for all readers; the order of the values is the order of splits."""

HELD_OUT_SPLITS: Final = ("test", "val", "valid", "validation")
"""Splits to evaluate by default; the first one that exists is used."""


T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class ItemSource(Protocol[T_co]):
    """Protocol for picklable readers that return one item of a dataset by its index."""

    def read(self, index: int) -> T_co:
        """Return the item at ``index``.

        Raises:
            BadImageError: an image file cannot be read.
            DatasetError: a mask cannot be read, or contains undefined values.
        """
        ...


ImageSource = ItemSource[EncodedImage]
"""Reader of encoded images."""
MaskSource = ItemSource[NDArray[np.uint8]]
"""Reader of (h, w) masks of class numbers, or of object numbers for videos; 255 = ignore."""


@dataclass(frozen=True, slots=True, eq=False)
class SelectedSource(Generic[T]):
    """Source with selected items of another source, in a chosen order.

    Attributes:
        source: the other source.
        rows: (n,) int64, index of each item in the other source.
    """

    source: ItemSource[T]
    rows: NDArray[np.int64]

    def read(self, index: int) -> T:
        """Read the item at ``index``; exceptions from the underlying source propagate."""
        return self.source.read(int(self.rows[index]))


def select_source(source: ItemSource[T], rows: NDArray[np.int64]) -> SelectedSource[T]:
    """Return a source with the items of another source at the given indices, in that order."""
    if isinstance(source, SelectedSource):
        return SelectedSource(source.source, source.rows[rows])
    return SelectedSource(source, rows)


@dataclass(frozen=True, slots=True)
class FileSource:
    """Images stored as files under one folder."""

    root: Path
    sample_ids: tuple[str, ...]

    def read(self, index: int) -> EncodedImage:
        """Read the image file at ``index``, or raise :class:`BadImageError`."""
        return EncodedImage(read_image_file(self.root / self.sample_ids[index]))


@dataclass(frozen=True, slots=True, eq=False)
class ArraySource:
    """Images of equal size, stored as one (n, h, w, c) uint8 array."""

    images: NDArray[np.uint8]

    def read(self, index: int) -> EncodedImage:
        """Return the image at ``index``."""
        return EncodedImage(self.images[index])


@dataclass(frozen=True, eq=False)
class ImageDataset:
    """List of the images of a dataset, with their ids, labels and splits; images are in byte order of the ids.

    Attributes:
        name: registered name, or name of the folder or CSV file.
        root: folder that ``sample_ids`` are relative to; ``None`` if images are not files.
        sample_ids: n unique names, parts separated by ``/``, sorted by their raw bytes.
        labels: (n,) int64, class of each image, -1 = unknown.
        given: (n,) bool, whether a split may pass this label to training.
        class_names: name of class i.
        splits: (n,) int16, index into ``split_names``, -1 = in no split.
        split_names: names of the splits; may be empty.
        in_channels: 1 or 3.
        chiral: whether mirroring changes the meaning of an image.
        photographic: whether color augmentation makes sense.
        source: reads the image with a given index.
        notes: messages for the user, such as which files were ignored.
        draw_order: (n,) int64 rank of each image in the official list, from which published splits are drawn;
            ``None``: row order.
        masks: reads the mask with a given index, of the same size as the image; ``None`` without masks.
        mask_classes: names of the mask values; empty if they number the objects of a video, whose frames are the
            images in one folder.
        objects: annotated objects of each image, in row order; ``None`` without annotations.
        object_classes: name of object class i.
        presence: (n, c) int8 for multi-label images: 1 = present, 0 = absent, -1 = not scored; ``None`` if an image
            has at most one class.
        presence_classes: name of each column of ``presence``.
        content: digest of the embeddings that replace the images, if any; part of the dataset's identity.

    Raises:
        ValueError: lengths differ, or indices are out of range.
    """

    name: str
    root: Path | None
    sample_ids: tuple[str, ...]
    labels: NDArray[np.int64]
    given: NDArray[np.bool_]
    class_names: tuple[str, ...]
    splits: NDArray[np.int16]
    split_names: tuple[str, ...]
    source: ImageSource = field(repr=False)
    in_channels: Channels = 3
    chiral: bool = False
    photographic: bool = True
    notes: tuple[str, ...] = ()
    draw_order: NDArray[np.int64] | None = field(default=None, repr=False)
    masks: MaskSource | None = field(default=None, repr=False)
    mask_classes: tuple[str, ...] = ()
    objects: DatasetObjects | None = field(default=None, repr=False)
    object_classes: tuple[str, ...] = ()
    presence: NDArray[np.int8] | None = field(default=None, repr=False)
    presence_classes: tuple[str, ...] = ()
    content: str = ""

    def __post_init__(self) -> None:
        n = len(self.sample_ids)
        for key, dtype in (("labels", np.int64), ("given", np.bool_), ("splits", np.int16), ("draw_order", np.int64)):
            if getattr(self, key) is None:
                continue
            array = np.array(getattr(self, key), dtype=dtype)
            if array.shape != (n,):
                raise ValueError(f"{key} must have shape ({n},), like sample_ids, got {array.shape}")
            array.setflags(write=False)
            object.__setattr__(self, key, array)
        for key, stop in (("labels", len(self.class_names)), ("splits", len(self.split_names))):
            array = getattr(self, key)
            if n and not (-1 <= array.min() and array.max() < stop):
                raise ValueError(f"{key} must be from -1 to {stop - 1}, got {array.min()} to {array.max()}")

    def __len__(self) -> int:
        return len(self.sample_ids)

    def select(self, rows: ArrayLike) -> ImageDataset:
        """Return the subset with the given increasing row indices; class and split numbers do not change."""
        index = np.asarray(rows, dtype=np.int64)
        return replace(
            self,
            sample_ids=tuple(self.sample_ids[row] for row in index),
            labels=self.labels[index],
            given=self.given[index],
            splits=self.splits[index],
            source=select_source(self.source, index),
            draw_order=None if self.draw_order is None else self.draw_order[index],
            masks=None if self.masks is None else select_source(self.masks, index),
            objects=None if self.objects is None else self.objects.select(index),
            presence=None if self.presence is None else self.presence[index],
        )

    def rows_in_split(self, split: str | None) -> NDArray[np.int64]:
        """Return the row indices of the images in a split, in increasing order; for ``None``, of all images.

        Raises:
            DatasetError: there is no such split, or it is empty.
        """
        if split is None:
            return np.arange(len(self), dtype=np.int64)
        split = resolve_split(split, self.split_names)
        if split not in self.split_names:
            known = ", ".join(self.split_names)
            remedy = f"Choose one of: {known}." if known else "Omit the split to use all."
            raise DatasetError(self.name, f"there is no split {split!r}", remedy)
        rows = np.flatnonzero(self.splits == self.split_names.index(split)).astype(np.int64)
        if not len(rows):
            raise DatasetError(self.name, f"there are no images in split {split!r}", "Choose another split.")
        return rows

    def digest(self) -> str:
        """Return a SHA-256 digest (hex) that identifies the dataset by its names, labels, class names and content."""
        digest = hashlib.sha256()
        for names in (self.sample_ids, self.class_names):
            digest.update(len(names).to_bytes(8, "little"))
            for name in names:
                raw = os.fsencode(name)
                digest.update(len(raw).to_bytes(8, "little"))
                digest.update(raw)
        digest.update(self.labels.astype("<i8").tobytes())
        digest.update(np.packbits(self.given).tobytes())
        digest.update(self.content.encode())
        return digest.hexdigest()


def resolve_split(split: str, split_names: Sequence[str]) -> str:
    """Resolve a synonym for a split, such as ``validation``, to its standard name, unless it is in ``split_names``."""
    return split if split in split_names else SPLIT_WORDS.get(split.lower(), split)


def natural_sort_key(name: str) -> tuple[tuple[int, float, str], ...]:
    """Return a sort key for natural order, in which 2 < 10 and a2 < a10."""
    parts = re.split(r"(\d+)", name)
    if re.fullmatch(r"-?\d+", name):
        return ((0, float(name), name),)
    return tuple((0, float(part), part) if i % 2 else (1, 0, part) for i, part in enumerate(parts) if part)


def list_splits_in_order(splits: Iterable[str | None]) -> tuple[str, ...]:
    """Return the distinct split names in ``splits``, in the order train, val, test, unlabeled."""
    present = set(splits)
    return tuple(split for split in dict.fromkeys(SPLIT_WORDS.values()) if split in present)


def build_dataset(
    name: str,
    root: Path | None,
    ids: Sequence[str],
    labels: Sequence[str | None],
    splits: Sequence[str | None],
    source: ImageSource,
    *,
    class_names: Sequence[str] = (),
    split_names: Sequence[str] = (),
    notes: Iterable[str] = (),
) -> ImageDataset:
    """Build a dataset from the class name and split name of each image.

    Args:
        name: name of the dataset.
        root: folder that the ids are relative to; ``None`` if images are not files in one folder.
        ids: n unique image names, in the order of ``source``.
        labels: class name of each image, or ``None``.
        splits: split name of each image, or ``None``.
        source: reads the images.
        class_names: ordered class names; default: those that occur in ``labels``, in natural order (2 before 10).
        split_names: ordered split names; default: the standard ones that occur in ``splits``.
        notes: messages for the user, such as which files were ignored.
    """
    class_names = class_names or sorted({label for label in labels if label is not None}, key=natural_sort_key)
    split_names = split_names or list_splits_in_order(splits)
    found = find_positions(labels, class_names)
    parts = find_positions(splits, split_names)
    facts: dict[str, Any] = {"class_names": class_names, "split_names": split_names, "notes": tuple(notes)}
    return build_indexed_dataset(name, root, ids, found, parts, source, **facts)


def build_indexed_dataset(
    name: str,
    root: Path | None,
    ids: Sequence[str],
    labels: NDArray[np.int64],
    splits: NDArray[np.int64],
    source: ImageSource,
    *,
    class_names: Sequence[str],
    split_names: Sequence[str],
    in_published_order: bool = False,
    **facts: Any,
) -> ImageDataset:
    """Build a dataset like :func:`build_dataset`, but from class and split numbers (n,), -1 = none.

    ``in_published_order``: published splits are drawn in the order of ``ids``; ``facts`` are other fields.
    """
    order = np.array(sorted(range(len(ids)), key=[os.fsencode(one) for one in ids].__getitem__), dtype=np.int64)
    return ImageDataset(
        name=name,
        root=root,
        sample_ids=tuple(ids[row] for row in order),
        labels=labels[order],
        given=labels[order] >= 0,
        class_names=tuple(class_names),
        splits=splits[order].astype(np.int16),
        split_names=tuple(split_names),
        source=source if bool((np.diff(order) == 1).all()) else select_source(source, order),
        draw_order=order if in_published_order else None,
        **facts,
    )


def sort_by_bytes(names: Iterable[str]) -> list[str]:
    """Sort names by their bytes, which is the order of the images in a dataset."""
    return sorted(names, key=os.fsencode)


def find_positions(values: Sequence[str | None], names: Sequence[str]) -> NDArray[np.int64]:
    """Return the position of each value in ``names``, or -1 if it is missing."""
    position: dict[str | None, int] = {name: i for i, name in enumerate(names)}
    return np.array([position.get(value, -1) for value in values], dtype=np.int64)


@dataclass(frozen=True, eq=False)
class ImageObjects:
    """Annotated objects of one image: boxes, labels and optional outlines.

    Attributes:
        boxes: (m, 4) float64 left, top, right, bottom in pixels; pixel i spans i to i + 1.
        labels: (m,) int64 class of each object.
        ignored: (m,) bool, whether it is a crowd or difficult, and thus neither learned nor counted as missed.
        areas: (m,) float64 in pixels, of the outline if annotated, else of the box.
        outlines: outlines in COCO format, polygons or run lengths; ``None`` without outlines.
    """

    boxes: NDArray[np.float64]
    labels: NDArray[np.int64]
    ignored: NDArray[np.bool_]
    areas: NDArray[np.float64]
    outlines: tuple[Any, ...] | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def find_trainable_objects(self) -> NDArray[np.int64]:
        """Return the indices of the objects to train on: those not ignored whose box has a nonzero area."""
        wide = (self.boxes[:, 2:] > self.boxes[:, :2]).all(axis=1)
        return np.flatnonzero(wide & ~self.ignored)

    def select(self, index: NDArray[np.int64]) -> ImageObjects:
        """Return the objects at the given positions."""
        outlines = None if self.outlines is None else tuple(self.outlines[place] for place in index)
        return ImageObjects(self.boxes[index], self.labels[index], self.ignored[index], self.areas[index], outlines)


@dataclass(frozen=True, slots=True, eq=False)
class DatasetObjects:
    """Annotated objects of every image in a dataset.

    Attributes:
        rows: ``ImageObjects`` of each image.
        sizes: (n, 2) int64 height and width of each image according to its annotation; 0 = not stated.
    """

    rows: tuple[ImageObjects, ...]
    sizes: NDArray[np.int64]

    @property
    def has_outlines(self) -> bool:
        """Return whether every object has an outline."""
        return all(objects.outlines is not None for objects in self.rows if len(objects))

    def read(self, index: int) -> ImageObjects:
        """Return the objects in the image at ``index``."""
        return self.rows[index]

    def select(self, rows: NDArray[np.int64]) -> DatasetObjects:
        """Return the objects in the images at the given indices."""
        return DatasetObjects(tuple(self.rows[row] for row in rows), self.sizes[rows])


def find_box_outside_image(boxes: NDArray[np.float64], size: tuple[int, int]) -> int | None:
    """Find the first box with less than half of its area inside the image, and return its index.

    Return ``None`` if there is no such box, or if the size is unknown. In published datasets, boxes often exceed the
    border by a few pixels; this check detects boxes in another coordinate format.
    """
    if not size[0] or not len(boxes):
        return None
    ends = np.array([size[1], size[0], size[1], size[0]], dtype=np.float64)
    inside, whole = (np.prod(corners[:, 2:] - corners[:, :2], axis=1) for corners in (np.clip(boxes, 0, ends), boxes))
    outside = np.flatnonzero(2 * inside < whole)
    return int(outside[0]) if len(outside) else None


@dataclass(frozen=True, slots=True)
class JoinedSource:
    """Concatenation of two sources: the items of the first, followed by those of the second."""

    first: ImageSource
    second: ImageSource
    num_first: int

    def read(self, index: int) -> EncodedImage:
        """Read the item at ``index`` from the source that contains it."""
        return self.first.read(index) if index < self.num_first else self.second.read(index - self.num_first)


def join_datasets(objects: ImageDataset, scenes: ImageDataset) -> ImageDataset:
    """Concatenate an object-centric dataset and a dataset of scenes for training, dropping the labels of the scenes.

    Sample ids are prefixed with ``object/`` and ``scene/``, so that they stay sorted and unique.
    """
    n, m = len(objects), len(scenes)
    prefixes = [("object/", objects.sample_ids), ("scene/", scenes.sample_ids)]
    return ImageDataset(
        name=f"{objects.name} and {scenes.name}",
        root=None,
        sample_ids=tuple(prefix + sample_id for prefix, ids in prefixes for sample_id in ids),
        labels=np.concatenate((objects.labels, np.full(m, -1, dtype=np.int64))),
        given=np.concatenate((objects.given, np.zeros(m, dtype=np.bool_))),
        class_names=objects.class_names,
        splits=np.zeros(n + m, dtype=np.int16),
        split_names=("train",),
        in_channels=3 if 3 in (objects.in_channels, scenes.in_channels) else 1,
        chiral=objects.chiral or scenes.chiral,
        photographic=objects.photographic and scenes.photographic,
        source=JoinedSource(objects.source, scenes.source, n),
        notes=objects.notes + scenes.notes,
    )


IGNORE: Final = 255
_MEANINGLESS: Final = -1


def build_class_table(class_of_value: Mapping[int, int]) -> NDArray[np.int16]:
    """Build the (256,) lookup table from mask values to classes; 255 maps to ``IGNORE``, unlisted values to -1."""
    table = np.full(256, _MEANINGLESS, dtype=np.int16)
    table[IGNORE] = IGNORE
    for value, label in class_of_value.items():
        table[value] = label
    return table


@dataclass(frozen=True, slots=True, eq=False)
class FileMasks:
    """Segmentation masks stored as files under one folder.

    Attributes:
        root: the folder.
        files: mask file of each row, relative to the folder.
        table: (256,) int16, class of each pixel value, see ``build_class_table``.
    """

    root: Path
    files: tuple[str, ...]
    table: NDArray[np.int16]

    def read(self, index: int) -> NDArray[np.uint8]:
        """Read the mask at ``index`` as class numbers (h, w) uint8, where 255 means ignore.

        Raises:
            DatasetError: the file cannot be read, is not a mask, or contains an undefined value.
        """
        path = self.root / self.files[index]
        try:
            values = decode_mask(read_image_file(path))
        except BadImageError as bad:
            raise DatasetError(str(path), bad.reason, "Use PNG files with one class number per pixel.") from bad
        classes = self.table[values]
        if classes.min() == _MEANINGLESS:
            row, column = (int(place[0]) for place in np.nonzero(classes == _MEANINGLESS))
            known = np.flatnonzero(self.table != _MEANINGLESS)
            parts = np.split(known, np.flatnonzero(np.diff(known) > 1) + 1)
            ranges = ", ".join(str(part[0]) if len(part) == 1 else f"{part[0]} to {part[-1]}" for part in parts)
            problem = f"value {values[row, column]} in row {row}, column {column} is not a class number; "
            remedy = "Check whether the mask belongs to another dataset, or encodes classes as colors."
            raise DatasetError(str(path), f"{problem}known values are {ranges}", remedy)
        return classes.astype(np.uint8)


def read_image_and_mask(dataset: ImageDataset, index: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Read an image (h, w, c) and its mask (h, w).

    Raises:
        DatasetError: one of them cannot be read, their sizes differ, or the dataset has no masks.
    """
    if dataset.masks is None:
        remedy = "Choose a dataset with masks (`labelkit datasets` lists mask classes)."
        raise DatasetError(dataset.name, "has no masks", remedy)
    sample_id = dataset.sample_ids[index]
    try:
        pixels = dataset.source.read(index).decode(dataset.in_channels)
    except BadImageError as bad:
        raise DatasetError(sample_id, bad.reason, "Repair the image, or remove it.") from bad
    mask = dataset.masks.read(index)
    if mask.shape != pixels.shape[:2]:
        where = sample_id if dataset.root is None else str(dataset.root / sample_id)
        (height, width), (rows, columns) = pixels.shape[:2], mask.shape
        problem = f"the image has {width} x {height} pixels, but its mask has {columns} x {rows}"
        remedy = "Check whether the image or its mask was resized; both must have the same size."
        raise DatasetError(where, problem, remedy)
    return pixels, mask
