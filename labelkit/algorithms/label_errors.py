"""Find probable label errors: labels that the other labeled images contradict.

Three leave-one-out tests of a label:
    - nearest: the nearest image of another class is closer than the nearest image of the same class
    - mean: the same for the mean directions of the classes
    - ridge: ridge regression on one-hot targets prefers another class; its leave-one-out prediction has a closed form
      (the residual divided by one minus the leverage)
A label is doubtful if all three contradict it. Scores are means of the three ranks, since margins differ in scale.
With few labels per class, the tests contradict up to half of the labels, most of which are correct. At most a fifth of
the labels, or ten, are therefore listed: of the planted errors that the tests contradict, these contain nearly all that
are random, and with two labels per class a third of those between similar classes.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from labelkit.algorithms.novelty import fractional_ranks
from labelkit.algorithms.row_blocks import row_slices

RIDGE: Final = 0.3
"""Added to the diagonal, for unit-norm rows. It and the three tests were chosen from eight tests and their means on the
cases of `examples/mislabeled_cases.py`, with seeds other than the reported ones."""
_MAX_LISTED: Final = 0.2
_MIN_LISTED: Final = 10


@dataclass(frozen=True)
class LabelErrorEvidence:
    """Evidence for wrong labels: a score, a flag and a suggested class for each of n labels."""

    # (n,) float64 in ``[0, 1]``, larger is more doubtful; NaN if the class has no other label
    score: NDArray[np.float64]
    doubtful: NDArray[np.bool_]  # (n,) bool, whether all tests prefer another class
    suggested: NDArray[np.int64]  # (n,) int64, the other class preferred by ridge regression
    same: NDArray[np.int64]  # (n,) int64, index of the nearest image of the same class; -1 = none
    other: NDArray[np.int64]  # (n,) int64, index of the nearest image of the suggested class

    def most_doubtful(self) -> NDArray[np.int64]:
        """Return the indices of the doubtful labels, most doubtful first, but at most a fifth of all labels, or ten."""
        found = np.flatnonzero(self.doubtful)
        order = np.lexsort((found, -self.score[found]))
        return np.asarray(found[order][: max(_MIN_LISTED, int(_MAX_LISTED * np.isfinite(self.score).sum()))])


def score_label_errors(features: NDArray[np.float32], labels: NDArray[np.int64]) -> LabelErrorEvidence:
    """Score how likely each label is wrong, by how strongly the other labels contradict it.

    Args:
        features: (n, d) rows of any norm; they are centered and scaled to unit length.
        labels: (n,) int64 in ``[0, c)``, c >= 2 classes that all occur.

    Raises:
        ValueError: shapes differ, or there are fewer than two classes.
    """
    counts = np.bincount(labels) if len(labels) else np.zeros(0, dtype=np.int64)
    if features.ndim != 2 or len(features) != len(labels):
        raise ValueError(f"features must have one row per label, got shape {features.shape} and {len(labels)} labels")
    if len(counts) < 2 or not counts.all():
        raise ValueError(f"labels must include each of at least 2 classes, got class counts {counts.tolist()}")
    rows = _directions(features)
    suggested, by_ridge = _ridge_margins(rows, labels, len(counts))
    same, other, by_nearest = _nearest_margins(rows, labels, suggested)
    margins = np.stack([by_nearest, _mean_margins(rows, labels, counts), by_ridge])
    is_checked = counts[labels] > 1
    score = np.full(len(labels), np.nan)
    score[is_checked] = np.mean([fractional_ranks(margin[is_checked]) for margin in margins], axis=0)
    return LabelErrorEvidence(score, is_checked & (margins > 0).all(axis=0), suggested, same, other)


def _directions(features: NDArray[np.float32]) -> NDArray[np.float32]:
    rows = features - features.mean(axis=0, dtype=np.float64).astype(np.float32)
    lengths = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    return np.asarray(rows / np.where(lengths > 0, lengths, 1)[:, None], dtype=np.float32)


def _nearest_margins(
    rows: NDArray[np.float32], labels: NDArray[np.int64], suggested: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Return the nearest images of the same and the suggested class, and the margin of other classes over the same."""
    n = len(rows)
    same, other, margin = np.full(n, -1), np.full(n, -1), np.empty(n)
    for block in row_slices(n, n // 8 + 1):  # 32 MB in float32; products of few rows are slow
        positions = np.arange(block.start, block.stop)
        places = positions - block.start
        cosines = rows[block] @ rows.T
        cosines[places, positions] = -np.inf
        own = labels[None, :] == labels[block, None]
        nearest = np.where(own, cosines, -np.inf)
        found = nearest.argmax(axis=1)
        near = nearest[places, found]
        same[block] = np.where(np.isfinite(near), found, -1)
        other[block] = np.where(labels[None, :] == suggested[block, None], cosines, -np.inf).argmax(axis=1)
        margin[block] = np.where(own, -np.inf, cosines).max(axis=1) - np.where(np.isfinite(near), near, -1)
    return same, other, margin


def _mean_margins(
    rows: NDArray[np.float32], labels: NDArray[np.int64], counts: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the cosine margin of the nearest mean of another class over the leave-one-out mean of the same class."""
    sums = _class_sums(rows.T.astype(np.float64), labels, len(counts)).T
    directions = sums / np.maximum(np.linalg.norm(sums, axis=1, keepdims=True), 1e-12)
    margin = np.empty(len(rows))
    for block in row_slices(len(rows), len(counts)):
        block_rows = rows[block].astype(np.float64)
        own = sums[labels[block]] - block_rows
        near = np.einsum("ij,ij->i", block_rows, own) / np.maximum(np.linalg.norm(own, axis=1), 1e-12)
        cosines = block_rows @ directions.T
        cosines[np.arange(len(block_rows)), labels[block]] = -np.inf
        margin[block] = cosines.max(axis=1) - near
    return margin


def _ridge_margins(
    rows: NDArray[np.float32], labels: NDArray[np.int64], num_classes: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the other class preferred by leave-one-out ridge regression, and its margin over the label's class."""
    n, dim = rows.shape
    suggested, margin = np.empty(n, dtype=np.int64), np.empty(n)
    extended: NDArray[np.float64] = np.concatenate([rows, np.ones((n, 1))], axis=1)
    by_rows = n <= dim + 1
    if by_rows:
        inverse = _inverse(extended @ extended.T)
        left = 1 / np.diag(inverse)  # divisor of the residual
        sums = _class_sums(inverse, labels, num_classes)
    else:
        inverse = _inverse(extended.T @ extended)
        left = 1 / (1 - np.einsum("ij,ij->i", extended @ inverse, extended))
        sums = inverse @ _class_sums(extended.T, labels, num_classes)
    for block in row_slices(n, num_classes):
        positions = np.arange(block.stop - block.start)
        truth = np.zeros((len(positions), num_classes))
        truth[positions, labels[block]] = 1
        residuals = sums[block] if by_rows else truth - extended[block] @ sums
        predicted = truth - residuals * left[block, None]
        own = predicted[positions, labels[block]].copy()
        predicted[positions, labels[block]] = -np.inf
        suggested[block] = predicted.argmax(axis=1)
        margin[block] = predicted[positions, suggested[block]] - own
    return suggested, margin


def _inverse(products: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(np.linalg.inv(products + RIDGE * np.eye(len(products))), dtype=np.float64)


def _class_sums(values: NDArray[np.float64], labels: NDArray[np.int64], num_classes: int) -> NDArray[np.float64]:
    """Sum the columns (m, n) of each class, (m, c), like a product with the one-hot labels."""
    order = np.argsort(labels, kind="stable")
    begins = np.searchsorted(labels[order], np.arange(num_classes))
    return np.asarray(np.add.reduceat(values[:, order], begins, axis=1))
