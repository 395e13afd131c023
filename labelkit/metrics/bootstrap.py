"""Confidence intervals of clustering accuracies, by drawing the samples again with replacement.

Source: B. Efron, "Bootstrap Methods: Another Look at the Jackknife" (percentile intervals).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labelkit.algorithms.matching import match_counts
from labelkit.metrics.clustering import ClusterAccuracy

# Numbers per temporary block: 64 MB in float64.
_BLOCK_NUMBERS = 1 << 23


@dataclass(frozen=True, slots=True)
class AccuracyIntervals:
    """Bootstrap confidence intervals of the clustering accuracies for all, old and new classes.

    Attributes:
        level: share of the resamples inside each interval.
        num_resamples: resamples drawn.
        all_interval: (low, high) of the accuracy over all samples.
        old_interval: of old classes; NaN if there is no such sample.
        new_interval: of new classes; likewise.
    """

    level: float
    num_resamples: int
    all_interval: tuple[float, float]
    old_interval: tuple[float, float]
    new_interval: tuple[float, float]


def accuracy_intervals(
    score: ClusterAccuracy,
    old_mask_per_class: ArrayLike,
    *,
    num_resamples: int = 1000,
    level: float = 0.95,
    generator: np.random.Generator,
) -> AccuracyIntervals:
    """Compute bootstrap percentile intervals of the accuracies for all, old and new classes.

    Clusters and their matching with classes are those of all samples, in every resample: the
    intervals hold the uncertainty from the choice of the samples scored, not that of clustering,
    matching or training again. A sample then only counts by its class and by whether it is right,
    so that n draws with replacement are one draw of multinomial counts, whatever n is.

    Args:
        score: the accuracies, of any protocol.
        old_mask_per_class: (c,) bool, as the score was made with.
        num_resamples: resamples, at least 1.
        level: share of the resamples inside, in (0, 1).
        generator: all randomness.

    Raises:
        ValueError: a mask of another length, or a number out of range.
    """
    old_classes = np.asarray(old_mask_per_class)
    if old_classes.shape != score.confusion.shape[1:] or old_classes.dtype != np.bool_:
        raise ValueError(
            f"old_mask_per_class must be bool ({score.confusion.shape[1]},), got {old_classes.dtype} "
            f"{old_classes.shape}"
        )
    if num_resamples < 1:
        raise ValueError(f"num_resamples must be at least 1, got {num_resamples}")
    if not 0 < level < 1:
        raise ValueError(f"level must be in (0, 1), got {level}")
    hits, sizes = _hits(score, old_classes), score.confusion.sum(axis=0)
    present = np.flatnonzero(sizes)
    hits, sizes, is_old = hits[present], sizes[present], old_classes[present]
    cells = np.concatenate([hits, sizes - hits]) / sizes.sum()
    total = int(sizes.sum())
    drawn: list[NDArray[np.float64]] = []
    block = max(1, _BLOCK_NUMBERS // len(cells))
    for start in range(0, num_resamples, block):
        counts = generator.multinomial(total, cells, size=min(block, num_resamples - start))
        right, wrong = counts[:, : len(sizes)], counts[:, len(sizes) :]
        groups = (np.ones_like(is_old), is_old, ~is_old)
        mean = _class_mean if score.protocol == "v2b" else _sample_mean
        drawn.append(np.stack([mean(right[:, group], wrong[:, group]) for group in groups]))
    accuracies = np.concatenate(drawn, axis=1)
    return AccuracyIntervals(
        level, num_resamples, *(_interval(values[~np.isnan(values)], level) for values in accuracies)
    )


def _hits(score: ClusterAccuracy, old_classes: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the right samples of each class, (c,), under the matching (v1: matchings) of all samples."""
    hits = np.zeros(len(old_classes), dtype=np.int64)
    if score.protocol != "v1":
        matched = np.flatnonzero(score.mapping >= 0)
        hits[score.mapping[matched]] = score.confusion[matched, score.mapping[matched]]
        return hits
    for group in (np.flatnonzero(old_classes), np.flatnonzero(~old_classes)):
        counts = score.confusion[:, group]
        mapping = match_counts(counts).class_of_cluster
        matched = np.flatnonzero(mapping >= 0)
        hits[group[mapping[matched]]] = counts[matched, mapping[matched]]
    return hits


def _sample_mean(right: NDArray[np.int64], wrong: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the share of right samples of each resample; NaN where none was drawn."""
    hits, count = right.sum(axis=1), (right + wrong).sum(axis=1)
    return np.where(count > 0, hits / np.maximum(count, 1), np.nan)


def _class_mean(right: NDArray[np.int64], wrong: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the mean over the classes drawn of their shares of right samples; NaN where none was drawn."""
    count = right + wrong
    shares, drawn = right / np.maximum(count, 1), (count > 0).sum(axis=1)
    return np.where(drawn > 0, shares.sum(axis=1) / np.maximum(drawn, 1), np.nan)


def _interval(values: NDArray[np.float64], level: float) -> tuple[float, float]:
    if not values.size:
        return float("nan"), float("nan")
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
