"""Groups of groups: the unions of a tree go on above the groups that are shown, and good places to cut are named.

Ward's unions join the means of the groups, each as heavy as it has rows. A level is a number of groups at which the
next union costs much more than the last one. Between k groups and one, levels are spread evenly on a logarithmic
scale, and each takes the number of its stretch where this ratio is largest.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labelkit.algorithms.group_tree import ward_unions

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class GroupLevels:
    """k groups, joined step by step.

    Attributes:
        unions: (k - 1, 2) of groups, or of unions: union i is number k + i.
        costs: (k - 1,) of the unions; they never fall.
        numbers: groups at each level above the first, falling.
        parents: one (k,) array per level: its group of each of the k groups; numbers follow the smallest group inside.
    """

    unions: Ints
    costs: NDArray[np.float64]
    numbers: tuple[int, ...]
    parents: tuple[Ints, ...]


def join_groups(means: ArrayLike, sizes: ArrayLike, *, num_levels: int) -> GroupLevels:
    """Join groups, and choose levels.

    Args:
        means: (k, d), k >= 1.
        sizes: (k,) rows of each, > 0.
        num_levels: levels above the groups; fewer come out where there is no number left between 1 and k.

    Raises:
        ValueError: shapes that do not fit.
    """
    places, weights = np.asarray(means, dtype=np.float64), np.asarray(sizes, dtype=np.float64)
    if places.ndim != 2 or not len(places) or weights.shape != (len(places),) or not (weights > 0).all():
        raise ValueError(
            f"means {places.shape} and sizes {weights.shape} do not fit together, or a size is not positive"
        )
    unions, costs = ward_unions(places, weights)
    numbers = level_numbers(costs, num_levels)
    return GroupLevels(unions, costs, numbers, tuple(groups_at(unions, len(places), number) for number in numbers))


def level_numbers(costs: ArrayLike, num_levels: int) -> tuple[int, ...]:
    """Numbers of groups, falling, each the best of its stretch.

    Args:
        costs: (k - 1,) of the unions of k groups, rising.
        num_levels: how many numbers; each lies in [2, k - 1].
    """
    rising = np.asarray(costs, dtype=np.float64)
    count = len(rising) + 1
    ends = np.exp(np.linspace(np.log(count), 0, num_levels + 2))
    found: list[int] = []
    for level in range(num_levels):
        # half a step to either side
        low, high = np.sqrt(ends[level + 1] * ends[level + 2]), np.sqrt(ends[level] * ends[level + 1])
        below = found[-1] if found else count
        numbers = [number for number in range(2, below) if low <= number <= high]
        if not numbers:
            continue
        # cutting into j groups undoes union k - j, after union k - j - 1
        ratios = [rising[count - number] / max(rising[count - number - 1], 1e-12) for number in numbers]
        found.append(numbers[int(np.argmax(ratios))])
    return tuple(found)


def groups_at(unions: Ints, num_groups: int, number: int) -> Ints:
    """Which of ``number`` coarse groups each of k groups is in, (k,).

    Args:
        unions: (k - 1, 2) as in :class:`GroupLevels`.
        num_groups: k.
        number: in [1, k].
    """
    top = np.arange(num_groups + len(unions), dtype=np.int64)
    for place in range(num_groups - number - 1, -1, -1):
        top[unions[place]] = top[num_groups + place]
    _, first, inverse = np.unique(top[:num_groups], return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return np.asarray(rank[inverse], dtype=np.int64)
