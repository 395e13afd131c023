"""Groups of two runs over partly the same images: which keep their id, and which split, merge, appear or vanish.

Source: H. W. Kuhn, "The Hungarian method for the assignment problem"; solver of scipy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import linear_sum_assignment

Ids = NDArray[np.int64]


def match_groups(counts: ArrayLike, *, min_overlap: float, fixed: Sequence[tuple[int, int]] = ()) -> Ids:
    """Match each later group with the earlier group that it continues.

    A pair may match if ``c / (a + b - c) >= min_overlap``, with c images in both, a in the earlier and b in the later
    group. Of all one-to-one matchings of such pairs, one with the most images in matched pairs is taken.

    Args:
        counts: (p, q) images of each earlier group (row) in each later one (column), of the images in both runs.
        min_overlap: in (0, 1].
        fixed: pairs (earlier, later) that match whatever their images.

    Returns:
        (q,) int64 earlier group of each later one, -1 = none.

    Raises:
        ValueError: counts that are none, ``min_overlap`` out of range, or a group that is fixed twice.
    """
    shared = np.asarray(counts)
    if shared.ndim != 2 or (shared < 0).any() or not 0 < min_overlap <= 1:
        raise ValueError(f"counts {shared.shape} or min_overlap {min_overlap} is out of range")
    if len({pair[0] for pair in fixed}) < len(fixed) or len({pair[1] for pair in fixed}) < len(fixed):
        raise ValueError(f"a group is fixed twice in {list(fixed)}")
    earlier = np.full(shared.shape[1], -1, dtype=np.int64)
    union = shared.sum(axis=1, keepdims=True) + shared.sum(axis=0, keepdims=True) - shared
    gains = np.where((shared > 0) & (shared >= min_overlap * union), shared, 0)
    for before, after in fixed:
        earlier[after] = before
        gains[before], gains[:, after] = 0, 0
    rows, columns = linear_sum_assignment(gains, maximize=True)
    for row, column in zip(rows.tolist(), columns.tolist(), strict=True):
        if gains[row, column] > 0:
            earlier[column] = row
    return earlier


@dataclass(frozen=True)
class GroupChanges:
    """Changes between two groupings: groups kept, split, merged, new and vanished.

    Numbers are positions in the lists of groups that were compared. A group may be in a split and in a merge at once.

    Attributes:
        kept: (earlier, later) pairs.
        changed: (earlier, later) pairs that are the same by name, but not by most of their images.
        splits: (earlier, its later parts, the largest first).
        merges: (later, its earlier parts, the largest first).
        new: later groups in none of these.
        vanished: earlier groups in none of these.
        related: (p, q) bool: an image that goes from one to the other has not moved.
    """

    kept: list[tuple[int, int]]
    changed: list[tuple[int, int]]
    splits: list[tuple[int, list[int]]]
    merges: list[tuple[int, list[int]]]
    new: list[int]
    vanished: list[int]
    related: NDArray[np.bool_]


def compare_groups(
    counts: ArrayLike, *, main_share: float = 0.5, part_share: float = 0.2, same: Sequence[tuple[int, int]] = ()
) -> GroupChanges:
    """Find which groups were kept, split, merged, added or lost between two groupings.

    With c images in both groups, a in the earlier and b in the later one, ``m = main_share`` and ``s = part_share``:

    - An earlier group **splits** into the later groups with ``c >= s a`` and ``c > m b``, if there are two or more:
      each holds a fair part of it and is mostly it.
    - Earlier groups **merge** into a later one if two or more have ``c >= s b`` and ``c > m a``: each is a fair part of
      it and went mostly there.
    - A pair is **kept** if ``c > m a`` and ``c > m b`` and neither group is in a split or merge.
    - A pair of ``same`` of which neither group is in any of these is **changed**.
    - Every other later group is **new** (also one of images that were not there before), every other earlier group
      **vanished** (also one whose images are gone).

    Args:
        counts: (p, q) images of each earlier group (row) in each later one (column), of the images in both runs.
        main_share: m, in [0.5, 1), so that a group is mostly at most one other.
        part_share: s, in (0, 0.5].
        same: (earlier, later) pairs that are one group whatever their images, such as those of a class with labels: an
            image in both has not moved.

    Raises:
        ValueError: counts that are none, or shares out of range.
    """
    shared = np.asarray(counts)
    if shared.ndim != 2 or (shared < 0).any():
        raise ValueError(f"counts of shape {shared.shape} are none")
    if not 0.5 <= main_share < 1 or not 0 < part_share <= 0.5:
        raise ValueError(f"main_share {main_share} or part_share {part_share} is out of range")
    before, after = shared.sum(axis=1, keepdims=True), shared.sum(axis=0, keepdims=True)
    any_shared = shared > 0
    mostly_earlier, mostly_later = shared > main_share * after, shared > main_share * before
    part_of_earlier = any_shared & (shared >= part_share * before) & mostly_earlier
    part_of_later = any_shared & (shared >= part_share * after) & mostly_later
    splits = [
        (int(p), _largest_first(shared[p], part_of_earlier[p])) for p in np.flatnonzero(part_of_earlier.sum(1) > 1)
    ]
    merges = [
        (int(q), _largest_first(shared[:, q], part_of_later[:, q])) for q in np.flatnonzero(part_of_later.sum(0) > 1)
    ]
    related = np.zeros(shared.shape, dtype=bool)
    for p, parts in splits:
        related[p, parts] = True
    for q, sources in merges:
        related[sources, q] = True
    in_event, made_by_event = np.atleast_1d(related.any(axis=1)), np.atleast_1d(related.any(axis=0))
    kept_pairs = any_shared & mostly_earlier & mostly_later & ~in_event[:, None] & ~made_by_event
    related |= kept_pairs
    kept = [(int(p), int(q)) for p, q in zip(*np.nonzero(kept_pairs), strict=True)]
    alone, made = np.atleast_1d(~related.any(axis=1)), np.atleast_1d(~related.any(axis=0))
    changed = [(p, q) for p, q in same if alone[p] and made[q]]
    for p, q in same:
        related[p, q] = True
    for p, q in changed:
        alone[p] = made[q] = False
    new, vanished = np.flatnonzero(made).tolist(), np.flatnonzero(alone).tolist()
    return GroupChanges(kept, changed, splits, merges, new, vanished, related)


def _largest_first(sizes: NDArray[np.int64], chosen: NDArray[np.bool_]) -> list[int]:
    places = np.flatnonzero(chosen)
    return [int(place) for place in places[np.argsort(-sizes[places], kind="stable")]]
