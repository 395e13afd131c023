r"""Decide whether there are classes without labels, and how many, by hiding some of the labels at a time.

**How many rows** are in such classes is seen from how near rows are to labels. If every class had labels, a hidden
label would be like any unlabeled row: with one label of each class hidden at a time, as near to the others as the
average row. Rows of classes without labels are farther away, so hidden labels then seem to be near. With p the share of
the unlabeled rows that are nearer to the labels than a hidden label is, and q the same for labels whose whole class is
disregarded, which stand for classes without labels, the share of the rows in such classes is about

.. math:: \nu = (1/2 - p) / (1/2 - q)

With m labels, p has a standard error of at most :math:`1 / \sqrt{12 m}`. Labels are drawn evenly over classes, and rows
are not: where large classes were diverse, :math:`\nu` was up to .2 too high, so an error of .2 is added. What it is on
average is measured by ``benchmarks.missing_classes``.

**How many groups** these rows form is seen from a tree of groups, which is built without the hidden labels and cut
into one group for each labeled class and k others. A share M of the unlabeled rows is in one of the other groups, and a
share S of the hidden labels, whose class is known. Both would be equal if every class were labeled; so at least

.. math:: \pi = \max_k (M_k - S_k) / (1 - S_k)

of the rows belong to classes without labels. With k other groups, the expected share of rows predicted correctly is

.. math:: G_k = (1 - \pi) (1 - S_k) A + .6 (M_k - (1 - \pi) S_k)

where :math:`\pi` is at least :math:`\nu` less its error, A is the share of the hidden labels that a classifier predicts
correctly, at least .6 (with two labels per class, one of them hidden, it is low), and the factor .6 is the share of its
rows that a new group gets right. One additional hidden label, in all other groups, accounts for what few labels cannot
show.

There are other classes if the largest lead of a G_k over G_0 is more than .4 standard errors. Then the k with the
largest G_k is chosen. If more than three quarters of the labels are alone in their class, too few can be hidden for
this. If labels were drawn at random, the share of such labels is on average the share of rows in other classes (I. J.
Good, "The Population Frequencies of Species and the Estimation of Population Parameters"), so there are some, and k is
the largest number tried that is not above the estimate of A. Chao, "Nonparametric Estimation of the Number of Classes
in a Population": with :math:`f_1` classes of one label and :math:`f_2` of two,

.. math:: k = f_1 (f_1 - 1) / (2 (f_2 + 1))

The lead also determines the weight of groups relative to labeled classes in predictions: about half without a lead, one
if it is four standard errors or if only the counts are used.

Labels that were chosen, not drawn (hard images, say), are missed more often than other rows, and images around them are
put in other groups: corrections of wrong predictions must be left out.
The share of rows that known classes cannot explain is the subject of mixture proportion estimation, S. Garg et al.,
"Mixture Proportion Estimation and PU Learning: A Modern Approach"; the rules themselves are our own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labelkit.algorithms.class_projection import MAX_DIRECTIONS
from labelkit.algorithms.few_label_classifier import RefittableClassifier
from labelkit.algorithms.hierarchy import build_hierarchy
from labelkit.algorithms.projection import principal_directions

_FOLDS: Final = 5
#: Number of times that labels are divided into such folds, since results vary between divisions.
_REPEATS: Final = 2
#: Share of its rows that a group gets right for new classes; .5 to .7 chose nearly the same numbers.
_PURITY: Final = 0.6
#: Lead, in standard errors, needed for classes without labels, and its mean and standard deviation if every class has
#: labels: it was then large enough in 5% of 224 draws of eight sets, balanced or not, on which these were chosen.
_NEEDED: Final = 0.4
_USUAL: Final = (-1.1, 0.95)
#: Number of times that each label is hidden, about, to estimate the share of rows without a label.
_TURNS: Final = 8
#: Leads in standard errors with the smallest and the full weight of groups, and the smallest weight.
_LEADS: Final = (0.0, 4.0)
_MIN_WEIGHT: Final = 0.52
#: If a larger share of hidden labels is in other groups, M - S is mostly noise.
_MAX_MISSED: Final = 0.6
_MAX_NEW: Final = 0.9
#: Standard error of the share of rows without a class that more labels do not reduce.
_UNEVEN: Final = 0.2
#: Share of labels that are alone in their class above which few classes have labels: it is larger in 1% of the draws if
#: ten classes have one or two labels each, by chance.
_MOSTLY_ALONE: Final = 0.75
#: Smallest difference between hidden labels and those of other classes, below which nothing can be told.
_MIN_DISTANCE: Final = 0.05
#: Maximum and minimum number of labels of suggested photos for estimating the number of classes without labels.
_LAST_SUGGESTED, _MIN_SUGGESTED = 20, 10
#: Fraction of these that are alone in their class, above which there are such classes.
_MANY_ALONE: Final = 0.6
#: Ratio of the fraction of photos in such classes to the fraction of these labels, since unusual photos are suggested;
#: .4 to .8 on average in the rounds of groceries and alphabets on which it was chosen.
_NEW_PER_ALONE: Final = 0.7

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class NewClassShare:
    """Share of the unlabeled rows in classes without labels, estimated from distances between hidden and other labels.

    Attributes:
        share: the estimate; below 0 or above 1 by chance.
        error: its standard error, > 0.
        alone: share of the labels that are alone in their class, in [0, 1].
        unseen: number of classes without labels if labels were drawn at random (Chao's estimate), >= 0.
    """

    share: float
    error: float
    alone: float = 0.0
    unseen: int = 0

    @property
    def estimate(self) -> float:
        """The estimated share, clipped to [0, 1] and at least ``alone``."""
        return min(max(self.share, self.alone), 1.0)

    @property
    def shrunken_estimate(self) -> float:
        """The estimated share, shrunken toward 0 by its error, for use if no group of such rows was found."""
        signal = max(self.share, 0) ** 2
        return max(min(self.share, 1) * signal / (signal + self.error**2), self.alone)

    @property
    def lower_bound(self) -> float:
        """The estimated share minus one standard error, clipped to [0, .9]."""
        return min(max(self.share - self.error, 0.0), _MAX_NEW)


@dataclass(frozen=True, slots=True)
class UnlabeledGroupEstimate:
    """Expected accuracy, with standard errors, for each number of groups without labels.

    Attributes:
        numbers: numbers of such groups that were tried, from 0.
        expected: for each number, share of the unlabeled rows expected to be predicted correctly.
        errors: standard errors of its lead over none.
        near: share of the unlabeled rows in classes without labels.
    """

    numbers: tuple[int, ...]
    expected: tuple[float, ...]
    errors: tuple[float, ...]
    near: NewClassShare

    @property
    def uses_label_counts(self) -> bool:
        """Whether the best number comes from label counts, since most labels are the only one of their class."""
        return self.near.alone > _MOSTLY_ALONE

    def best_number(self, *, at_least_one: bool = False) -> int:
        """Return the best number of groups without labels, or 0 if its lead over no such groups is too small.

        If ``uses_label_counts``, it is the largest number tried up to the estimate from label counts, and at least one.

        Args:
            at_least_one: there are such groups; then 0 is returned only if no other number was tried.
        """
        if len(self.numbers) == 1:
            return 0
        if self.uses_label_counts:
            return max((number for number in self.numbers[1:] if number <= self.near.unseen), default=self.numbers[1])
        return self.numbers[1 + int(np.argmax(self.expected[1:]))] if at_least_one or self.max_lead > _NEEDED else 0

    @property
    def max_lead(self) -> float:
        """Largest lead over having no such groups, in standard errors; usually negative if every class has labels."""
        return float(((np.array(self.expected[1:]) - self.expected[0]) / np.array(self.errors[1:])).max())

    @property
    def lead_p_value(self) -> float:
        """Approximate probability, in [0, 1], of a lead this large if every class had labels."""
        from scipy.stats import norm

        return float(norm.sf(self.max_lead, *_USUAL)) if len(self.numbers) > 1 else 1.0

    @property
    def group_weight(self) -> float:
        """Weight of groups without labels relative to labeled classes in predictions, in [.52, 1]."""
        return 1.0 if self.uses_label_counts else float(np.interp(self.max_lead, _LEADS, (_MIN_WEIGHT, 1.0)))

    def plausible_range(self, number: int) -> tuple[int, int]:
        """Return the range of numbers whose expected accuracy is at most two standard errors below ``number``'s."""
        place = self.numbers.index(number)
        least = self.expected[place] - 2 * self.errors[place]
        numbers = list(zip(self.numbers, self.expected, strict=True))[self.uses_label_counts :]  # then 0 is excluded
        found = [k for k, value in numbers if value >= least]
        return found[0], found[-1]


def estimate_accuracy_by_num_groups(
    features: ArrayLike,
    labels: ArrayLike,
    numbers: Sequence[int],
    *,
    generator: np.random.Generator,
    min_size: int = 1,
) -> UnlabeledGroupEstimate | None:
    """Estimate the prediction accuracy for each candidate number of groups without labels.

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
    classifier = RefittableClassifier(rows, labels_of)
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
            right[mine] += classifier.fit_and_predict(kept)[hidden].argmax(axis=1) == own[mine]
            tree = build_hierarchy(places, kept, generator=generator)
            for place, other in enumerate(numbers):
                ids, _ = tree.cut(tree.clamp(len(classes) + other), min_size=min_size)
                missed[place, mine] += ids[hidden] >= len(classes)
                found[place] += (ids[unlabeled] >= len(classes)).mean() / len(used)
    # weight hidden labels by the size of their class
    sizes = np.bincount(classifier.fit_and_predict(labels_of).argmax(axis=1), minlength=len(classes)).astype(np.float64)
    weights = (sizes / np.maximum(np.bincount(own[tested], minlength=len(classes)), 1))[own[tested]]
    weights /= weights.sum()
    accuracy = float(right[tested] @ weights / _REPEATS)
    near = estimate_new_share(rows, given, generator=generator)
    return _weighed(numbers, accuracy, missed[:, tested] / _REPEATS, found / _REPEATS, weights, near)


def estimate_from_suggestions(
    suggested: Sequence[str], labels: Mapping[str, str], num_photos: int
) -> dict[str, int] | None:
    """Estimate the number of classes without labels from the labels of the photos suggested last.

    If labels were drawn at random, the fraction that are alone in their class would be, on average, the fraction of
    photos in classes without labels (Good). Such classes are assumed to be as large as those with labels. Held-out
    labels cannot show them here, because suggested photos are less similar to each other than others of their classes.

    Args:
        suggested: paths of all photos suggested so far, the latest last.
        labels: labels by path.
        num_photos: number of photos.

    Returns:
        ``labels``, the number of labels used, ``alone``, how many of these are alone in their class, and ``classes``,
        the estimate; ``None`` if there are too few labels of suggested photos, or too few of these are alone.
    """
    counts = Counter(labels.values())
    latest = [labels[path] for path in suggested if path in labels][-_LAST_SUGGESTED:]
    alone = sum(counts[label] == 1 for label in latest)
    if len(latest) < _MIN_SUGGESTED or alone <= _MANY_ALONE * len(latest):
        return None
    share = _NEW_PER_ALONE * alone / len(latest)
    number = min(round(len(counts) * share / (1 - share)), num_photos // 3 - len(counts))
    return {"labels": len(latest), "alone": alone, "classes": number} if number > 0 else None


def estimate_new_share(features: NDArray[np.float32], labels: Ints, *, generator: np.random.Generator) -> NewClassShare:
    """Estimate the share of the unlabeled rows that are in classes without labels.

    Args:
        features: (n, d) rows of length 1.
        labels: (n,) -1 = unlabeled, at least one; two labels of at least one class.
        generator: draws the labels to hide.
    """
    rows = np.asarray(features - features.mean(axis=0, dtype=np.float64), dtype=np.float32)
    rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    known, unlabeled = np.flatnonzero(labels >= 0), np.flatnonzero(labels < 0)
    own = np.unique(labels[known], return_inverse=True)[1]
    counts = np.bincount(own)
    # one label of most classes is hidden at a time, so that hidden and unlabeled rows have as many labels to be near
    num_folds = int(np.clip(np.median(counts[counts > 1]), 2, _FOLDS))
    similarity = rows @ rows[known].T
    nearer, times = np.zeros((2, len(known))), np.zeros(len(known))
    for fold in (_folds(own, generator, num_folds) for _ in range(-(-_TURNS // num_folds))):
        for number in np.unique(fold[fold >= 0]):
            hidden, kept = np.flatnonzero(fold == number), np.flatnonzero(fold != number)
            nearest = similarity[:, kept].max(axis=1)
            mine = nearest[known[hidden]]
            same_class = own[hidden, None] == own[kept]
            as_if_new = np.where(same_class, -1, similarity[np.ix_(known[hidden], kept)]).max(axis=1)
            nearer[:, hidden] += [_share_above(nearest[unlabeled], mine), _share_above(as_if_new, mine)]
            times[hidden] += 1
    seen = times > 0
    position, of_new = (nearer[:, seen] / times[seen]).mean(axis=1)
    scale = max(0.5 - of_new, _MIN_DISTANCE)
    error = np.hypot(1 / np.sqrt(12 * seen.sum()) / scale, _UNEVEN)
    alone, twice = int((counts == 1).sum()), int((counts == 2).sum())
    unseen = round(alone * (alone - 1) / (2 * (twice + 1)))
    return NewClassShare(float((0.5 - position) / scale), float(error), alone / len(known), unseen)


def _share_above(values: NDArray[np.float32], limits: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the share of the values that are above each limit; an equal one counts half."""
    ordered = np.sort(values)
    below = np.searchsorted(ordered, limits, side="left") + np.searchsorted(ordered, limits, side="right")
    return np.asarray(1 - below / (2 * len(values)), dtype=np.float64)


def _folds(own: Ints, generator: np.random.Generator, num_folds: int = _FOLDS) -> Ints:
    """Draw the fold that each label is hidden in; -1: never, since it is the only label of its class."""
    fold = np.full(len(own), -1)
    for label, count in enumerate(np.bincount(own)):
        if count > 1:
            fold[own == label] = (generator.permutation(count) + generator.integers(num_folds)) % num_folds
    return fold


def _weighed(
    numbers: Sequence[int],
    right: float,
    missed: NDArray[np.float64],
    found: NDArray[np.float64],
    weights: NDArray[np.float64],
    near: NewClassShare,
) -> UnlabeledGroupEstimate:
    """Compute the expected accuracy for each of k candidate numbers from m hidden labels; ``missed`` is (k, m)."""
    count = 1 / np.square(weights).sum()  # effective number of labels of equal weight
    share = np.minimum(missed @ weights, 1)
    errors = np.maximum(np.sqrt(np.square(missed - share[:, None]) @ np.square(weights)), 0.5 / count)
    share = np.where(found > 0, (share * count + 1) / (count + 1), 0)
    few = share < _MAX_MISSED
    least = np.maximum(np.sqrt(share * (1 - share) / count), errors)
    in_groups = float(np.clip(np.max((found - share - least)[few] / (1 - share[few]), initial=0.0), 0, _MAX_NEW))
    new_share = max(in_groups, near.lower_bound)
    accuracy = max(right, _PURITY)
    expected = (1 - new_share) * accuracy * (1 - share) + _PURITY * np.maximum(found - (1 - new_share) * share, 0)
    scaled = (1 - new_share) * (accuracy + _PURITY) * errors
    return UnlabeledGroupEstimate(tuple(numbers), tuple(expected.tolist()), tuple(scaled.tolist()), near)
