r"""Decide whether there are classes without labels, and how many, by hiding some of the labels at a time.

A tree of groups, built without the hidden labels, is cut into one group for each labeled class and k others. A share M
of the unlabeled rows is in one of the other groups, and a share S of the hidden labels, whose class is known. If every
class were labeled, both shares would be equal but for chance, since labels are rows like any others. So at least

.. math:: \pi = \max_k (M_k - S_k) / (1 - S_k)

of the rows belong to classes without labels. With k other groups, the expected share of rows predicted correctly is

.. math:: G_k = (1 - \pi) (1 - S_k) A + .6 (M_k - (1 - \pi) S_k)

where A is the share of the hidden labels that a classifier predicts correctly, at least .6 (with two labels per class,
one of them hidden, it is low), and the factor .6 is the share of its rows that a new group gets right. One additional
hidden label, in all other groups, accounts for what few labels cannot show. Ranks are a second indication: hidden
labels are nearer to the mean of a class (of its other labels, in principal directions) than unlabeled rows are if some
of the unlabeled rows belong to other classes. There are other classes if

- some G_k is ahead of G_0 by more than two standard errors,
- or it is ahead at all, and the mean rank is not against it by more than half a standard error,
- or it is behind by less than a standard error, and the mean rank is for it by more than half of one.

Then the k with the largest G_k is chosen. Its lead determines the weight of groups relative to labeled classes in
predictions: from .4 if G_k is a standard error behind, to 1 if it is four ahead. On draws that were not used to choose
this, it predicted .2 points more correctly if all classes or nine tenths had labels, up to 3 if a class has several
kinds of images, and .3 fewer if half of the classes had labels.

Indications and limits were chosen on 356 draws of six sets, with 3 to 81 classes and 2 to 20 labels in each: inventing
other classes costs some points there, missing them costs twenty. Means of classes distinguished half of the classes
from all classes better than single labels, raw cosines, or the classifier's confidence did.

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
#: Standard errors that a number must be ahead of none, and that hidden labels must be nearer.
_SIGNS: Final = ((2.0, -np.inf), (0.0, -0.5), (-1.0, 0.5))
#: Leads in standard errors with the smallest and the full weight of groups, and the smallest weight.
_LEADS: Final = (-1.0, 4.0)
_MIN_WEIGHT: Final = 0.4
#: If a larger share of hidden labels is in other groups, M - S is mostly noise.
_MAX_MISSED: Final = 0.6
_MAX_NEW: Final = 0.9
_MIN_LENGTH: Final = 1e-12

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class UnlabeledGroupEstimate:
    """Expected accuracy, with standard errors, for each number of groups without labels.

    Attributes:
        numbers: numbers of such groups that were tried, from 0.
        expected: for each number, share of the unlabeled rows expected to be predicted correctly.
        errors: standard errors of its lead over none.
        nearer: standard errors that hidden labels are nearer to a class than unlabeled rows are.
        new_share: minimum share of the rows in classes without labels, in [0, .9].
        chance: rough probability, in [0, 1], of such a lead and of labels this near if there were no such classes: both
            are assumed to be independent, and the choice of the largest lead is not accounted for.
    """

    numbers: tuple[int, ...]
    expected: tuple[float, ...]
    errors: tuple[float, ...]
    nearer: float
    new_share: float
    chance: float

    def best(self, *, some: bool = False) -> int:
        """Return the best number of groups without labels, or 0 if the evidence for any is too weak.

        Args:
            some: there are such groups; 0 only if no other number was tried.
        """
        if len(self.numbers) == 1:
            return 0
        found = any(self.lead > least and self.nearer > nearer for least, nearer in _SIGNS)
        return self.numbers[1 + int(np.argmax(self.expected[1:]))] if some or found else 0

    @property
    def lead(self) -> float:
        """Largest lead over having no such groups, in standard errors; requires that another number was tried."""
        return float(((np.array(self.expected[1:]) - self.expected[0]) / np.array(self.errors[1:])).max())

    @property
    def group_weight(self) -> float:
        """Weight of groups without labels relative to labeled classes in predictions, in [.4, 1]."""
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
        raise ValueError(f"needs two classes, unlabeled rows and numbers from 0, got {len(classes)} classes")
    tested = np.bincount(own)[own] > 1
    if not tested.any():
        return None
    labels_of = np.full(len(rows), -1, dtype=np.int64)
    labels_of[known] = own
    judge = RefittableClassifier(rows, labels_of)
    # the directions that each tree starts from do not depend on labels
    directions, _ = principal_directions(rows, min(MAX_DIRECTIONS, rows.shape[1]))
    places = np.asarray((rows - rows.mean(axis=0, dtype=np.float64)) @ directions, dtype=np.float32)
    units = _units(places)
    right, missed = np.zeros(len(known)), np.zeros((len(numbers), len(known)))
    found, ranks = np.zeros(len(numbers)), np.zeros(len(known))
    for fold in (_folds(own, generator) for _ in range(_REPEATS)):
        used = np.unique(fold[tested])
        for mine in (fold == number for number in used):
            kept, hidden = labels_of.copy(), known[mine]
            kept[hidden] = -1
            right[mine] += judge.shares(kept)[hidden].argmax(axis=1) == own[mine]
            means = np.stack([units[kept == label].mean(axis=0) for label in range(len(classes))])
            near = (units @ _units(means).T).max(axis=1)
            ranks[mine] += np.searchsorted(np.sort(near[unlabeled]), near[hidden]) / len(unlabeled)
            tree = build_hierarchy(places, kept, generator=generator)
            for place, other in enumerate(numbers):
                ids, _ = tree.cut(min(max(len(classes) + other, tree.fewest), tree.most), min_size=min_size)
                missed[place, mine] += ids[hidden] >= len(classes)
                found[place] += (ids[unlabeled] >= len(classes)).mean() / len(used)
    # weight hidden labels by the size of their class
    sizes = np.bincount(judge.shares(labels_of).argmax(axis=1), minlength=len(classes)).astype(np.float64)
    weights = (sizes / np.maximum(np.bincount(own[tested], minlength=len(classes)), 1))[own[tested]]
    weights /= weights.sum()
    nearer = float((ranks[tested] @ weights / _REPEATS - 0.5) / np.sqrt(np.square(weights).sum() / 12))
    accuracy = float(right[tested] @ weights / _REPEATS)
    return _weighed(numbers, accuracy, missed[:, tested] / _REPEATS, found / _REPEATS, weights, nearer)


def _units(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), _MIN_LENGTH), dtype=np.float32)


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
    nearer: float,
) -> UnlabeledGroupEstimate:
    """Compute the evidence of m hidden labels for each of k candidate numbers; ``missed`` is (k, m)."""
    from scipy.stats import norm

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
    leads = (expected - expected[0])[1:] / errors[1:]
    chance = float(norm.sf(leads.max()) * norm.sf(nearer)) if len(leads) else 1.0
    return UnlabeledGroupEstimate(
        tuple(numbers), tuple(expected.tolist()), tuple(errors.tolist()), nearer, new_share, chance
    )
