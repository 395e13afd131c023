"""Numbers in place of images, for training to draw from: what a frozen part made of views, or the rows of a store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from labelkit.algorithms.indexes import near_rows
from labelkit.data.batch import ViewGeometry, send, send_tensor
from labelkit.data.datasets import ImageDataset
from labelkit.data.image_bank import ImageBank
from labelkit.data.keyed_random import Draws
from labelkit.data.views.spec import Normalize, PairPlan, RowView, ViewSpec


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
    draws: Draws,
    kinds: Sequence[int],
    num_views: int,
    followers: Sequence[int] = (),
) -> NDArray[np.int64]:
    """Draw which of the kept views of an image stand for each view of an epoch.

    Args:
        draws: random numbers of the b images.
        kinds: kind of each of the p views of an epoch.
        num_views: kept views of each kind, v.
        followers: views that are moved views before them, and are drawn with these.

    Returns:
        (b, p) int64 in [0, v); views of one kind differ from each other as long as there are enough.
    """
    drawn = np.zeros((len(draws.keys), len(kinds)), dtype=np.int64)
    for kind in sorted(set(kinds)):
        places = [place for place, found in enumerate(kinds) if found == kind]
        # a shuffle of all: the first few of it are what each view gets, and once all are used, they come again
        order = np.argsort(draws.uniform(kind, "kept-view", num_views), axis=1, kind="stable")
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
        draws: Draws,
        views: Sequence[ViewSpec],
        *,
        normalize: Normalize,
        pairs: PairPlan | None = None,
    ) -> tuple[tuple[Tensor, ...], tuple[ViewGeometry, ...]]:
        """Return kept values (b, ...) in their stored type for each view, and geometry where views follow others."""
        drawn = drawn_views(draws, self._kinds, self._num_views, self._followers)
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


class RowBank(ImageBank):
    """Rows of length 1 on the device where batches are made.

    Args:
        dataset: their listing; row i of it is row i of ``rows``.
        rows: (n, d) float32 of length 1.
        num_neighbors: rows near each that views may mix in, as :func:`near_rows` finds them; 0: none. With fewer rows
            than that, all others.
        stored: (m, v, d) v views of each of m images, as a rule a map of a file; rows of any length but 0.
        stored_rows: (n,) int64 which of them are those of each row.
        sha256: (n, 32) uint8, digests of the images that the rows were made from; ``None``: they are not known.
        device: where batches are made.
    """

    def __init__(
        self,
        dataset: ImageDataset,
        rows: NDArray[np.float32],
        *,
        num_neighbors: int = 0,
        stored: NDArray[Any] | None = None,
        stored_rows: NDArray[np.int64] | None = None,
        sha256: NDArray[np.uint8] | None = None,
        device: str | torch.device = "cpu",
    ) -> None:
        self.dataset = dataset
        self.channels = dataset.in_channels
        self.device = torch.device(device)
        self.listed_rows = self.rows = np.arange(len(dataset), dtype=np.int64)
        self.bad = {}
        self.image_size = None
        self.sha256 = np.zeros((len(dataset), 32), dtype=np.uint8) if sha256 is None else sha256
        self.images = torch.from_numpy(rows).to(self.device)
        self._stored, self._stored_rows = stored, stored_rows
        self._neighbors: NDArray[np.int64] | None = None
        count = min(num_neighbors, len(dataset) - 1)
        if count > 0:
            self._neighbors = near_rows(rows, count)

    def check_views(self, views: Sequence[ViewSpec]) -> None:
        """Rows have no side that a view could skip."""

    def gather(self, rows: NDArray[np.int64]) -> Tensor:
        """Return (b, d) float32 on the device."""
        assert self.images is not None
        return self.images[send(rows, self.device)]

    def make_views(
        self,
        rows: NDArray[np.int64],
        draws: Draws,
        views: Sequence[ViewSpec],
        *,
        normalize: Normalize,
        pairs: PairPlan | None = None,
    ) -> tuple[tuple[Tensor, ...], tuple[ViewGeometry, ...]]:
        """Return one (b, d) tensor per view, and no geometry."""
        plain = self.gather(rows)
        made = []
        # views of a step that are stored differ from each other, as long as there are enough
        kinds = [0 for spec in views if spec.row is not None and spec.row.stored]
        drawn = iter(self._stored_views(rows, draws, kinds))
        for number, spec in enumerate(views):
            if spec.row is None:
                made.append(plain)
                continue
            if spec.row.stored:
                made.append(next(drawn))
                continue
            near = None
            if spec.row.mix and self._neighbors is not None:
                near = self.gather(self._neighbors[rows].reshape(-1)).reshape(len(rows), -1, plain.shape[1])
            made.append(change_rows(plain, near, spec.row, draws, number))
        return tuple(made), ()

    def _stored_views(self, rows: NDArray[np.int64], draws: Draws, kinds: Sequence[int]) -> Iterator[Tensor]:
        """Yield (b, d) float32 of length 1 for each view that is stored."""
        if not kinds:
            return
        if self._stored is None or self._stored_rows is None:
            raise ValueError("no views are stored")
        drawn = drawn_views(draws, kinds, self._stored.shape[1])
        for place in range(len(kinds)):
            values = self._stored[self._stored_rows[rows], drawn[:, place]].astype(np.float32)
            yield F.normalize(send_tensor(torch.from_numpy(values), self.device), dim=1)


def change_rows(rows: Tensor, neighbors: Tensor | None, how: RowView, draws: Draws, view: int) -> Tensor:
    """Return rows as one view shows them: features themselves are changed, as there are no pixels to crop or to color.

    A row of length 1 is moved on the sphere in three ways, each with random numbers keyed by seed, epoch, sample and
    view: a share of one of its nearest rows is mixed in, noise is added, some of its numbers are set to 0.

    Args:
        rows: (b, d) float32 of length 1.
        neighbors: (b, k, d) the nearest rows of each; needed if ``how`` mixes.
        how: the view.
        draws: random numbers of the b rows.
        view: number of the view.

    Returns:
        (b, d) float32 of length 1.
    """
    changed = rows
    if how.mix:
        assert neighbors is not None
        drawn = draws.uniform(view, "row-mix", 2)
        chosen = (drawn[:, 0] * neighbors.shape[1]).astype(np.int64)
        share = send(how.mix * drawn[:, 1:], rows.device)
        other = neighbors[torch.arange(len(rows), device=rows.device), send(chosen, rows.device)]
        changed = F.normalize((1 - share) * changed + share * other, dim=1)
    width = rows.shape[1]
    if how.noise:
        noise = draws.normal(view, "row-noise", width, rows.device)
        changed = changed + how.noise / width**0.5 * noise
    if how.dropout:
        # from normal numbers, which are made on the device: P(|x| < t) = dropout
        limit = 2**0.5 * float(torch.erfinv(torch.tensor(how.dropout, dtype=torch.float64)))
        drop = draws.normal(view, "row-dropout", width, rows.device).abs() < limit
        changed = changed.masked_fill(drop, 0.0)
    return F.normalize(changed, dim=1)
