"""The images of a data set, decoded once into memory if they are small, and the list of those that cannot be read."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from labelkit.data.batch import ViewGeometry, send, send_tensor
from labelkit.data.datasets import ImageDataset
from labelkit.data.decode import BadImage, Channels
from labelkit.data.keyed_random import Draws
from labelkit.data.views.spec import Normalize, PairPlan, ViewSpec
from labelkit.data.views.transforms import apply_views, resize_images
from labelkit.data.workers import Reader
from labelkit.errors import ConfigError, DatasetError
from labelkit.formatting import percent

SMALL_SIDE: Final = 64
# Grid sampling does not average; beyond this it would skip pixels.
MAX_SHRINK_IN_MEMORY: Final = 1.5
MAX_BAD_SHOWN: Final = 10
GPU_SHARE: Final = 0.25  # of its free memory, that images may take
_READ_CHUNK: Final = 64


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
        lost: how it came that pixels keep next to nothing of an image, by row.
        images: (len(listed_rows), channels, h, w) uint8, bad ones black; or ``None``. They are on ``device``, or on the
            CPU if they would take more than a quarter of a GPU's free memory; batches are the same.
        image_size: height and width of the originals if all are equal, else ``None``.
        sha256: (len(dataset), 32) uint8, digests of the listed images as stored; zeros of images that are made up.

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
        self.lost: dict[int, str] = {}
        self.image_size: tuple[int, int] | None = None
        self.sha256 = np.zeros((len(dataset), 32), dtype=np.uint8)
        pixels = self._decode_all(memory_limit_bytes, num_threads or min(8, os.cpu_count() or 1))
        self.rows = self.listed_rows[[row not in self.bad for row in self.listed_rows.tolist()]]
        self.images: Tensor | None = None
        if pixels is not None:
            images = _to_base_size(pixels, base_size, memory_limit_bytes)
            self.images = images.to(self.device) if _has_room(self.device, images.nbytes) else images
        self._reader: tuple[int, Reader] | None = None
        self._slots = np.full(len(dataset), -1, dtype=np.int64)
        self._slots[self.listed_rows] = np.arange(len(self.listed_rows))

    def _decode_all(self, memory_limit_bytes: int, num_threads: int) -> NDArray[np.uint8] | None:
        """Decode every listed row once; return (n, h, w, c) if they are small and equally large."""

        def decode(rows: NDArray[np.int64]) -> list[NDArray[np.uint8] | str]:
            found: list[NDArray[np.uint8] | str] = []
            for row in rows.tolist():
                try:
                    encoded = self.dataset.source.read(row)
                    image, full = encoded.decode_reduced(self.channels, None)
                    lost = encoded.lost_content(image)
                    self.sha256[row] = np.frombuffer(encoded.sha256, dtype=np.uint8)
                except BadImage as bad:
                    found.append(bad.reason)
                else:
                    if lost is not None:
                        self.lost[row] = lost
                    # Large pixels are dropped at once, only their shape is of use.
                    small = max(full) <= SMALL_SIDE
                    found.append(image if small else np.broadcast_to(np.uint8(0), (*full, self.channels)))
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

    def reader(self, num_workers: int) -> Reader:
        """What reads images for a pass over them; its processes stay for the next pass, as they start in seconds."""
        if self._reader is None or self._reader[0] != num_workers:
            self._reader = num_workers, Reader(self.dataset.source, self.channels, num_workers)
        kept = self._reader[1]
        return Reader(self.dataset.source, self.channels, num_workers) if kept.busy else kept

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
            f"{len(self.bad)} of {total} images cannot be read, allowed are {percent(max_bad)} %\n  "
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
        # not their devices: torch holds that cuda and cuda:0 differ
        if self.images.device.type != self.device.type:  # a GPU without room for them
            return send_tensor(self.images[torch.from_numpy(slots)], self.device)
        return self.images[send(slots, self.device)]

    def check_views(self, views: Sequence[ViewSpec]) -> None:
        """Refuse views that images in memory are too large for.

        Raises:
            ConfigError: a view would skip pixels.
        """
        if self.images is None:
            return
        side = min(self.images.shape[-2:])
        for spec in views:
            largest = side if spec.area_range is None else side * math.sqrt(spec.area_range[1])
            if largest > MAX_SHRINK_IN_MEMORY * spec.size:
                raise ConfigError(
                    "--image-size",
                    f"a view of {spec.size} pixels skips some of images of {side} pixels, which are kept in memory",
                    "Make views larger, or the parts of an image that they show smaller (--local-size, --local-scale).",
                )

    def make_views(
        self,
        rows: NDArray[np.int64],
        draws: Draws,
        views: Sequence[ViewSpec],
        *,
        normalize: Normalize,
        pairs: PairPlan | None = None,
    ) -> tuple[tuple[Tensor, ...], tuple[ViewGeometry, ...]]:
        """Make all views of some images in memory; see :func:`labelkit.data.views.transforms.apply_views`."""
        partners = None if pairs is None else self.gather(pairs.rows)
        return apply_views(self.gather(rows), draws, views, normalize=normalize, pairs=pairs, partners=partners)


def _has_room(device: torch.device, size: int) -> bool:
    """Whether that many bytes leave a GPU enough for a network."""
    return device.type != "cuda" or size <= torch.cuda.mem_get_info(device)[0] * GPU_SHARE


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
