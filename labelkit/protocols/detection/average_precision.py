"""Average precision of boxes as PASCAL VOC defines it; COCO's is in `labelkit.data.object_images`.

Source: M. Everingham et al., "The PASCAL Visual Object Classes Challenge" (IJCV 2010), Sec. 4.2, and the development
kits: VOC 2007 averages the precision at 11 recalls, later years take the area under the curve.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_IOU = 0.5


@dataclass(frozen=True, eq=False)
class Boxes:
    """Ground-truth or detected boxes of one class in all images.

    Attributes:
        images: (m,) int64 image of each.
        boxes: (m, 4) float64 left, top, right, bottom.
        ignored: (m,) bool: difficult, of true boxes.
        scores: (m,) float64, of detections.
    """

    images: NDArray[np.int64]
    boxes: NDArray[np.float64]
    ignored: NDArray[np.bool_]
    scores: NDArray[np.float64]


def voc_hits(truth: Boxes, found: Boxes) -> tuple[NDArray[np.bool_], int]:
    """Match detections to ground-truth boxes, most confident first.

    Each detection belongs to the true box of its image that it overlaps most. It is right where the IoU is 0.5 or more
    and no surer one has that box; one that belongs to a difficult box counts for nothing.

    Returns:
        (k,) whether each detection that counts is right, the surest first; and the number of boxes to be found.
    """
    order = np.argsort(-found.scores, kind="stable")
    taken = np.zeros(len(truth.images), dtype=bool)
    places = {image: np.flatnonzero(truth.images == image) for image in np.unique(truth.images)}
    hits: list[bool] = []
    for detection in order:
        candidates = places.get(found.images[detection], np.zeros(0, dtype=np.int64))
        overlaps = iou(found.boxes[detection], truth.boxes[candidates])
        if not len(overlaps) or overlaps.max() < _IOU:
            hits.append(False)
            continue
        best = candidates[int(overlaps.argmax())]
        if truth.ignored[best]:
            continue
        hits.append(not taken[best])
        taken[best] = True
    return np.array(hits, dtype=bool), int((~truth.ignored).sum())


def iou(box: NDArray[np.float64], others: NDArray[np.float64]) -> NDArray[np.float64]:
    """Compute the intersection over union of one box (4,) with other boxes (m, 4)."""
    sides = np.minimum(box[2:], others[:, 2:]) - np.maximum(box[:2], others[:, :2])
    shared = np.prod(sides.clip(min=0), axis=1)
    joined = np.prod(box[2:] - box[:2]) + np.prod(others[:, 2:] - others[:, :2], axis=1) - shared
    overlaps: NDArray[np.float64] = np.divide(shared, joined, out=np.zeros_like(shared), where=joined > 0)
    return overlaps


def average_precision(hits: NDArray[np.bool_], wanted: int, *, eleven_points: bool) -> float:
    r"""Compute the average precision of ranked detections by the rule of VOC 2007 or of later years.

    .. math:: AP_{11} = \frac{1}{11} \sum_{r \in \{0, 0.1, \dots, 1\}} \max_{r' \ge r} p(r'),
              \quad AP = \int_0^1 \max_{r' \ge r} p(r') \, dr

    In [0, 1]; 1 where all boxes are found before anything else; NaN where there are none.

    Args:
        hits: (k,) whether each detection is right, the surest first.
        wanted: boxes to be found.
        eleven_points: the first of the two, as in 2007.
    """
    if not wanted:
        return float("nan")
    right = np.cumsum(hits)
    recall = right / wanted
    precision = right / np.arange(1, len(hits) + 1)
    best = np.maximum.accumulate(precision[::-1])[::-1]
    if eleven_points:
        # 3 of 10 boxes are a recall of 0.3, whatever the last bits say
        reached = [best[recall >= point - 1e-12] for point in np.linspace(0, 1, 11)]
        return float(np.mean([part[0] if len(part) else 0.0 for part in reached]))
    return float(np.sum(np.diff(recall, prepend=0.0) * best))


def voc_scores(truth: Sequence[Boxes], found: Sequence[Boxes]) -> tuple[dict[str, float], NDArray[np.float64]]:
    """Compute the mean AP over classes by both VOC rules, and the (c,) AP of each class by all points.

    Classes without a box that must be found are left out of the means; all NaN without any.

    Args:
        truth: c classes.
        found: c classes.
    """
    values = np.array(
        [
            [average_precision(*voc_hits(true, detected), eleven_points=rule) for rule in (True, False)]
            for true, detected in zip(truth, found, strict=True)
        ]
    )
    known = np.isfinite(values[:, 0])
    means = values[known].mean(axis=0) if known.any() else np.full(2, np.nan)
    return {"ap50_11_point": float(means[0]), "ap50": float(means[1])}, values[:, 1]
