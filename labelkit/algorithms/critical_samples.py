"""LMCS's search for critical samples: rows near the known classes whose neighborhood names several of them.

Source: dissertation "Deep Learning with Very Few and No Labels", Sec. 3.3.3, Eq. 3.8 to 3.12.
Each round:
    1. mean of each class over the reference rows, nearest mean of each pool row      Eq. 3.8
    2. keep (confine) the pool rows near their mean                                   Eq. 3.9
    3. weigh the reference rows by their rank of nearness to each of these            Eq. 3.10
    4. soft label = weight of each class, and its entropy                             Eq. 3.11, 3.12
    5. take the rows of largest entropy whose soft label names the nearest class
Departures: the radius, which is not given, follows from the count; rows are shared out among the classes; a row counts
only if both equations name the same class.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labelkit.algorithms.nearest_centroid import (
    BLOCK_ROWS,
    Balance,
    ClassReport,
    Count,
    Discovery,
    FeatureNorm,
    Labels,
    MissingClass,
    Rows,
    SearchOptions,
    Wanted,
    capped,
    check_cap,
    check_choice,
    check_count,
    check_factor,
    check_labels,
    class_means,
    crowded_warnings,
    distances_between,
    mean_distances,
    order_keys,
    repeat_rounds,
    rounded,
    take_turns,
)

Reference = Literal["original", "all"]
LabelRule = Literal["agree", "vote", "center"]
Criterion = Literal["max_entropy", "min_entropy", "min_distance"]
Delta = tuple[Literal["quantile", "absolute"], float]

# Distances to the reference rows per temporary block: 32 MB in float64.
_BLOCK_NUMBERS = 1 << 22


@dataclass(frozen=True)
class CriticalReport(ClassReport):
    """What one round found of one class.

    Attributes:
        confined: candidates within the radius.
        disagreeing: of these, rows whose soft label is largest for another class; ``agree`` leaves them out.
        radius: largest distance of the confined; NaN without any.
        lowest_entropy: of the rows taken, in bits; NaN without any.
        highest_entropy: likewise.
    """

    confined: int
    disagreeing: int
    radius: float
    lowest_entropy: float
    highest_entropy: float


@dataclass(frozen=True)
class CriticalDiscovery(Discovery):
    """Rows that were given a label, with what their neighborhood says.

    Attributes:
        per_class: of each round and class that has labels.
        soft: (s, c) float32 weight of each class (Eq. 3.11), rows sum to 1.
        entropy: (s,) float64 of these, in bits.
    """

    per_class: tuple[CriticalReport, ...]
    soft: NDArray[np.float32]
    entropy: NDArray[np.float64]

    @property
    def disagreement(self) -> float:
        """Share of the confined rows whose soft label and nearest mean name different classes; NaN without any."""
        confined = sum(report.confined for report in self.per_class)
        return sum(report.disagreeing for report in self.per_class) / confined if confined else float("nan")


def discover_critical(
    features: ArrayLike,
    labels: ArrayLike,
    count: Wanted,
    *,
    num_classes: int | None = None,
    pool: ArrayLike | None = None,
    original: ArrayLike | None = None,
    reference: Reference = "original",
    delta: Delta | None = None,
    beta: float | None = None,
    label_rule: LabelRule = "agree",
    criterion: Criterion = "max_entropy",
    confine: bool = True,
    confine_factor: int = 10,
    confine_cap: float = 0.25,
    balance: Balance = "balanced",
    feature_norm: FeatureNorm = "none",
    missing_class: MissingClass = "error",
    class_names: Sequence[str] = (),
) -> CriticalDiscovery:
    """Give labels to ``count`` unlabeled rows that are near the classes and yet ambiguous.

    Args:
        features: (n, d) numbers.
        labels: (n,) integers, class or -1 = unlabeled; given ones and those found earlier.
        count: rows to find in all, or (c,) of each class (balanced only).
        num_classes: c; by default the largest label plus 1.
        pool: (n,) bool, rows that may be found; by default all without a label.
        original: (n,) integers, the given labels alone, which set the share of each class; by default ``labels``.
        reference: rows that means and soft labels come from: ``original`` (the equations) or ``all``.
        delta: radius: ``("absolute", v)`` (Eq. 3.9), ``("quantile", q)`` of the distances of the pool; ``None``: the
            nearest ``confine_factor`` times as many rows as are wanted, but at most ``confine_cap`` of the candidates
            (and not less than what is wanted), for each class by itself if balanced.
        beta: of the weights ``beta / (beta + rank / reference rows)``, > 0; ``None``: 1 / number of classes with
            labels, which gives half weight where as many rows are nearer as a class has.
        label_rule: ``agree``: only rows whose soft label is largest for the class of the nearest mean; ``vote``: the
            largest; ``center``: the nearest mean.
        criterion: which confined rows come first: ``max_entropy``, ``min_entropy``, ``min_distance``.
        confine: ``False``: any distance.
        confine_factor: >= 1.
        confine_cap: in (0, 1].
        balance: ``balanced``: each class gets its share of ``count``; ``global``: one ranking of all.
        feature_norm: ``l2`` scales rows to length 1 first.
        missing_class: about a class without a label: ``error``, or ``skip`` to never name it.
        class_names: for messages.

    Returns:
        The rows with labels, distances to the nearest mean, soft labels and entropies; fewer than ``count`` where
        the candidates are too few.

    Raises:
        ValueError: an argument that cannot be used, with the first row at fault.
    """
    rows = Rows(features, feature_norm=feature_norm)
    known = check_labels(
        labels,
        len(rows),
        num_classes=num_classes,
        pool=pool,
        original=original,
        missing_class=missing_class,
        class_names=class_names,
    )
    wanted, shares = check_count(count, known.sizes, balance)
    if beta is None:
        beta = 1 / len(known.present)
    _check_options(reference, delta, beta, label_rule, criterion, confine_factor, confine_cap)
    warnings = list(known.warnings)
    if rows.is_constant():
        warnings.append("zero feature spread: all rows are the same, the first ones are taken")
    referred = known.original if reference == "original" else known.current
    distance, nearest = _nearest_means(rows, referred, known)
    keys, scale = order_keys(distance)
    order = np.lexsort((known.pool, keys))  # places in the pool, nearest first
    groups = [order] if shares is None else [order[nearest[order] == label] for label in range(known.num_classes)]
    wants = [wanted] if shares is None else shares.tolist()
    if confine and delta is not None:
        radius = delta[1] if delta[0] == "absolute" else float(np.quantile(distance, delta[1])) if len(order) else 0.0
        groups = [group[keys[group] <= round(radius / scale, 9)] for group in groups]
    elif confine:
        groups = [
            group[: min(confine_factor * want, max(want, capped(confine_cap, len(group))))]
            for group, want in zip(groups, wants, strict=True)
        ]
    confined = np.concatenate(groups)
    soft = soft_labels(rows, known.pool[confined], referred, known.num_classes, beta, scale)
    entropy = entropy_bits(soft)
    voted = _largest(soft, nearest[confined])
    agrees = voted == nearest[confined]
    named = voted if label_rule == "vote" else nearest[confined]
    usable = agrees if label_rule == "agree" else np.ones(len(confined), dtype=bool)
    if len(np.unique(rounded(entropy))) == 1 < len(confined) and criterion != "min_distance":
        warnings.append("entropy has no spread: rows are taken by distance alone; give at least 2 labels per class")
    by_entropy = {"max_entropy": -rounded(entropy), "min_entropy": rounded(entropy)}
    first = by_entropy.get(criterion, np.zeros(len(confined)))
    ranking = np.lexsort((known.pool[confined], keys[confined], first))
    ranking = ranking[usable[ranking]]
    if shares is None:
        chosen = [ranking[:wanted]]
    else:
        chosen = [ranking[nearest[confined[ranking]] == label][:want] for label, want in enumerate(wants)]
    picked = np.concatenate(chosen)
    places = confined[picked]
    position = np.concatenate([np.arange(len(group)) for group in chosen])
    if balance == "global":
        found_of = np.bincount(named[picked], minlength=known.num_classes)
        warnings += crowded_warnings(found_of, known.sizes, class_names)
    if not len(known.pool):
        warnings.append("no row without a label: nothing to find")
    return CriticalDiscovery(
        indices=known.pool[places],
        labels=named[picked],
        distance=distance[places],
        round=np.ones(len(places), dtype=np.int16),
        rank=take_turns(position, first[picked], keys[places]),
        per_class=_reports(known, shares, nearest, distance, confined, agrees, picked, entropy),
        exhausted=len(places) < wanted,
        warnings=tuple(warnings),
        soft=soft[picked].astype(np.float32),
        entropy=entropy[picked],
    )


class CriticalOptions(SearchOptions, total=False):
    """Options of :func:`discover_critical`."""

    reference: Reference
    delta: Delta | None
    beta: float | None
    label_rule: LabelRule
    criterion: Criterion
    confine: bool
    confine_factor: int
    confine_cap: float


def discover_critical_rounds(
    features: ArrayLike,
    labels: ArrayLike,
    count: Count,
    rounds: int,
    *,
    pool: ArrayLike | None = None,
    original: ArrayLike | None = None,
    **options: Unpack[CriticalOptions],
) -> CriticalDiscovery:
    """Repeat :func:`discover_critical`, each round with the labels found so far; the features stay.

    Args:
        features: see there.
        labels: (n,) before the first round.
        count: rows of each round, in all or of each class; ``double``: as many as have a label then.
        rounds: >= 1; ends earlier when a round finds nothing.
        pool: rows that may be found in any round.
        original: by default ``labels``.
        options: see there; ``reference="all"`` lets means and soft labels see the rows found.

    Raises:
        ValueError: as there.
    """
    find = partial(discover_critical, features, **options)
    return repeat_rounds(find, labels, count, rounds, pool=pool, original=original)


def rank_weights(num_reference: int, beta: float) -> NDArray[np.float64]:
    """Weight of each rank from 1, ``beta / (beta + rank / num_reference)`` (Eq. 3.10), (num_reference,) float64."""
    ranks = np.arange(1, num_reference + 1) / num_reference
    return np.asarray(beta / (beta + ranks))


def soft_labels(
    rows: Rows, asked: NDArray[np.int64], labels: NDArray[np.int64], num_classes: int, beta: float, scale: float
) -> NDArray[np.float64]:
    """Weight of each class among the reference rows (Eq. 3.11).

    Args:
        rows: (n, d).
        asked: (m,) rows to judge.
        labels: (n,) class of the reference rows, -1 elsewhere.
        num_classes: c.
        beta: of the weights.
        scale: distances over this are rounded to rank by; ties to the lowest row.

    Returns:
        (m, c) float64, rows sum to 1.
    """
    references = np.flatnonzero(labels >= 0)
    held = rows.take(references)
    one_hot = np.zeros((len(references), num_classes))
    one_hot[np.arange(len(references)), labels[references]] = 1
    weights = rank_weights(len(references), beta)
    soft = np.empty((len(asked), num_classes))
    size = max(1, min(BLOCK_ROWS // 4, _BLOCK_NUMBERS // max(1, len(references))))
    for start in range(0, len(asked), size):
        block = slice(start, start + size)
        order = np.argsort(rounded(distances_between(rows.take(asked[block]), held) / scale), axis=1, kind="stable")
        weight = np.empty(order.shape)
        np.put_along_axis(weight, order, np.broadcast_to(weights, order.shape), axis=1)
        soft[block] = weight @ one_hot
    soft /= weights.sum()
    return soft


def entropy_bits(soft: NDArray[np.float64]) -> NDArray[np.float64]:
    """Entropy of each row of (m, c) probabilities in bits (Eq. 3.12), (m,); 0 log 0 is 0."""
    logs = np.log2(soft, out=np.zeros_like(soft), where=soft > 0)
    return np.asarray(-(soft * logs).sum(axis=1))


def _largest(soft: NDArray[np.float64], nearest: NDArray[np.int64]) -> NDArray[np.int64]:
    """Class of the largest weight; of equal ones the nearest mean's, else the lowest."""
    weights = rounded(soft)
    every = np.arange(len(soft))
    is_nearest = weights[every, nearest] == weights.max(axis=1)
    return np.where(is_nearest, nearest, weights.argmax(axis=1)).astype(np.int64)


def _check_options(
    reference: Reference,
    delta: Delta | None,
    beta: float,
    label_rule: LabelRule,
    criterion: Criterion,
    confine_factor: int,
    confine_cap: float,
) -> None:
    check_choice("reference", reference, ("original", "all"))
    if delta is not None:
        kind, value = delta
        if kind not in ("quantile", "absolute"):
            raise ValueError(f"delta must be a quantile or absolute, got {delta!r}")
        if not 0 <= value or (kind == "quantile" and value > 1):
            raise ValueError(f"delta must be >= 0, a quantile at most 1, got {delta!r}")
    if not 0 < beta < np.inf:
        raise ValueError(f"beta must be > 0, got {beta}")
    check_choice("label_rule", label_rule, ("agree", "vote", "center"))
    check_choice("criterion", criterion, ("max_entropy", "min_entropy", "min_distance"))
    check_factor("confine_factor", confine_factor)
    check_cap("confine_cap", confine_cap)


def _nearest_means(
    rows: Rows, referred: NDArray[np.int64], known: Labels
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Distance of each pool row to the nearest class mean, and the class."""
    means = class_means(rows, referred, known.num_classes)
    distance, nearest = np.empty(len(known.pool)), np.empty(len(known.pool), dtype=np.int64)
    for start in range(0, len(known.pool), BLOCK_ROWS):
        block = slice(start, start + BLOCK_ROWS)
        distances = mean_distances(rows.take(known.pool[block]), means)
        distance[block], nearest[block] = distances.min(axis=1), distances.argmin(axis=1)
    return distance, nearest


def _reports(
    known: Labels,
    shares: NDArray[np.int64] | None,
    nearest: NDArray[np.int64],
    distance: NDArray[np.float64],
    confined: NDArray[np.int64],
    agrees: NDArray[np.bool_],
    picked: NDArray[np.int64],
    entropy: NDArray[np.float64],
) -> tuple[CriticalReport, ...]:
    def extent(values: NDArray[np.float64]) -> tuple[float, float]:
        return (float(values.min()), float(values.max())) if len(values) else (float("nan"), float("nan"))

    reports = []
    for label in known.present.tolist():
        inside = nearest[confined] == label
        mine = picked[inside[picked]]
        (near, far), (low, high) = extent(distance[confined[mine]]), extent(entropy[mine])
        reports.append(
            CriticalReport(
                round=1,
                label=label,
                candidates=int((nearest == label).sum()),
                quota=None if shares is None else int(shares[label]),
                taken=len(mine),
                nearest=near,
                farthest=far,
                confined=int(inside.sum()),
                disagreeing=int((inside & ~agrees).sum()),
                radius=extent(distance[confined[inside]])[1],
                lowest_entropy=low,
                highest_entropy=high,
            )
        )
    return tuple(reports)
