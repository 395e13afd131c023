"""Snowball's discovery: label the unlabeled images nearest to the class means.

Source: dissertation "Deep Learning with Very Few and No Labels", Sec. 2.3.3 and 2.4; selection rules Sec. 2.4.1 and
2.4.3(3), fusion of networks Sec. 2.4.3(4). For rounds and class quotas, see ``pseudo_label_selection.py``.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labelkit.algorithms.calibration import group_means
from labelkit.methods.few_labels.pseudo_label_selection import (
    BLOCK_ROWS,
    Count,
    Discovery,
    SearchArguments,
    SearchRound,
    check_features,
    euclidean_distances,
    round_distances_for_sorting,
    search_in_rounds,
)

Select = Literal["min", "far", "random", "max"]
Fusion = Literal["none", "distance", "cascade", "rank"]
Labels = NDArray[np.int64]

# Size of the confident set of ``far`` per requested row (Sec. 2.4.1), and the inverse of its maximum fraction (ours).
_FAR_FACTOR, _FAR_PART = 10, 2


def discover_confident_samples(
    features: ArrayLike | Sequence[ArrayLike],
    labels: ArrayLike,
    count: Count,
    rounds: int = 1,
    *,
    select: Select = "min",
    fusion: Fusion = "none",
    seed: int = 0,
    **options: Unpack[SearchArguments],
) -> Discovery:
    """Label ``count`` unlabeled rows with the class of the nearest class mean.

    The other arguments are those of :func:`labelkit.methods.few_labels.pseudo_label_selection.search_in_rounds`.
    Features are an (n, d) array, or a list or tuple of such arrays, one per network, combined by ``fusion``:
    ``distance`` averages distances; ``cascade`` concatenates features; ``rank`` averages ranks and votes on labels.

    Within each class (or overall), ``select`` chooses ``min``, the nearest; ``far``, the farthest of a confident set of
    the nearest candidates, 10 times as many as requested, but at most half of all (and at least as many as requested);
    ``random``, with the same seed in each round; or ``max``, the farthest.

    Returns:
        The selected rows with labels and distances (``rank``: mean ranks).

    Raises:
        ValueError: features are not finite, or there are several arrays without a fusion.
    """
    several = isinstance(features, list | tuple) and len(features) > 0 and np.ndim(features[0]) == 2
    arrays: Any = features if several else [features]
    parts = [check_features(rows) for rows in arrays]
    if fusion == "none" and len(parts) > 1:
        raise ValueError(f"{len(parts)} feature arrays require a fusion method")

    def measure(current: Labels, given: Labels, pool: Labels, num_classes: int) -> tuple[NDArray[np.float64], Labels]:
        del given  # earlier discoveries also change the means
        return find_nearest_means(parts, fusion, current, pool, num_classes)

    return search_in_rounds(measure, partial(_choose, select, seed), labels, count, rounds, **options)


def fuse_class_distances(
    distances: Sequence[NDArray[np.float64]], fusion: Fusion
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Combine the distances to the classes computed with several networks (Sec. 2.4.3(4)).

    Args:
        distances: per network (m, c) distances.
        fusion: fusion rule; ``none`` uses the only part.

    Returns:
        (labels (m,) int64, distances (m, j) float64): j = 1, except for ``rank``, which has one column per network for
        :func:`mean_ranks`, since ranks require all rows.
    """
    if fusion == "rank":
        nearest = np.stack([part.min(axis=1) for part in distances], axis=1)
        votes = np.zeros(distances[0].shape, dtype=np.int64)
        for part in distances:
            votes[np.arange(len(part)), part.argmin(axis=1)] += 1
        together = np.mean(distances, axis=0)
        winners = votes == votes.max(axis=1, keepdims=True)
        return np.where(winners, together, np.inf).argmin(axis=1).astype(np.int64), nearest
    if fusion == "cascade":
        together = np.sqrt(sum(part * part for part in distances))
    else:
        together = distances[0] if len(distances) == 1 else np.mean(distances, axis=0)
    return together.argmin(axis=1).astype(np.int64), together.min(axis=1)[:, None]


def mean_ranks(distances: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rank rows, from 1, by each column of distances (m, j), and average the ranks; ties go to the earlier row."""
    from scipy.stats import rankdata

    keys = np.stack([round_distances_for_sorting(column)[0] for column in distances.T], axis=1)
    return np.asarray(rankdata(keys, method="ordinal", axis=0).mean(axis=1))


def _choose(select: Select, seed: int, turn: SearchRound) -> Discovery:
    generator = np.random.RandomState(seed)
    warnings, chosen = [], []
    for group, want in zip(turn.groups, turn.wants, strict=True):
        if select == "max":
            group = group[np.lexsort((turn.pool[group], -turn.keys[group]))]
        elif select == "random":
            # always drawn, so that one class's candidates do not depend on the quota of another
            group = group[generator.permutation(len(group))]
        elif select == "far" and want:
            confident, limit = min(_FAR_FACTOR * want, len(group)), max(want, len(group) // _FAR_PART)
            group = group[: min(confident, limit)][-want:]
            if limit < confident:
                warnings.append("--select far: the confident set is limited to half of the candidates")
        chosen.append(group[:want])
    tie = {"max": -turn.keys, "random": turn.nearest}.get(select, turn.keys)
    return turn.build_discovery(chosen, [tie[np.concatenate(chosen)]], warnings)


def find_nearest_means(
    parts: Sequence[NDArray[Any]], fusion: Fusion, class_labels: Labels, pool: Labels, num_classes: int
) -> tuple[NDArray[np.float64], Labels]:
    """Find the nearest class mean of each pool row; return the distance to it, or the mean rank, and the class."""
    kind = "none" if len(parts) == 1 else fusion
    is_known = class_labels >= 0
    means = [group_means(rows[is_known], class_labels[is_known], num_classes) for rows in parts]  # Eq. 2.8, 3.8
    labels = [np.empty(0, dtype=np.int64)]
    nearest = [np.empty((0, len(parts) if kind == "rank" else 1))]
    for start in range(0, len(pool), BLOCK_ROWS):
        block = pool[start : start + BLOCK_ROWS]
        every = [euclidean_distances(rows[block], mean) for rows, mean in zip(parts, means, strict=True)]
        named, column = fuse_class_distances(every, kind)
        labels.append(named)
        nearest.append(column)
    distances = np.concatenate(nearest)
    return mean_ranks(distances) if kind == "rank" else distances[:, 0], np.concatenate(labels)
