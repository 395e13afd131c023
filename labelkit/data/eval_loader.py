"""Batches for embedding and scoring: every row once, in order, in the same company on any number of processes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from labelkit.data.batch import check_rank
from labelkit.data.datasets import ImageDataset
from labelkit.data.decode import Channels
from labelkit.data.image_bank import ImageBank
from labelkit.data.sending import send_tensor
from labelkit.data.views.spec import Normalize, ViewSpec
from labelkit.data.views.transforms import finish_view
from labelkit.data.workers import BatchPlan, Crops, Reader


@dataclass(frozen=True, slots=True)
class EvalBatch:
    """A few images in row order.

    Attributes:
        images: (b, c, size, size) float32, normalized; a bad image is black before normalization.
        rows: (b,) int64 rows of the data set.
        bad: row and reason of each image that could not be read.
        lost: row of each image whose pixels keep next to nothing of it, and how that came, if digests are asked for.
        sha256: (b, 32) uint8 digest of each image as stored, if asked for.
        file_sizes: (b,) uint64 bytes, if asked for.
        image_sizes: (b, 2) uint32 height and width of the originals, if asked for; 0 for bad ones.
        views: further views, each like ``images``, made one by one as they are asked for.
    """

    images: Tensor
    rows: NDArray[np.int64]
    bad: list[tuple[int, str]]
    lost: Sequence[tuple[int, str]] = ()
    sha256: NDArray[np.uint8] | None = None
    file_sizes: NDArray[np.uint64] | None = None
    image_sizes: NDArray[np.uint32] | None = None
    views: Iterable[Tensor] = ()


class EvalLoader:
    """One ordered pass over rows, each exactly once, without padding.

    Batch borders depend on rows and batch size alone; process r of w takes batches k with
    k mod w = r. So an image always runs in the same company, whatever the number of processes.

    Args:
        images: a bank, or a data set that is then decoded on the fly.
        view: a view without randomness.
        rows: rows in the order wanted; all listed ones by default, bad ones keep their place.
        batch_size: images of a batch.
        normalize: mean and std of the backbone.
        channels: 1 or 3; a bank has its own.
        device: where batches are made; a bank has its own.
        num_workers: processes that decode, for images that are not in memory; 0 decodes here.
        reader: of the images of a data set, for several loaders one after the other; by default one of its own.
        rank: number of this process.
        world_size: number of processes.
        identify: also return digests and sizes of what was read.
        seed: of a view with randomness; without one the view must have none.
        epoch: the other key of its random numbers.
        fast_decode: let the JPEG decoder shrink images to sides at least twice what the view needs; images in memory
            are as they are.
        join_single: a last batch of one image joins the one before (for batch statistics).
        more_views: further views of each image, with randomness; of images that are decoded on the fly.
        keys: (n,) int64 keys of the random numbers of each row of the data set; default: the row itself.

    Raises:
        ValueError: the view has randomness and there is no seed, the batch size is not positive, or further views are
            asked for of images in memory or of shrunk ones.
    """

    def __init__(
        self,
        images: ImageBank | ImageDataset,
        view: ViewSpec,
        *,
        batch_size: int,
        normalize: Normalize,
        rows: ArrayLike | None = None,
        channels: Channels | None = None,
        device: str | torch.device | None = None,
        num_workers: int = 0,
        reader: Reader | None = None,
        rank: int = 0,
        world_size: int = 1,
        identify: bool = False,
        seed: int | None = None,
        epoch: int = 0,
        fast_decode: bool = False,
        join_single: bool = False,
        more_views: Sequence[ViewSpec] = (),
        keys: NDArray[np.int64] | None = None,
    ) -> None:
        check_rank(rank, world_size)
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}, must be positive")
        if seed is None and view != ViewSpec(
            view.size, view.resize_ratio, interpolation=view.interpolation, padding=view.padding
        ):
            raise ValueError(f"an evaluation view must have no randomness: {view}")
        bank = images if isinstance(images, ImageBank) else None
        dataset = images.dataset if isinstance(images, ImageBank) else images
        every = np.arange(len(dataset)) if bank is None else bank.listed_rows
        self._rows = every.astype(np.int64) if rows is None else np.asarray(rows, dtype=np.int64)
        self._channels: Channels = bank.channels if bank else (channels or dataset.in_channels)
        self._device = bank.device if bank else torch.device(device or "cpu")
        self._bank = bank if bank is not None and bank.in_memory else None
        self._dataset = dataset
        self._view = view
        self._normalize = normalize
        self._identify = identify
        self._seed, self._epoch = seed or 0, epoch
        self._least_side = 2 * view.resized_side if fast_decode else None
        self._more, self._keys = tuple(more_views), keys
        if self._more and (seed is None or fast_decode or self._bank is not None):
            raise ValueError("further views need a seed, and whole images that are decoded on the fly")
        batches = [self._rows[start : start + batch_size] for start in range(0, len(self._rows), batch_size)]
        if join_single and len(batches) > 1 and len(batches[-1]) == 1:
            batches[-2:] = [np.concatenate(batches[-2:])]
        self._batches = batches[rank::world_size]
        self._reader: Reader | None = None
        if self._bank is None:
            self._reader = (
                (reader or Reader(dataset.source, self._channels, num_workers))
                if bank is None
                else bank.reader(num_workers)
            )

    def __len__(self) -> int:
        """Return the number of batches of this process."""
        return len(self._batches)

    def __iter__(self) -> Iterator[EvalBatch]:
        """Yield the batches of this process in order."""
        if self._bank is not None:
            for rows in self._batches:
                yield self._from_memory(self._bank, rows)
            return
        assert self._reader is not None
        views, least = (self._view, *self._more), self._least_side
        plans = (
            BatchPlan(rows, self._keys_of(rows), self._seed, self._epoch, views, self._identify, least_side=least)
            for rows in self._batches
        )
        for rows, crops in zip(self._batches, self._reader.read(plans), strict=True):
            images = self._finished(rows, crops)
            batch = EvalBatch(next(images), rows, crops.bad, crops.lost, views=images)
            sizes = crops.sizes.astype(np.uint32)
            sizes[np.isin(rows, [row for row, _ in crops.bad])] = 0
            yield self._labeled_with(batch, crops.sha256, crops.file_sizes, sizes)

    def _keys_of(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return rows if self._keys is None else self._keys[rows]

    def _finished(self, rows: NDArray[np.int64], crops: Crops) -> Iterator[Tensor]:
        for number, spec in enumerate((self._view, *self._more)):
            image, _ = finish_view(
                send_tensor(crops.crops[number], self._device),
                crops.boxes[number],
                crops.sizes,
                spec,
                self._keys_of(rows),
                seed=self._seed,
                epoch=self._epoch,
                view=number,
                normalize=self._normalize,
            )
            yield image

    def _from_memory(self, bank: ImageBank, rows: NDArray[np.int64]) -> EvalBatch:
        (image,), _ = bank.make_views(
            rows, rows, (self._view,), seed=self._seed, epoch=self._epoch, normalize=self._normalize
        )
        bad = [(row, bank.bad[row]) for row in rows.tolist() if row in bank.bad]
        batch = EvalBatch(image, rows, bad)
        if not self._identify:
            return batch
        sha256 = np.zeros((len(rows), 32), dtype=np.uint8)
        file_sizes = np.zeros(len(rows), dtype=np.uint64)
        sizes = np.tile(np.array(bank.image_size, dtype=np.uint32), (len(rows), 1))
        for i, row in enumerate(rows.tolist()):
            if row in bank.bad:
                sizes[i] = 0
                continue
            encoded = bank.dataset.source.read(row)
            sha256[i] = np.frombuffer(encoded.sha256, dtype=np.uint8)
            file_sizes[i] = encoded.size
        return self._labeled_with(batch, sha256, file_sizes, sizes)

    def _labeled_with(
        self, batch: EvalBatch, sha256: NDArray[np.uint8], file_sizes: NDArray[np.uint64], sizes: NDArray[np.uint32]
    ) -> EvalBatch:
        if not self._identify:
            return batch
        return replace(batch, sha256=sha256, file_sizes=file_sizes, image_sizes=sizes)
