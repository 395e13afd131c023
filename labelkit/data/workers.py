"""Read, decode, cut and resize planned batches in worker processes, or in a thread of this process."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_all_start_methods, get_context, parent_process, resource_tracker
from multiprocessing.connection import wait
from multiprocessing.context import BaseContext
from multiprocessing.forkserver import ensure_running
from threading import Thread
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from labelkit.data.datasets import ImageSource
from labelkit.data.decode import BadImage, Channels
from labelkit.data.views.boxes import boxes_of_views, paired_boxes
from labelkit.data.views.pairs import PairPlan
from labelkit.data.views.resizing import cut_view
from labelkit.data.views.spec import ViewSpec
from labelkit.errors import DatasetError


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """What a worker has to read: everything it needs travels with it, workers have no state."""

    rows: NDArray[np.int64]
    keys: NDArray[np.int64]
    seed: int
    epoch: int
    views: tuple[ViewSpec, ...]
    identify: bool = False
    pairs: PairPlan | None = None
    least_side: int | None = None  # to which a decoder may shrink


@dataclass(slots=True)
class Crops:
    """What a worker returns."""

    crops: tuple[Tensor, ...]  # per view (b, c, size, size) uint8
    boxes: tuple[NDArray[np.float64], ...]  # per view (b, 4)
    sizes: NDArray[np.int64]  # (b, 2)
    partner_sizes: NDArray[np.int64]  # (b, 2), of the other images of pairs
    bad: list[tuple[int, str]]
    lost: list[tuple[int, str]]  # images whose pixels keep next to nothing of them
    sha256: NDArray[np.uint8]  # (b, 32), only filled on request
    file_sizes: NDArray[np.uint64]  # (b,)
    fault: tuple[str, str, str] | None = None  # what ends the run: where, problem, remedy


class _CropDataset(Dataset[Crops]):
    """Reads, decodes, cuts and resizes one planned batch; an item is a batch."""

    def __init__(self, source: ImageSource, channels: Channels) -> None:
        self._source = source
        self._channels = channels

    def __getitem__(self, plan: BatchPlan) -> Crops:
        try:
            return self._read(plan)
        except DatasetError as error:
            # As below; a file that cannot be fetched is not a bad image.
            none, no_sizes = np.zeros((0, 4)), np.zeros((0, 2), dtype=np.int64)
            digests, file_sizes = np.zeros((0, 32), dtype=np.uint8), np.zeros(0, dtype=np.uint64)
            fault = error.where, error.problem, error.remedy
            return Crops((), (none,), no_sizes, no_sizes, [], [], digests, file_sizes, fault)

    def _read(self, plan: BatchPlan) -> Crops:
        b, c = len(plan.rows), self._channels
        crops = tuple(np.zeros((b, spec.size, spec.size, c), dtype=np.uint8) for spec in plan.views)
        boxes = tuple(np.tile(np.array([0.0, 0.0, 1.0, 1.0]), (b, 1)) for _ in plan.views)
        sizes, partner_sizes = np.ones((b, 2), dtype=np.int64), np.ones((b, 2), dtype=np.int64)
        sha256 = np.zeros((b, 32), dtype=np.uint8)
        file_sizes = np.zeros(b, dtype=np.uint64)
        bad, lost = [], []
        for i, row in enumerate(plan.rows.tolist()):
            try:
                encoded = self._source.read(row)
                if plan.identify:
                    sha256[i] = np.frombuffer(encoded.sha256, dtype=np.uint8)
                    file_sizes[i] = encoded.size
                image, full = encoded.decode_reduced(c, plan.least_side)
                if plan.identify and (reason := encoded.lost_content(image)) is not None:
                    lost.append((row, reason))
            except BadImage as error:
                # Reported, not raised: an exception loses its type on the way out of a worker.
                bad.append((row, error.reason))
                continue
            sizes[i] = partner_sizes[i] = full
            shrink = round(max(full) / max(image.shape[:2]))  # a power of 2
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
                ([full[0]], [full[1]]),
                ([partner.shape[0]], [partner.shape[1]]),
                plan.keys[i : i + 1],
                seed=plan.seed,
                epoch=plan.epoch,
            )
            for view, spec in enumerate(plan.views):
                shown = partner if spec.shows_partner else image
                boxes[view][i] = paired_boxes(chosen[view], pairs, view, [shown.shape[0]], [shown.shape[1]])[0]
                crops[view][i] = cut_view(shown, boxes[view][i] / shrink, spec)
        # Copied by NumPy: in a thread of its own, torch would start a second team of threads.
        tensors = tuple(torch.from_numpy(np.ascontiguousarray(crop.transpose(0, 3, 1, 2))) for crop in crops)
        return Crops(tensors, boxes, sizes, partner_sizes, bad, lost, sha256, file_sizes)


class _Plans:
    """The batch sampler of the loader: its plans are exchanged before each pass."""

    def __init__(self) -> None:
        self.plans: Iterator[BatchPlan] = iter(())

    def __iter__(self) -> Iterator[list[BatchPlan]]:
        for plan in self.plans:
            yield [plan]


def _only(items: list[Crops]) -> Crops:
    return items[0]


T = TypeVar("T")


def read_ahead(items: Iterator[T]) -> Iterator[T]:
    """Make the next item in a thread while the caller works with this one."""
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(next, items, None)
        while (item := coming.result()) is not None:
            coming = pool.submit(next, items, None)
            yield item


@cache
def worker_context() -> BaseContext:
    """How worker processes start: from a clean process that has loaded this module once, or else each from nothing.

    Never as a copy of this process: it would inherit locks of threads it does not have, and CUDA does not survive it.
    """
    if "forkserver" not in get_all_start_methods():
        return get_context("spawn")
    context = get_context("forkserver")
    context.set_forkserver_preload(["labelkit.data.worker_start"])
    # Ctrl-C in a terminal reaches all processes. While one imports, it is a traceback; the main one ends the others.
    resource_tracker.ensure_running()  # it lets the signal through again when it has started, so it goes first
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return context


def end_with_the_main_process(worker: int) -> None:
    """Watch over a worker: if the process that reads from it is killed, it is to end as well.

    torch's own watch looks at the parent, which is the clean process and lives as long as its children do.
    """
    main = parent_process()
    assert main is not None

    def watch() -> None:
        wait([main.sentinel])
        os._exit(1)

    Thread(target=watch, name=f"watch of worker {worker}", daemon=True).start()


class Reader:
    """Runs plans through worker processes, in order; without any, through one thread of this process."""

    def __init__(self, source: ImageSource, channels: Channels, num_workers: int) -> None:
        self.busy = False
        self._plans = _Plans()
        self._has_workers = num_workers > 0
        options: dict[str, Any] = (
            {
                "multiprocessing_context": worker_context(),
                "persistent_workers": True,
                "worker_init_fn": end_with_the_main_process,
            }
            if num_workers
            else {}
        )
        # A generator of its own: the loader draws a number at every pass, by default from the global one.
        self._loader: DataLoader[Crops] = DataLoader(
            _CropDataset(source, channels),
            batch_sampler=self._plans,
            num_workers=num_workers,
            collate_fn=_only,
            generator=torch.Generator().manual_seed(0),
            **options,
        )

    def read(self, plans: Iterator[BatchPlan]) -> Iterator[Crops]:
        """Yield what became of each plan, in their order.

        Raises:
            DatasetError: an image could not be fetched.
        """
        self._plans.plans = plans
        self.busy = True
        try:
            crops = iter(self._loader)
            for found in crops if self._has_workers else read_ahead(crops):
                if found.fault is not None:
                    raise DatasetError(*found.fault)
                yield found
        finally:
            self.busy = False
