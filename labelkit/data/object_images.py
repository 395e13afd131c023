"""Images together with the objects in them, as detectors learn and see them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labelkit.data.coco_tools import rasterize
from labelkit.data.datasets import ImageDataset, ImageSource
from labelkit.data.decode import BadImage, Channels
from labelkit.data.objects import Objects
from labelkit.data.workers import Plans, loader_of, received
from labelkit.errors import DatasetError

HAVE_BOXES: Final = "Choose a set that has them: coco_2017, voc_2007, or a folder with annotations/instances_*.json."


@dataclass(frozen=True, slots=True, eq=False)
class ExamplePlan:
    """What is to be read: all that a worker needs travels with it.

    Attributes:
        row: of the data set.
        name: of the image, for messages.
        size: height and width that its annotation says; 0 = not said.
        objects: what of it is to be learned; ``None``: the image alone is wanted.
        mirror: left becomes right.
        masks: outlines become masks.
    """

    row: int
    name: str
    size: tuple[int, int]
    objects: Objects | None = None
    mirror: bool = False
    masks: bool = False

    @classmethod
    def of(cls, dataset: ImageDataset, row: int, **options: Any) -> ExamplePlan:
        """Plan to read a row of a set that has boxes."""
        assert dataset.objects is not None
        sample_id = dataset.sample_ids[row]
        name = sample_id if dataset.root is None else str(dataset.root / sample_id)
        height, width = (int(side) for side in dataset.objects.sizes[row])
        return cls(row, name, (height, width), **options)

    def check(self, height: int, width: int) -> None:
        """Compare an image with its annotation.

        Raises:
            DatasetError: it is not as large as that says.
        """
        if self.size[0] and self.size != (height, width):
            raise DatasetError(
                self.name,
                f"the image has {width} x {height} pixels, its annotation says {self.size[1]} x {self.size[0]}",
                "Boxes are in pixels of their image; was it resized or turned?",
            )


@dataclass(slots=True, eq=False)
class Example:
    """What a worker returns.

    Attributes:
        image: (c, h, w) uint8.
        target: ``boxes`` (m, 4) float32, ``labels`` (m,) int64 from 1 on, and perhaps ``masks`` (m, h, w) uint8.
    """

    image: Tensor
    target: dict[str, Tensor]


def check_sizes(dataset: ImageDataset, rows: Iterable[int], advance: Callable[[], None]) -> None:
    """Compare the headers of images with their annotations, before work that takes hours.

    Args:
        dataset: with boxes.
        rows: which images.
        advance: called after each image.

    Raises:
        DatasetError: an image cannot be read, or is not as large as its annotation says.
    """
    for row in rows:
        plan = ExamplePlan.of(dataset, row)
        try:
            height, width = dataset.source.read(row).full_size()
        except BadImage as bad:
            raise DatasetError(plan.name, bad.reason, "Repair it or take it out of the set.") from bad
        plan.check(height, width)
        advance()


def read_example(source: ImageSource, channels: Channels, plan: ExamplePlan) -> Example:
    """Read an image and what is to be learned of it.

    Raises:
        DatasetError: the image cannot be read, is not as large as its annotation says, or has an outline that is none.
    """
    try:
        pixels = source.read(plan.row).decode(channels)
    except BadImage as bad:
        raise DatasetError(plan.name, bad.reason, "Repair it or take it out of the set.") from bad
    height, width = pixels.shape[:2]
    plan.check(height, width)
    step = -1 if plan.mirror else 1
    image = torch.from_numpy(np.ascontiguousarray(pixels[:, ::step].transpose(2, 0, 1)))
    if plan.objects is None:
        return Example(image, {})
    boxes = plan.objects.boxes
    if plan.mirror:
        boxes = np.stack([width - boxes[:, 2], boxes[:, 1], width - boxes[:, 0], boxes[:, 3]], axis=1)
    target = {
        "boxes": torch.from_numpy(boxes.astype(np.float32)),
        "labels": torch.from_numpy(plan.objects.labels + 1),
    }
    if plan.masks:
        outlined = outline_masks(plan.name, plan.objects, height, width)
        target["masks"] = torch.from_numpy(np.ascontiguousarray(outlined[:, :, ::step]))
    return Example(image, target)


def outline_masks(name: str, objects: Objects, height: int, width: int) -> NDArray[np.uint8]:
    """Return the (m, h, w) masks of the objects of an image.

    Raises:
        DatasetError: an outline cannot be read.
    """
    try:
        return rasterize(objects.outlines or (), height, width)
    except ValueError as error:
        raise DatasetError(name, str(error), "Mend its annotation, or take it out.") from error


def read_examples(dataset: ImageDataset, plans: Iterator[ExamplePlan], num_workers: int) -> Iterator[Example]:
    """Yield what was planned, in its order, read by worker processes or one thread.

    Raises:
        DatasetError: see ``read_example``.
        ResourceError: a worker ended, or could not send what it read.
    """
    read = partial(read_example, dataset.source, dataset.in_channels)
    return received(loader_of(read, Plans(plans), num_workers))
