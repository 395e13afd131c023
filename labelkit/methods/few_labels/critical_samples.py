"""LMCS's critical samples: unlabeled rows near the known classes whose neighbors belong to several of them.

Source: dissertation "Deep Learning with Very Few and No Labels", Sec. 3.3.3, Eq. 3.8 to 3.12.
Each round:
    1. compute class means over the reference rows, and the nearest mean of each pool row   Eq. 3.8
    2. keep the pool rows near their mean (confine)                                         Eq. 3.9
    3. weight the reference rows by their distance rank to each kept row                    Eq. 3.10
    4. compute the soft label (weight of each class) and its entropy                        Eq. 3.11, 3.12
    5. select the rows with the largest entropy whose soft label agrees with the nearest class
For rounds and class quotas, see ``pseudo_label_selection.py``.
Departures: the radius, which is not specified, follows from the count; a row is eligible only if both equations give
the same class.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import entr

from labelkit.methods.few_labels.pseudo_label_selection import (
    BLOCK_ROWS,
    Count,
    Discovery,
    SearchArguments,
    SearchRound,
    check_features,
    compute_min_and_max,
    euclidean_distances,
    round_for_sorting,
    search_in_rounds,
)
from labelkit.methods.few_labels.snowball_search import find_nearest_means

Criterion = Literal["max_entropy", "min_entropy", "min_distance"]
Labels = NDArray[np.int64]

# Candidates per requested row, and the inverse of their maximum fraction (ours; Eq. 3.9 specifies no radius).
_CONFINE_FACTOR, _CONFINE_PART = 10, 4
# Distances to the reference rows per temporary block: 32 MB in float64.
_BLOCK_NUMBERS = 1 << 22


@dataclass(frozen=True)
class CriticalDiscovery(Discovery):
    """Rows labeled by a search for critical samples, with their soft labels and entropies.

    Attributes:
        per_class: in addition to the fields of every search: ``confined``, candidates within the radius;
            ``disagreeing``, confined rows excluded because their soft label favors another class; ``radius``, the
            largest confined distance; ``lowest_entropy`` and ``highest_entropy`` of the selected rows in bits, or NaN.
        soft: (s, c) float32 soft labels (Eq. 3.11), rows sum to 1.
        entropy: (s,) float64 entropies of the soft labels, in bits.
    """

    soft: NDArray[np.float32]
    entropy: NDArray[np.float64]

    @property
    def disagreement(self) -> float:
        """Return the fraction of rows within the radius whose soft label favors another class; NaN without rows."""
        confined, disagreeing = (sum(report[key] for report in self.per_class) for key in ("confined", "disagreeing"))
        return disagreeing / confined if confined else float("nan")


def discover_critical_samples(
    features: ArrayLike,
    labels: ArrayLike,
    count: Count,
    rounds: int = 1,
    *,
    criterion: Criterion = "max_entropy",
    confine: bool = True,
    **options: Unpack[SearchArguments],
) -> CriticalDiscovery:
    """Label ``count`` unlabeled rows of features (n, d) that are close to labeled classes, yet ambiguous.

    The other arguments are those of :func:`labelkit.methods.few_labels.pseudo_label_selection.search_in_rounds`.
    Rows are ordered by ``criterion``. If ``confine``, only the nearest rows are considered: 10 times as many as
    requested, but at most a quarter of the candidates (and at least as many as requested), per class if balanced.

    Returns:
        The selected rows with labels, distances to the nearest mean, soft labels and entropies.

    Raises:
        ValueError: features are not finite.
    """
    rows = check_features(features)

    def measure(current: Labels, given: Labels, pool: Labels, num_classes: int) -> tuple[NDArray[np.float64], Labels]:
        del current  # earlier discoveries do not change the means
        return find_nearest_means([rows], "none", given, pool, num_classes)

    return search_in_rounds(measure, partial(_choose, rows, criterion, confine), labels, count, rounds, **options)


def rank_weights(num_references: int, beta: float) -> NDArray[np.float64]:
    """Return the weights ``beta / (beta + rank / n)`` (n,) float64 for ranks from 1 to n (Eq. 3.10)."""
    ranks = np.arange(1, num_references + 1) / num_references
    return np.asarray(beta / (beta + ranks))


def compute_soft_labels(
    rows: NDArray[Any],
    query_rows: NDArray[np.int64],
    labels: NDArray[np.int64],
    num_classes: int,
    beta: float,
    scale: float,
) -> NDArray[np.float64]:
    """Compute soft labels (m, c), averages of the labels of all reference rows weighted by distance rank (Eq. 3.11).

    Args:
        rows: (n, d).
        query_rows: (m,) rows to compute soft labels for.
        labels: (n,) class of the reference rows, -1 elsewhere.
        num_classes: c.
        beta: beta of :func:`rank_weights`.
        scale: distances are divided by it and rounded for ranking; ties go to the lowest row.
    """
    references = np.flatnonzero(labels >= 0)
    one_hot = np.eye(num_classes)[labels[references]]
    weights = rank_weights(len(references), beta)
    soft = np.empty((len(query_rows), num_classes))
    size = max(1, min(BLOCK_ROWS // 4, _BLOCK_NUMBERS // max(1, len(references))))
    for start in range(0, len(query_rows), size):
        block = slice(start, start + size)
        order = np.argsort(
            round_for_sorting(euclidean_distances(rows[query_rows[block]], rows[references]) / scale),
            axis=1,
            kind="stable",
        )
        weight = np.empty(order.shape)
        np.put_along_axis(weight, order, np.broadcast_to(weights, order.shape), axis=1)
        soft[block] = weight @ one_hot
    soft /= weights.sum()
    return soft


def entropy_bits(probabilities: NDArray[np.float64]) -> NDArray[np.float64]:
    """Compute the entropy (m,) of probabilities (m, c) in bits (Eq. 3.12), with 0 log 0 = 0."""
    return np.asarray(entr(probabilities).sum(axis=1) / np.log(2))


def _choose_classes(soft: NDArray[np.float64], nearest: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the class with the largest weight; on ties, that of the nearest mean if tied, otherwise the lowest."""
    weights = round_for_sorting(soft)
    every = np.arange(len(soft))
    is_nearest = weights[every, nearest] == weights.max(axis=1)
    return np.where(is_nearest, nearest, weights.argmax(axis=1)).astype(np.int64)


def _choose(rows: NDArray[Any], criterion: Criterion, confine: bool, turn: SearchRound) -> CriticalDiscovery:
    warnings = []
    confined = np.concatenate(_confine(turn) if confine else turn.groups)
    candidates = turn.pool[confined]
    # the weight is one half at a rank that equals the mean number of rows per class
    beta, num_classes = 1 / np.count_nonzero(turn.sizes), len(turn.sizes)
    soft = compute_soft_labels(rows, candidates, turn.original, num_classes, beta, turn.scale)
    entropy, nearest = entropy_bits(soft), turn.nearest[confined]
    voted = _choose_classes(soft, nearest)
    if len(np.unique(round_for_sorting(entropy))) == 1 < len(confined) and criterion != "min_distance":
        warnings.append("all entropies are equal, so only distances decide; use at least 2 labels per class")
    first = {"max_entropy": -1.0, "min_entropy": 1.0, "min_distance": 0.0}[criterion] * round_for_sorting(entropy)
    ranking = np.lexsort((candidates, turn.keys[confined], first))
    ranking = ranking[(voted == nearest)[ranking]]
    groups = [ranking]
    if turn.shares is not None:
        groups = [ranking[nearest[ranking] == label] for label in range(num_classes)]
    chosen = [group[:want] for group, want in zip(groups, turn.wants, strict=True)]
    picked = np.concatenate(chosen)
    ties = [first[picked], turn.keys[confined[picked]]]
    found = turn.build_discovery([confined[group] for group in chosen], ties, warnings)
    for report in found.per_class:
        inside = nearest == report["label"]
        low, high = compute_min_and_max(entropy[picked[inside[picked]]])
        report |= {"confined": int(inside.sum()), "disagreeing": int((inside & (voted != nearest)).sum())}
        report |= {
            "radius": compute_min_and_max(turn.distance[confined[inside]])[1],
            "lowest_entropy": low,
            "highest_entropy": high,
        }
    return CriticalDiscovery(**vars(found), soft=soft[picked].astype(np.float32), entropy=entropy[picked])


def _confine(turn: SearchRound) -> list[NDArray[np.int64]]:
    """Return the places of each group that are within the radius (Eq. 3.9)."""
    return [
        group[: min(_CONFINE_FACTOR * want, max(want, len(group) // _CONFINE_PART))]
        for group, want in zip(turn.groups, turn.wants, strict=True)
    ]
