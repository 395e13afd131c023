"""Data loaders: augmented views for training, and one pass in order for embedding and evaluation.

Small images of equal size are decoded once into one tensor on the device (``image_bank``), and all further work is
batched there. Other images are decoded, cropped and resized by ``workers``; the rest is batched as well. The batches
of an ordered pass are the same for any number of processes.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from labelkit.data.batch import Batch, HostBatch, ViewGeometry, move_arrays_to_device, move_tensor_to_device
from labelkit.data.datasets import ImageDataset
from labelkit.data.decode import Channels
from labelkit.data.image_bank import ImageBank
from labelkit.data.keyed_random import KeyedRNG
from labelkit.data.samplers import Sampler
from labelkit.data.views.spec import Normalize, Pairing, ViewSpec
from labelkit.data.views.transforms import finish_view
from labelkit.data.workers import BatchPlan, BatchReader, DecodedCrops
from labelkit.errors import ConfigError, DatasetError

_OCCURRENCE_SHIFT: Final = 40

Views = Sequence[ViewSpec] | Callable[[int], Sequence[ViewSpec]]


def compute_draw_keys(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Compute a unique key (m,) int64 for each image drawn in an epoch: its row, plus an offset if it is repeated.

    This way, an image that is drawn twice in an epoch is augmented in two ways.
    """
    order = np.argsort(rows, kind="stable")
    occurrence = np.empty(len(rows), dtype=np.int64)
    occurrence[order] = np.arange(len(rows)) - np.searchsorted(rows[order], rows[order])
    return rows + (occurrence << _OCCURRENCE_SHIFT)


@dataclass(eq=False)
class TrainLoader:
    """Loader of augmented training batches, which do not depend on the number of workers.

    Random numbers are keyed by seed, epoch, row (and how often it was drawn before) and view.

    Attributes:
        bank: the images; batches are made on its device.
        views: specifications of the views of each image, or a function that returns them for an epoch.
        sampler: chooses the rows of an epoch for all processes; it must draw only from ``bank.rows``.
        labels: (n,) int64 training labels of the dataset's rows, -1 = unlabeled; pass the result of
            ``LabelSplit.to_training_labels``, because the loader knows nothing else about labels.
        batch_size: number of images per step, over all processes.
        seed: seed of the run.
        normalize: mean and std of the backbone.
        num_workers: number of processes that decode images not in memory; 0 decodes in this process.
        rank: index of this process, which loads images ``rank::world_size`` of each batch.
        world_size: number of processes.
        first_epoch: epoch of the run at which the sampler's first epoch begins.
        pairing: chooses the images that second views show; default: the same image as the first views.
        steps_per_epoch: number of full batches per epoch; a smaller last batch is dropped.

    Raises:
        ConfigError: the batch size is not a multiple of the number of processes, or exceeds the draws per epoch.
    """

    bank: ImageBank
    views: Views
    sampler: Sampler
    labels: ArrayLike
    _: KW_ONLY
    batch_size: int
    seed: int
    normalize: Normalize
    num_workers: int = 0
    rank: int = 0
    world_size: int = 1
    first_epoch: int = 0
    pairing: Pairing | None = None

    def __post_init__(self) -> None:
        bank, dataset, draws = self.bank, self.bank.dataset, len(self.sampler)
        if self.batch_size < 1 or self.batch_size % self.world_size:
            problem = f"{self.batch_size} cannot be divided among {self.world_size} processes"
            raise ConfigError("--batch-size", problem, "Use a multiple of the number of processes.")
        if draws < self.batch_size:
            problem = f"{self.batch_size} exceeds the number of images in an epoch ({draws})"
            raise ConfigError("--batch-size", problem, "Lower --batch-size.")
        self._labels = np.array(self.labels, dtype=np.int64)
        self._reader = None if bank.in_memory else BatchReader(dataset.source, dataset.in_channels, self.num_workers)
        self.steps_per_epoch = draws // self.batch_size

    def epoch_batches(self, epoch: int, start_step: int = 0) -> Iterator[Batch]:
        """Yield the batches of an epoch, or this process's share of each.

        Args:
            epoch: number of the epoch within the whole run, from 0.
            start_step: number of batches to skip at the start; their images are not read.

        Raises:
            DatasetError: an image that could be read before can no longer be read.
        """
        rows = self.sampler.indices(epoch - self.first_epoch)
        keys = compute_draw_keys(rows)
        views = tuple(self.views(epoch) if callable(self.views) else self.views)
        self.bank.check_view_sizes(views)

        def plans() -> Iterator[BatchPlan]:
            for step in range(start_step, self.steps_per_epoch):
                batch = slice(step * self.batch_size + self.rank, (step + 1) * self.batch_size, self.world_size)
                pairs = None
                if self.pairing is not None:
                    pairs = self.pairing.plan(rows[batch], keys[batch], seed=self.seed, epoch=epoch)
                yield BatchPlan(rows[batch], KeyedRNG(self.seed, epoch, keys[batch]), views, pairs=pairs)

        for plan, made, geometry in iterate_planned_views(self.bank, plans, self.normalize, self._reader):
            host = HostBatch(self._labels[plan.rows], plan.rows.copy())
            links = [] if plan.pairs is None else [plan.pairs.links.copy()]
            labels, sent_rows, *sent = move_arrays_to_device((host.labels, host.sample_index, *links), self.bank.device)
            yield Batch(made, labels, sent_rows, geometry, sent[0] if sent else None, host)


PlannedViews = tuple[BatchPlan, tuple[Tensor, ...], tuple[ViewGeometry, ...]]


def iterate_planned_views(
    bank: ImageBank, plans: Callable[[], Iterator[BatchPlan]], normalize: Normalize, reader: BatchReader | None
) -> Iterator[PlannedViews]:
    """Yield each batch plan with its views and their geometry.

    ``plans`` returns a new iterator over the plans at each call, since workers read them ahead of time; ``reader``
    reads images that are not in memory. ``DatasetError``: an image that could be read before can no longer be read.
    """
    if reader is None:
        for plan in plans():
            yield plan, *bank.make_views(plan, normalize)
        return
    for plan, crops in zip(plans(), reader.read(plans()), strict=True):
        if crops.bad:
            row, reason = crops.bad[0]
            raise DatasetError(bank.dataset.sample_ids[row], f"can no longer be read: {reason}", "Restore the file.")
        finished = list(_finish_views(plan, crops, bank.device, normalize))
        yield plan, tuple(view for view, _ in finished), tuple(geometry for _, geometry in finished)


def _finish_views(
    plan: BatchPlan, crops: DecodedCrops, device: torch.device, normalize: Normalize
) -> Iterator[tuple[Tensor, ViewGeometry]]:
    """Yield the finished views of a plan one by one from the crops that workers have cut and resized."""
    for view, spec in enumerate(plan.views):
        sizes = crops.partner_sizes if spec.shows_partner else crops.sizes
        crop = move_tensor_to_device(crops.crops[view], device)
        yield finish_view(crop, crops.boxes[view], sizes, spec, plan.draws, view, normalize=normalize, pairs=plan.pairs)


@dataclass(frozen=True, slots=True)
class EvalBatch:
    """Batch of images for evaluation, in row order, with a list of unreadable images.

    Attributes:
        images: (b, c, size, size) float32, normalized; an unreadable image is black before normalization.
        rows: (b,) int64 rows of the dataset.
        bad: row and reason for each image that could not be read.
        crops: decoded crops, with digests and sizes if requested; ``None`` if the images were in memory.
        views: further views, each like ``images``, made one by one as they are consumed.
    """

    images: Tensor
    rows: NDArray[np.int64]
    bad: list[tuple[int, str]]
    crops: DecodedCrops | None = None
    views: Iterable[Tensor] = ()

    @property
    def readable_positions(self) -> NDArray[np.int64]:
        """Return the positions (m,) of the images that could be read."""
        return np.flatnonzero(~np.isin(self.rows, [row for row, _ in self.bad]))


@dataclass(eq=False)
class EvalLoader:
    """Loader that yields each image exactly once, in order and without padding.

    Batch boundaries depend only on rows and batch size; process r of w takes batches k with
    k mod w = r. An image thus shares its batch with the same images for any number of processes.

    Attributes:
        images: a bank, or a dataset that is decoded on the fly.
        view: specification of the view, which must be deterministic unless a seed is set.
        rows: rows in the desired order; default: all, including unreadable ones.
        batch_size: number of images per batch.
        normalize: mean and std of the backbone.
        channels: 1 or 3; not used for a bank.
        device: device on which batches are made; not used for a bank.
        num_workers: number of processes that decode images not in memory; 0 decodes in this process.
        reader: reader of the dataset's images, to share among successive loaders; default: a new one.
        rank: index of this process.
        world_size: number of processes.
        identify: whether to compute digests and file sizes of images that are decoded on the fly.
        seed: seed of a random view.
        epoch: epoch that keys the random numbers of the view.
        fast_decode: let the JPEG decoder shrink images to sides at least twice as long as the view needs; images in
            memory stay unchanged.
        join_single: whether to merge a last batch of one image into the previous batch (for batch statistics).
        more_views: further, random views of each image.
        keys: (n,) int64 random-number key of each row of the dataset; default: the row itself.

    Raises:
        ValueError: the view is random and there is no seed.
    """

    images: ImageBank | ImageDataset
    view: ViewSpec
    _: KW_ONLY
    batch_size: int
    normalize: Normalize
    rows: ArrayLike | None = None
    channels: Channels | None = None
    device: str | torch.device | None = None
    num_workers: int = 0
    reader: BatchReader | None = None
    rank: int = 0
    world_size: int = 1
    identify: bool = False
    seed: int | None = None
    epoch: int = 0
    fast_decode: bool = False
    join_single: bool = False
    more_views: Sequence[ViewSpec] = ()
    keys: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        images, view, size = self.images, self.view, self.batch_size
        if self.seed is None and view != ViewSpec(
            view.size, view.resize_ratio, interpolation=view.interpolation, padding=view.padding
        ):
            raise ValueError(f"an evaluation view must not be random, got {view}")
        if isinstance(images, ImageBank):
            dataset, self._device = images.dataset, images.device
            self._bank = images if images.in_memory else None
            self._reader = None if images.in_memory else images.build_reader(self.num_workers)
        else:
            dataset, self._device, self._bank = images, torch.device(self.device or "cpu"), None
            channels = self.channels or images.in_channels
            self._reader = self.reader or BatchReader(images.source, channels, self.num_workers)
        rows = np.asarray(np.arange(len(dataset)) if self.rows is None else self.rows, dtype=np.int64)
        batches = [rows[start : start + size] for start in range(0, len(rows), size)]
        if self.join_single and len(batches) > 1 and len(batches[-1]) == 1:
            batches[-2:] = [np.concatenate(batches[-2:])]
        self._batches = batches[self.rank :: self.world_size]

    def __len__(self) -> int:
        """Return the number of batches of this process."""
        return len(self._batches)

    def __iter__(self) -> Iterator[EvalBatch]:
        """Yield the batches of this process in order."""
        if self._bank is not None:
            for plan in self._plans():
                (image, *more), _ = self._bank.make_views(plan, self.normalize)
                bad = [(row, self._bank.bad[row]) for row in plan.rows.tolist() if row in self._bank.bad]
                yield EvalBatch(image, plan.rows, bad, views=more)
            return
        assert self._reader is not None
        for plan, crops in zip(self._plans(), self._reader.read(self._plans()), strict=True):
            images = (image for image, _ in _finish_views(plan, crops, self._device, self.normalize))
            yield EvalBatch(next(images), plan.rows, crops.bad, crops, images)

    def _plans(self) -> Iterator[BatchPlan]:
        views, least = (self.view, *self.more_views), 2 * self.view.resized_side if self.fast_decode else None
        for rows in self._batches:
            draws = KeyedRNG(self.seed or 0, self.epoch, rows if self.keys is None else self.keys[rows])
            yield BatchPlan(rows, draws, views, self.identify, min_side=least)
