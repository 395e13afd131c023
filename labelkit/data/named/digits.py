"""Handwritten digits that come with scikit-learn: nothing is fetched.

Source: Alpaydin and Kaynak, "Optical Recognition of Handwritten Digits" (UCI, 1998).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from labelkit.data.datasets import ArraySource, ImageDataset


def load_digits(data_root: Path) -> ImageDataset:
    """List the 1,797 images of 8 x 8 pixels, whose 17 levels of gray become 0 to 255.

    Args:
        data_root: not looked at.
    """
    from sklearn import datasets

    del data_root
    bundle = datasets.load_digits()
    images = np.rint(bundle.images * 255 / 16).astype(np.uint8)[..., None]
    n = len(images)
    return ImageDataset(
        name="digits",
        root=None,
        sample_ids=tuple(f"digits/{i:04d}.png" for i in range(n)),
        labels=np.asarray(bundle.target, dtype=np.int64),
        given=np.ones(n, dtype=np.bool_),
        class_names=tuple(str(digit) for digit in range(10)),
        splits=np.zeros(n, dtype=np.int16),
        split_names=("train",),
        in_channels=1,
        chiral=True,
        photographic=False,
        source=ArraySource(images),
    )
