"""Image decoding, cropping and resizing for planned batches, in worker processes or in a thread of this process."""

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from multiprocessing import get_all_start_methods, get_context
from multiprocessing.context import BaseContext
from multiprocessing.queues import Queue
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from labelkit.data.datasets import ImageSource
from labelkit.data.decode import BadImageError, Channels
from labelkit.data.exit_with_parent import exit_with_parent, hide_main_module
from labelkit.data.keyed_random import KeyedRNG
from labelkit.data.views.boxes import replace_paired_boxes, sample_crop_boxes
from labelkit.data.views.spec import PairPlan, ViewSpec
from labelkit.data.views.transforms import crop_and_resize
from labelkit.errors import LabelkitError, ResourceError
from labelkit.progress import current_progress

_LONGEST_SECONDS: Final = 3600
"""Time limit for one item of a worker: torch detects a worker that dies, but would wait forever for one that hangs."""

_WORKER_ERROR_PREFIXES: Final = ("DataLoader", "Too many open files")
"""Prefixes of torch's error messages when it loses contact with a worker."""

T = TypeVar("T")

#: Shared memory through which worker processes send batches.
SHARED_MEMORY: Final = Path("/dev/shm")
_MAX_WORKERS: Final = 8
_FEW_IMAGES: Final = 500


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """Self-contained instructions that let a stateless worker read one batch."""

    rows: NDArray[np.int64]
    draws: KeyedRNG
    views: tuple[ViewSpec, ...]
    identify: bool = False
    pairs: PairPlan | None = None
    min_side: int | None = None  # shortest side to which a decoder may shrink


@dataclass(slots=True)
class DecodedCrops:
    """Decoded image crops of one batch, returned by a worker process."""

    crops: tuple[Tensor, ...]  # per view (b, c, size, size) uint8
    boxes: tuple[NDArray[np.float64], ...]  # per view (b, 4)
    sizes: NDArray[np.int64]  # (b, 2)
    partner_sizes: NDArray[np.int64]  # (b, 2), sizes of the second images of pairs
    bad: list[tuple[int, str]]
    lost: list[tuple[int, str]]  # images whose decoding lost almost all content
    sha256: NDArray[np.uint8]  # (b, 32), only filled on request
    file_sizes: NDArray[np.uint64]  # (b,)


def _read_crops(source: ImageSource, channels: Channels, plan: BatchPlan) -> DecodedCrops:
    b, c = len(plan.rows), channels
    crops = tuple(np.zeros((b, spec.size, spec.size, c), dtype=np.uint8) for spec in plan.views)
    boxes = tuple(np.tile(np.array([0.0, 0.0, 1.0, 1.0]), (b, 1)) for _ in plan.views)
    sizes, partner_sizes = np.ones((b, 2), dtype=np.int64), np.ones((b, 2), dtype=np.int64)
    sha256 = np.zeros((b, 32), dtype=np.uint8)
    file_sizes = np.zeros(b, dtype=np.uint64)
    bad, lost = [], []
    for i, row in enumerate(plan.rows.tolist()):
        try:
            encoded = source.read(row)
            if plan.identify:
                sha256[i] = np.frombuffer(encoded.sha256, dtype=np.uint8)
                file_sizes[i] = encoded.size
            image, full = encoded.decode_reduced(c, plan.min_side)
            if plan.identify and (reason := encoded.explain_lost_content(image)) is not None:
                lost.append((row, reason))
        except BadImageError as error:
            # Reported, not raised, because an exception loses its type when it leaves a worker.
            bad.append((row, error.reason))
            continue
        sizes[i] = partner_sizes[i] = full
        partner, partner_full = image, full
        if plan.pairs is not None and plan.pairs.rows[i] != row:
            try:
                partner, partner_full = source.read(int(plan.pairs.rows[i])).decode_reduced(c, plan.min_side)
            except BadImageError as error:
                bad.append((int(plan.pairs.rows[i]), error.reason))
                continue
            partner_sizes[i] = partner_full
        pairs = None if plan.pairs is None else plan.pairs.for_sample(i)
        sizes_of = ([full[0]], [full[1]]), ([partner_full[0]], [partner_full[1]])
        chosen = sample_crop_boxes(plan.views, *sizes_of, plan.draws.subset(slice(i, i + 1)))
        for view, spec in enumerate(plan.views):
            shown, (height, width) = (partner, partner_full) if spec.shows_partner else (image, full)
            shrink = round(max(height, width) / max(shown.shape[:2]))  # a power of 2
            boxes[view][i] = replace_paired_boxes(chosen[view], pairs, view, [height], [width])[0]
            crops[view][i] = crop_and_resize(shown, boxes[view][i] / shrink, spec)
    # Copied by NumPy, because in a separate thread torch would start a second pool of threads.
    tensors = tuple(torch.from_numpy(np.ascontiguousarray(crop.transpose(0, 3, 1, 2))) for crop in crops)
    return DecodedCrops(tensors, boxes, sizes, partner_sizes, bad, lost, sha256, file_sizes)


class _Items(Dataset[T | LabelkitError]):
    """Dataset that reads one item per plan; errors are returned as items, since raised ones would lose their type."""

    def __init__(self, read: Callable[[Any], T]) -> None:
        self._read = read

    def __getitem__(self, plan: Any) -> T | LabelkitError:
        try:
            return self._read(plan)
        except LabelkitError as error:
            return error


class PlanBatchSampler:
    """Batch sampler that yields batch plans; the plans are replaced before each pass."""

    def __init__(self, plans: Iterator[Any]) -> None:
        self.plans = plans

    def __iter__(self) -> Iterator[list[Any]]:
        for plan in self.plans:
            yield [plan]


def prefetch(items: Iterator[T]) -> Iterator[T]:
    """Prefetch the next item in a thread while the caller processes the current one."""
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(next, items, None)
        while (item := coming.result()) is not None:
            coming = pool.submit(next, items, None)
            yield item


@cache
def worker_context() -> BaseContext:
    """Return the multiprocessing context for worker processes: forkserver if available, otherwise spawn.

    A forkserver starts workers from a clean process that has loaded this module once. Workers are never forked from
    this process: a fork would inherit locks of threads that it does not have, and CUDA does not work after a fork.
    """
    if "forkserver" not in get_all_start_methods():
        return get_context("spawn")
    context = get_context("forkserver")
    # after Ctrl-C, Python's resource tracker removes the semaphores of the workers; its warning would confuse users
    sys.warnoptions.append("ignore:resource_tracker:UserWarning")
    context.set_forkserver_preload([__name__])
    return context


def get_num_workers(requested: int | None, images: int, batch_bytes: int) -> int:
    """Choose the number of image-decoding processes to start.

    The default is one per core, at most 8, and no more than ``/dev/shm`` has room for, with batches of ``batch_bytes``;
    a message says so if this limits the number. ``images`` is the number of images per pass.
    """
    if requested is not None or images < _FEW_IMAGES:  # few images are decoded before processes would have started
        return requested or 0
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    wanted = min(_MAX_WORKERS, max(1, cores // int(os.environ.get("LOCAL_WORLD_SIZE", 1))))
    if not SHARED_MEMORY.is_dir():  # not Linux
        return wanted
    room = shutil.disk_usage(SHARED_MEMORY).free // batch_bytes
    found = min(wanted, max(0, (room - 1) // 2))  # each process prepares two batches in advance, and one is in use
    if found < wanted:
        told = f"using only {found} of {wanted} decoding processes"
        current_progress().message(f"{told}: {SHARED_MEMORY} is small (docker run --shm-size=8g)")
    return found


def build_loader(
    read: Callable[[Any], T], plans: PlanBatchSampler, num_workers: int, *, persistent: bool = False
) -> DataLoader[T | LabelkitError]:
    """Build a PyTorch data loader that reads one item per plan, in ``num_workers`` processes or, if 0, in a thread.

    ``read`` is pickled for the processes, which live as long as the loader if ``persistent``, else for one pass.
    """
    options: dict[str, Any] = {}
    if num_workers:
        options = {"multiprocessing_context": worker_context(), "worker_init_fn": _init_worker}
        options |= {"timeout": _LONGEST_SECONDS, "persistent_workers": persistent}
    return DataLoader(
        _Items(read),
        batch_sampler=plans,
        num_workers=num_workers,
        collate_fn=itemgetter(0),  # a batch is a single item
        # its own generator: the loader draws a number in every pass, by default from the global generator
        generator=torch.Generator().manual_seed(0),
        **options,
    )


def iter_items(loader: DataLoader[T | LabelkitError]) -> Iterator[T]:
    """Yield items from a loader, re-raising worker errors.

    Raises:
        LabelkitError: reading an item raised it.
        ResourceError: a worker died, could not start, or could not send its result.
    """
    try:
        with hide_main_module():
            items = iter(loader)
        for item in items if loader.num_workers else prefetch(items):
            if isinstance(item, LabelkitError):
                raise item
            yield item
    except (OSError, RuntimeError) as error:
        own = isinstance(error, RuntimeError) and not str(error).startswith(_WORKER_ERROR_PREFIXES)
        if own or not loader.num_workers:
            raise
        raise _lost_workers_error(str(error)) from error


def _lost_workers_error(reason: str) -> ResourceError:
    room = ""
    if SHARED_MEMORY.is_dir():
        free = shutil.disk_usage(SHARED_MEMORY).free / 2**20
        room = f"; {SHARED_MEMORY}, through which they send images, has {free:.0f} MiB free"
    return ResourceError(
        "--num-workers",
        f"the image-reading processes cannot continue: {reason}{room}",
        "Lower --batch-size, pass --num-workers 0 to read images in the main process, or provide more shared memory, "
        "for example with `docker run --shm-size 8g`.",
    )


def _init_worker(worker: int) -> None:
    """Make a worker exit together with the main process, and report items that it cannot send."""

    # Python drops items that a queue cannot send, and the main process would wait for them forever
    def send_why(queue: Any, error: Exception, item: tuple[int, object]) -> None:
        queue.put((item[0], _lost_workers_error(str(error).partition("\n")[0])))

    Queue._on_queue_feeder_error = send_why  # type: ignore[attr-defined] # not annotated there
    # torch watches the parent process, which here is the forkserver and lives as long as its children
    exit_with_parent(f"worker {worker}")


class BatchReader:
    """Reader of planned batches, in worker processes or, if there are none, in a thread of this process."""

    def __init__(self, source: ImageSource, channels: Channels, num_workers: int) -> None:
        self.busy = False
        self._plans = PlanBatchSampler(iter(()))
        self._loader = build_loader(partial(_read_crops, source, channels), self._plans, num_workers, persistent=True)

    def read(self, plans: Iterator[BatchPlan]) -> Iterator[DecodedCrops]:
        """Yield the crops of each planned batch, in order.

        Raises:
            DatasetError: an image could not be fetched.
            ResourceError: a worker died, or could not send its result.
        """
        self._plans.plans = plans
        self.busy = True
        try:
            yield from iter_items(self._loader)
        finally:
            self.busy = False
