"""Two data sets as one listing: images of one object first, then scenes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from labelkit.data.datasets import EncodedImage, ImageDataset, ImageSource


@dataclass(frozen=True, slots=True)
class JoinedSource:
    """Rows of one source, then rows of another."""

    first: ImageSource
    second: ImageSource
    num_first: int

    def read(self, index: int) -> EncodedImage:
        """Read from the source that the row is of."""
        return self.first.read(index) if index < self.num_first else self.second.read(index - self.num_first)

    def select(self, rows: NDArray[np.int64]) -> JoinedSource:
        """Return the rows; they increase, so those of the first source stay first."""
        split = int(np.searchsorted(rows, self.num_first))
        return JoinedSource(self.first.select(rows[:split]), self.second.select(rows[split:] - self.num_first), split)


def join_datasets(objects: ImageDataset, scenes: ImageDataset) -> ImageDataset:
    """Return both as one set for training; labels are those of the first one, of the other there are none.

    Sample ids get ``object/`` and ``scene/`` before them, so that they stay sorted and unique.
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
