"""Segmentation metrics: IoU from a confusion matrix, and region and boundary scores (J and F) of objects.

Sources: M. Everingham et al., "The Pascal Visual Object Classes Challenge" (2010) for IoU; F. Perazzi et al., "A
Benchmark Dataset and Evaluation Methodology for Video Object Segmentation" (CVPR 2016) for J and F.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labelkit.algorithms.matching import cross_tabulate

IGNORE = 255
BOUNDARY_TOLERANCE = 0.008
"""Maximum distance between matching boundaries, as a share of the image diagonal."""


@dataclass(frozen=True, slots=True)
class SegmentationScores:
    """Segmentation scores computed from a confusion matrix, all in [0, 1].

    Attributes:
        iou: (c,) float64, intersection over union of each class; NaN for classes in neither truth nor prediction.
        mean_iou: mean of ``iou``, ignoring NaN.
        pixel_accuracy: share of pixels with the correct class.
        class_accuracy: (c,) float64, share of correct pixels of each class; NaN for classes without pixels.
        pixels: number of pixels counted.
    """

    iou: NDArray[np.float64]
    mean_iou: float
    pixel_accuracy: float
    class_accuracy: NDArray[np.float64]
    pixels: int


class SegmentationCounts:
    """Confusion matrix of pixels, accumulated over segmentation masks.

    Args:
        num_classes: c, from 1 to 255.

    Attributes:
        counts: (c, c) int64, row = true class, column = predicted class.

    Raises:
        ValueError: num_classes is out of range.
    """

    def __init__(self, num_classes: int) -> None:
        if not 1 <= num_classes <= IGNORE:
            raise ValueError(f"num_classes must be from 1 to {IGNORE}, got {num_classes}")
        self.num_classes = num_classes
        self.counts = np.zeros((num_classes, num_classes), dtype=np.int64)

    def add(self, predictions: ArrayLike, labels: ArrayLike) -> None:
        """Add the pixels of one or several masks to the confusion matrix.

        Args:
            predictions: integers in [0, c), of any shape.
            labels: integers in [0, c) of the same shape; pixels labeled 255 are ignored.

        Raises:
            ValueError: shapes differ, or a class is out of range.
        """
        predicted, true = np.asarray(predictions), np.asarray(labels)
        if predicted.shape != true.shape:
            raise ValueError(f"predictions have shape {predicted.shape}, but labels have {true.shape}")
        seen = true != IGNORE
        predicted, true = predicted[seen], true[seen]
        if true.size:
            self.counts += cross_tabulate(true, predicted, num_clusters=self.num_classes, num_classes=self.num_classes)

    def scores(self) -> SegmentationScores:
        """Compute the scores of all masks added so far.

        Raises:
            ValueError: no pixels were added.
        """
        total = int(self.counts.sum())
        if not total:
            raise ValueError("no pixels have been added")
        iou = iou_matrix(self.counts).diagonal().copy()
        per_class = self.counts.sum(axis=1)
        right = self.counts.diagonal()
        class_accuracy = np.divide(right, per_class, out=np.full(len(right), np.nan), where=per_class > 0)
        return SegmentationScores(iou, float(np.nanmean(iou)), float(right.sum() / total), class_accuracy, total)


def iou_matrix(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Compute the IoU of each of k groups with each of c groups from counts (k, c); NaN if both are empty."""
    union = counts.sum(axis=1, keepdims=True) + counts.sum(axis=0, keepdims=True) - counts
    return np.divide(counts, union, out=np.full(counts.shape, np.nan), where=union > 0)


def region_similarity(prediction: ArrayLike, truth: ArrayLike) -> float:
    """Compute the IoU, in [0, 1], of two (h, w) bool masks (J of DAVIS); 1 if both are empty.

    Raises:
        ValueError: shapes differ.
    """
    found, true = _two_masks(prediction, truth)
    union = int((found | true).sum())
    return int((found & true).sum()) / union if union else 1.0


def boundary_accuracy(prediction: ArrayLike, truth: ArrayLike, tolerance: float = BOUNDARY_TOLERANCE) -> float:
    """Compute the F-measure of the boundaries of two masks (F of DAVIS).

    .. math:: F = 2 P R / (P + R)

    with P the share of predicted boundary pixels within the tolerance of a true one, and R the reverse. In [0, 1]; 1 if
    neither mask has a boundary, 0 if only one does.

    Args:
        prediction: (h, w) bool.
        truth: (h, w) bool.
        tolerance: distance as a share of the image diagonal, rounded up to whole pixels; values >= 1 are in pixels.

    Raises:
        ValueError: shapes differ, or the tolerance is negative.

    Source:
        ``davisvideochallenge/davis2017-evaluation:davis2017/metrics.py``; a distance transform replaces its dilation.
    """
    from scipy.ndimage import distance_transform_edt

    found, true = _two_masks(prediction, truth)
    if tolerance < 0:
        raise ValueError(f"tolerance must not be negative, got {tolerance}")
    reach = tolerance if tolerance >= 1 else math.ceil(tolerance * math.hypot(*true.shape))
    edges = [mask_boundary(mask) for mask in (found, true)]
    if not edges[0].any() or not edges[1].any():
        return float(edges[0].any() == edges[1].any())
    precision, recall = (
        float((distance_transform_edt(~other)[own] <= reach).mean()) for own, other in (edges, edges[::-1])
    )
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


def mask_boundary(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return a bool mask (h, w) of pixels that differ from the pixel to the right, below or diagonally below."""
    padded = np.pad(mask, ((0, 1), (0, 1)), mode="edge")
    return np.asarray((mask != padded[:-1, 1:]) | (mask != padded[1:, :-1]) | (mask != padded[1:, 1:]))


def _two_masks(prediction: ArrayLike, truth: ArrayLike) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    found, true = np.asarray(prediction, dtype=np.bool_), np.asarray(truth, dtype=np.bool_)
    if found.shape != true.shape or found.ndim != 2:
        raise ValueError(f"masks must both have shape (h, w), got {found.shape} and {true.shape}")
    return found, true
