"""Estimate the number of classes by density, or by the published search for the best agreement with labels.

By density: if labels do not determine the number (``unlabeled_classes``), HDBSCAN counts clusters for several minimum
sizes, and the geometric mean of the counts is used. Features show groups at many levels (brands, products, kinds), so
this is only an order of magnitude.

Source: R. Campello, D. Moulavi and J. Sander, "Density-Based Clustering Based on Hierarchical Density Estimates"
(scikit-learn's HDBSCAN).

By agreement: k-means partitions all samples, and the matching of clusters to classes is evaluated on labeled samples.

Source: S. Vaze et al., "Generalized Category Discovery", Sec. 3.3 (GitHub ``sgvaze/generalized-category-discovery``).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labelkit.algorithms.clustering import kmeans
from labelkit.algorithms.matching import match_clusters, validate_ids
from labelkit.algorithms.projection import principal_directions

# All numbers up to this one are tried, and larger ones in steps of this percentage.
_EVERY_NUMBER, _STEP_PERCENT = 100, 2
_DIRECTIONS: Final = 48
_MIN_SIZES: Final = (3, 5, 8, 12, 20)


@dataclass(frozen=True, slots=True)
class NumClassesEstimate:
    """Estimated number of classes, with its plausible range and the score of each candidate.

    Attributes:
        best: the estimate.
        low: lower end of the plausible range.
        high: upper end of the plausible range.
        numbers: numbers tried, increasing.
        scores: score of each number in [0, 1]: expected accuracy on the unlabeled samples; without labels, closeness to
            the number of dense clusters; with GCD's estimate, accuracy on the labeled samples.
    """

    best: int
    low: int
    high: int
    numbers: tuple[int, ...]
    scores: tuple[float, ...]


def candidate_class_counts(low: int, high: int) -> list[int]:
    """Return the numbers of classes to try, from ``low`` to ``high``: every number up to 100, then in steps of 2%.

    Raises:
        ValueError: not ``1 <= low <= high``.
    """
    if not 1 <= low <= high:
        raise ValueError(f"low and high must satisfy 1 <= low <= high, got low={low}, high={high}")
    numbers = [low]
    while numbers[-1] < high:
        step = 1 if high - low <= _EVERY_NUMBER else max(1, numbers[-1] * _STEP_PERCENT // 100)
        numbers.append(min(high, numbers[-1] + step))
    return numbers


def choose_num_classes_by_density(x: ArrayLike, numbers: Sequence[int]) -> NumClassesEstimate:
    """Choose the number of classes closest to the geometric mean of HDBSCAN's cluster counts.

    Args:
        x: (n, d) rows; compared by cosine on their leading principal components.
        numbers: candidates, increasing.

    Raises:
        ValueError: ``numbers`` is empty.
    """
    if not len(numbers):
        raise ValueError("numbers must not be empty")
    from sklearn.cluster import HDBSCAN  # scikit-learn takes a second to import

    rows = np.asarray(x, dtype=np.float32)
    if rows.shape[1] > _DIRECTIONS:
        directions, _ = principal_directions(rows, _DIRECTIONS)
        rows = (rows - rows.mean(axis=0)) @ directions.astype(np.float32)
    unit = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), np.float32(1e-12))
    counts = [
        HDBSCAN(min_cluster_size=size, min_samples=min(3, len(unit)), copy=True).fit_predict(unit).max() + 1
        for size in _MIN_SIZES
        if size <= len(unit)
    ]
    # HDBSCAN cannot find a single cluster: 0 and 1 are no more informative than 2
    logs = np.log(np.maximum(counts or [1], 2))
    off = np.abs(np.log(numbers) - logs.mean())
    # the range is the spread of the counts, but at least a factor of 1.7
    near = np.asarray(numbers)[off <= max(2 * logs.std(), 0.55, off.min())]
    scores = np.exp(-off)
    return NumClassesEstimate(
        int(numbers[int(off.argmin())]), int(near[0]), int(near[-1]), tuple(numbers), tuple(scores.tolist())
    )


# Brent's search always takes about a dozen evaluations; ranges of up to this many integers are evaluated completely.
_ALL_OF_THEM = 8


@dataclass(frozen=True, slots=True)
class NumClassesSearch:
    """Result of a search for the number of classes, with every number evaluated.

    Attributes:
        best: evaluated number with the highest score (or lowest value), the smallest if tied.
        curve: every evaluated number with its score in [0, 1] (or its value), in order of evaluation.
    """

    best: int
    curve: list[tuple[int, float]]


def bounded_integer_search(objective: Callable[[int], float], low: int, high: int) -> NumClassesSearch:
    """Minimize a function of an integer in ``[low, high]`` by Brent's bounded search.

    Each integer is evaluated at most once. Brent's search assumes a single minimum; if there are several, it
    finds one of them, and it may miss the best integer by a few. It never reaches ``high`` itself. A range
    of at most 8 integers is evaluated completely.

    Args:
        objective: value of an integer; not NaN.
        low: smallest integer.
        high: largest integer, >= low.

    Raises:
        ValueError: high < low.
    """
    if high < low:
        raise ValueError(f"high must be at least low={low}, got {high}")
    values: dict[int, float] = {}

    def evaluate(number: float) -> float:
        integer = int(number)
        if integer not in values:
            values[integer] = objective(integer)
        return values[integer]

    if high - low < _ALL_OF_THEM:
        for integer in range(low, high + 1):
            evaluate(integer)
    else:
        from scipy.optimize import minimize_scalar

        minimize_scalar(evaluate, bounds=(low, high), method="bounded", options={"xatol": 0.5})
    best = min(values, key=lambda integer: (values[integer], integer))
    return NumClassesSearch(best, list(values.items()))


def estimate_num_classes(
    x: ArrayLike,
    labels: ArrayLike,
    labeled_mask: ArrayLike,
    *,
    k_min: int,
    k_max: int,
    seed: int = 0,
    num_inits: int = 10,
    progress: Callable[[int, float], None] | None = None,
) -> NumClassesSearch:
    """Estimate the number of classes as the number of clusters that agree best with the labels.

    ``score(k)`` is the fraction of the labeled rows that agree with the best one-to-one matching of
    classes to the clusters of k-means on all rows. Too few clusters merge classes; too many split
    labeled classes, and surplus clusters remain unmatched.

    Args:
        x: (n, d) rows, normalized by the caller if desired.
        labels: (n,) integers; used only where ``labeled_mask`` is true, and >= 0 there.
        labeled_mask: (n,) bool with at least one true entry.
        k_min: smallest number tried, >= 1; the number of labeled classes is a natural choice.
        k_max: largest number tried, at most n.
        seed: seeds each k-means together with k.
        num_inits: restarts of each k-means.
        progress: called with each (number, score) as soon as it is known.

    Raises:
        ValueError: shapes do not match, NaN or infinity, no labeled row, or bounds in the wrong order.
    """
    # float32 halves the time; lower precision hardly affects a score that counts samples.
    rows = np.asarray(x, dtype=np.float32)
    mask = np.asarray(labeled_mask)
    if mask.shape != rows.shape[:1] or mask.dtype != np.bool_ or np.shape(labels) != mask.shape:
        raise ValueError(
            f"labels {np.shape(labels)} and the bool labeled_mask {mask.shape} {mask.dtype} must have one entry per "
            f"row of x {rows.shape}"
        )
    if not mask.any():
        raise ValueError("labeled_mask must have at least one true entry")
    if not 1 <= k_min <= k_max <= len(rows):
        raise ValueError(
            f"k_min and k_max must satisfy 1 <= k_min <= k_max <= {len(rows)}, got k_min={k_min}, k_max={k_max}"
        )
    known: NDArray[np.int64] = validate_ids(np.asarray(labels)[mask], "labels of labeled rows")
    # Label values may be far apart; the count matrix needs consecutive numbers.
    known = np.unique(known, return_inverse=True)[1].astype(np.int64)

    def loss(num_clusters: int) -> float:
        generator = np.random.default_rng([seed, num_clusters])
        found = kmeans(rows, num_clusters, generator=generator, num_inits=num_inits)
        score = match_clusters(found.cluster_ids[mask], known).num_matched / len(known)
        if progress is not None:
            progress(num_clusters, score)
        return -score

    found = bounded_integer_search(loss, k_min, k_max)
    return NumClassesSearch(found.best, [(number, -value) for number, value in found.curve])
