"""Registered datasets stored as arrays in a few files: the digits of scikit-learn, CIFAR, SVHN, STL-10.

Each function lists one dataset of `labelkit.data.registry.DATASETS`, see ``DatasetSpec.reader``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from labelkit.data.datasets import ArraySource, ImageDataset, ImageSource, build_indexed_dataset
from labelkit.data.decode import BadImageError, EncodedImage
from labelkit.data.folders import load_folder
from labelkit.data.named.layouts import DatasetSpec, find_dataset_root, read_lines, read_matlab
from labelkit.errors import DatasetAbsent, DatasetError, DatasetIncomplete

_STL_SIDE: Final = 96
_STL_BYTES: Final = 3 * _STL_SIDE * _STL_SIDE
Labels = NDArray[np.int64]


def _listing(
    name: str,
    labels: Mapping[str, Labels],
    split_names: Sequence[str],
    class_names: Sequence[str],
    source: ImageSource,
    *,
    id_format: str = "{}/{:05d}.png",
    **facts: Any,
) -> ImageDataset:
    """List numbered images from the labels of each split, in row order; ids are formatted from split and number."""
    ids = [id_format.format(split, i) for split, part in labels.items() for i in range(len(part))]
    splits = np.repeat([split_names.index(split) for split in labels], [len(part) for part in labels.values()])
    joined = np.concatenate(list(labels.values()))
    return build_indexed_dataset(
        name, None, ids, joined, splits, source, class_names=class_names, split_names=split_names, **facts
    )


def read_digits(spec: DatasetSpec, data_root: Path, download: bool) -> ImageDataset:
    """Read scikit-learn's 1,797 digit images of 8 x 8 pixels, with their 17 gray levels scaled to 0 to 255.

    Source: Alpaydin and Kaynak, "Optical Recognition of Handwritten Digits" (UCI, 1998).
    """
    from sklearn.datasets import load_digits

    bundle = load_digits()
    images = np.rint(bundle.images * 255 / 16).astype(np.uint8)[..., None]
    return _listing(
        spec.name,
        {"train": np.asarray(bundle.target, dtype=np.int64)},
        ["train"],
        [str(digit) for digit in range(10)],
        ArraySource(images),
        id_format="digits/{1:04d}.png",
        in_channels=1,
        chiral=True,
        photographic=False,
    )


def read_cifar(spec: DatasetSpec, data_root: Path, download: bool) -> ImageDataset:
    """Read CIFAR-10 or CIFAR-100 from its Python files, whose MD5 checksums torchvision verifies.

    A folder ``<name>/{train,test}/<class>/`` of extracted images is accepted as well.

    Raises:
        DatasetAbsent: the dataset is missing and ``download`` is false.
        DatasetError: the download failed, or files are damaged.
    """
    folder = data_root / spec.name
    if (folder / "train").is_dir() and (folder / "test").is_dir():
        return load_folder(folder, name=spec.name)
    root: Path | None = None
    try:
        root = find_dataset_root(spec, data_root)
    except (DatasetAbsent, DatasetIncomplete):
        if not download:
            raise
    from torchvision.datasets import CIFAR10, CIFAR100

    published: Any = CIFAR10 if spec.num_classes == 10 else CIFAR100
    if root is None:
        try:
            published(data_root, download=True)
        except (OSError, RuntimeError) as error:
            problem = f"download from {published.url} failed ({error}); this machine may be offline"
            remedy = f"Download the archive elsewhere and unpack it into {data_root}."
            raise DatasetError(spec.name, problem, remedy) from error
        root = find_dataset_root(spec, data_root)
    here = type(published.__name__, (published,), {"base_folder": root.name})
    try:
        parts = {split: here(root.parent, train=split == "train") for split in ("test", "train")}
    except (OSError, RuntimeError) as error:
        problem = f"a file does not match its published MD5 checksum or cannot be read ({error})"
        raise DatasetError(str(root), problem, "Remove this folder and pass --download again.") from error
    source = ArraySource(np.ascontiguousarray(np.concatenate([part.data for part in parts.values()])))
    labels = {split: np.array(part.targets) for split, part in parts.items()}
    return _listing(spec.name, labels, tuple(spec.num_images), parts["train"].classes, source)


def read_svhn(spec: DatasetSpec, root: Path) -> ImageDataset:
    """Read SVHN, house-number images of 32 x 32 pixels with the digits as classes; the files label digit 0 as 10.

    The 531,131 easier images of ``extra_32x32.mat`` are not read: published classification results with few labels
    do not use them.
    """
    remedy = "Download the file again from http://ufldl.stanford.edu/housenumbers/."
    images, labels = [], {}
    for split in ("test", "train"):
        path = root / f"{split}_32x32.mat"
        pixels, digits = read_matlab(path, "X", "y")
        if pixels.dtype != np.uint8 or pixels.shape != (32, 32, 3, len(digits)):
            problem = f"'X' is {pixels.dtype} {pixels.shape}, expected uint8 (32, 32, 3, {len(digits)})"
            raise DatasetError(str(path), problem, remedy)
        images.append(np.ascontiguousarray(pixels.transpose(3, 0, 1, 2)))
        labels[split] = digits.astype(np.int64) % 10
    names = [str(digit) for digit in range(10)]
    source = ArraySource(np.concatenate(images))
    return _listing(spec.name, labels, tuple(spec.num_images), names, source, chiral=True)


@dataclass(frozen=True, slots=True, eq=False)
class STL10Source:
    """Images of 96 x 96 pixels in STL-10's binary files, which store one color plane after another, by columns.

    Attributes:
        files: the files.
        file_of: (n,) int64, file of each row.
        record_of: (n,) int64, position of each row's image in its file.
    """

    files: tuple[Path, ...]
    file_of: NDArray[np.int64]
    record_of: NDArray[np.int64]

    def read(self, index: int) -> EncodedImage:
        """Read the image at ``index``, or raise :class:`BadImageError`."""
        path = self.files[int(self.file_of[index])]
        try:
            planes = np.fromfile(path, np.uint8, count=_STL_BYTES, offset=int(self.record_of[index]) * _STL_BYTES)
        except OSError as error:
            raise BadImageError(f"{path.name} cannot be read: {error.strerror}") from error
        if len(planes) != _STL_BYTES:
            raise BadImageError(f"{path.name} is truncated")
        return EncodedImage(np.ascontiguousarray(planes.reshape(3, _STL_SIDE, _STL_SIDE).transpose(2, 1, 0)))


def read_stl10(spec: DatasetSpec, root: Path) -> ImageDataset:
    """Read STL-10, including its ``unlabeled`` split if present; class numbers are those in the files minus 1.

    Images are read one by one; torchvision would read the whole dataset, 3 GB, to list it.
    """
    class_names = tuple(filter(None, read_lines(root / "class_names.txt")))
    order = [name for name in ("test", "train", "unlabeled") if (root / f"{name}_X.bin").is_file()]
    labels = {}
    for name in order:
        count = (root / f"{name}_X.bin").stat().st_size // _STL_BYTES
        labels[name] = np.full(count, -1, dtype=np.int64)
        if name != "unlabeled":
            labels[name] = np.fromfile(root / f"{name}_y.bin", dtype=np.uint8).astype(np.int64) - 1
        if len(labels[name]) != count:
            raise ValueError(f"{name}_y.bin contains {len(labels[name]):,} labels for {count:,} images")
    source = STL10Source(
        tuple(root / f"{name}_X.bin" for name in order),
        np.repeat(np.arange(len(order)), [len(labels[name]) for name in order]),
        np.concatenate([np.arange(len(labels[name])) for name in order]),
    )
    split_names = ("train", "test", "unlabeled")[: len(order)]
    return _listing(spec.name, labels, split_names, class_names, source, id_format="{}/{:06d}.png")
