"""Batches of augmented views for training: cut from images in memory, or by worker processes from files.

Small images of one size are decoded once into one tensor on the training device (``image_bank``), and all further
work is batched there. Other images are decoded by ``workers``, which cut and resize; the rest is done in batches too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from labelkit.data.batch import Batch, HostBatch, ViewGeometry, check_rank
from labelkit.data.image_bank import ImageBank
from labelkit.data.samplers import Sampler
from labelkit.data.sending import send_all, send_tensor
from labelkit.data.views.pairs import Pairing
from labelkit.data.views.spec import Normalize, ViewSpec
from labelkit.data.views.transforms import finish_view
from labelkit.data.workers import BatchPlan, Crops, Reader
from labelkit.errors import ConfigError, DatasetError

_OCCURRENCE_SHIFT: Final = 40

Views = Sequence[ViewSpec] | Callable[[int], Sequence[ViewSpec]]


def occurrence_keys(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Tell repeated draws of a row apart.

    Args:
        rows: (m,) int64 rows in the order of an epoch.

    Returns:
        (m,) int64, the row itself at its first occurrence, distinct numbers at later ones, so that
        an image drawn twice in an epoch is augmented in two ways.
    """
    order = np.argsort(rows, kind="stable")
    ordered = rows[order]
    starts = np.flatnonzero(np.diff(ordered, prepend=-1))
    since = np.arange(len(rows)) - np.repeat(starts, np.diff(np.append(starts, len(rows))))
    occurrence = np.empty(len(rows), dtype=np.int64)
    occurrence[order] = since
    return rows + (occurrence << _OCCURRENCE_SHIFT)


class TrainLoader:
    """Batches of augmented views for training, the same for any number of workers.

    Random numbers are keyed by seed, epoch, row (and how often it was drawn before) and view.

    Args:
        bank: the images; its device is where batches are made.
        views: what to make of each image; or a function of the epoch that says so.
        sampler: rows of an epoch, for all processes; draw from ``bank.rows`` only.
        labels: (n,) int64 training labels of the data set's rows, -1 = unlabeled; pass what
            ``LabelSplit.training_labels`` returns, nothing else about labels is known here.
        batch_size: images of a step over all processes.
        seed: seed of the run.
        normalize: mean and std of the backbone.
        num_workers: processes that decode, for images that are not in memory; 0 decodes here.
        rank: number of this process; it takes images ``rank::world_size`` of each batch.
        world_size: number of processes.
        first_epoch: epoch of the run that is the first one of the sampler.
        pairing: what second views show; default: the same image as the first ones.

    Attributes:
        steps_per_epoch: whole batches of an epoch; a last smaller one is left out.

    Raises:
        ConfigError: the batch size is not a multiple of the processes, or above an epoch's draws.
        ValueError: labels do not belong to the data set; images in memory are too large for a view.
    """

    def __init__(
        self,
        bank: ImageBank,
        views: Views,
        sampler: Sampler,
        labels: ArrayLike,
        *,
        batch_size: int,
        seed: int,
        normalize: Normalize,
        num_workers: int = 0,
        rank: int = 0,
        world_size: int = 1,
        first_epoch: int = 0,
        pairing: Pairing | None = None,
    ) -> None:
        check_rank(rank, world_size)
        if batch_size < 1 or batch_size % world_size:
            raise ConfigError(
                "--batch-size", f"{batch_size} cannot be shared by {world_size} processes", "Use a multiple of them."
            )
        if len(sampler) < batch_size:
            raise ConfigError(
                "--batch-size",
                f"{batch_size} is more than the {len(sampler)} images of an epoch",
                "Use a smaller batch.",
            )
        self._labels = np.array(labels, dtype=np.int64)
        if self._labels.shape != (len(bank.dataset),):
            raise ValueError(f"labels have shape {self._labels.shape}, the data set has {len(bank.dataset)} rows")
        self._bank = bank
        self._views = views
        self._sampler = sampler
        self._batch_size = batch_size
        self._seed = seed
        self._normalize = normalize
        self._rank, self._world_size = rank, world_size
        self._first_epoch = first_epoch
        self._pairing = pairing
        self._reader = None if bank.in_memory else Reader(bank.dataset.source, bank.channels, num_workers)
        self.steps_per_epoch = len(sampler) // batch_size

    def _views_at(self, epoch: int) -> tuple[ViewSpec, ...]:
        views = tuple(self._views(epoch) if callable(self._views) else self._views)
        self._bank.check_views(views)
        return views

    def epoch(self, epoch: int, start_step: int = 0) -> Iterator[Batch]:
        """Yield this process's share of each batch of an epoch.

        Args:
            epoch: number of the pass over all of the run, from 0.
            start_step: batches to leave out at the start; their images are not read.

        Raises:
            DatasetError: an image that could be read before cannot be read any more.
        """
        rows = self._sampler.indices(epoch - self._first_epoch)
        keys = occurrence_keys(rows)
        views = self._views_at(epoch)

        def plans() -> Iterator[BatchPlan]:
            for step in range(start_step, self.steps_per_epoch):
                batch = slice(step * self._batch_size + self._rank, (step + 1) * self._batch_size, self._world_size)
                pairs = None
                if self._pairing is not None:
                    pairs = self._pairing.plan(rows[batch], keys[batch], seed=self._seed, epoch=epoch)
                yield BatchPlan(rows[batch], keys[batch], self._seed, epoch, views, pairs=pairs)

        for plan, made, geometry in planned_views(self._bank, plans, self._normalize, self._reader):
            yield self._batch(plan, made, geometry)

    def _batch(self, plan: BatchPlan, views: tuple[Tensor, ...], geometry: tuple[Any, ...]) -> Batch:
        host = HostBatch(self._labels[plan.rows], plan.rows.copy())
        links = [] if plan.pairs is None else [plan.pairs.links.copy()]
        labels, rows, *sent = send_all((host.labels, host.sample_index, *links), self._bank.device)
        return Batch(views, labels, rows, geometry, sent[0] if sent else None, host)


PlannedViews = tuple[BatchPlan, tuple[Tensor, ...], tuple[ViewGeometry, ...]]


def planned_views(
    bank: ImageBank, plans: Callable[[], Iterator[BatchPlan]], normalize: Normalize, reader: Reader | None
) -> Iterator[PlannedViews]:
    """Yield each plan with its views and their geometry.

    Args:
        bank: the images.
        plans: gives the plans, anew at each call: workers pull them ahead of time.
        normalize: applied last.
        reader: of images that are not in memory; ``None``: they are.

    Raises:
        DatasetError: an image that could be read before cannot be read any more.
    """
    if reader is None:
        for plan in plans():
            made, geometry = bank.make_views(
                plan.rows,
                plan.keys,
                plan.views,
                seed=plan.seed,
                epoch=plan.epoch,
                normalize=normalize,
                pairs=plan.pairs,
            )
            yield plan, made, geometry
        return
    for plan, crops in zip(plans(), reader.read(plans()), strict=True):
        yield _finished(bank, plan, crops, normalize)


def _finished(bank: ImageBank, plan: BatchPlan, crops: Crops, normalize: Normalize) -> PlannedViews:
    if crops.bad:
        row, reason = crops.bad[0]
        raise DatasetError(
            bank.dataset.sample_ids[row], f"could be read before training, now: {reason}", "Restore the file."
        )
    finished = [
        finish_view(
            send_tensor(crops.crops[view], bank.device),
            crops.boxes[view],
            crops.partner_sizes if spec.shows_partner else crops.sizes,
            spec,
            plan.keys,
            seed=plan.seed,
            epoch=plan.epoch,
            view=view,
            normalize=normalize,
            pairs=plan.pairs,
        )
        for view, spec in enumerate(plan.views)
    ]
    return plan, tuple(view for view, _ in finished), tuple(geometry for _, geometry in finished)
