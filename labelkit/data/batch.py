"""Inputs to a method: batches of image views, mixup, and information about the training set.

Neither contains the true classes of unlabeled images, so no method can use them. A copy from ordinary memory waits for
all pending GPU work, dozens of times per step. `move_arrays_to_device` thus packs its arrays into one block of pinned
memory, which is copied asynchronously; torch keeps the block alive until then.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labelkit.errors import ConfigError, DatasetError


@dataclass(frozen=True, slots=True)
class ViewGeometry:
    """Affine maps or homographies from the coordinates of each view to those of its source image.

    ``matrices``: (b, 2, 3) float32, the affine map from normalized coordinates of the view
    (x, y in [-1, 1], pixel centers as in ``grid_sample(align_corners=False)``) to normalized
    coordinates of the oriented original image; flips and rotations included. For a view made from another view it is
    (b, 3, 3), a homography. ``host``: a copy on the CPU, for decisions that must not wait for a GPU.
    """

    matrices: Tensor
    host: NDArray[np.float32] | None = None

    @property
    def on_host(self) -> Tensor:
        """Return the matrices of the views as a CPU tensor."""
        return self.matrices.cpu() if self.host is None else torch.from_numpy(self.host)


@dataclass(frozen=True, slots=True)
class HostBatch:
    """Labels and sample indices of a batch, copied to CPU memory.

    Attributes:
        labels: (b,) int64, as in the batch.
        sample_index: (b,) int64, as in the batch.
    """

    labels: NDArray[np.int64]
    sample_index: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Batch:
    """Batch of images in one or more views, with their labels and sample indices.

    Attributes:
        views: one (b, c, h, w) float32 tensor per view, normalized by the backbone's mean and std.
        labels: (b,) int64, training class in ``[0, num_old_classes)``, -1 = unlabeled.
        sample_index: (b,) int64, row of the dataset.
        geometry: one entry per view.
        links: (b,) int64 if second views may show another image: index of the match, -1 = the image itself.
        host: copy of labels and indices on the CPU, if the loader made one.
    """

    views: tuple[Tensor, ...]
    labels: Tensor
    sample_index: Tensor
    geometry: tuple[ViewGeometry, ...]
    links: Tensor | None = None
    host: HostBatch | None = None

    @property
    def on_host(self) -> HostBatch:
        """Return the labels and sample indices in CPU memory; this avoids a GPU transfer if the loader kept a copy."""
        if self.host is not None:
            return self.host
        return HostBatch(self.labels.cpu().numpy(), self.sample_index.cpu().numpy())

    def indices_where(self, mask: NDArray[np.bool_]) -> Tensor:
        """Return the indices (m,) int64 of the true entries of a CPU mask, on the device of the batch."""
        return array_to_device(np.flatnonzero(mask), self.labels.device)

    @property
    def images(self) -> Tensor:
        """Return the first view (b, c, h, w) of the images, the only one for single-view methods."""
        return self.views[0]


@dataclass(frozen=True, slots=True)
class DataInfo:
    """Properties of the training set that a method receives at construction.

    Attributes:
        num_samples: number of rows of the dataset, n.
        labels: (n,) int64, training class, -1 = unlabeled. Training class i is class
            ``class_order[i]`` of the dataset; old classes come first.
        class_names: names of the dataset's classes, in dataset order; may be empty.
        class_order: dataset class of each training class; old classes first.
        num_old_classes: number of classes with labeled samples.
        num_known_classes: number of classes of the dataset if known, else ``None``.
        in_channels: 1 or 3.
        image_size: height and width of a view, in pixels.
        chiral: whether mirroring changes the meaning of an image (digits, text), which rules out horizontal flips.
        photographic: whether color augmentation makes sense.
        num_objects: number of object-centric images, which precede the scenes; ``None`` = all.
        row_dim: dimension of the embeddings if training uses a store; ``None`` if it uses images.
        num_row_views: number of stored views per image if training uses them, else 0.
        row_center: (row_dim,) float32 mean of the embeddings, scaled to length 1; ``None`` if a checkpoint has it.
    """

    num_samples: int
    labels: NDArray[np.int64]
    class_names: tuple[str, ...]
    class_order: tuple[int, ...]
    num_old_classes: int
    num_known_classes: int | None
    in_channels: int
    image_size: int
    chiral: bool = False
    photographic: bool = True
    num_objects: int | None = None
    row_dim: int | None = None
    num_row_views: int = 0
    row_center: NDArray[np.float32] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the JSON values that a run saves."""
        return {key: value for key, value in asdict(self).items() if key not in ("labels", "row_center")}

    @classmethod
    def from_json(cls, saved: Mapping[str, Any], num_labeled: int) -> Self:
        """Restore what a run saved, with ``num_labeled`` placeholder labels, evenly divided among the classes."""
        labels = np.full(saved["num_samples"], -1, dtype=np.int64)
        labels[:num_labeled] = np.arange(num_labeled) % max(1, saved["num_old_classes"])
        names = {key: tuple(saved[key]) for key in ("class_names", "class_order")}
        return cls(**{**saved, **names, "labels": labels})

    def determine_num_classes(self, dataset: str, requested: int | None) -> int:
        """Return the number of classes of the classifier: ``requested`` if set, otherwise that of the dataset.

        Raises:
            DatasetError: no image has a usable label, or there is only one class.
            ConfigError: ``requested`` is less than the number of labeled classes.
        """
        if not (self.labels >= 0).any():
            problem = "no image has a label that training may use"
            raise DatasetError(dataset, problem, "Pass labels with --labels FILE, or use a dataset with labels.")
        num_classes = requested or self.num_known_classes or self.num_old_classes
        if num_classes < 2:
            raise DatasetError(dataset, "has only one class", "Use at least two classes.")
        if num_classes < self.num_old_classes:
            problem = f"{num_classes} is less than {self.num_old_classes}, the number of labeled classes"
            raise ConfigError("--num-classes", problem, "Raise --num-classes.")
        return num_classes


_ALIGNED: Final = 64  # bytes, an alignment that suits any type


def array_to_device(values: NDArray[Any], device: torch.device) -> Tensor:
    """Move a numpy array to a device as a tensor, sharing memory if the device is the CPU."""
    return move_arrays_to_device((values,), device)[0]


def move_arrays_to_device(arrays: Sequence[NDArray[Any]], device: torch.device) -> list[Tensor]:
    """Move several arrays to a device in one transfer, sharing memory if the device is the CPU."""
    tensors = [torch.from_numpy(np.ascontiguousarray(values)) for values in arrays]
    if device.type == "cpu":
        return tensors
    sizes = [tensor.numel() * tensor.element_size() for tensor in tensors]
    starts = np.cumsum([0, *(-(-size // _ALIGNED) * _ALIGNED for size in sizes)]).tolist()
    parcel = torch.empty(starts[-1], dtype=torch.uint8, pin_memory=device.type == "cuda")
    for tensor, start, size in zip(tensors, starts, sizes, strict=False):
        parcel[start : start + size] = tensor.reshape(-1).view(torch.uint8)
    on_device = parcel.to(device, non_blocking=True)
    return [
        on_device[start : start + size].view(tensor.dtype).view(tensor.shape)
        for tensor, start, size in zip(tensors, starts, sizes, strict=False)
    ]


def move_tensor_to_device(values: Tensor, device: torch.device) -> Tensor:
    """Move a CPU tensor to a device, or return the same tensor if the device is the CPU."""
    if device.type == "cpu":
        return values
    return (values.pin_memory() if device.type == "cuda" else values).to(device, non_blocking=True)


@dataclass(frozen=True, slots=True)
class MixedBatch:
    """Batch of images blended by mixup, each with two labels.

    Attributes:
        images: (b, c, h, w).
        labels: (b,) int64, the first label.
        other_labels: (b,) int64, the second one.
        share: weight of the first label, in [0, 1]; 1 if nothing was mixed.
    """

    images: Tensor
    labels: Tensor
    other_labels: Tensor
    share: float


def mixup(batch: Batch, alpha: float, generator: np.random.Generator) -> MixedBatch:
    """Blend the first view of each image with that of another image in the batch (mixup).

    The mixing weight is drawn once per batch from Beta(``alpha``, ``alpha``); ``alpha`` 0 mixes nothing. The generator
    has the same state in every process, so that all use the same weight.
    """
    images, labels = batch.images, batch.labels
    if alpha == 0:
        return MixedBatch(images, labels, labels, 1.0)
    share = float(generator.beta(alpha, alpha))
    partner = array_to_device(generator.permutation(len(images)), images.device)
    return MixedBatch(torch.lerp(images[partner], images, share), labels, labels[partner], share)


@dataclass(frozen=True, slots=True)
class BlendingPlan:
    """Blending partners and weights for the rows of a batch, as used by MixMatch.

    Attributes:
        shares: (m,) float32 in [0.5, 1], weight of each row itself.
        partners: (m,) int64, a permutation.
    """

    shares: Tensor
    partners: Tensor

    def blend(self, values: Tensor) -> Tensor:
        """Blend each of the m rows (m, ...) with its partner: ``share * value + (1 - share) * partner``."""
        shares = self.shares.reshape(-1, *[1] * (values.ndim - 1)).to(values.dtype)
        return torch.lerp(values[self.partners], values, shares)


def draw_blending_plan(count: int, alpha: float, generator: np.random.Generator, device: torch.device) -> BlendingPlan:
    """Draw a blending partner and weight for each of ``count`` rows; the row itself gets the larger weight.

    The weights are drawn from Beta(``alpha``, ``alpha``), ``alpha`` > 0 (MixMatch, Eq. 8 and 9).
    """
    drawn = generator.beta(alpha, alpha, count)
    shares = np.maximum(drawn, 1 - drawn).astype(np.float32)
    partners = generator.permutation(count)
    return BlendingPlan(*move_arrays_to_device((shares, partners), device))
