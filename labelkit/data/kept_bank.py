"""What the frozen part of a network made of views, in place of images: what a training epoch draws from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labelkit.data.batch import ViewGeometry
from labelkit.data.image_bank import ImageBank
from labelkit.data.keyed_random import keyed_uniform
from labelkit.data.sending import send_tensor
from labelkit.data.views.pairs import PairPlan
from labelkit.data.views.spec import Normalize, ViewSpec


def view_kinds(views: Sequence[ViewSpec], kept_at: Sequence[object]) -> tuple[int, ...]:
    """Return the kind of each view, numbered by first appearance.

    Args:
        views: of an epoch.
        kept_at: what is kept of each; two views that are drawn alike and kept alike are of one kind.
    """
    pairs = list(zip(views, kept_at, strict=True))
    different = [pair for number, pair in enumerate(pairs) if pair not in pairs[:number]]
    return tuple(different.index(pair) for pair in pairs)


def drawn_views(
    keys: NDArray[np.int64],
    kinds: Sequence[int],
    num_views: int,
    *,
    seed: int,
    epoch: int,
    followers: Sequence[int] = (),
) -> NDArray[np.int64]:
    """Draw which of the kept views of an image stand for each view of an epoch.

    Args:
        keys: (b,) int64 keys of the random numbers.
        kinds: kind of each of the p views of an epoch.
        num_views: kept views of each kind, v.
        seed: seed of the run.
        epoch: pass over the images.
        followers: views that are moved views before them, and are drawn with these.

    Returns:
        (b, p) int64 in [0, v); views of one kind differ from each other as long as there are enough.
    """
    drawn = np.zeros((len(keys), len(kinds)), dtype=np.int64)
    for kind in sorted(set(kinds)):
        places = [place for place, found in enumerate(kinds) if found == kind]
        # a shuffle of all: the first few of it are what each view gets, and once all are used, they come again
        order = np.argsort(keyed_uniform(seed, epoch, keys, kind, "kept-view", num_views), axis=1, kind="stable")
        for position, place in enumerate(places):
            drawn[:, place] = order[:, position % num_views]
    for place in sorted(followers):
        drawn[:, place] = drawn[:, place - 1]
    return drawn


class KeptBank(ImageBank):
    """Kept views on the device where batches are made.

    Args:
        bank: the images that they are of.
        rows: (n,) int64 rows of the data set that are kept, increasing.
        parts: values of each kind of view, (m, v, ...), part by part; all have as many images but the last. The last
            kind has one view, in which images are looked at outside of training. Behind it, if views follow others, the
            geometry of each kind but that, (m, v, 2 or 3, 3) float32.
        kinds: kind of each view of an epoch.
        followers: views of an epoch that are moved views before them.
    """

    def __init__(
        self,
        bank: ImageBank,
        rows: NDArray[np.int64],
        parts: Sequence[tuple[NDArray[np.generic], ...]],
        kinds: Sequence[int],
        followers: Sequence[int] = (),
    ) -> None:
        self.dataset = bank.dataset
        self.channels = bank.channels
        self.device = bank.device
        self.listed_rows, self.rows, self.bad = bank.listed_rows, bank.rows, bank.bad
        self.image_size = bank.image_size
        self.images = None
        self._parts = parts
        self._kinds, self._followers = tuple(kinds), tuple(followers)
        self._plain = max(kinds) + 1
        self._part_rows = len(parts[0][0])
        self._num_views = parts[0][0].shape[1]
        self._slots = np.full(len(bank.dataset), -1, dtype=np.int64)
        self._slots[rows] = np.arange(len(rows))

    @property
    def in_memory(self) -> bool:
        """True: no worker reads a file."""
        return True

    def check_views(self, views: Sequence[ViewSpec]) -> None:
        """Nothing is cut from an image."""

    def gather(self, rows: NDArray[np.int64]) -> Tensor:
        """There are no images.

        Raises:
            ValueError: always.
        """
        raise ValueError("kept views are no images")

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
        """Return kept values (b, ...) in their stored type for each view, and geometry where views follow others."""
        drawn = drawn_views(keys, self._kinds, self._num_views, seed=seed, epoch=epoch, followers=self._followers)
        made = tuple(
            send_tensor(torch.from_numpy(self._gathered(rows, kind, drawn[:, place])), self.device)
            for place, kind in enumerate(self._kinds)
        )
        if not self._followers:
            return made, ()
        geometry = []
        for place, kind in enumerate(self._kinds):
            matrices = self._gathered(rows, self._plain + 1 + kind, drawn[:, place])
            geometry.append(ViewGeometry(send_tensor(torch.from_numpy(matrices), self.device), matrices))
        return made, tuple(geometry)

    def unchanged(self, rows: NDArray[np.int64]) -> Tensor:
        """Return what is kept of images as they are looked at outside of training, (b, ...) on the device."""
        values = self._gathered(rows, self._plain, np.zeros(len(rows), dtype=np.int64))
        return send_tensor(torch.from_numpy(values), self.device)

    def _gathered(self, rows: NDArray[np.int64], kind: int, views: NDArray[np.int64]) -> NDArray[Any]:
        first = self._parts[0][kind]
        values = np.empty((len(rows), *first.shape[2:]), dtype=first.dtype)
        for number, (slot, view) in enumerate(zip(self._slots[rows].tolist(), views.tolist(), strict=True)):
            values[number] = self._parts[slot // self._part_rows][kind][slot % self._part_rows, view]
        return values
