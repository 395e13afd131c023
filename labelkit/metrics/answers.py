"""Judge answers that name a known class or a new group against the true classes.

A known class is right by its name. New groups have none: they are matched one to one with the classes that no group
is named by, so that the most samples agree, as the protocols of category discovery do.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labelkit.algorithms.matching import as_ids, contingency, match_counts


def class_of_answer(labels: ArrayLike, group_ids: ArrayLike, class_of_group: ArrayLike) -> NDArray[np.int64]:
    """Return the class of each group: its own, or for a new group the one it is matched with.

    Args:
        labels: (n,) integers >= 0, the truth.
        group_ids: (n,) integers in ``[0, k)``.
        class_of_group: (k,) integers, class of a known group, -1 = new.

    Returns:
        (k,) int64, -1 = a new group without match.

    Raises:
        ValueError: shapes that do not fit, an id out of range, or a class named twice.
    """
    classes, groups = as_ids(labels, "labels"), as_ids(group_ids, "group_ids")
    named = np.asarray(class_of_group)
    if named.ndim != 1 or not np.issubdtype(named.dtype, np.integer) or named.min(initial=-1) < -1:
        raise ValueError(f"class_of_group must be integers >= -1 of shape (k,), got {named.dtype} {named.shape}")
    known = named[named >= 0]
    if len(np.unique(known)) < len(known):
        raise ValueError("class_of_group names a class more than once")
    num_classes = int(max(classes.max(), named.max())) + 1
    counts = contingency(groups, classes, num_clusters=len(named), num_classes=num_classes)
    result = named.astype(np.int64)
    new_groups = np.flatnonzero(named < 0)
    free = np.setdiff1d(np.arange(num_classes), known)
    if len(new_groups) and len(free):
        matched = match_counts(counts[np.ix_(new_groups, free)]).class_of_cluster
        result[new_groups[matched >= 0]] = free[matched[matched >= 0]]
    return result
