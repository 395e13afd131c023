"""STL-10 from its official binary files; images are read one by one.

Source: "An Analysis of Single-Layer Networks in Unsupervised Feature Learning" (Coates et al., 2011).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from labelkit.data.datasets import EncodedImage, ImageDataset
from labelkit.data.decode import BadImage
from labelkit.data.named.layouts import Layout, find_root, read_lines
from labelkit.errors import DatasetError

_SIDE: Final = 96
_BYTES: Final = 3 * _SIDE * _SIDE
_REMEDY: Final = "Unpack stl10_binary.tar.gz again."
_NEEDS: Final = ("train_X.bin", "train_y.bin", "test_X.bin", "test_y.bin", "class_names.txt")
STL10: Final = Layout(
    name="stl10",
    folders=("stl10_binary",),
    needs=tuple((name,) for name in _NEEDS),
    archives={"stl10_binary.tar.gz": _NEEDS},
    fetch="Fetch stl10_binary.tar.gz from https://cs.stanford.edu/~acoates/stl10/ and unpack it in",
)


@dataclass(frozen=True, slots=True, eq=False)
class BinarySource:
    """Images of 96 x 96, one after the other in a few files, each color plane column by column.

    Attributes:
        files: the files.
        file_of: (n,) int64, file of each row.
        record_of: (n,) int64, which image of the file it is.
    """

    files: tuple[Path, ...]
    file_of: NDArray[np.int64]
    record_of: NDArray[np.int64]

    def read(self, index: int) -> EncodedImage:
        """Return the pixels of row ``index``; :class:`BadImage` if they cannot be read."""
        path = self.files[int(self.file_of[index])]
        try:
            planes = np.fromfile(path, dtype=np.uint8, count=_BYTES, offset=int(self.record_of[index]) * _BYTES)
        except OSError as error:
            raise BadImage(f"{path.name} cannot be read: {error.strerror}") from error
        if len(planes) != _BYTES:
            raise BadImage(f"{path.name} ends too early")
        return EncodedImage(np.ascontiguousarray(planes.reshape(3, _SIDE, _SIDE).transpose(2, 1, 0)))

    def select(self, rows: NDArray[np.int64]) -> BinarySource:
        """Return the images of ``rows``."""
        return BinarySource(self.files, self.file_of[rows], self.record_of[rows])


def load_stl10(data_root: Path) -> ImageDataset:
    """List STL-10: class = number in the files minus 1, splits ``train``, ``test`` and, if it is there, ``unlabeled``.

    Raises:
        DatasetAbsent, DatasetIncomplete: it is not there, not unpacked, or lacks a file.
        DatasetError: files of the wrong size, or labels out of range.
    """
    root = find_root(STL10, data_root)
    class_names = tuple(line for line in read_lines(root / "class_names.txt") if line)
    split_names = ("train", "test", "unlabeled")
    order = [name for name in ("test", "train", "unlabeled") if (root / f"{name}_X.bin").is_file()]
    labels = [_labels(root, name, len(class_names)) for name in order]
    counts = [len(part) for part in labels]
    joined = np.concatenate(labels)
    return ImageDataset(
        name=STL10.name,
        root=None,
        sample_ids=tuple(
            f"{name}/{i:06d}.png" for name, count in zip(order, counts, strict=True) for i in range(count)
        ),
        labels=joined,
        given=joined >= 0,
        class_names=class_names,
        splits=np.repeat(np.array([split_names.index(name) for name in order], dtype=np.int16), counts),
        split_names=split_names[: len(order)],
        in_channels=3,
        chiral=False,
        photographic=True,
        source=BinarySource(
            tuple(root / f"{name}_X.bin" for name in order),
            np.repeat(np.arange(len(order)), counts),
            np.concatenate([np.arange(count) for count in counts]),
        ),
    )


def _labels(root: Path, name: str, num_classes: int) -> NDArray[np.int64]:
    """Classes of the images of a split, -1 = without label."""
    path = root / f"{name}_X.bin"
    count, rest = divmod(path.stat().st_size, _BYTES)
    if rest or not count:
        raise DatasetError(str(path), f"{path.stat().st_size:,} bytes are not a multiple of {_BYTES:,}", _REMEDY)
    if name == "unlabeled":
        return np.full(count, -1, dtype=np.int64)
    where = root / f"{name}_y.bin"
    labels = np.fromfile(where, dtype=np.uint8).astype(np.int64) - 1
    if len(labels) != count:
        raise DatasetError(str(where), f"{len(labels):,} labels for {count:,} images", _REMEDY)
    if labels.min() < 0 or labels.max() >= num_classes:
        raise DatasetError(
            str(where),
            f"labels reach from {labels.min() + 1} to {labels.max() + 1}, class_names.txt names {num_classes}",
            _REMEDY,
        )
    return labels
