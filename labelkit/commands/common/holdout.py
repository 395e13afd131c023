"""Images that are held out for judging, in a set without a test split or instead of its own."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Literal

import numpy as np

from labelkit.data.datasets import ImageDataset
from labelkit.data.splits import holdout_rows
from labelkit.errors import ConfigError

_AUTO_SHARE = 0.2


def has_own_splits(dataset: ImageDataset) -> bool:
    """Whether a data set comes with more than images to train on."""
    return not set(dataset.split_names) <= {"train"}


def with_holdout(dataset: ImageDataset, held_out: Collection[str]) -> ImageDataset:
    """Give a listing the splits train and test, test being the named images."""
    names = set(held_out)
    splits = np.array([int(name in names) for name in dataset.sample_ids], dtype=np.int16)
    return replace(dataset, splits=splits, split_names=("train", "test"))


def drawn_holdout(
    dataset: ImageDataset, holdout: float | Literal["odd", "auto"], *, pool: bool, seed: int
) -> tuple[str, ...]:
    """Names of the images that ``--holdout`` sets apart.

    Args:
        dataset: the listing.
        holdout: share of each class, every second image, or one fifth of each class.
        pool: forget the splits of the set.
        seed: of the draw.

    Raises:
        ConfigError: the set has splits that are not pooled, or none to pool; or no image would be held out.
    """
    option = f"--holdout {holdout if isinstance(holdout, str) else format(holdout, 'g')}"
    if has_own_splits(dataset) != pool:
        if pool:
            raise ConfigError("--pool-splits", f"{dataset.name} has no splits of its own", "Leave it out.")
        names = ", ".join(dataset.split_names)
        remedy = "Leave it out, or pass --pool-splits to draw from all images."
        raise ConfigError(option, f"{dataset.name} has splits of its own ({names})", remedy)
    if holdout == "odd":
        rows = np.arange(1, len(dataset), 2)
    else:
        rows = holdout_rows(dataset.labels, _AUTO_SHARE if holdout == "auto" else holdout, seed=seed)
    if len(rows) == 0:
        raise ConfigError(option, "holds out no image, since each class keeps one", "Use a set with more images.")
    return tuple(dataset.sample_ids[row] for row in rows)
