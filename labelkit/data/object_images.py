"""Images with annotated objects for training and applying detectors, and COCO's official scores.

Only this module uses pycocotools, which converts outlines to masks and scores detections.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labelkit.data.datasets import ImageDataset, ImageObjects, ImageSource
from labelkit.data.decode import BadImageError, Channels
from labelkit.data.workers import PlanBatchSampler, build_loader, iter_items
from labelkit.errors import ConfigError, DatasetError

BOXES_REMEDY: Final = "Choose a dataset with boxes: coco_2017, or a folder with annotations/instances_*.json."


@dataclass(frozen=True, slots=True, eq=False)
class ExamplePlan:
    """Instructions for reading one image with its annotated objects in a worker process.

    Attributes:
        row: row of the dataset.
        name: name of the image, for messages.
        size: height and width according to its annotation; 0 = not stated.
        objects: the objects to train on; ``None`` to read only the image.
        mirror: whether to flip the image horizontally.
        masks: whether to convert outlines to masks.
    """

    row: int
    name: str
    size: tuple[int, int]
    objects: ImageObjects | None = None
    mirror: bool = False
    masks: bool = False

    @classmethod
    def for_image(cls, dataset: ImageDataset, row: int, **options: Any) -> ExamplePlan:
        """Create the plan for reading one image of a dataset with bounding boxes."""
        assert dataset.objects is not None
        sample_id = dataset.sample_ids[row]
        name = sample_id if dataset.root is None else str(dataset.root / sample_id)
        height, width = (int(side) for side in dataset.objects.sizes[row])
        return cls(row, name, (height, width), **options)


Example = tuple[Tensor, dict[str, Tensor]]
"""Image (c, h, w) uint8, with ``boxes`` (m, 4) float32, ``labels`` (m,) int64 from 1, optional ``masks`` (m, h, w)."""


def read_example(source: ImageSource, channels: Channels, plan: ExamplePlan) -> Example:
    """Read an image and its detection targets.

    Raises:
        DatasetError: the image cannot be read, differs in size from its annotation, or has an invalid outline.
    """
    try:
        pixels = source.read(plan.row).decode(channels)
    except BadImageError as bad:
        raise DatasetError(plan.name, bad.reason, "Repair the image, or remove it.") from bad
    height, width = pixels.shape[:2]
    if plan.size[0] and plan.size != (height, width):
        problem = f"the image has {width} x {height} pixels, but its annotation says {plan.size[1]} x {plan.size[0]}"
        remedy = "Check whether the image was resized or rotated, since boxes are in pixel coordinates."
        raise DatasetError(plan.name, problem, remedy)
    step = -1 if plan.mirror else 1
    image = torch.from_numpy(np.ascontiguousarray(pixels[:, ::step].transpose(2, 0, 1)))
    if plan.objects is None:
        return image, {}
    boxes = plan.objects.boxes
    if plan.mirror:
        boxes = np.stack([width - boxes[:, 2], boxes[:, 1], width - boxes[:, 0], boxes[:, 3]], axis=1)
    labels = torch.from_numpy(plan.objects.labels + 1)
    target = {"boxes": torch.from_numpy(boxes.astype(np.float32)), "labels": labels}
    if plan.masks:
        try:
            outlined = rasterize_outlines(plan.objects.outlines or (), height, width)
        except ValueError as error:
            raise DatasetError(plan.name, str(error), "Correct its annotation, or remove the image.") from error
        target["masks"] = torch.from_numpy(np.ascontiguousarray(outlined[:, :, ::step]))
    return image, target


def read_examples(dataset: ImageDataset, plans: Iterator[ExamplePlan], num_workers: int) -> Iterator[Example]:
    """Read the planned examples in worker processes or one thread, and yield them in order.

    Raises:
        DatasetError: see ``read_example``.
        ResourceError: a worker process died, or could not send its result.
    """
    read = partial(read_example, dataset.source, dataset.in_channels)
    return iter_items(build_loader(read, PlanBatchSampler(plans), num_workers))


SCORES: Final = ("ap", "ap50", "ap75", "ap_small", "ap_medium", "ap_large")
"""The first scores in COCO's list: AP over IoU .5 to .95, at .5, at .75, and for small, medium and large objects."""

Encoded = dict[str, Any]
"""A mask encoded as run lengths."""


def require_pycocotools() -> None:
    """Raise an error if pycocotools is not installed.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        import pycocotools.mask  # noqa: F401
    except ImportError as error:
        raise ConfigError("evaluate detection", "requires pycocotools", "Run `pip install pycocotools`.") from error


def rasterize_outlines(outlines: Sequence[Any], height: int, width: int) -> NDArray[np.uint8]:
    """Convert object outlines in COCO format, polygons or run lengths, to binary masks (m, h, w) uint8, 1 inside.

    Raises:
        ValueError: an outline is invalid.
    """
    from pycocotools import mask

    if not outlines:
        return np.zeros((0, height, width), dtype=np.uint8)
    return np.stack([mask.decode(encode_outline(outline, height, width)) for outline in outlines])


def encode_outline(outline: Any, height: int, width: int) -> Encoded:
    """Convert an outline in COCO format to compressed run lengths.

    Raises:
        ValueError: it is not an outline, or its size differs from that of the image.
    """
    from pycocotools import mask

    if isinstance(outline, list):
        parts = [part for part in outline if _is_polygon(part)]
        if not parts or len(parts) < len(outline):
            raise ValueError("segmentation must be a list of polygons with at least three points")
        return dict(mask.merge(mask.frPyObjects(parts, height, width)))
    if not isinstance(outline, dict) or outline.get("size") != [height, width]:
        raise ValueError(f"segmentation must be polygons, or run lengths for {height} rows and {width} columns")
    counts = outline.get("counts")
    if isinstance(counts, list) and all(type(count) is int and count >= 0 for count in counts):
        if sum(counts) != height * width:
            raise ValueError(f"run lengths must sum to {height * width}, got {sum(counts)}")
        return dict(mask.frPyObjects(outline, height, width))
    if not isinstance(counts, str):
        raise ValueError("run lengths must be a list of integers or a string")
    return {"size": [height, width], "counts": counts}


def _is_polygon(part: object) -> bool:
    return (
        isinstance(part, list)
        and len(part) >= 6
        and len(part) % 2 == 0
        and all(type(number) in (int, float) for number in part)
    )


def encode_mask(pixels: NDArray[np.bool_]) -> Encoded:
    """Encode a mask (h, w) as compressed run lengths."""
    from pycocotools import mask

    return dict(mask.encode(np.asfortranarray(pixels.astype(np.uint8))))


def compute_coco_scores(
    truth: Sequence[Mapping[str, Any]],
    detections: Sequence[Mapping[str, Any]],
    *,
    num_images: int,
    num_classes: int,
    masks: bool,
) -> tuple[dict[str, float], NDArray[np.float64]]:
    """Score detections with the official COCO evaluation code.

    Args:
        truth: ``image``, ``label``, ``box`` (left, top, right, bottom), ``area`` and ``ignored`` of each ground-truth
            object, and for masks its run lengths as ``mask``.
        detections: ``image``, ``label``, ``box`` and ``score`` of each detection, and for masks ``mask``.
        num_images: number of images n, which are numbered from 0.
        num_classes: number of classes c, which are numbered from 0.
        masks: whether to compare masks instead of boxes.

    Returns:
        The ``SCORES``, each in [0, 1], or NaN without ground-truth objects; and likewise the AP (c,) of each class.
    """
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    images: list[dict[str, int]] = [{"id": number} for number in range(num_images)]
    for entry in (*truth, *detections) if masks else ():  # pycocotools needs the sizes of images to compare masks
        images[entry["image"]]["height"], images[entry["image"]]["width"] = entry["mask"]["size"]
    categories = [{"id": number} for number in range(num_classes)]
    with contextlib.redirect_stdout(io.StringIO()):  # hides the output of pycocotools
        true, detected = COCO(), COCO()
        for table, entries in ((true, truth), (detected, detections)):
            # object numbers start at 1, because 0 means no match in pycocotools
            annotations = [_annotation(number, entry, masks) for number, entry in enumerate(entries, start=1)]
            table.dataset = {"images": images, "categories": categories, "annotations": annotations}
            table.createIndex()
        scorer = COCOeval(true, detected, "segm" if masks else "bbox")
        scorer.evaluate()
        scorer.accumulate()
        scorer.summarize()
    numbers = [float(value) if value >= 0 else float("nan") for value in scorer.stats[: len(SCORES)]]
    precision = scorer.eval["precision"][..., 0, -1]  # IoU, recall, class
    known = precision > -1
    total = np.where(known, precision, 0).sum(axis=(0, 1))
    count = known.sum(axis=(0, 1))
    per_class = np.divide(total, count, out=np.full(num_classes, np.nan), where=count > 0)
    return dict(zip(SCORES, numbers, strict=True)), per_class


def _annotation(number: int, entry: Mapping[str, Any], masks: bool) -> dict[str, Any]:
    left, top, right, bottom = (float(side) for side in entry["box"])
    width, height = right - left, bottom - top
    annotation: dict[str, Any] = {
        "id": number,
        "image_id": int(entry["image"]),
        "category_id": int(entry["label"]),
        "bbox": [left, top, width, height],
        "iscrowd": int(entry.get("ignored", False)),
        "area": float(entry["area"]) if "area" in entry else width * height,
    }
    if "score" in entry:
        annotation["score"] = float(entry["score"])
    if masks:
        from pycocotools import mask

        annotation["segmentation"] = entry["mask"]
        if "area" not in entry:
            annotation["area"] = float(mask.area(entry["mask"]))
    return annotation
