"""Average precision of boxes as PASCAL VOC defines it; COCO's is in `labelkit.data.object_images`.

Source: M. Everingham et al., "The PASCAL Visual Object Classes Challenge" (IJCV 2010), Sec. 4.2, and the development
kits: VOC 2007 averages the precision at 11 recalls, later years take the area under the curve.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

_IOU = 0.5


# ``image`` and ``label`` by number, ``box`` (4,) left, top, right, bottom; of true boxes ``ignored`` (difficult), of
# detections ``score``.
Entry = Mapping[str, Any]


def voc_hits(truth: Sequence[Entry], found: Sequence[Entry]) -> tuple[NDArray[np.bool_], int]:
    """Match detections to ground-truth boxes, most confident first.

    Each detection belongs to the true box of its image that it overlaps most. It is right where the IoU is 0.5 or more
    and no surer one has that box; one that belongs to a difficult box counts for nothing.

    Args:
        truth: the true boxes of one class in all images.
        found: the detections of this class.

    Returns:
        (k,) whether each detection that counts is right, the surest first; and the number of boxes to be found.
    """
    places: dict[int, list[int]] = {}
    for place, entry in enumerate(truth):
        places.setdefault(entry["image"], []).append(place)
    boxes = np.array([entry["box"] for entry in truth], dtype=np.float64).reshape(-1, 4)
    taken: set[int] = set()
    hits: list[bool] = []
    for detection in sorted(found, key=lambda entry: -entry["score"]):
        candidates = places.get(detection["image"], [])
        overlaps = iou(np.asarray(detection["box"], dtype=np.float64), boxes[candidates])
        if not len(overlaps) or overlaps.max() < _IOU:
            hits.append(False)
            continue
        best = candidates[int(overlaps.argmax())]
        if truth[best]["ignored"]:
            continue
        hits.append(best not in taken)
        taken.add(best)
    return np.array(hits, dtype=bool), sum(not entry["ignored"] for entry in truth)


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


def voc_scores(
    truth: Sequence[Entry], found: Sequence[Entry], num_classes: int
) -> tuple[dict[str, float], NDArray[np.float64]]:
    """Compute the mean AP over classes by both VOC rules, and the (c,) AP of each class by all points.

    Classes without a box that must be found are left out of the means; all NaN without any.

    Args:
        truth: true boxes of all classes.
        found: detections.
        num_classes: c.
    """
    values = np.empty((num_classes, 2))
    for label in range(num_classes):
        hits = voc_hits(*([entry for entry in side if entry["label"] == label] for side in (truth, found)))
        values[label] = [average_precision(*hits, eleven_points=rule) for rule in (True, False)]
    known = np.isfinite(values[:, 0])
    means = values[known].mean(axis=0) if known.any() else np.full(2, np.nan)
    return {"ap50_11_point": float(means[0]), "ap50": float(means[1])}, values[:, 1]
