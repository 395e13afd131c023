"""Estimate how many classes there are: by the labels that are there, and by how the rows lie.

The published estimate, which needs labels, is in ``over_clustering.py``.

Sources:
    - held-out labels: K. Han, A. Vedaldi and A. Zisserman, "Learning to Discover Novel Visual
      Categories via Deep Transfer Clustering", Sec. 3.3, who hold out classes; here rows too;
    - silhouette: P. J. Rousseeuw, see :mod:`labelkit.algorithms.silhouette`;
    - stability: T. Lange et al., "Stability-Based Validation of Clustering Solutions", and
      A. Ben-Hur, A. Elisseeff and I. Guyon, "A stability based method for discovering structure
      in clustered data"; the reference without clusters follows R. Tibshirani, G. Walther and
      T. Hastie, "Estimating the number of clusters in a data set via the gap statistic";
    - half-samples and their standard error: P. J. McCarthy, "Pseudo-replication: half samples";
      one standard error as a margin: L. Breiman et al., "Classification and Regression Trees".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labelkit.algorithms.clustering_path import Partition, kmeans_path
from labelkit.algorithms.matching import as_ids, contingency, match_clusters, pair_agreement
from labelkit.algorithms.silhouette import pairwise_distances, silhouette_score, simplified_silhouette_score

Criterion = Literal["labeled", "heldout", "silhouette", "stability"]
CRITERIA: tuple[Criterion, ...] = ("labeled", "heldout", "silhouette", "stability")
LABEL_FREE: tuple[Criterion, ...] = ("silhouette", "stability")

# Numbers up to this one are all looked at, larger ones in steps of this percentage.
_EVERY_NUMBER, _STEP_PERCENT = 100, 2
# Up to this number of rows of a draw the silhouette is exact: 32 MB of distances.
EXACT_SILHOUETTE_ROWS = 2000
# Rows that make up one row of the reference without clusters.
_REFERENCE_TERMS = 100


class TooFewDifferentRowsError(ValueError):
    """Rows repeat so much that they cannot be divided into the smallest number of classes asked for."""


@dataclass(frozen=True, slots=True)
class CriterionCurve:
    """What one criterion says of each number of classes.

    Attributes:
        name: the criterion.
        numbers: numbers looked at, increasing.
        scores: score of each, the mean over the draws; the higher, the better, at most 1.
        errors: standard error of each.
        best: the number of highest score; the smallest of equals.
        low: smallest number whose score is within one standard error of the best.
        high: largest such number.
        best_of_draws: the best number of each draw alone (stability: of each pair of draws).
    """

    name: str
    numbers: tuple[int, ...]
    scores: tuple[float, ...]
    errors: tuple[float, ...]
    best: int
    low: int
    high: int
    best_of_draws: tuple[int, ...]

    @property
    def tells(self) -> bool:
        """Whether any number is better than chance; if not, every number is as good as another."""
        return max(self.scores) > 0


@dataclass(frozen=True, slots=True)
class ClassNumberChoice:
    """The number of classes that several criteria agree on best.

    Attributes:
        best: the number of highest combined score; the smallest of equals.
        low: smallest number that some criterion cannot tell from its best (or ``best``).
        high: largest such number.
        numbers: numbers looked at, increasing.
        scores: combined score of each, in [0, 1]: the mean over the criteria of the score divided
            by the highest score of that criterion.
        criteria: what each criterion says.
    """

    best: int
    low: int
    high: int
    numbers: tuple[int, ...]
    scores: tuple[float, ...]
    criteria: tuple[CriterionCurve, ...]


def class_numbers(low: int, high: int) -> list[int]:
    """Return the numbers to look at: every one up to 100, then in steps of 2 percent; ``high`` is the last.

    Raises:
        ValueError: not ``1 <= low <= high``.
    """
    if not 1 <= low <= high:
        raise ValueError(f"needs 1 <= low <= high, got low={low}, high={high}")
    numbers = [low]
    while numbers[-1] < high:
        step = 1 if high - low <= _EVERY_NUMBER else max(1, numbers[-1] * _STEP_PERCENT // 100)
        numbers.append(min(high, numbers[-1] + step))
    return numbers


def make_curve(
    name: str, numbers: Sequence[int], scores: NDArray[np.float64], errors: NDArray[np.float64]
) -> CriterionCurve:
    """Find the best number of a criterion and those that it cannot tell from the best.

    Args:
        name: of the criterion.
        numbers: (k,) increasing.
        scores: (draws, k), or (pairs of draws, k).
        errors: (k,) standard errors of the means.
    """
    mean = scores.mean(axis=0)
    top = int(mean.argmax())
    # without a number that is better than chance, none is better than another
    within = mean >= (mean[top] - errors[top] if mean[top] > 0 else -np.inf)
    near = np.flatnonzero(within)
    return CriterionCurve(
        name=name,
        numbers=tuple(int(number) for number in numbers),
        scores=tuple(mean.tolist()),
        errors=tuple(errors.tolist()),
        best=int(numbers[top]),
        low=int(numbers[near[0]]),
        high=int(numbers[near[-1]]),
        best_of_draws=tuple(int(numbers[place]) for place in scores.argmax(axis=1)),
    )


def share_error(shares: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    """Return the standard error of shares of ``count`` rows, as if there were one right and one wrong row more.

    Without these two, a share of 1 among five rows would have no error.
    """
    moved = (shares * count + 1) / (count + 2)
    return np.sqrt(moved * (1 - moved) / (count + 2))


def combine_criteria(curves: Sequence[CriterionCurve]) -> ClassNumberChoice:
    """Choose the number at which the criteria, each relative to its own highest score, are best on average.

    A score below 0 counts as 0, and a criterion without a score above 0 as 0 throughout. The
    interval spans all numbers that at least one criterion cannot tell from its best, and the choice.

    Args:
        curves: one or more, over the same numbers.

    Raises:
        ValueError: no curve, or numbers that differ.
    """
    if not curves or any(curve.numbers != curves[0].numbers for curve in curves):
        raise ValueError("needs one or more curves over the same numbers")
    relative = [np.maximum(curve.scores, 0) / max(curve.scores) for curve in curves if curve.tells]
    numbers = curves[0].numbers
    total = np.sum(relative, axis=0) / len(curves) if relative else np.zeros(len(numbers))
    best = numbers[int(total.argmax())]
    return ClassNumberChoice(
        best=best,
        low=min(best, *(curve.low for curve in curves)),
        high=max(best, *(curve.high for curve in curves)),
        numbers=numbers,
        scores=tuple(total.tolist()),
        criteria=tuple(curves),
    )


def count_paths(criteria: Sequence[Criterion], num_draws: int) -> int:
    """Return how many sweeps over all numbers :func:`choose_num_classes` makes."""
    per_draw = int(criteria != ("heldout",)) + int("stability" in criteria) + int("heldout" in criteria)
    return per_draw * num_draws


def choose_num_classes(
    x: ArrayLike,
    numbers: Sequence[int],
    criteria: Sequence[Criterion],
    *,
    labels: ArrayLike | None = None,
    labeled_mask: ArrayLike | None = None,
    seed: int = 0,
    num_draws: int = 8,
    progress: Callable[[], None] | None = None,
) -> ClassNumberChoice:
    """Score every number of classes by several criteria, over random halves of the rows.

    Each draw is half of the rows (if labels are used: of each labeled class, and of the rest); it is
    partitioned into each of the numbers by :func:`kmeans_path`. On these partitions:

        - ``labeled``: share of the labeled rows that the best one-to-one matching of clusters and
          classes gets right. Surplus clusters go unmatched, so it sees classes that are split;
          merged ones it sees only among those with labels.
        - ``silhouette``: exact for draws of at most 2,000 rows, else simplified.
        - ``stability``: agreement (adjusted Rand index) of two draws on the rows they share, minus
          that of a reference without clusters, as a share of what is possible,
          ``(S - S0) / (1 - S0)``: few clusters, cut along the longest axis of anything, are stable
          too. A row of the reference is a sum of 100 random rows with normal weights, so that it
          has the covariance of the rows and no groups.

    And on partitions of all rows by k-means with fixed labels:

        - ``heldout``: a random half of the labels of each class is held out; the others of a random
          half of the classes guide, so that the remaining classes are hidden like those without
          labels. Share of the held-out rows that are right: in the cluster of their class, or, for
          a hidden class, in the cluster without a name that is matched with it. A class with a
          single labeled row has none to hold out.

    The standard error of a score is its standard deviation over the draws (``stability``: over the
    pairs of draws), which for halves is that of the score of all rows; with labels it is at least
    :func:`share_error`.

    Args:
        x: (n, d) rows, normalized by the caller if wanted.
        numbers: numbers of classes, increasing, from 2 (and the classes with labels) to half of
            the rows less one.
        criteria: which; ``labeled`` and ``heldout`` need labels.
        labels: (n,) integers; read only where ``labeled_mask`` is true, and >= 0 there.
        labeled_mask: (n,) bool.
        seed: of all draws.
        num_draws: halves drawn, at least 3 (one pair has no deviation).
        progress: called after each of :func:`count_paths` sweeps.

    Returns:
        The choice. Its numbers end early where rows repeat and cannot be divided any further.

    Raises:
        ValueError: shapes that do not fit, NaN or infinity, numbers out of range, labels missing
            where a criterion needs them, no class with two labeled rows for ``heldout``, or an
            unknown criterion.
        TooFewDifferentRowsError: half of the rows has fewer different ones than the smallest number.
    """
    rows = np.asarray(x, dtype=np.float32)
    classes = _class_of_rows(rows, labels, labeled_mask)
    _check_choice(rows, classes, numbers, criteria, num_draws)
    if set(criteria) <= set(LABEL_FREE):
        # free of labels in the choice of the halves too
        classes[:] = -1
    scores: dict[Criterion, list[list[float]]] = {criterion: [] for criterion in criteria}
    step = progress if progress is not None else _no_progress

    if "heldout" in criteria:
        for draw in range(num_draws):
            scores["heldout"].append(_heldout(rows, classes, numbers, np.random.default_rng([seed, 2, draw])))
            step()
    if set(criteria) - {"heldout"}:
        draws = [_half(classes, np.random.default_rng([seed, 1, draw])) for draw in range(num_draws)]
        paths = []
        for drawn in draws:
            path = kmeans_path(rows[drawn], numbers)
            paths.append(path)
            if "labeled" in criteria:
                scores["labeled"].append([_labeled(part, classes[drawn]) for part in path])
            if "silhouette" in criteria:
                scores["silhouette"].append(_silhouettes(rows[drawn], path))
            step()
        if "stability" in criteria:
            reference = _without_clusters(rows, np.random.default_rng([seed, 3]))
            chance_paths = []
            for drawn in draws:
                chance_paths.append(kmeans_path(reference[drawn], numbers))
                step()
            agreement, chance = _agreements(draws, paths), _agreements(draws, chance_paths)
            reached = min(agreement.shape[1], chance.shape[1])
            expected = chance[:, :reached].mean(axis=0)
            scores["stability"] = ((agreement[:, :reached] - expected) / np.maximum(1 - expected, 1e-9)).tolist()
    reached = min(len(row) for criterion in criteria for row in scores[criterion])
    if reached == 0:
        raise TooFewDifferentRowsError(f"half of them has fewer than {numbers[0]} different ones")
    sizes = np.bincount(classes[classes >= 0])
    counted = {"labeled": int(sizes.sum()), "heldout": int((sizes // 2).sum())}
    curves = []
    for criterion in criteria:
        found = np.array([row[:reached] for row in scores[criterion]])
        errors = found.std(axis=0, ddof=1)
        if criterion in counted:
            # few labels are often all right in every draw, which says little of others
            errors = np.maximum(errors, share_error(found.mean(axis=0), counted[criterion]))
        curves.append(make_curve(criterion, numbers[:reached], found, errors))
    return combine_criteria(curves)


def _no_progress() -> None:
    pass


def _class_of_rows(
    rows: NDArray[np.float32], labels: ArrayLike | None, labeled_mask: ArrayLike | None
) -> NDArray[np.int64]:
    """Return the class of each labeled row as a number from 0, and -1 for the others."""
    classes = np.full(rows.shape[:1], -1, dtype=np.int64)
    if labels is None and labeled_mask is None:
        return classes
    if labels is None or labeled_mask is None:
        raise ValueError("labels and labeled_mask go together, and one of them is None")
    mask = np.asarray(labeled_mask)
    if mask.shape != classes.shape or mask.dtype != np.bool_ or np.shape(labels) != mask.shape:
        raise ValueError(
            f"labels {np.shape(labels)} and the bool labeled_mask {mask.shape} {mask.dtype} must have one entry "
            f"for each of the rows of x {rows.shape}"
        )
    if mask.any():
        known = as_ids(np.asarray(labels)[mask], "labels of labeled rows")
        classes[mask] = np.unique(known, return_inverse=True)[1]
    return classes


def _check_choice(
    rows: NDArray[np.float32],
    classes: NDArray[np.int64],
    numbers: Sequence[int],
    criteria: Sequence[Criterion],
    num_draws: int,
) -> None:
    unknown = [criterion for criterion in criteria if criterion not in CRITERIA]
    if unknown or not criteria or len(set(criteria)) < len(criteria):
        raise ValueError(f"criteria must be some of {CRITERIA}, each once, got {tuple(criteria)}")
    if num_draws < 3:
        raise ValueError(f"num_draws must be at least 3, got {num_draws}")
    sizes = np.bincount(classes[classes >= 0])
    if not len(sizes) and set(criteria) - set(LABEL_FREE):
        raise ValueError(f"criteria {tuple(criteria)} need labeled rows, and there are none")
    if "heldout" in criteria and sizes.max() < 2:
        raise ValueError("heldout needs a class with two labeled rows, and each has one")
    low, high = max(2, len(sizes)), most_classes(len(rows))
    if not numbers or not low <= numbers[0] <= numbers[-1] <= high:
        raise ValueError(f"numbers must be within [{low}, {high}] for {len(rows)} rows, got {list(numbers)}")


def most_classes(num_rows: int) -> int:
    """Return the largest number of classes that half of ``num_rows`` rows can be judged by."""
    return num_rows // 2 - 1


def _half(classes: NDArray[np.int64], generator: np.random.Generator) -> NDArray[np.int64]:
    """Draw half of the rows of each class and of the unlabeled rows (rounded up), in order."""
    drawn = []
    for own in range(-1, int(classes.max()) + 1):
        members = np.flatnonzero(classes == own)
        drawn.append(generator.permutation(members)[: (len(members) + 1) // 2])
    return np.sort(np.concatenate(drawn))


def _labeled(part: Partition, classes: NDArray[np.int64]) -> float:
    known = classes >= 0
    return match_clusters(part.cluster_ids[known], classes[known]).num_matched / int(known.sum())


def _silhouettes(rows: NDArray[np.float32], path: Sequence[Partition]) -> list[float]:
    if len(rows) > EXACT_SILHOUETTE_ROWS:
        return [simplified_silhouette_score(rows, part.cluster_ids) for part in path]
    distances = pairwise_distances(rows)
    return [silhouette_score(distances, part.cluster_ids) for part in path]


def _heldout(
    rows: NDArray[np.float32], classes: NDArray[np.int64], numbers: Sequence[int], generator: np.random.Generator
) -> list[float]:
    """Return the share of held-out labeled rows that fall where they should, for each number."""
    num_classes = int(classes.max()) + 1
    scored = np.zeros(len(rows), dtype=bool)
    for own in range(num_classes):
        members = np.flatnonzero(classes == own)
        scored[generator.permutation(members)[: len(members) // 2]] = True
    guiding = np.sort(generator.permutation(num_classes)[: (num_classes + 1) // 2])
    guides = np.isin(classes, guiding) & ~scored
    free = rows[~guides]
    path = kmeans_path(free, [k for k in numbers if k <= len(free)], labeled=rows[guides], labels=classes[guides])
    known = scored[~guides]
    truth = classes[~guides][known]
    hidden = ~np.isin(truth, guiding)
    named = np.searchsorted(guiding, truth)
    shares = []
    for part in path:
        found = part.cluster_ids[known]
        right = int((found[~hidden] == named[~hidden]).sum())
        unnamed = hidden & (found >= len(guiding))
        if unnamed.any():
            right += match_clusters(found[unnamed], truth[unnamed]).num_matched
        shares.append(right / len(truth))
    return shares


def _without_clusters(rows: NDArray[np.float32], generator: np.random.Generator) -> NDArray[np.float32]:
    """Return as many rows with the same mean and covariance, each a sum of random rows with normal weights."""
    from scipy.sparse import csr_array

    num_rows = len(rows)
    mean = rows.mean(axis=0, dtype=np.float64)
    terms = generator.integers(num_rows, size=num_rows * _REFERENCE_TERMS)
    weights = generator.standard_normal(num_rows * _REFERENCE_TERMS) / np.sqrt(_REFERENCE_TERMS)
    starts = np.arange(num_rows + 1) * _REFERENCE_TERMS
    mixed = csr_array((weights, terms, starts), shape=(num_rows, num_rows)) @ (rows - mean)
    reference: NDArray[np.float32] = (np.asarray(mixed) + mean).astype(np.float32)
    return reference


def _agreements(draws: Sequence[NDArray[np.int64]], paths: Sequence[Sequence[Partition]]) -> NDArray[np.float64]:
    """Return the agreement of every pair of draws on the rows they share, (pairs, numbers)."""
    reached = min(len(path) for path in paths)
    found = []
    for first, second in combinations(range(len(draws)), 2):
        _, own, other = np.intersect1d(draws[first], draws[second], assume_unique=True, return_indices=True)
        pairs = zip(paths[first][:reached], paths[second][:reached], strict=True)
        counts = (contingency(here.cluster_ids[own], there.cluster_ids[other]) for here, there in pairs)
        found.append([pair_agreement(count) for count in counts])
    return np.array(found)
