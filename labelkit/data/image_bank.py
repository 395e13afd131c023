"""Training data: images, decoded once into memory if they are small, or arrays in their place.

These arrays are cached outputs of a network's frozen part, or the embeddings in a store.
"""

import hashlib
import math
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Any, Final

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from labelkit.algorithms.indexes import find_approximate_neighbors
from labelkit.data.batch import ViewGeometry, array_to_device, move_tensor_to_device
from labelkit.data.datasets import ImageDataset
from labelkit.data.decode import BadImageError
from labelkit.data.keyed_random import KeyedRNG
from labelkit.data.views.spec import EmbeddingView, Normalize, ViewSpec
from labelkit.data.views.transforms import apply_views, resize_images
from labelkit.data.workers import BatchPlan, BatchReader
from labelkit.errors import ConfigError, DatasetError
from labelkit.formatting import join_first_few, percent

SMALL_SIDE: Final = 64
# Largest factor by which views may shrink images in memory; grid sampling does not average and would skip pixels.
MAX_SHRINK_IN_MEMORY: Final = 1.5
_MAX_BAD_SHOWN: Final = 10
MEMORY_BYTES: Final = 2 << 30  # limit on the tensor of images in memory
GPU_SHARE: Final = 0.25  # fraction of a GPU's free memory that images may occupy
_READ_CHUNK: Final = 64


class ImageBank:
    """Images of a dataset, of which small ones are decoded into memory, with a list of unreadable ones.

    The constructor decodes every image once, in threads, to find broken files before training.

    Args:
        dataset: the listing.
        device: device of the tensor of images and of the batches.
        base_size: shorter side in pixels to which images in memory are resized once, bicubic with antialiasing;
            smaller images are enlarged only if the result has at most 2 GiB. For training only, since views that
            are resized again differ slightly from views of the original.

    Attributes:
        dataset: the listing.
        device: device on which batches are made.
        rows: int64, indices of the readable images, increasing.
        bad: reason why an image cannot be read, by row.
        lost: reason why decoding lost almost all content of an image, by row.
        images: (n, c, h, w) uint8, one per row of the listing, unreadable ones black; ``None`` if not in memory. They
            are on ``device``, or on the CPU if they would take more than a quarter of a GPU's free memory, with the
            same batches.
        in_memory: whether batches can be made without reading image files.
        sha256: (len(dataset), 32) uint8, digests of the listed images as stored; zeros if unreadable or unknown.
    """

    def __init__(
        self, dataset: ImageDataset, *, device: str | torch.device = "cpu", base_size: int | None = None
    ) -> None:
        self.dataset = dataset
        self.device = torch.device(device)
        self.bad: dict[int, str] = {}
        self.lost: dict[int, str] = {}
        self.sha256 = np.zeros((len(dataset), 32), dtype=np.uint8)
        pixels = self._decode_all()
        self.rows: NDArray[np.int64] = np.delete(np.arange(len(dataset), dtype=np.int64), list(self.bad))
        self.images: Tensor | None = None
        self.in_memory = pixels is not None
        if pixels is not None:
            images = _to_base_size(pixels, base_size)
            self.images = images.to(self.device) if _has_room(self.device, images.nbytes) else images
        self._reader: tuple[int, BatchReader] | None = None

    def _decode_all(self) -> NDArray[np.uint8] | None:
        """Decode every image once; return (n, h, w, c) pixels if all images are small and equally large."""
        n = len(self.dataset)

        def decode(rows: range) -> list[NDArray[np.uint8] | None]:
            """Return the pixels of small images, ``None`` for larger ones, an empty array for unreadable ones."""
            found: list[NDArray[np.uint8] | None] = []
            for row in rows:
                try:
                    encoded = self.dataset.source.read(row)
                    image, full = encoded.decode_reduced(self.dataset.in_channels)
                    if (lost := encoded.explain_lost_content(image)) is not None:
                        self.lost[row] = lost
                    self.sha256[row] = np.frombuffer(encoded.sha256, dtype=np.uint8)
                    found.append(image if max(full) <= SMALL_SIDE else None)
                except BadImageError as bad:
                    self.bad[row] = bad.reason
                    found.append(np.zeros(0, dtype=np.uint8))
            return found

        pixels: NDArray[np.uint8] | None = None
        fits = True
        chunks = [range(start, min(start + _READ_CHUNK, n)) for start in range(0, n, _READ_CHUNK)]
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
            for place, image in enumerate(chain.from_iterable(pool.map(decode, chunks))):
                if image is not None and not image.size:
                    continue
                if image is not None and fits and pixels is None and n * image.size <= MEMORY_BYTES:
                    pixels = np.zeros((n, *image.shape), dtype=np.uint8)
                fits = fits and image is not None and pixels is not None and image.shape == pixels.shape[1:]
                if image is not None and pixels is not None and fits:
                    pixels[place] = image
                else:
                    pixels = None
        self.bad = dict(sorted(self.bad.items()))
        return pixels

    def digest(self, rows: NDArray[np.int64] | None = None) -> str:
        """Return a SHA-256 digest (hex) of the image files of the given rows, by default of all."""
        return hashlib.sha256((self.sha256 if rows is None else self.sha256[rows]).tobytes()).hexdigest()

    def build_reader(self, num_workers: int) -> BatchReader:
        """Build an image reader that keeps its worker processes alive between passes."""
        if self._reader is None or self._reader[0] != num_workers:
            self._reader = num_workers, BatchReader(self.dataset.source, self.dataset.in_channels, num_workers)
        kept = self._reader[1]
        return BatchReader(self.dataset.source, self.dataset.in_channels, num_workers) if kept.busy else kept

    def check_readable(self, max_bad: float) -> None:
        """Raise an error if the fraction of unreadable images exceeds ``max_bad``, in ``[0, 1]``.

        Raises:
            DatasetError: too many images, or all of them, are unreadable; the message lists the first with reasons.
        """
        total = len(self.dataset)
        if len(self.rows) and len(self.bad) <= max_bad * total:
            return
        faults = (f"{self.dataset.sample_ids[row]}: {reason}" for row, reason in self.bad.items())
        problem = f"{len(self.bad)} of {total} images cannot be read; at most {percent(max_bad)}% are allowed\n  "
        problem += join_first_few(faults, _MAX_BAD_SHOWN, "\n  ") + "\n"
        remedy = "Repair or remove these images, or allow more with --max-bad."
        raise DatasetError(self.dataset.name, problem, remedy)

    def gather(self, rows: NDArray[np.int64]) -> Tensor:
        """Return the images, or embeddings, of the given rows as a tensor (b, ...) on the device.

        Raises:
            ValueError: the images are not in memory.
        """
        if self.images is None:
            raise ValueError("the images are not in memory")
        # compares only the types: to torch, the devices cuda and cuda:0 differ
        if self.images.device.type != self.device.type:  # the images do not fit on the GPU
            return move_tensor_to_device(self.images[torch.from_numpy(rows)], self.device)
        return self.images[array_to_device(rows, self.device)]

    def _to_device(self, values: NDArray[Any]) -> Tensor:
        return move_tensor_to_device(torch.from_numpy(values), self.device)

    def check_view_sizes(self, views: Sequence[ViewSpec]) -> None:
        """Raise an error if a view is so small that resizing the images in memory to it would skip pixels.

        Raises:
            ConfigError: a view would skip pixels.
        """
        if self.images is None or self.images.ndim < 4:  # embeddings have no size in pixels
            return
        side = min(self.images.shape[-2:])
        for spec in views:
            largest = side if spec.area_range is None else side * math.sqrt(spec.area_range[1])
            if largest > MAX_SHRINK_IN_MEMORY * spec.size:
                problem = f"views of {spec.size} pixels would skip some pixels of cached images of {side} pixels"
                remedy = "Raise --image-size (or --local-size), or reduce the area of the views (--local-scale)."
                raise ConfigError("--image-size", problem, remedy)

    def make_views(self, plan: BatchPlan, normalize: Normalize) -> tuple[tuple[Tensor, ...], tuple[ViewGeometry, ...]]:
        """Make all views of images in memory; see :func:`labelkit.data.views.transforms.apply_views`."""
        images, partners = self.gather(plan.rows), None if plan.pairs is None else self.gather(plan.pairs.rows)
        return apply_views(images, plan.draws, plan.views, normalize=normalize, pairs=plan.pairs, partners=partners)


def _has_room(device: torch.device, size: int) -> bool:
    """Return whether images of ``size`` bytes leave a GPU enough memory for a network."""
    return device.type != "cuda" or size <= torch.cuda.mem_get_info(device)[0] * GPU_SHARE


def _to_base_size(pixels: NDArray[np.uint8], base_size: int | None) -> Tensor:
    images = torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous()
    n, c, height, width = images.shape
    shorter = min(height, width)
    if base_size is None or base_size == shorter:
        return images
    size = (base_size * height // shorter, base_size * width // shorter)
    if base_size > shorter and n * c * size[0] * size[1] > MEMORY_BYTES:
        return images
    return resize_images(images, *size, "bicubic")


def number_view_kinds(views: Sequence[ViewSpec], cache_point: Sequence[object]) -> tuple[int, ...]:
    """Return the kind of each view of an epoch; kinds are numbered by their first appearance.

    Views with the same specification and the same ``cache_point`` are of one kind.
    """
    pairs = list(zip(views, cache_point, strict=True))
    different = [pair for number, pair in enumerate(pairs) if pair not in pairs[:number]]
    return tuple(different.index(pair) for pair in pairs)


def draw_views(rng: KeyedRNG, kinds: Sequence[int], num_views: int, followers: Sequence[int] = ()) -> NDArray[np.int64]:
    """Draw the cached view of each image that is used as each view of an epoch.

    Args:
        rng: random numbers of the b images.
        kinds: kind of each of the p views of an epoch.
        num_views: number of cached views of each kind, v.
        followers: views that are warped versions of the preceding view, and use the same cached view as it does.

    Returns:
        (b, p) int64 in [0, v); views of one kind differ from each other if there are enough.
    """
    drawn = np.zeros((len(rng.keys), len(kinds)), dtype=np.int64)
    for kind in sorted(set(kinds)):
        places = [place for place, found in enumerate(kinds) if found == kind]
        # shuffles the cached views and takes the first ones, one for each view; once all are used, they repeat
        order = np.argsort(rng.uniform(kind, "kept-view", num_views), axis=1, kind="stable")
        for position, place in enumerate(places):
            drawn[:, place] = order[:, position % num_views]
    for place in sorted(followers):
        drawn[:, place] = drawn[:, place - 1]
    return drawn


class CachedViewBank(ImageBank):
    """Cached views of images, which are moved to the batch device when they are used.

    Args:
        bank: the bank of the images themselves.
        rows: (n,) int64 cached rows of the dataset, increasing.
        parts: for each part of the images, the values (m, v, ...) of each kind of view; all parts but the last have
            the same number of images. The last kind is a single unaugmented view, for use outside training. If views
            follow others, the geometry of each kind but the last comes after it, (m, v, 2 or 3, 3) float32.
        kinds: kind of each view of an epoch.
        followers: views of an epoch that are warped versions of the preceding view.
    """

    def __init__(
        self,
        bank: ImageBank,
        rows: NDArray[np.int64],
        parts: Sequence[tuple[NDArray[np.generic], ...]],
        kinds: Sequence[int],
        followers: Sequence[int] = (),
    ) -> None:
        self.dataset, self.device = bank.dataset, bank.device
        self.rows, self.bad = bank.rows, bank.bad
        self.images, self.in_memory = None, True
        self._parts = parts
        self._kinds, self._followers = tuple(kinds), tuple(followers)
        self._plain = max(kinds) + 1
        self._part_rows = len(parts[0][0])
        self._num_views = parts[0][0].shape[1]
        self._slots = np.full(len(bank.dataset), -1, dtype=np.int64)
        self._slots[rows] = np.arange(len(rows))

    def make_views(self, plan: BatchPlan, normalize: Normalize) -> tuple[tuple[Tensor, ...], tuple[ViewGeometry, ...]]:
        """Return the cached values (b, ...) of each view in their stored dtype, and their geometry if needed."""
        rows, drawn = plan.rows, draw_views(plan.draws, self._kinds, self._num_views, self._followers)
        made, geometry = [], []
        for place, kind in enumerate(self._kinds):
            made.append(self._to_device(self._gather_views(rows, kind, drawn[:, place])))
            if self._followers:
                matrices = self._gather_views(rows, self._plain + 1 + kind, drawn[:, place])
                geometry.append(ViewGeometry(self._to_device(matrices), matrices))
        return tuple(made), tuple(geometry)

    def get_unaugmented(self, rows: NDArray[np.int64]) -> Tensor:
        """Return the cached values (b, ...) of the unaugmented images, on the device."""
        return self._to_device(self._gather_views(rows, self._plain, np.zeros(len(rows), dtype=np.int64)))

    def _gather_views(self, rows: NDArray[np.int64], kind: int, views: NDArray[np.int64]) -> NDArray[Any]:
        first = self._parts[0][kind]
        values = np.empty((len(rows), *first.shape[2:]), dtype=first.dtype)
        for number, (slot, view) in enumerate(zip(self._slots[rows].tolist(), views.tolist(), strict=True)):
            values[number] = self._parts[slot // self._part_rows][kind][slot % self._part_rows, view]
        return values


class EmbeddingBank(ImageBank):
    """Unit-length embeddings that replace the images, on the device where batches are made.

    Args:
        dataset: listing of the embeddings, in the same order as ``rows``.
        rows: (n, d) float32 embeddings of length 1.
        num_neighbors: number of nearest neighbors that may be mixed into a view (:func:`find_approximate_neighbors`),
            at most all other embeddings; 0: none.
        stored: (m, v, d) v views of each of m images, usually memory-mapped from a file, of any nonzero length.
        stored_rows: (n,) int64, index in ``stored`` for each embedding.
        sha256: (n, 32) uint8, digests of the embedded images; ``None``: unknown.
        device: device on which batches are made.
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
        self.device = torch.device(device)
        self.rows = np.arange(len(dataset), dtype=np.int64)
        self.bad = {}
        self.sha256 = np.zeros((len(dataset), 32), dtype=np.uint8) if sha256 is None else sha256
        self.images, self.in_memory = torch.from_numpy(rows).to(self.device), True
        self._stored, self._stored_rows = stored, stored_rows
        self._neighbors: NDArray[np.int64] | None = None
        count = min(num_neighbors, len(dataset) - 1)
        if count > 0:
            self._neighbors = find_approximate_neighbors(rows, count)

    def make_views(self, plan: BatchPlan, normalize: Normalize) -> tuple[tuple[Tensor, ...], tuple[ViewGeometry, ...]]:
        """Return one augmented tensor (b, d) per view, and an empty tuple in place of the geometry."""
        rows, plain, made = plan.rows, self.gather(plan.rows), []
        # the stored views in a step are distinct if there are enough
        places = [number for number, spec in enumerate(plan.views) if spec.row is not None and spec.row.stored]
        num_stored = 0 if self._stored is None else self._stored.shape[1]
        drawn = dict(zip(places, draw_views(plan.draws, [0] * len(places), num_stored).T, strict=True))
        for number, spec in enumerate(plan.views):
            if spec.row is None:
                made.append(plain)
            elif spec.row.stored:
                assert self._stored is not None
                assert self._stored_rows is not None
                values = self._stored[self._stored_rows[rows], drawn[number]].astype(np.float32)
                made.append(F.normalize(self._to_device(values), dim=1))
            else:
                near = None
                if spec.row.mix and self._neighbors is not None:
                    near = self.gather(self._neighbors[rows].reshape(-1)).reshape(len(rows), -1, plain.shape[1])
                made.append(augment_embeddings(plain, near, spec.row, plan.draws, number))
        return tuple(made), ()


def augment_embeddings(rows: Tensor, neighbors: Tensor | None, spec: EmbeddingView, rng: KeyedRNG, view: int) -> Tensor:
    """Augment unit-length embeddings as specified by a view: mix in neighbors, add noise and apply dropout.

    Random numbers are keyed by seed, epoch, sample and view. One of the nearest neighbors is mixed in with a random
    weight, noise is added, and some components are set to 0. ``rows`` and the result are (b, d) float32 of length 1;
    ``neighbors`` are (b, k, d), required if ``spec.mix`` is positive.
    """
    changed = rows
    if spec.mix:
        assert neighbors is not None
        drawn = rng.uniform(view, "row-mix", 2)
        chosen = (drawn[:, 0] * neighbors.shape[1]).astype(np.int64)
        share = array_to_device(spec.mix * drawn[:, 1:], rows.device)
        other = neighbors[torch.arange(len(rows), device=rows.device), array_to_device(chosen, rows.device)]
        changed = F.normalize((1 - share) * changed + share * other, dim=1)
    width = rows.shape[1]
    if spec.noise:
        noise = rng.normal(view, "row-noise", width, rows.device)
        changed = changed + spec.noise / width**0.5 * noise
    if spec.dropout:
        # uses normal numbers because they are drawn on the device: P(|x| < t) = dropout
        limit = 2**0.5 * float(torch.erfinv(torch.tensor(spec.dropout, dtype=torch.float64)))
        drop = rng.normal(view, "row-dropout", width, rows.device).abs() < limit
        changed = changed.masked_fill(drop, 0.0)
    return F.normalize(changed, dim=1)
