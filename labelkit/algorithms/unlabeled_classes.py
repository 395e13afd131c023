r"""Decide whether there are classes without labels, and how many, by hiding some of the labels at a time.

A tree of groups, built without the hidden labels, is cut into one group for each labeled class and k others. A share M
of the unlabeled rows is in one of the other groups, and a share S of the hidden labels, whose class is known. If every
class were labeled, both shares would be equal but for chance, since labels are rows like any others. So at least

.. math:: \pi = \max_k (M_k - S_k) / (1 - S_k)

of the rows belong to classes without labels. With k other groups, the expected share of rows predicted correctly is

.. math:: G_k = (1 - \pi) (1 - S_k) A + .6 (M_k - (1 - \pi) S_k)

where A is the share of the hidden labels that a classifier predicts correctly, at least .6 (with two labels per
class, one of them hidden, it is low), and the factor .6 is the share of its rows that a new group gets right. One
additional hidden label, in all other groups, accounts for what few labels cannot show. There are other classes if
some G_k is ahead of G_0; then the k with the largest G_k is chosen. Its lead, in standard errors, determines the
weight of groups relative to labeled classes in predictions: about half without a lead, one if it is four ahead.

Such a lead was found in 9 % of the draws of the first table of `docs/results/answers.md` in which all classes had two
to ten labels, and in 74 % of those in which half of the classes had some. Further evidence (the distance of hidden
labels to class means, the sizes of branches without a label among draws of labels by chance, the number of labels)
raises both shares or neither, and is not used.

Labels that were chosen, not drawn (hard images, say), are missed more often than other rows, and images around them are
put in other groups: corrections of wrong predictions must be left out.
The share of rows that known classes cannot explain is the subject of mixture proportion estimation, S. Garg et al.,
"Mixture Proportion Estimation and PU Learning: A Modern Approach"; the rule itself is our own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labelkit.algorithms.few_label_classifier import RefittableClassifier
from labelkit.algorithms.hierarchy import MAX_DIRECTIONS, build_hierarchy
from labelkit.algorithms.projection import principal_directions

_FOLDS: Final = 5
#: Number of times that labels are divided into such folds, since results vary between divisions.
_REPEATS: Final = 2
#: Share of its rows that a group gets right for new classes; .5 to .7 chose nearly the same numbers.
_PURITY: Final = 0.6
#: Standard errors by which the usual lead is negative if every class has labels: it was then positive in about 5 % of
#: the draws on which this number was chosen.
_USUAL_LEAD: Final = 1.6
#: Leads in standard errors with the smallest and the full weight of groups, and the smallest weight.
_LEADS: Final = (0.0, 4.0)
_MIN_WEIGHT: Final = 0.52
#: If a larger share of hidden labels is in other groups, M - S is mostly noise.
_MAX_MISSED: Final = 0.6
_MAX_NEW: Final = 0.9

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class UnlabeledGroupEstimate:
    """Expected accuracy, with standard errors, for each number of groups without labels.

    Attributes:
        numbers: numbers of such groups that were tried, from 0.
        expected: for each number, share of the unlabeled rows expected to be predicted correctly.
        errors: standard errors of its lead over none.
        new_share: minimum share of the rows in classes without labels, in [0, .9].
    """

    numbers: tuple[int, ...]
    expected: tuple[float, ...]
    errors: tuple[float, ...]
    new_share: float

    def best(self, *, some: bool = False) -> int:
        """Return the best number of groups without labels, or 0 if the evidence for any is too weak.

        Args:
            some: there are such groups; 0 only if no other number was tried.
        """
        if len(self.numbers) == 1:
            return 0
        return self.numbers[1 + int(np.argmax(self.expected[1:]))] if some or self.lead > 0 else 0

    @property
    def lead(self) -> float:
        """Largest lead over having no such groups, in standard errors; requires that another number was tried."""
        return float(((np.array(self.expected[1:]) - self.expected[0]) / np.array(self.errors[1:])).max())

    @property
    def chance(self) -> float:
        """Rough probability, in [0, 1], of such a lead if every class had labels."""
        from scipy.stats import norm

        return float(norm.sf(self.lead + _USUAL_LEAD)) if len(self.numbers) > 1 else 1.0

    @property
    def group_weight(self) -> float:
        """Weight of groups without labels relative to labeled classes in predictions, in [.52, 1]."""
        return float(np.interp(self.lead, _LEADS, (_MIN_WEIGHT, 1.0)))

    def plausible_range(self, number: int) -> tuple[int, int]:
        """Return the range of numbers whose expected accuracy is at most two standard errors below ``number``'s."""
        place = self.numbers.index(number)
        least = self.expected[place] - 2 * self.errors[place]
        found = [k for k, value in zip(self.numbers, self.expected, strict=True) if value >= least]
        return found[0], found[-1]


def estimate_unlabeled_groups(
    features: ArrayLike,
    labels: ArrayLike,
    numbers: Sequence[int],
    *,
    generator: np.random.Generator,
    min_size: int = 1,
) -> UnlabeledGroupEstimate | None:
    """Estimate prediction accuracy for different numbers of groups without labels.

    Args:
        features: (n, d) float rows of length 1; at most some thousands, since a tree takes n squared.
        labels: (n,) int64, -1 = unlabeled, at least one; of two classes or more.
        numbers: numbers of groups without a label, increasing from 0.
        generator: draws the labels to hide.
        min_size: minimum number of rows of a group without a label, >= 1.

    Returns:
        ``None`` if no class has two labels, so that none can be hidden.

    Raises:
        ValueError: labels of fewer than two classes, no unlabeled row, or numbers that do not start at 0.
    """
    rows, given = np.asarray(features, dtype=np.float32), np.asarray(labels, dtype=np.int64)
    known, unlabeled = np.flatnonzero(given >= 0), np.flatnonzero(given < 0)
    classes, own = np.unique(given[known], return_inverse=True)
    if len(classes) < 2 or not len(unlabeled) or not len(numbers) or numbers[0] != 0:
        raise ValueError(f"two classes, unlabeled rows and numbers from 0 are required, got {len(classes)} classes")
    tested = np.bincount(own)[own] > 1
    if not tested.any():
        return None
    labels_of = np.full(len(rows), -1, dtype=np.int64)
    labels_of[known] = own
    judge = RefittableClassifier(rows, labels_of)
    # the directions that each tree starts from do not depend on labels
    directions, _ = principal_directions(rows, min(MAX_DIRECTIONS, rows.shape[1]))
    places = np.asarray((rows - rows.mean(axis=0, dtype=np.float64)) @ directions, dtype=np.float32)
    right, missed = np.zeros(len(known)), np.zeros((len(numbers), len(known)))
    found = np.zeros(len(numbers))
    for fold in (_folds(own, generator) for _ in range(_REPEATS)):
        used = np.unique(fold[tested])
        for mine in (fold == number for number in used):
            kept, hidden = labels_of.copy(), known[mine]
            kept[hidden] = -1
            right[mine] += judge.shares(kept)[hidden].argmax(axis=1) == own[mine]
            tree = build_hierarchy(places, kept, generator=generator)
            for place, other in enumerate(numbers):
                ids, _ = tree.cut(min(max(len(classes) + other, tree.fewest), tree.most), min_size=min_size)
                missed[place, mine] += ids[hidden] >= len(classes)
                found[place] += (ids[unlabeled] >= len(classes)).mean() / len(used)
    # weight hidden labels by the size of their class
    sizes = np.bincount(judge.shares(labels_of).argmax(axis=1), minlength=len(classes)).astype(np.float64)
    weights = (sizes / np.maximum(np.bincount(own[tested], minlength=len(classes)), 1))[own[tested]]
    weights /= weights.sum()
    accuracy = float(right[tested] @ weights / _REPEATS)
    return _weighed(numbers, accuracy, missed[:, tested] / _REPEATS, found / _REPEATS, weights)


def _folds(own: Ints, generator: np.random.Generator) -> Ints:
    """Draw the fold that each label is hidden in; -1: never, since it is the only label of its class."""
    fold = np.full(len(own), -1)
    for label, count in enumerate(np.bincount(own)):
        if count > 1:
            fold[own == label] = (generator.permutation(count) + generator.integers(_FOLDS)) % _FOLDS
    return fold


def _weighed(
    numbers: Sequence[int],
    right: float,
    missed: NDArray[np.float64],
    found: NDArray[np.float64],
    weights: NDArray[np.float64],
) -> UnlabeledGroupEstimate:
    """Compute the evidence of m hidden labels for each of k candidate numbers; ``missed`` is (k, m)."""
    count = 1 / np.square(weights).sum()  # effective number of labels of equal weight
    share = np.minimum(missed @ weights, 1)
    errors = np.maximum(np.sqrt(np.square(missed - share[:, None]) @ np.square(weights)), 0.5 / count)
    share = np.where(found > 0, (share * count + 1) / (count + 1), 0)
    few = share < _MAX_MISSED
    least = np.maximum(np.sqrt(share * (1 - share) / count), errors)
    new_share = float(np.max((found - share - least)[few] / (1 - share[few]), initial=0.0))
    new_share = min(new_share, _MAX_NEW)
    accuracy = max(right, _PURITY)
    expected = (1 - new_share) * accuracy * (1 - share) + _PURITY * np.maximum(found - (1 - new_share) * share, 0)
    errors = (1 - new_share) * (accuracy + _PURITY) * errors
    return UnlabeledGroupEstimate(tuple(numbers), tuple(expected.tolist()), tuple(errors.tolist()), new_share)
