"""From rows to batches: decode once or on the fly, cut views, leave out what cannot be read.

Small images of one size are decoded once into one tensor on the training device, and all further
work is batched there. Other images are decoded by the workers of a torch ``DataLoader``, which cut
and resize; the rest is done in batches as well.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_all_start_methods, get_context, parent_process
from multiprocessing.connection import wait
from multiprocessing.context import BaseContext
from threading import Thread
from typing import Any, Final, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from labelkit.data.batch import Batch
from labelkit.data.datasets import ImageDataset, ImageSource
from labelkit.data.decode import BadImage, Channels
from labelkit.data.samplers import Sampler
from labelkit.data.views.pairs import Pairing, PairPlan
from labelkit.data.views.transforms import (
    Normalize,
    ViewSpec,
    apply_views,
    boxes_of_views,
    finish_view,
    paired_boxes,
    resize_box,
    resize_images,
)
from labelkit.errors import ConfigError, DatasetError

SMALL_SIDE: Final = 64
MAX_BAD_SHOWN: Final = 10
# Grid sampling does not average; beyond this it would skip pixels.
MAX_SHRINK_IN_MEMORY: Final = 1.5
_READ_CHUNK: Final = 64
_OCCURRENCE_SHIFT: Final = 40

Views = Sequence[ViewSpec] | Callable[[int], Sequence[ViewSpec]]


class ImageBank:
    """The images of a data set, in memory if small, and the list of those that cannot be read.

    Building it decodes every image once, in threads, so that a broken file is known before training.

    Args:
        dataset: the listing.
        rows: strictly increasing rows to use; all by default.
        channels: 1 or 3.
        device: where the tensor is kept and where batches are made.
        memory_limit_bytes: largest tensor to keep.
        base_size: shorter side that images in memory are resized to, once, bicubic with
            antialiasing; larger images always, smaller ones if the result fits the limit. For
            training: a view that resizes again then differs a little from one of the original.
        num_threads: threads that decode; by default one per CPU core, at most 8.

    Attributes:
        dataset: the listing.
        channels: 1 or 3.
        device: where batches are made.
        rows: int64, rows that can be read, increasing.
        listed_rows: int64, ``rows`` and the bad ones.
        bad: reason of each row that cannot be read.
        images: (len(listed_rows), channels, h, w) uint8 on ``device``, bad ones black; or ``None``.
        image_size: height and width of the originals if all are equal, else ``None``.

    Raises:
        ValueError: rows out of range or not strictly increasing.
    """

    def __init__(
        self,
        dataset: ImageDataset,
        rows: ArrayLike | None = None,
        channels: Channels = 3,
        *,
        device: str | torch.device = "cpu",
        memory_limit_bytes: int = 2 << 30,
        base_size: int | None = None,
        num_threads: int | None = None,
    ) -> None:
        listed = np.arange(len(dataset)) if rows is None else np.asarray(rows, dtype=np.int64)
        if listed.ndim != 1 or bool((np.diff(listed) <= 0).any()):
            raise ValueError("rows must be one strictly increasing list")
        if len(listed) and (listed[0] < 0 or listed[-1] >= len(dataset)):
            raise ValueError(f"rows reach from {listed[0]} to {listed[-1]}, the data set has {len(dataset)}")
        self.dataset = dataset
        self.channels = channels
        self.device = torch.device(device)
        self.listed_rows: NDArray[np.int64] = listed.astype(np.int64)
        self.bad: dict[int, str] = {}
        self.image_size: tuple[int, int] | None = None
        pixels = self._decode_all(memory_limit_bytes, num_threads or min(8, os.cpu_count() or 1))
        self.rows = self.listed_rows[[row not in self.bad for row in self.listed_rows.tolist()]]
        self.images: Tensor | None = None
        if pixels is not None:
            self.images = _to_base_size(pixels, base_size, memory_limit_bytes).to(self.device)
        self._reader: tuple[int, _Reader] | None = None
        self._slots = np.full(len(dataset), -1, dtype=np.int64)
        self._slots[self.listed_rows] = np.arange(len(self.listed_rows))

    def _decode_all(self, memory_limit_bytes: int, num_threads: int) -> NDArray[np.uint8] | None:
        """Decode every listed row once; return (n, h, w, c) if they are small and equally large."""

        def decode(rows: NDArray[np.int64]) -> list[NDArray[np.uint8] | str]:
            found: list[NDArray[np.uint8] | str] = []
            for row in rows.tolist():
                try:
                    image = self.dataset.source.read(row).decode(self.channels)
                except BadImage as bad:
                    found.append(bad.reason)
                else:
                    # Large pixels are dropped at once, only their shape is of use.
                    small = max(image.shape[:2]) <= SMALL_SIDE
                    found.append(image if small else np.broadcast_to(np.uint8(0), image.shape))
            return found

        pixels: NDArray[np.uint8] | None = None
        shape: tuple[int, ...] | None = None
        equal = True
        starts = range(0, len(self.listed_rows), _READ_CHUNK)
        chunks = [self.listed_rows[start : start + _READ_CHUNK] for start in starts]
        with ThreadPoolExecutor(num_threads) as pool:
            for start, found in zip(starts, pool.map(decode, chunks), strict=True):
                for offset, image in enumerate(found):
                    if isinstance(image, str):
                        self.bad[int(self.listed_rows[start + offset])] = image
                        continue
                    if shape is None:
                        shape = image.shape
                        needed = len(self.listed_rows) * image.size
                        if max(shape[:2]) <= SMALL_SIDE and needed <= memory_limit_bytes:
                            pixels = np.zeros((len(self.listed_rows), *shape), dtype=np.uint8)
                    if image.shape != shape:
                        equal, pixels = False, None
                    if pixels is not None:
                        pixels[start + offset] = image
        if shape is not None and equal:
            self.image_size = (shape[0], shape[1])
        return pixels

    @property
    def in_memory(self) -> bool:
        """Whether ``images`` holds every image."""
        return self.images is not None

    def reader(self, num_workers: int) -> _Reader:
        """What reads images for a pass over them; its processes stay for the next pass, as they start in seconds."""
        if self._reader is None or self._reader[0] != num_workers:
            self._reader = num_workers, _Reader(self.dataset.source, self.channels, num_workers)
        kept = self._reader[1]
        return _Reader(self.dataset.source, self.channels, num_workers) if kept.busy else kept

    def check(self, max_bad: float) -> None:
        """Refuse a data set with too many images that cannot be read.

        Args:
            max_bad: allowed share in ``[0, 1]``.

        Raises:
            DatasetError: more are bad, or all of them; names the first ones with reasons.
        """
        total = len(self.listed_rows)
        if len(self.rows) and len(self.bad) <= max_bad * total:
            return
        shown = [f"{self.dataset.sample_ids[row]}: {self.bad[row]}" for row in sorted(self.bad)[:MAX_BAD_SHOWN]]
        if len(self.bad) > len(shown):
            shown.append(f"and {len(self.bad) - len(shown)} more")
        raise DatasetError(
            self.dataset.name,
            f"{len(self.bad)} of {total} images cannot be read, allowed are {max_bad:.1%}\n  "
            + "\n  ".join(shown)
            + "\n",
            "Mend or remove them, or allow more with --max-bad.",
        )

    def gather(self, rows: NDArray[np.int64]) -> Tensor:
        """Return (b, c, h, w) uint8 on the device.

        Raises:
            ValueError: the images are not in memory, or a row is not in the bank.
        """
        if self.images is None:
            raise ValueError("the images are not in memory")
        slots = self._slots[rows]
        if bool((slots < 0).any()):
            raise ValueError(f"row {int(rows[slots < 0][0])} is not in the bank")
        return self.images[torch.from_numpy(slots).to(self.device)]


def _to_base_size(pixels: NDArray[np.uint8], base_size: int | None, memory_limit_bytes: int) -> Tensor:
    images = torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous()
    n, c, height, width = images.shape
    shorter = min(height, width)
    if base_size is None or base_size == shorter:
        return images
    size = (base_size * height // shorter, base_size * width // shorter)
    if base_size > shorter and n * c * size[0] * size[1] > memory_limit_bytes:
        return images
    resized = torch.empty((n, c, *size), dtype=torch.uint8)
    for start in range(0, n, 1024):
        resized[start : start + 1024] = resize_images(images[start : start + 1024], *size, "bicubic").to(torch.uint8)
    return resized


# --- reading in workers --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _BatchPlan:
    """What a worker has to read: everything it needs travels with it, workers have no state."""

    rows: NDArray[np.int64]
    keys: NDArray[np.int64]
    seed: int
    epoch: int
    views: tuple[ViewSpec, ...]
    identify: bool = False
    pairs: PairPlan | None = None


@dataclass(slots=True)
class _Crops:
    """What a worker returns."""

    crops: tuple[Tensor, ...]  # per view (b, c, size, size) uint8
    boxes: tuple[NDArray[np.float64], ...]  # per view (b, 4)
    sizes: NDArray[np.int64]  # (b, 2)
    partner_sizes: NDArray[np.int64]  # (b, 2), of the other images of pairs
    bad: list[tuple[int, str]]
    sha256: NDArray[np.uint8]  # (b, 32), only filled on request
    file_sizes: NDArray[np.uint64]  # (b,)


class _CropDataset(Dataset[_Crops]):
    """Reads, decodes, cuts and resizes one planned batch; an item is a batch."""

    def __init__(self, source: ImageSource, channels: Channels) -> None:
        self._source = source
        self._channels = channels

    def __getitem__(self, plan: _BatchPlan) -> _Crops:
        b, c = len(plan.rows), self._channels
        crops = tuple(np.zeros((b, spec.size, spec.size, c), dtype=np.uint8) for spec in plan.views)
        boxes = tuple(np.tile(np.array([0.0, 0.0, 1.0, 1.0]), (b, 1)) for _ in plan.views)
        sizes, partner_sizes = np.ones((b, 2), dtype=np.int64), np.ones((b, 2), dtype=np.int64)
        sha256 = np.zeros((b, 32), dtype=np.uint8)
        file_sizes = np.zeros(b, dtype=np.uint64)
        bad = []
        for i, row in enumerate(plan.rows.tolist()):
            try:
                encoded = self._source.read(row)
                if plan.identify:
                    sha256[i] = np.frombuffer(encoded.sha256, dtype=np.uint8)
                    file_sizes[i] = encoded.size
                image = encoded.decode(c)
            except BadImage as error:
                # Reported, not raised: an exception loses its type on the way out of a worker.
                bad.append((row, error.reason))
                continue
            sizes[i] = partner_sizes[i] = image.shape[:2]
            partner = image
            if plan.pairs is not None and plan.pairs.rows[i] != row:
                try:
                    partner = self._source.read(int(plan.pairs.rows[i])).decode(c)
                except BadImage as error:
                    bad.append((int(plan.pairs.rows[i]), error.reason))
                    continue
                partner_sizes[i] = partner.shape[:2]
            pairs = None if plan.pairs is None else plan.pairs.take(i)
            chosen = boxes_of_views(
                plan.views,
                ([image.shape[0]], [image.shape[1]]),
                ([partner.shape[0]], [partner.shape[1]]),
                plan.keys[i : i + 1],
                seed=plan.seed,
                epoch=plan.epoch,
            )
            for view, spec in enumerate(plan.views):
                shown = partner if spec.shows_partner else image
                boxes[view][i] = paired_boxes(chosen[view], pairs, view, [shown.shape[0]], [shown.shape[1]])[0]
                crops[view][i] = resize_box(shown, boxes[view][i], spec)
        # Copied by NumPy: in a thread of its own, torch would start a second team of threads.
        tensors = tuple(torch.from_numpy(np.ascontiguousarray(crop.transpose(0, 3, 1, 2))) for crop in crops)
        return _Crops(tensors, boxes, sizes, partner_sizes, bad, sha256, file_sizes)


class _Plans:
    """The batch sampler of the loader: its plans are exchanged before each pass."""

    def __init__(self) -> None:
        self.plans: Iterator[_BatchPlan] = iter(())

    def __iter__(self) -> Iterator[list[_BatchPlan]]:
        for plan in self.plans:
            yield [plan]


def _only(items: list[_Crops]) -> _Crops:
    return items[0]


T = TypeVar("T")


def _ahead(items: Iterator[T]) -> Iterator[T]:
    """Make the next item in a thread while the caller works with this one."""
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(next, items, None)
        while (item := coming.result()) is not None:
            coming = pool.submit(next, items, None)
            yield item


@cache
def _worker_context() -> BaseContext:
    """How worker processes start: from a clean process that has loaded this module once, or else each from nothing.

    Never as a copy of this process: it would inherit locks of threads it does not have, and CUDA does not survive it.
    """
    if "forkserver" not in get_all_start_methods():
        return get_context("spawn")
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context


def _end_with_the_main_process(worker: int) -> None:
    """Watch over a worker: if the process that reads from it is killed, it is to end as well.

    torch's own watch looks at the parent, which is the clean process and lives as long as its children do.
    """
    main = parent_process()
    assert main is not None

    def watch() -> None:
        wait([main.sentinel])
        os._exit(1)

    Thread(target=watch, name=f"watch of worker {worker}", daemon=True).start()


class _Reader:
    """Runs plans through worker processes, in order; without any, through one thread of this process."""

    def __init__(self, source: ImageSource, channels: Channels, num_workers: int) -> None:
        self.busy = False
        self._plans = _Plans()
        self._has_workers = num_workers > 0
        options: dict[str, Any] = (
            {
                "multiprocessing_context": _worker_context(),
                "persistent_workers": True,
                "worker_init_fn": _end_with_the_main_process,
            }
            if num_workers
            else {}
        )
        # A generator of its own: the loader draws a number at every pass, by default from the global one.
        self._loader: DataLoader[_Crops] = DataLoader(
            _CropDataset(source, channels),
            batch_sampler=self._plans,
            num_workers=num_workers,
            collate_fn=_only,
            generator=torch.Generator().manual_seed(0),
            **options,
        )

    def read(self, plans: Iterator[_BatchPlan]) -> Iterator[_Crops]:
        self._plans.plans = plans
        self.busy = True
        try:
            crops = iter(self._loader)
            yield from crops if self._has_workers else _ahead(crops)
        finally:
            self.busy = False


# --- training ------------------------------------------------------------------------------------


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
        _check_rank(rank, world_size)
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
        self._reader = None if bank.in_memory else _Reader(bank.dataset.source, bank.channels, num_workers)
        self.steps_per_epoch = len(sampler) // batch_size

    def _views_at(self, epoch: int) -> tuple[ViewSpec, ...]:
        views = tuple(self._views(epoch) if callable(self._views) else self._views)
        if self._bank.images is not None:
            side = min(self._bank.images.shape[-2:])
            for spec in views:
                largest = side if spec.area_range is None else side * math.sqrt(spec.area_range[1])
                if largest > MAX_SHRINK_IN_MEMORY * spec.size:
                    raise ValueError(
                        f"images of {side} pixels in memory for a view of {spec.size}; give the bank a base_size"
                    )
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

        def plans() -> Iterator[_BatchPlan]:
            for step in range(start_step, self.steps_per_epoch):
                batch = slice(step * self._batch_size + self._rank, (step + 1) * self._batch_size, self._world_size)
                pairs = None
                if self._pairing is not None:
                    pairs = self._pairing.plan(rows[batch], keys[batch], seed=self._seed, epoch=epoch)
                yield _BatchPlan(rows[batch], keys[batch], self._seed, epoch, views, pairs=pairs)

        if self._reader is None:
            for plan in plans():
                made, geometry = apply_views(
                    self._bank.gather(plan.rows),
                    plan.keys,
                    views,
                    seed=self._seed,
                    epoch=epoch,
                    normalize=self._normalize,
                    pairs=plan.pairs,
                    partners=None if plan.pairs is None else self._bank.gather(plan.pairs.rows),
                )
                yield self._batch(plan, made, geometry)
            return
        # The workers pull plans ahead of time, so each pass over them needs its own iterator.
        for plan, crops in zip(plans(), self._reader.read(plans()), strict=True):
            yield self._finish(plan, crops)

    def _finish(self, plan: _BatchPlan, crops: _Crops) -> Batch:
        if crops.bad:
            row, reason = crops.bad[0]
            raise DatasetError(
                self._bank.dataset.sample_ids[row], f"could be read before training, now: {reason}", "Restore the file."
            )
        finished = [
            finish_view(
                crops.crops[view].to(self._bank.device),
                crops.boxes[view],
                crops.partner_sizes if spec.shows_partner else crops.sizes,
                spec,
                plan.keys,
                seed=self._seed,
                epoch=plan.epoch,
                view=view,
                normalize=self._normalize,
                pairs=plan.pairs,
            )
            for view, spec in enumerate(plan.views)
        ]
        return self._batch(plan, tuple(view for view, _ in finished), tuple(geometry for _, geometry in finished))

    def _batch(self, plan: _BatchPlan, views: tuple[Tensor, ...], geometry: tuple[Any, ...]) -> Batch:
        device = self._bank.device
        return Batch(
            views=views,
            labels=torch.from_numpy(self._labels[plan.rows]).to(device),
            sample_index=torch.from_numpy(plan.rows.copy()).to(device),
            geometry=geometry,
            links=None if plan.pairs is None else torch.from_numpy(plan.pairs.links.copy()).to(device),
        )


def _check_rank(rank: int, world_size: int) -> None:
    if not 0 <= rank < world_size:
        raise ValueError(f"rank {rank} of {world_size} processes")


# --- embedding and scoring -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EvalBatch:
    """A few images in row order.

    Attributes:
        images: (b, c, size, size) float32, normalized; a bad image is black before normalization.
        rows: (b,) int64 rows of the data set.
        bad: row and reason of each image that could not be read.
        sha256: (b, 32) uint8 digest of each image as stored, if asked for.
        file_sizes: (b,) uint64 bytes, if asked for.
        image_sizes: (b, 2) uint32 height and width of the originals, if asked for; 0 for bad ones.
    """

    images: Tensor
    rows: NDArray[np.int64]
    bad: list[tuple[int, str]]
    sha256: NDArray[np.uint8] | None = None
    file_sizes: NDArray[np.uint64] | None = None
    image_sizes: NDArray[np.uint32] | None = None


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
        rank: number of this process.
        world_size: number of processes.
        identify: also return digests and sizes of what was read.
        seed: of a view with randomness; without one the view must have none.
        epoch: the other key of its random numbers.
        join_single: a last batch of one image joins the one before (for batch statistics).

    Raises:
        ValueError: the view has randomness and there is no seed, or the batch size is not positive.
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
        rank: int = 0,
        world_size: int = 1,
        identify: bool = False,
        seed: int | None = None,
        epoch: int = 0,
        join_single: bool = False,
    ) -> None:
        _check_rank(rank, world_size)
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
        batches = [self._rows[start : start + batch_size] for start in range(0, len(self._rows), batch_size)]
        if join_single and len(batches) > 1 and len(batches[-1]) == 1:
            batches[-2:] = [np.concatenate(batches[-2:])]
        self._batches = batches[rank::world_size]
        self._reader: _Reader | None = None
        if self._bank is None:
            self._reader = (
                _Reader(dataset.source, self._channels, num_workers) if bank is None else bank.reader(num_workers)
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
        plans = (
            _BatchPlan(rows, rows, self._seed, self._epoch, (self._view,), self._identify) for rows in self._batches
        )
        for rows, crops in zip(self._batches, self._reader.read(plans), strict=True):
            image, _ = finish_view(
                crops.crops[0].to(self._device),
                crops.boxes[0],
                crops.sizes,
                self._view,
                rows,
                seed=self._seed,
                epoch=self._epoch,
                view=0,
                normalize=self._normalize,
            )
            sizes = crops.sizes.astype(np.uint32)
            sizes[np.isin(rows, [row for row, _ in crops.bad])] = 0
            yield self._labeled_with(EvalBatch(image, rows, crops.bad), crops.sha256, crops.file_sizes, sizes)

    def _from_memory(self, bank: ImageBank, rows: NDArray[np.int64]) -> EvalBatch:
        (image,), _ = apply_views(
            bank.gather(rows), rows, (self._view,), seed=self._seed, epoch=self._epoch, normalize=self._normalize
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
        return EvalBatch(batch.images, batch.rows, batch.bad, sha256, file_sizes, sizes)
