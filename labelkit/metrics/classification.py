"""Score predicted classes and logits against labels, and a class that an image may have or not as VOC 2007 does."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labelkit.algorithms.matching import as_ids, contingency


def eleven_point_average_precision(scores: ArrayLike, present: ArrayLike) -> float:
    """Compute the 11-point interpolated average precision of VOC 2007; NaN if no image has the class.

    The mean of the highest precision at recall 0, 0.1, ..., 1 or more.

    Args:
        scores: (n,), larger = more likely.
        present: (n,) bool, whether the image has the class.

    Raises:
        ValueError: shapes that do not fit, or NaN.

    Source:
        M. Everingham et al., "The PASCAL Visual Object Classes (VOC) Challenge" (IJCV 2010), Sec. 4.2: until VOC 2009.
        There images with one score are ranked by their place in the file; here they come in together.
    """
    from sklearn.metrics import precision_recall_curve

    has = np.asarray(present, dtype=np.bool_)
    if not has.any():
        return float("nan")
    precision, recall, _ = precision_recall_curve(has, np.asarray(scores, dtype=np.float64))
    # as whole numbers: 3 of 10 is a recall of 0.3; the last point of the curve is none of the ranking
    hits, count = np.rint(recall[:-1] * has.sum()), int(has.sum())
    return float(np.where(10 * hits >= np.arange(11)[:, None] * count, precision[:-1], 0.0).max(axis=1).mean())


def top_k_accuracy(logits: ArrayLike, labels: ArrayLike, k: int = 1) -> float:
    """Compute the share of samples whose class is among the k largest logits, in [0, 1].

    Where the class ties with others for the last places, its chance under a random order of
    the tied counts: equal logits score k / c, not the share of class 0.

    Args:
        logits: (n, c) scores, larger = more likely.
        labels: (n,) integers in ``[0, c)``.
        k: from 1 to c.

    Raises:
        ValueError, IndexError: shapes that do not fit, NaN, a label or k out of range.
    """
    scores, classes = np.asarray(logits), as_ids(labels, "labels")
    if np.isnan(scores).any():
        raise ValueError(f"logits have {int(np.isnan(scores).any(axis=1).sum())} of {len(scores)} rows with NaN")
    if not 1 <= k <= scores.shape[1]:
        raise ValueError(f"k must be from 1 to {scores.shape[1]} classes, got {k}")
    own = scores[np.arange(len(classes)), classes][:, None]
    above = (scores > own).sum(axis=1)
    tied = (scores == own).sum(axis=1)
    return float(np.clip((k - above) / tied, 0, 1).mean())


def per_class_accuracy(predictions: ArrayLike, labels: ArrayLike, num_classes: int) -> NDArray[np.float64]:
    """Compute the accuracy of each class, (c,) float64; NaN for an absent class.

    Args:
        predictions: (n,) integers in ``[0, c)``, or (n, c) logits, whose largest is taken (the first of equals).
        labels: (n,) integers in ``[0, c)``.
        num_classes: c.

    Raises:
        ValueError: shapes that do not fit, or an id out of range.
    """
    predicted = np.asarray(predictions)
    predicted = predicted.argmax(axis=1) if predicted.ndim == 2 else predicted
    counts = contingency(labels, predicted, num_clusters=num_classes, num_classes=num_classes)
    sizes = counts.sum(axis=1)
    accuracy = np.full(len(counts), np.nan)
    np.divide(np.diag(counts), sizes, out=accuracy, where=sizes > 0)
    return accuracy


# Ranks by frequency at which many-shot classes end, and medium-shot classes end.
_RANKS = {10: (3, 7), 100: (36, 71)}
_MANY_ABOVE, _FEW_BELOW = 100, 20


def shot_groups(train_counts: ArrayLike) -> dict[str, NDArray[np.int64]]:
    """Group classes into many-shot, medium-shot and few-shot by their number of training images.

    Of 10 or 100 classes by the order of their frequency (of equal ones the first), cut at 3 and 7, or 36 and 71 (code
    of DL2PA); else above 100, 20 to 100, and below 20 images (ImageNet-LT). None if no class has twice the images of
    another.

    Args:
        train_counts: (c,) training images of each class.

    Returns:
        class ids, increasing, under ``many``, ``medium`` and ``few``; groups without a class are left out.
    """
    counts = np.asarray(train_counts, dtype=np.int64)
    if not len(counts) or counts.max() < 2 * counts.min():
        return {}
    if len(counts) in _RANKS:
        ranks = np.empty(len(counts), dtype=np.int64)
        ranks[np.argsort(-counts, kind="stable")] = np.arange(len(counts))
        first, second = _RANKS[len(counts)]
        many, few = ranks < first, ranks >= second
    else:
        many, few = counts > _MANY_ABOVE, counts < _FEW_BELOW
    groups = {"many": many, "medium": ~few & ~many, "few": few}
    return {name: np.flatnonzero(mask) for name, mask in groups.items() if mask.any()}


def share_interval(hits: int, count: int, *, num_resamples: int, generator: np.random.Generator) -> tuple[float, float]:
    """Compute the bootstrap percentile interval (95 %) of a proportion, ``hits`` of ``count`` samples.

    A sample counts only by whether it is right, so that drawing ``count`` of them again is one binomial number.

    Args:
        hits: samples that are right.
        count: samples, at least 1.
        num_resamples: resamples, at least 1.
        generator: all randomness.
    """
    shares = generator.binomial(count, hits / count, size=num_resamples) / count
    low, high = np.quantile(shares, [(1 - 0.95) / 2, (1 + 0.95) / 2])
    return float(low), float(high)
