"""How many classes there are, and how sure that is: by the share of the classes with labels, and by dense groups.

    - ``share``: classes with labels and the share of all rows that is theirs (``labeled_share``). Of ``K`` classes,
      ``c`` with labels have about ``c / K`` of the rows; how far a share may be off is known from these classes.
    - ``density``: numbers of groups by HDBSCAN with several least sizes, their geometric mean. Features tell groups
      at many levels (brands, products, kinds), so this alone may be off by a factor; the more these numbers differ,
      the more.

Both are likelihoods of ``K``; their product, each number weighing as much as it is wide on a logarithmic scale, is
what is believed. The choice is its peak, or its middle where it is broad. The interval is the shortest one, on that
scale, that holds nine tenths of it (of density alone, which is too sure, 96 %).

Source:
    density: R. Campello, D. Moulavi and J. Sander, "Density-Based Clustering Based on Hierarchical Density Estimates"
    (scikit-learn's HDBSCAN). The likelihoods are ours. Their constants were chosen on draws from the choosing half of
    ``examples/class_number_cases.py``, but for those of density and ``_NEAR``, for which both halves were looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labelkit.algorithms.class_number import ClassNumberChoice, CriterionCurve
from labelkit.algorithms.labeled_share import LabeledShare, labeled_share
from labelkit.algorithms.projection import principal_directions

Doubles = NDArray[np.float64]

MOST_ROWS: Final = 3000
"""Rows that are looked at: all pairs of them are compared."""
_DIRECTIONS: Final = 48
_LEAST_SIZES: Final = (3, 5, 8, 12, 20)
#: Standard deviation of log K by density: where all sizes agree, and what their spread adds.
_DENSITY_ERROR: Final = 0.55
_DENSITY_SPREAD: Final = 1.25
#: Error of a share beside that over classes, and how much the spread of sizes counts.
_SHARE_ERROR: Final = 0.02
_SIZE_PART: Final = 2.4
#: What an interval holds of the belief; density alone is too sure.
_HELD: Final = 0.9
_HELD_ALONE: Final = 0.96
#: What counts as near the peak: a factor.
_NEAR: Final = 1.15


def believe_num_classes(
    x: ArrayLike,
    labels: ArrayLike,
    numbers: Sequence[int],
    *,
    generator: np.random.Generator,
    num_rows: int | None = None,
    num_labels: int | None = None,
) -> ClassNumberChoice:
    """Choose the number of classes and the interval that holds it in about nine of ten cases.

    Args:
        x: (n, d) rows, n >= 4.
        labels: (n,) integers, -1 = none.
        numbers: numbers to choose from, increasing, each at least that of the classes with labels.
        generator: of what is hidden.
        num_rows: rows that ``x`` was drawn from, the ones without a label by chance; default: n.
        num_labels: labels among these; default: those of ``labels``.

    Returns:
        The choice, with a curve for each kind of evidence: its likelihood, at most 1.

    Raises:
        ValueError: shapes that do not fit, or no number.
    """
    rows, known = np.asarray(x, dtype=np.float32), np.asarray(labels, dtype=np.int64)
    tried = np.asarray(numbers, dtype=np.int64)
    if not len(tried):
        raise ValueError("numbers must not be empty")
    counts = dense_group_counts(rows)
    curves = [_curve("density", tried, density_likelihood(tried, counts), counts, held=_HELD_ALONE)]
    logs = _density_logs(tried, counts)
    found = labeled_share(rows, known, generator=generator)
    if found is not None:
        share_logs = _share_logs(
            tried, found, num_rows or found.num_rows, found.num_labels if num_labels is None else num_labels
        )
        curves.insert(0, _curve("share", tried, np.exp(share_logs - share_logs.max()), (), held=_HELD))
        logs = logs + share_logs
    scores = np.exp(logs - logs.max())
    best, low, high = _peak_and_ends(tried, scores, _HELD if found is not None else _HELD_ALONE)
    return ClassNumberChoice(best, low, high, tuple(tried.tolist()), tuple(scores.tolist()), tuple(curves))


def dense_group_counts(x: ArrayLike) -> tuple[int, ...]:
    """Count the groups that HDBSCAN finds with each of several least sizes.

    Args:
        x: (n, d) rows; compared by cosine on their first principal directions.
    """
    from sklearn.cluster import HDBSCAN  # scikit-learn takes a second to load

    rows = np.asarray(x, dtype=np.float32)
    if rows.shape[1] > _DIRECTIONS:
        directions, _ = principal_directions(rows, _DIRECTIONS)
        rows = (rows - rows.mean(axis=0)) @ directions.astype(np.float32)
    unit = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), np.float32(1e-12))
    counts = []
    for size in _LEAST_SIZES:
        if size <= len(unit):
            made = HDBSCAN(min_cluster_size=size, min_samples=min(3, len(unit)), copy=True).fit_predict(unit)
            counts.append(int(made.max()) + 1)
    return tuple(counts) or (1,)


def density_likelihood(numbers: NDArray[np.int64], counts: Sequence[int]) -> Doubles:
    """Likelihood of each number by the counts of dense groups, at most 1."""
    return np.asarray(np.exp(_density_logs(numbers, counts)), dtype=np.float64)


def density_spread(counts: Sequence[int]) -> float:
    """How far the counts differ: the standard deviation of their logarithms."""
    return float(np.log(np.maximum(counts, 2)).std())


def _density_logs(numbers: NDArray[np.int64], counts: Sequence[int]) -> Doubles:
    # HDBSCAN cannot find one group: 0 and 1 say no more than 2
    center = np.log(np.maximum(counts, 2)).mean()
    error = np.hypot(_DENSITY_ERROR, _DENSITY_SPREAD * density_spread(counts))
    return np.asarray(-0.5 * np.square((np.log(numbers) - center) / error), dtype=np.float64)


def _share_logs(numbers: NDArray[np.int64], found: LabeledShare, num_rows: int, num_labels: int) -> Doubles:
    """Logarithm of Student's density of the share that was found, for each number of classes."""
    classes = found.num_classes
    of_all = classes / numbers
    expected = (num_rows * of_all - num_labels) / max(1, num_rows - num_labels)
    variance = (
        found.error(expected) ** 2
        + _SHARE_ERROR**2
        + (_SIZE_PART * found.size_spread) ** 2 * of_all * (1 - of_all) / classes
    )
    freedom = max(1, classes - 1)
    square = np.square(found.share - expected) / variance
    logs = -(freedom + 1) / 2 * np.log1p(square / freedom) - 0.5 * np.log(variance)
    return np.asarray(logs, dtype=np.float64)


def _peak_and_ends(numbers: NDArray[np.int64], scores: Doubles, held: float) -> tuple[int, int, int]:
    """The choice, and the ends of the shortest interval that holds that part of what is believed.

    The choice is the peak where half of the belief is near it, else the middle: a broad belief may peak at an end.
    """
    between = (numbers[1:] + numbers[:-1]) / 2
    edges = np.log(np.concatenate([[numbers[0] - 0.5], between, [numbers[-1] + 0.5]]))
    parts = scores * np.diff(edges) / (scores * np.diff(edges)).sum()
    believed = np.cumsum(parts)
    # for each number the first one up to which enough is held
    ends = np.searchsorted(believed, believed - parts + held - 1e-12)
    starts = np.flatnonzero(ends < len(numbers))
    start = starts[np.argmin(edges[ends[starts] + 1] - edges[starts])]
    low, high = int(numbers[start]), int(numbers[ends[start]])
    middle = int(numbers[np.searchsorted(believed, 0.5).clip(max=len(numbers) - 1)])
    peak = int(numbers[scores.argmax()])
    near = (numbers <= peak * _NEAR) & (numbers >= peak / _NEAR)
    best = peak if parts[near].sum() >= 0.5 else middle
    return best, min(low, best), max(high, best)


def _curve(
    name: str, numbers: NDArray[np.int64], scores: Doubles, draws: Sequence[int], *, held: float
) -> CriterionCurve:
    best, low, high = _peak_and_ends(numbers, scores, held)
    zeros = (0.0,) * len(numbers)
    return CriterionCurve(name, tuple(numbers.tolist()), tuple(scores.tolist()), zeros, best, low, high, tuple(draws))
