"""SVHN, house numbers cropped to 32x32, from its official MATLAB files.

Source: "Reading Digits in Natural Images with Unsupervised Feature Learning" (Netzer et al., 2011). The 531,131 easier
images of ``extra_32x32.mat`` are not read: published classification results with few labels leave them out.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from labelkit.data.datasets import ArraySource, ImageDataset
from labelkit.data.matlab import read_matlab
from labelkit.data.named.layouts import Layout, find_root
from labelkit.errors import DatasetError

_FILES: Final = {"train": "train_32x32.mat", "test": "test_32x32.mat"}
_REMEDY: Final = "Fetch it again from http://ufldl.stanford.edu/housenumbers/."
_MAX_BYTES: Final = 1 << 29
SVHN: Final = Layout(
    name="svhn",
    folders=("svhn", "SVHN"),
    needs=tuple((file,) for file in _FILES.values()),
    archives={},
    fetch="Fetch train_32x32.mat and test_32x32.mat from http://ufldl.stanford.edu/housenumbers/ and put them into "
    "svhn/ in",
)


def load_svhn(data_root: Path) -> ImageDataset:
    """List SVHN: class = digit (the files call 0 ten), splits ``train`` and ``test``.

    Raises:
        DatasetAbsent, DatasetIncomplete: it is not there, or lacks a file.
        DatasetError: a file is damaged.
    """
    root = find_root(SVHN, data_root)
    parts = {split: _read(root / file) for split, file in _FILES.items()}
    order = ("test", "train")  # by name
    counts = [len(parts[split][1]) for split in order]
    return ImageDataset(
        name=SVHN.name,
        root=None,
        sample_ids=tuple(
            f"{split}/{i:05d}.png" for split, count in zip(order, counts, strict=True) for i in range(count)
        ),
        labels=np.concatenate([parts[split][1] for split in order]),
        given=np.ones(sum(counts), dtype=np.bool_),
        class_names=tuple(str(digit) for digit in range(10)),
        splits=np.repeat(np.array([1, 0], dtype=np.int16), counts),
        split_names=("train", "test"),
        in_channels=3,
        chiral=True,
        photographic=True,
        source=ArraySource(np.concatenate([parts[split][0] for split in order])),
    )


def _read(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images (n, 32, 32, 3) and digits (n,)."""
    content = read_matlab(path, ("X", "y"), max_bytes=_MAX_BYTES, remedy=_REMEDY)
    pixels, labels = content["X"], np.atleast_1d(content["y"])
    if pixels.ndim == 3:
        pixels = pixels[..., None]  # a file of one image
    if pixels.dtype != np.uint8 or pixels.shape[:3] != (32, 32, 3):
        raise DatasetError(str(path), f"'X' is {pixels.dtype} {pixels.shape}, expected bytes (32, 32, 3, n)", _REMEDY)
    if labels.shape != pixels.shape[3:]:
        raise DatasetError(str(path), f"{labels.size:,} labels for {pixels.shape[3]:,} images", _REMEDY)
    digits = labels.astype(np.int64)
    if not np.array_equal(digits, labels) or digits.min() < 0 or digits.max() > 10:
        raise DatasetError(str(path), f"labels reach from {labels.min()} to {labels.max()}, expected 1 to 10", _REMEDY)
    return np.ascontiguousarray(pixels.transpose(3, 0, 1, 2)), digits % 10
