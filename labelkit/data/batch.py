"""What a method is given: a batch of views, and the facts about the data set it comes from.

Truth of unlabeled images is not part of either, so that no method can look at it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labelkit.data.sending import send


@dataclass(frozen=True, slots=True)
class ViewGeometry:
    """Where each pixel of a view comes from.

    ``matrices``: (b, 2, 3) float32, the affine map from normalized coordinates of the view
    (x, y in [-1, 1], pixel centers as in ``grid_sample(align_corners=False)``) to normalized
    coordinates of the oriented original image; flips and rotations included. Of a view that follows another it is
    (b, 3, 3), a homography. ``host``: the same on the CPU, for choices that must not wait for a GPU.
    """

    matrices: Tensor
    host: NDArray[np.float32] | None = None

    @property
    def on_host(self) -> Tensor:
        """The matrices on the CPU."""
        return self.matrices.cpu() if self.host is None else torch.from_numpy(self.host)


@dataclass(frozen=True, slots=True)
class HostBatch:
    """Labels and rows of a batch on the CPU, where they come from.

    Attributes:
        labels: (b,) int64, as in the batch.
        sample_index: (b,) int64, likewise.
    """

    labels: NDArray[np.int64]
    sample_index: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Batch:
    """A few samples, each in one or more views.

    Attributes:
        views: one (b, c, h, w) float32 tensor per view, normalized by the backbone's mean and std.
        labels: (b,) int64, training class in ``[0, num_old_classes)``, -1 = unlabeled.
        sample_index: (b,) int64, row of the data set.
        geometry: one entry per view.
        links: (b,) int64 where second views may show another image: the match used, -1 = the image itself.
        host: what the CPU knows of it.
    """

    views: tuple[Tensor, ...]
    labels: Tensor
    sample_index: Tensor
    geometry: tuple[ViewGeometry, ...]
    links: Tensor | None = None
    host: HostBatch | None = None

    @property
    def on_host(self) -> HostBatch:
        """Labels and rows on the CPU; those that the loader made need no copy, for which a GPU would be waited for."""
        if self.host is not None:
            return self.host
        return HostBatch(self.labels.cpu().numpy(), self.sample_index.cpu().numpy())

    def places(self, chosen: NDArray[np.bool_]) -> Tensor:
        """Return where a mask of the host is true, (m,) int64 on the device of the batch."""
        return send(np.flatnonzero(chosen), self.labels.device)

    @property
    def images(self) -> Tensor:
        """The first view, (b, c, h, w); all there is for methods with one view."""
        return self.views[0]


@dataclass(frozen=True, slots=True)
class DataInfo:
    """What a method may know about the training set when it is built.

    Attributes:
        num_samples: rows of the data set, n.
        labels: (n,) int64, training class, -1 = unlabeled. Training class i is class
            ``class_order[i]`` of the data set; old classes come first.
        class_names: names of the data set's classes, in data set order; may be empty.
        class_order: data set class of each training class; old classes first.
        num_old_classes: classes with labeled samples.
        num_known_classes: classes of the data set if they are known, else ``None``.
        in_channels: 1 or 3.
        image_size: height and width of a view, in pixels.
        chiral: mirrored images mean something else (digits, text), so no horizontal flip.
        photographic: color augmentation makes sense.
        num_objects: rows of images of one object, which come first; the others are scenes. ``None`` = all.
        row_dim: numbers in a row of the store that is trained on; ``None``: images are.
        num_row_views: views that the store keeps of each image, where these are trained on; else 0.
        row_center: (row_dim,) float32 mean of these rows, each brought to length 1; ``None`` where a checkpoint has it.
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


def check_rank(rank: int, world_size: int) -> None:
    """Refuse a number of a process that does not exist.

    Raises:
        ValueError: it is not in ``[0, world_size)``.
    """
    if not 0 <= rank < world_size:
        raise ValueError(f"rank {rank} of {world_size} processes")
