"""How many classes there are: the number at which groups without a label are as separate as classes with one.

A tree of groups is cut into every number. Where it is too small, groups without a label hold several classes, and to
join one with its nearest costs more (in Ward's sense) than to join two classes with labels; where it is too large, they
are parts of classes, and it costs less. The choice is the largest number at which the mean of the first cost is at
least seven tenths of that of the second: of means, medians and quartiles, and ratios from .7 to 1.5, the one that named
most images of Omniglot, digits and kinds of groceries rightly.

Without labels of two classes, HDBSCAN counts groups for several least sizes, and the geometric mean is taken. Features
tell groups at many levels (brands, products, kinds), so that this is the order of magnitude only.

Source:
    dense groups: R. Campello, D. Moulavi and J. Sander, "Density-Based Clustering Based on Hierarchical Density
    Estimates" (scikit-learn's HDBSCAN). The rule for labels is ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from labelkit.algorithms.group_tree import GroupTree
from labelkit.algorithms.projection import principal_directions

# Numbers up to this one are all looked at, larger ones in steps of this percentage.
_EVERY_NUMBER, _STEP_PERCENT = 100, 2
_DIRECTIONS: Final = 48
_LEAST_SIZES: Final = (3, 5, 8, 12, 20)
#: Ratio of the two costs at the lower end of the interval, at the choice, and at the upper end.
_RATIOS: Final = (1.5, 0.7, 0.5)


@dataclass(frozen=True, slots=True)
class ClassNumberChoice:
    """The number of classes that was chosen, and why.

    Attributes:
        best: the number.
        low: smallest number that is likely too.
        high: largest such number.
        numbers: numbers looked at, increasing.
        scores: of each, >= 0: how separate groups without a label are, as a share of classes with labels; without
            labels how near to the count of dense groups, at most 1; with GCD's estimate the share of the labels right.
    """

    best: int
    low: int
    high: int
    numbers: tuple[int, ...]
    scores: tuple[float, ...]


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


def by_separation(tree: GroupTree, numbers: Sequence[int]) -> ClassNumberChoice:
    """Choose the number at which groups without a label are as separate as classes with one.

    Args:
        tree: of rows with labels of two classes or more.
        numbers: to choose from, increasing, >= the number of these classes.

    Raises:
        ValueError: labels of fewer than two classes, or no number.
    """
    count = len(tree.labels)
    if count < 2 or not len(numbers):
        raise ValueError(f"needs labels of two classes and a number, got {count} classes and {len(numbers)} numbers")
    ratios = np.array([_separation(tree, number, count) for number in numbers])
    low, best, high = (
        max((number for number, ratio in zip(numbers, ratios, strict=True) if ratio >= least), default=numbers[0])
        for least in _RATIOS
    )
    return ClassNumberChoice(best, low, high, tuple(numbers), tuple(ratios.tolist()))


def _separation(tree: GroupTree, number: int, num_old: int) -> float:
    """Mean cost of joining a group without a label with its nearest, beside that of two classes; 0: no such group."""
    ids, count = tree.cut(min(max(number, tree.fewest), tree.most), min_size=2)
    if count <= num_old:
        return 0.0
    of_leaf = np.empty(tree.most, dtype=np.int64)
    of_leaf[tree.leaves] = ids
    weights = tree.sizes[: tree.most].astype(np.float64)
    mass = np.bincount(of_leaf, weights, count)
    means = np.zeros((count, tree.places.shape[1]))
    np.add.at(means, of_leaf, tree.places * weights[:, None])
    means /= mass[:, None]
    squares = np.square(means).sum(axis=1)
    costs = np.maximum(squares[:, None] + squares - 2 * means @ means.T, 0)
    costs *= mass[:, None] * mass / (mass[:, None] + mass)
    np.fill_diagonal(costs, np.inf)
    old = float(costs[:num_old, :num_old].min(axis=1).mean())
    return float(costs[num_old:].min(axis=1).mean() / max(old, 1e-12))


def by_density(x: ArrayLike, numbers: Sequence[int]) -> ClassNumberChoice:
    """Choose the number nearest to the geometric mean of the counts of dense groups.

    Args:
        x: (n, d) rows; compared by cosine on their first principal directions.
        numbers: to choose from, increasing.

    Raises:
        ValueError: no number.
    """
    if not len(numbers):
        raise ValueError("numbers must not be empty")
    # HDBSCAN cannot find one group: 0 and 1 say no more than 2
    logs = np.log(np.maximum(dense_group_counts(x), 2))
    off = np.abs(np.log(numbers) - logs.mean())
    # as far off as the counts differ, and never less than by a factor of 1.7
    near = np.asarray(numbers)[off <= max(2 * logs.std(), 0.55, off.min())]
    scores = np.exp(-off)
    return ClassNumberChoice(
        int(numbers[int(off.argmin())]), int(near[0]), int(near[-1]), tuple(numbers), tuple(scores.tolist())
    )


def dense_group_counts(x: ArrayLike) -> tuple[int, ...]:
    """Count the groups that HDBSCAN finds with each of several least sizes.

    Args:
        x: (n, d) rows, n >= 1.
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
