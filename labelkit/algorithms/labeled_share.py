"""Estimate what share of the rows belongs to the classes that have labels, and so how many classes there are.

Labels tell what a class looks like among these features. If some are hidden, their rows show how near a row of a known
class lies to the labels that are left; if a class is hidden whole, its rows show the same of a class without labels.
A row without a label is one or the other, so the mean score of all of them is a mixture of the two means, and its
weight is the share that is sought ("adjusted count"). Where classes with labels are a chance selection of all, ``c``
such classes with the share ``s`` of all rows say that there are about ``c / s``.

Source:
    the adjusted count: G. Forman, "Quantifying counts and costs via classification", Data Mining and Knowledge
    Discovery 17 (2008). Scores, error and number of classes are ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labelkit.algorithms.projection import principal_directions

Doubles = NDArray[np.float64]
Ints = NDArray[np.int64]

#: Principal directions in which rows are compared.
_DIRECTIONS: Final = 64
#: Times that labels are hidden, share of the labels of a class, and most classes that are hidden whole in each.
_ROUNDS: Final = 4
_HIDDEN: Final = 0.2
_CLASSES_HIDDEN: Final = 12
#: Rows around a row.
_AROUND: Final = 10
#: Means of classes have at least this deviation, as if one class more had shown it: few classes may agree by chance.
_USUAL_DEVIATION: Final = 0.12
#: Below this difference of the two means the share could be anything.
_LEAST_SEPARATION: Final = 0.05
#: Fewer labels do not tell chance from agreement.
_FEWEST_LABELS: Final = 10


@dataclass(frozen=True)
class LabeledShare:
    """The share of the rows without a label that belong to a class with labels.

    Attributes:
        share: the estimate; by chance it may lie a little outside of [0, 1].
        own_error: standard error over classes, as a share, of how rows of classes with labels score.
        other_error: likewise of rows of other classes.
        num_classes: classes with labels.
        num_labels: rows with a label.
        num_rows: all rows.
        size_spread: standard deviation of the sizes of the classes with labels, as a share of their mean.
    """

    share: float
    own_error: float
    other_error: float
    num_classes: int
    num_labels: int
    num_rows: int
    size_spread: float

    def error(self, share: ArrayLike) -> Doubles:
        """Standard error of the estimate where this is the true share.

        The classes without labels vary as those with labels do, which doubles the variance.
        """
        part = np.clip(np.asarray(share, dtype=np.float64), 0, 1)
        return np.asarray(np.sqrt(2) * np.hypot(part * self.own_error, (1 - part) * self.other_error), dtype=np.float64)


def labeled_share(x: ArrayLike, labels: ArrayLike, *, generator: np.random.Generator) -> LabeledShare | None:
    """Estimate the share of classes with labels among the rows without one.

    Args:
        x: (n, d) rows, n >= 2; compared by cosine after a projection.
        labels: (n,) integers, -1 = none.
        generator: of what is hidden.

    Returns:
        The estimate; ``None`` if it takes more labels: fewer than two classes, no class with two labels, or no row
        without one.

    Raises:
        ValueError: shapes that do not fit.
    """
    rows, known = np.asarray(x, dtype=np.float32), np.asarray(labels, dtype=np.int64)
    if rows.ndim != 2 or known.shape != (len(rows),):
        raise ValueError(f"x {rows.shape} and labels {known.shape} do not fit together")
    known = _tested(known)
    classes, counts = np.unique(known[known >= 0], return_counts=True)
    free = np.flatnonzero(known < 0)
    if len(classes) < 2 or not len(free):
        return None
    near = _Nearness(rows, len(classes))
    parts: list[tuple[Doubles, Ints]] = []
    others: list[tuple[Doubles, Ints]] = []
    looks: list[tuple[Doubles, Ints]] = []
    for _ in range(_ROUNDS):
        kept = _hide(known, classes, counts, generator)
        hidden = np.flatnonzero((known >= 0) & (kept < 0))
        parts.append((near.scores(hidden, kept)[0], known[hidden]))
        looks.append(near.scores(free, kept))
        for label in generator.permutation(classes)[:_CLASSES_HIDDEN]:
            members = np.flatnonzero(known == label)
            others.append((near.scores(members, np.where(kept == label, -1, kept))[0], known[members]))
    own, own_class = (np.concatenate(column) for column in zip(*parts, strict=True))
    other, other_class = (np.concatenate(column) for column in zip(*others, strict=True))
    judge = _fit(own, own_class, other, other_class)
    of_own, of_other = judge(own), judge(other)
    means_own, means_other = _class_means(of_own, own_class), _class_means(of_other, other_class)
    # labels of a class are as many as it is large, or equally many; rows of hidden classes were hidden equally often
    high, low = float(of_own.mean()), float(means_other.mean())
    separation = max(_LEAST_SEPARATION, high - low)
    scored = [(judge(scores), nearest) for scores, nearest in looks]
    share = float((np.mean([values.mean() for values, _ in scored]) - low) / separation)
    sizes = np.zeros(len(classes))
    for values, nearest in scored:
        sizes += np.bincount(np.searchsorted(classes, nearest), values, minlength=len(classes)) / len(scored)
    sizes += counts
    spread = float(sizes.std() / sizes.mean())
    own_error, other_error = (_error_of_mean(values) / separation for values in (means_own, means_other))
    return LabeledShare(share, own_error, other_error, len(classes), int(counts.sum()), len(rows), spread)


@dataclass(frozen=True)
class LabelAgreement:
    """Whether near rows have the same label.

    Attributes:
        share: of the rows whose nearest other row with a label has the same one.
        by_chance: that share if labels were drawn at random.
        num_labels: rows looked at, those of classes with two labels or more.
    """

    share: float
    by_chance: float
    num_labels: int

    @property
    def is_chance(self) -> bool:
        """Whether the share is less than two standard errors above that of chance."""
        error = float(np.sqrt(self.by_chance * (1 - self.by_chance) / self.num_labels))
        return self.share < self.by_chance + 2 * error


def label_agreement(x: ArrayLike, labels: ArrayLike) -> LabelAgreement | None:
    """Compare the label of each row with that of its nearest other row with one.

    Args:
        x: (n, d) rows; compared by cosine after a projection.
        labels: (n,) integers, -1 = none.

    Returns:
        The agreement; ``None`` below ten labels in classes with two or more, or if one class has all labels.
    """
    known = np.asarray(labels, dtype=np.int64)
    places = np.flatnonzero(known >= 0)
    _, own, counts = np.unique(known[places], return_inverse=True, return_counts=True)
    others = counts[own] - 1  # with the same label
    asked = np.flatnonzero(others > 0)
    if len(asked) < _FEWEST_LABELS or len(counts) < 2:
        return None
    cosines = _Nearness(np.asarray(x, dtype=np.float32), len(counts)).between(places)
    same = known[places] == known[places][cosines.argmax(axis=1)]
    by_chance = float(others[asked].mean() / (len(places) - 1))
    return LabelAgreement(float(same[asked].mean()), by_chance, len(asked))


def _tested(known: Ints) -> Ints:
    """Labels of classes with two or more.

    A single one cannot be hidden and looked for; and it was often chosen because many rows are near it.
    """
    classes, counts = np.unique(known[known >= 0], return_counts=True)
    return np.where(np.isin(known, classes[counts > 1]), known, -1)


def _hide(known: Ints, classes: Ints, counts: Ints, generator: np.random.Generator) -> Ints:
    """Labels without a fifth of each class, at least one where two are there."""
    kept = known.copy()
    for label, count in zip(classes, counts, strict=True):
        if count > 1:
            rows = generator.permutation(np.flatnonzero(known == label))
            kept[rows[: max(1, int(_HIDDEN * count))]] = -1
    return kept


class _Nearness:
    """How near rows lie to labeled ones, as three numbers."""

    def __init__(self, rows: NDArray[np.float32], num_classes: int) -> None:
        # with one of two classes hidden there is no other one to compare with
        self._compares = num_classes > 2
        if rows.shape[1] > _DIRECTIONS:
            directions, _ = principal_directions(rows, _DIRECTIONS)
            rows = (rows - rows.mean(axis=0)) @ directions.astype(np.float32)
        unit = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), np.float32(1e-12))
        self._cosines = unit @ unit.T
        np.fill_diagonal(self._cosines, -np.inf)
        width = min(_AROUND, len(rows) - 1)
        self._around = np.argpartition(-self._cosines, width - 1, axis=1)[:, :width]

    def between(self, rows: Ints) -> NDArray[np.float32]:
        """Cosines of all pairs of some rows, -inf of a row with itself."""
        return np.asarray(self._cosines[np.ix_(rows, rows)], dtype=np.float32)

    def scores(self, rows: Ints, labels: Ints) -> tuple[Doubles, Ints]:
        """Look from rows at labels.

        Returns:
            (m, 5) cosine to the nearest label, the logarithm of 1 + the number of rows that are nearer, the means of
            both over the rows around, and by how much the nearest label is nearer than that of another class; and (m,)
            the class of the nearest. With labels of fewer than three classes in all (m, 4), without the last.
        """
        kept = np.flatnonzero(labels >= 0)
        kept = kept[np.argsort(labels[kept], kind="stable")]
        classes, starts = np.unique(labels[kept], return_index=True)
        looking, places = np.unique(np.concatenate([rows, self._around[rows].ravel()]), return_inverse=True)
        best = np.maximum.reduceat(self._cosines[np.ix_(looking, kept)], starts, axis=1)
        best = np.maximum(best, -1)  # a row beside itself alone
        first = best.max(axis=1)
        nearer = np.log1p((self._cosines[looking] > first[:, None]).sum(axis=1))
        near = np.stack([first, nearer], axis=1)
        own, around = places[: len(rows)], places[len(rows) :].reshape(len(rows), -1)
        columns = [near[own], near[around].mean(axis=1)]
        if self._compares:
            second = np.partition(best[own], -2, axis=1)[:, -2]
            columns.append((first[own] - second)[:, None])
        return np.concatenate(columns, axis=1).astype(np.float64), classes[best[own].argmax(axis=1)]


class _Judge:
    """Logistic regression on standardized scores."""

    def __init__(self, scores: Doubles, is_own: Ints, weights: Doubles) -> None:
        from sklearn.linear_model import LogisticRegression  # scikit-learn takes a second to load

        self._mean, self._scale = scores.mean(axis=0), scores.std(axis=0) + 1e-9
        self._fitted = LogisticRegression(C=1.0).fit(self._standard(scores), is_own, sample_weight=weights)

    def _standard(self, scores: Doubles) -> Doubles:
        return np.asarray((scores - self._mean) / self._scale, dtype=np.float64)

    def __call__(self, scores: Doubles) -> Doubles:
        found: Doubles = self._fitted.predict_proba(self._standard(scores))[:, 1]
        return found


def _fit(own: Doubles, own_class: Ints, other: Doubles, other_class: Ints) -> _Judge:
    """Tell rows of classes with labels from others; each class and each kind weighs the same."""
    weights = np.concatenate([_class_weights(own_class), _class_weights(other_class)])
    is_own = np.concatenate([np.ones(len(own), dtype=np.int64), np.zeros(len(other), dtype=np.int64)])
    return _Judge(np.concatenate([own, other]), is_own, weights * len(weights))


def _class_weights(classes: Ints) -> Doubles:
    _, places, counts = np.unique(classes, return_inverse=True, return_counts=True)
    return np.asarray(1 / counts[places] / len(counts), dtype=np.float64)


def _error_of_mean(values: Doubles) -> float:
    """Standard error of the mean of some classes."""
    squares = _USUAL_DEVIATION**2 + float(np.square(values - values.mean()).sum())
    return float(np.sqrt(squares) / len(values))


def _class_means(values: Doubles, classes: Ints) -> Doubles:
    _, places = np.unique(classes, return_inverse=True)
    return np.asarray(np.bincount(places, values) / np.bincount(places), dtype=np.float64)
