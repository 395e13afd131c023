"""Classification metrics: accuracy of predictions and logits, and VOC 2007's 11-point average precision."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labelkit.algorithms.matching import cross_tabulate, validate_ids


def eleven_point_average_precision(scores: ArrayLike, present: ArrayLike) -> float:
    """Compute the 11-point interpolated average precision of VOC 2007; NaN if no image has the class.

    This is the mean over recall levels 0, 0.1, ..., 1 of the highest precision at that recall or above.

    Args:
        scores: (n,), larger = more likely.
        present: (n,) bool, whether the image has the class.

    Raises:
        ValueError: shapes do not match, or scores contain NaN.

    Source:
        M. Everingham et al., "The PASCAL Visual Object Classes (VOC) Challenge" (IJCV 2010), Sec. 4.2: until VOC 2009.
        There, images with equal scores are ranked by their position in the file; here, they enter the ranking together.
    """
    from sklearn.metrics import precision_recall_curve

    has = np.asarray(present, dtype=np.bool_)
    if not has.any():
        return float("nan")
    precision, recall, _ = precision_recall_curve(has, np.asarray(scores, dtype=np.float64))
    # compare integers, since 3 of 10 is exactly a recall of 0.3; the curve's last point is not part of the ranking
    hits, count = np.rint(recall[:-1] * has.sum()), int(has.sum())
    return float(np.where(10 * hits >= np.arange(11)[:, None] * count, precision[:-1], 0.0).max(axis=1).mean())


def top_k_accuracy(logits: ArrayLike, labels: ArrayLike, k: int = 1) -> float:
    """Compute the fraction, in [0, 1], of samples whose class is among the k largest logits.

    If the class is tied for the last places, the sample contributes the probability that a random order
    of the tied classes includes it: equal logits score k / c, not the share of class 0.

    Args:
        logits: (n, c) scores, larger = more likely.
        labels: (n,) integers in ``[0, c)``.
        k: from 1 to c.

    Raises:
        ValueError, IndexError: shapes do not match, logits contain NaN, or a label or k is out of range.
    """
    scores, classes = np.asarray(logits), validate_ids(labels, "labels")
    if np.isnan(scores).any():
        raise ValueError(f"{int(np.isnan(scores).any(axis=1).sum())} of {len(scores)} rows of logits contain NaN")
    if not 1 <= k <= scores.shape[1]:
        raise ValueError(f"k must be from 1 to the number of classes ({scores.shape[1]}), got {k}")
    own = scores[np.arange(len(classes)), classes][:, None]
    above = (scores > own).sum(axis=1)
    tied = (scores == own).sum(axis=1)
    return float(np.clip((k - above) / tied, 0, 1).mean())


def per_class_accuracy(predictions: ArrayLike, labels: ArrayLike, num_classes: int) -> NDArray[np.float64]:
    """Compute the accuracy of each class, (c,) float64; NaN for classes without samples.

    Args:
        predictions: (n,) integers in ``[0, c)``, or (n, c) logits, of which the largest counts (the first if tied).
        labels: (n,) integers in ``[0, c)``.
        num_classes: c.

    Raises:
        ValueError: shapes do not match, or an id is out of range.
    """
    predicted = np.asarray(predictions)
    predicted = predicted.argmax(axis=1) if predicted.ndim == 2 else predicted
    counts = cross_tabulate(labels, predicted, num_clusters=num_classes, num_classes=num_classes)
    sizes = counts.sum(axis=1)
    accuracy = np.full(len(counts), np.nan)
    np.divide(np.diag(counts), sizes, out=accuracy, where=sizes > 0)
    return accuracy


# By number of classes: frequency ranks at which medium-shot and few-shot classes begin.
_RANKS = {10: (3, 7), 100: (36, 71)}
_MANY_ABOVE, _FEW_BELOW = 100, 20


def shot_groups(train_counts: ArrayLike) -> dict[str, NDArray[np.int64]]:
    """Group classes into many-shot, medium-shot and few-shot by their number of training images.

    10 or 100 classes are ranked by frequency (ties keep their order) and split at ranks 3 and 7, or 36 and 71 (DL2PA's
    code); otherwise, classes in the groups have more than 100, 20 to 100, and fewer than 20 images (ImageNet-LT). There
    are no groups unless some class has at least twice as many images as another.

    Args:
        train_counts: (c,) number of training images of each class.

    Returns:
        Sorted class ids of the groups ``many``, ``medium`` and ``few``; empty groups are omitted.
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


def proportion_interval(
    hits: int, count: int, *, num_resamples: int, generator: np.random.Generator
) -> tuple[float, float]:
    """Compute the 95% bootstrap percentile interval of the proportion ``hits / count``.

    Since only the correctness of each sample matters, resampling ``count`` samples is a single binomial draw.

    Args:
        hits: number of correct samples.
        count: number of samples, at least 1.
        num_resamples: number of resamples, at least 1.
        generator: random number generator.
    """
    shares = generator.binomial(count, hits / count, size=num_resamples) / count
    low, high = np.quantile(shares, [(1 - 0.95) / 2, (1 + 0.95) / 2])
    return float(low), float(high)
