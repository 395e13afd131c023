"""The rows of a store in place of decoded images: what training and passes over the data draw from."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labelkit.algorithms.neighbors import knn
from labelkit.data.batch import ViewGeometry
from labelkit.data.datasets import ImageDataset
from labelkit.data.image_bank import ImageBank
from labelkit.data.sending import send
from labelkit.data.views.pairs import PairPlan
from labelkit.data.views.rows import change_rows
from labelkit.data.views.spec import Normalize, ViewSpec


class RowBank(ImageBank):
    """Rows of length 1 on the device where batches are made.

    Args:
        dataset: their listing; row i of it is row i of ``rows``.
        rows: (n, d) float32 of length 1.
        num_neighbors: nearest rows of each that views may mix in; 0: none. With fewer rows than that, all others.
        device: where batches are made.
    """

    def __init__(
        self,
        dataset: ImageDataset,
        rows: NDArray[np.float32],
        *,
        num_neighbors: int = 0,
        device: str | torch.device = "cpu",
    ) -> None:
        self.dataset = dataset
        self.channels = dataset.in_channels
        self.device = torch.device(device)
        self.listed_rows = self.rows = np.arange(len(dataset), dtype=np.int64)
        self.bad = {}
        self.image_size = None
        self.images = torch.from_numpy(rows).to(self.device)
        self._neighbors: NDArray[np.int64] | None = None
        count = min(num_neighbors, len(dataset) - 1)
        if count > 0:
            self._neighbors = knn(rows, rows, count, exclude_self=True)[1]

    def check_views(self, views: Sequence[ViewSpec]) -> None:
        """Rows have no side that a view could skip."""

    def gather(self, rows: NDArray[np.int64]) -> Tensor:
        """Return (b, d) float32 on the device."""
        assert self.images is not None
        return self.images[send(rows, self.device)]

    def make_views(
        self,
        rows: NDArray[np.int64],
        keys: NDArray[np.int64],
        views: Sequence[ViewSpec],
        *,
        seed: int,
        epoch: int,
        normalize: Normalize,
        pairs: PairPlan | None = None,
    ) -> tuple[tuple[Tensor, ...], tuple[ViewGeometry, ...]]:
        """Return one (b, d) tensor per view, and no geometry."""
        plain = self.gather(rows)
        made = []
        for number, spec in enumerate(views):
            if spec.row is None:
                made.append(plain)
                continue
            near = None
            if spec.row.mix and self._neighbors is not None:
                near = self.gather(self._neighbors[rows].reshape(-1)).reshape(len(rows), -1, plain.shape[1])
            made.append(change_rows(plain, near, spec.row, keys, seed=seed, epoch=epoch, view=number))
        return tuple(made), ()
