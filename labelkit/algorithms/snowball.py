"""Snowball's discovery: unlabeled rows near the mean of a class get its label.

Source: dissertation "Deep Learning with Very Few and No Labels", Sec. 2.3.3 and 2.4; selection rules Sec. 2.4.1 and
2.4.3(3), fusion of networks Sec. 2.4.3(4).
Departure: rows are shared out among the classes (``balance="balanced"``). The literal reading, the nearest rows of
all (``global``), starves whole classes.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    mean_distances,
    order_keys,
    repeat_rounds,
    take_turns,
)

Select = Literal["min", "far", "random", "max"]
Fusion = Literal["none", "distance", "cascade", "rank"]
Score = Literal["distance", "softmax"]

# Probabilities may have been stored in half precision.
_SUM_TOLERANCE = 0.01


def discover_confident(
    features: ArrayLike | Sequence[ArrayLike],
    labels: ArrayLike,
    count: Wanted,
    *,
    num_classes: int | None = None,
    pool: ArrayLike | None = None,
    original: ArrayLike | None = None,
    balance: Balance = "balanced",
    select: Select = "min",
    far_factor: int = 10,
    far_cap: float | None = 0.5,
    fusion: Fusion = "none",
    fusion_scale: bool = False,
    score: Score = "distance",
    feature_norm: FeatureNorm = "none",
    missing_class: MissingClass = "error",
    refill: bool = False,
    seed: int = 0,
    class_names: Sequence[str] = (),
) -> Discovery:
    """Give ``count`` unlabeled rows the class whose mean is nearest.

    Args:
        features: (n, d) numbers; with ``score="softmax"`` (n, c) class probabilities instead. A list or tuple of such
            arrays, one per network, for ``fusion``.
        labels: (n,) integers, class or -1 = unlabeled; rows found earlier count like given ones.
        count: rows to find in all, or (c,) of each class (balanced only).
        num_classes: c; by default the largest label plus 1 (softmax: the columns).
        pool: (n,) bool, rows that may be found; by default all without a label.
        original: (n,) integers, the given labels alone, which set the share of each class; by default ``labels``.
        balance: ``balanced``: each class gets its share of ``count``; ``global``: the best rows of all.
        select: which rows of a class (or of all): ``min`` the nearest; ``far`` the farthest of a confident set of
            ``far_factor`` times as many nearest; ``random``; ``max`` the farthest.
        far_factor: >= 1.
        far_cap: the confident set is at most this share of the candidates (but not less than what is wanted of
            them), in (0, 1]; ``None`` = no limit.
        fusion: of several arrays: ``distance`` means of the distances; ``cascade`` features side by side; ``rank``
            mean of the ranks, label by majority.
        fusion_scale: divide the distances of each array by their median first.
        score: ``distance``, or ``softmax``: 1 - probability in place of a distance (confidence-based self-training).
        feature_norm: ``l2`` scales rows to length 1 first.
        missing_class: about a class without a label: ``error``, or ``skip`` to never name it.
        refill: balanced: make up for classes with too few candidates by the best other rows.
        seed: of ``random``.
        class_names: for messages.

    Returns:
        The rows with labels and distances (``rank``: mean rank).

    Raises:
        ValueError: an argument that cannot be used, with the first row at fault.
    """
    parts, known = _checked(
        features, labels, num_classes, pool, original, score, feature_norm, missing_class, class_names
    )
    wanted, shares = check_count(count, known.sizes, balance)
    _check_options(select, fusion, len(parts), far_factor, far_cap)
    warnings = list(known.warnings)
    if all(rows.is_constant() for rows in parts):
        warnings.append("zero feature spread: all rows are the same, the first ones are taken")
    distance, named = _nearest(parts, known, fusion, fusion_scale, score)
    keys, _ = order_keys(distance)
    order = np.lexsort((known.pool, keys))  # places in the pool, best first
    groups = [order] if shares is None else [order[named[order] == label] for label in range(known.num_classes)]
    wants = [wanted] if shares is None else shares.tolist()
    generator = np.random.RandomState(seed)
    chosen, capped = [], False
    for group, want in zip(groups, wants, strict=True):
        # every group draws, so that one class's candidates do not depend on the quota of another
        drawn = group[generator.permutation(len(group))] if select == "random" else group
        rows, was_capped = _select(drawn, known.pool, keys, want, select, far_factor, far_cap)
        chosen.append(rows)
        capped |= was_capped
    if capped:
        warnings.append(f"the confident set of far is cut to {far_cap} of the candidates")
    if refill and shares is not None:
        taken = np.zeros(len(known.pool), dtype=bool)
        taken[np.concatenate(chosen)] = True
        rest = order[~taken[order]]
        if select == "random":
            rest = rest[generator.permutation(len(rest))]
        missing = wanted - int(taken.sum())
        chosen.append(_select(rest, known.pool, keys, missing, "max" if select == "max" else "min", 1, None)[0])
    places = np.concatenate(chosen)
    position = np.concatenate([np.arange(len(rows)) for rows in chosen])
    if refill and shares is not None:
        position[len(places) - len(chosen[-1]) :] += len(places)  # ranked last
    tie = {"max": -keys, "random": named}.get(select, keys)[places]
    taken_of = np.bincount(named[places], minlength=known.num_classes)
    if balance == "global":
        warnings += crowded_warnings(taken_of, known.sizes, class_names)
    if not len(known.pool):
        warnings.append("no row without a label: nothing to find")
    return Discovery(
        indices=known.pool[places],
        labels=named[places],
        distance=distance[places],
        round=np.ones(len(places), dtype=np.int16),
        rank=take_turns(position, tie),
        per_class=_reports(known, shares, named, places, distance),
        exhausted=len(places) < wanted,
        warnings=tuple(warnings),
    )


class ConfidentOptions(SearchOptions, total=False):
    """Options of :func:`discover_confident`."""

    select: Select
    far_factor: int
    far_cap: float | None
    fusion: Fusion
    fusion_scale: bool
    score: Score
    refill: bool
    seed: int


def discover_confident_rounds(
    features: ArrayLike | Sequence[ArrayLike],
    labels: ArrayLike,
    count: Count,
    rounds: int,
    *,
    pool: ArrayLike | None = None,
    original: ArrayLike | None = None,
    **options: Unpack[ConfidentOptions],
) -> Discovery:
    """Repeat :func:`discover_confident`, each round with the labels found so far; the features stay.

    Args:
        features: see there.
        labels: (n,) before the first round.
        count: rows of each round, in all or of each class; ``double``: as many as have a label then.
        rounds: >= 1; ends earlier when a round finds nothing.
        pool: rows that may be found in any round.
        original: by default ``labels``.
        options: see there; ``seed`` is the same in each round.

    Raises:
        ValueError: as there.
    """
    find = partial(discover_confident, features, **options)
    return repeat_rounds(find, labels, count, rounds, pool=pool, original=original)


def fuse(parts: Sequence[NDArray[np.float64]], fusion: Fusion) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Combine the distances that several networks give (Sec. 2.4.3(4)).

    Args:
        parts: per network (m, c) distances.
        fusion: how; ``none`` takes the only part.

    Returns:
        (labels (m,) int64, distances (m, j) float64): j = 1, except for ``rank``, which can be completed only over
        all rows: a column per network, for :func:`mean_ranks`.
    """
    if fusion == "rank":
        nearest = np.stack([part.min(axis=1) for part in parts], axis=1)
        votes = np.zeros(parts[0].shape, dtype=np.int64)
        for part in parts:
            votes[np.arange(len(part)), part.argmin(axis=1)] += 1
        together = np.mean(parts, axis=0)
        winners = votes == votes.max(axis=1, keepdims=True)
        return np.where(winners, together, np.inf).argmin(axis=1).astype(np.int64), nearest
    if fusion == "cascade":
        together = np.sqrt(sum(part * part for part in parts))
    else:
        together = parts[0] if len(parts) == 1 else np.mean(parts, axis=0)
    return together.argmin(axis=1).astype(np.int64), together.min(axis=1)[:, None]


def mean_ranks(nearest: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mean over the columns of the rank from 1 of each row of (m, j) distances; ties to the lowest row."""
    ranks = np.empty(nearest.shape)
    for column in range(nearest.shape[1]):
        order = np.argsort(order_keys(nearest[:, column])[0], kind="stable")
        ranks[order, column] = np.arange(1, len(order) + 1)
    return np.asarray(ranks.mean(axis=1))


def _checked(
    features: ArrayLike | Sequence[ArrayLike],
    labels: ArrayLike,
    num_classes: int | None,
    pool: ArrayLike | None,
    original: ArrayLike | None,
    score: Score,
    feature_norm: FeatureNorm,
    missing_class: MissingClass,
    class_names: Sequence[str],
) -> tuple[list[Rows], Labels]:
    several = isinstance(features, list | tuple) and len(features) > 0 and np.ndim(features[0]) == 2
    arrays: Sequence[ArrayLike] = features if several else [features]  # type: ignore[assignment,list-item] # looked at
    check_choice("score", score, ("distance", "softmax"))
    if score == "softmax" and feature_norm != "none":
        raise ValueError("feature_norm has no meaning for probabilities")
    parts = [
        Rows(array, name=f"features[{number}]" if several else "features", feature_norm=feature_norm)
        for number, array in enumerate(arrays)
    ]
    for number, rows in enumerate(parts):
        if len(rows) != len(parts[0]):
            raise ValueError(f"features[{number}] has {len(rows)} rows, features[0] has {len(parts[0])}")
    if score == "softmax":
        if num_classes is None:
            num_classes = np.shape(arrays[0])[1]
        for number, (array, rows) in enumerate(zip(arrays, parts, strict=True)):
            if np.shape(array)[1] != num_classes:
                raise ValueError(f"features[{number}] has {np.shape(array)[1]} columns for {num_classes} classes")
            _check_probabilities(rows)
    known = check_labels(
        labels,
        len(parts[0]),
        num_classes=num_classes,
        pool=pool,
        original=original,
        missing_class=missing_class,
        class_names=class_names,
    )
    return parts, known


def _check_probabilities(rows: Rows) -> None:
    for start in range(0, len(rows), BLOCK_ROWS):
        block = rows.take(np.arange(start, min(start + BLOCK_ROWS, len(rows))))
        bad = (block < 0).any(axis=1) | (np.abs(block.sum(axis=1) - 1) > _SUM_TOLERANCE)
        if bad.any():
            raise ValueError(f"row {start + int(bad.argmax())} is no probabilities: negative, or not summing to 1")


def _check_options(select: Select, fusion: Fusion, num_parts: int, far_factor: int, far_cap: float | None) -> None:
    check_choice("select", select, ("min", "far", "random", "max"))
    check_choice("fusion", fusion, ("none", "distance", "cascade", "rank"))
    if fusion == "none" and num_parts > 1:
        raise ValueError(f"{num_parts} feature arrays and no fusion")
    check_factor("far_factor", far_factor)
    if far_cap is not None:
        check_cap("far_cap", far_cap)


def _nearest(
    parts: Sequence[Rows], known: Labels, fusion: Fusion, fusion_scale: bool, score: Score
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return what each pool row is judged by and its class."""
    kind: Fusion = "none" if len(parts) == 1 else fusion
    if score == "softmax":
        absent = known.sizes == 0
        measures = [partial(_doubts, rows, absent) for rows in parts]
    else:
        measures = [partial(_distances, rows, class_means(rows, known.current, known.num_classes)) for rows in parts]
    blocks = [known.pool[start : start + BLOCK_ROWS] for start in range(0, len(known.pool), BLOCK_ROWS)]
    scales = [1.0] * len(parts)
    if fusion_scale and kind != "none" and blocks:
        scales = [
            order_keys(np.concatenate([measure(block).min(axis=1) for block in blocks]))[1] for measure in measures
        ]
    labels, nearest = np.empty(len(known.pool), dtype=np.int64), [np.empty((0, len(parts) if kind == "rank" else 1))]
    for number, block in enumerate(blocks):
        found = [measure(block) / scale for measure, scale in zip(measures, scales, strict=True)]
        named, column = fuse(found, kind)
        labels[number * BLOCK_ROWS :][: len(block)] = named
        nearest.append(column)
    distances = np.concatenate(nearest)
    return mean_ranks(distances) if kind == "rank" else distances[:, 0], labels


def _distances(rows: Rows, means: NDArray[np.float64], block: NDArray[np.int64]) -> NDArray[np.float64]:
    return mean_distances(rows.take(block), means)


def _doubts(rows: Rows, absent: NDArray[np.bool_], block: NDArray[np.int64]) -> NDArray[np.float64]:
    return np.where(absent, np.inf, 1 - rows.take(block))


def _select(
    group: NDArray[np.int64],
    pool: NDArray[np.int64],
    keys: NDArray[np.float64],
    want: int,
    select: Select,
    far_factor: int,
    far_cap: float | None,
) -> tuple[NDArray[np.int64], bool]:
    """Return the chosen of a group that is ordered best first, and whether ``far_cap`` cut the confident set."""
    if select == "max":
        return group[np.lexsort((pool[group], -keys[group]))][:want], False
    if select != "far" or want == 0:
        return group[:want], False
    confident = min(far_factor * want, len(group))
    limit = confident if far_cap is None else max(want, capped(far_cap, len(group)))
    kept = group[: min(confident, limit)]
    return kept[max(0, len(kept) - want) :], limit < confident


def _reports(
    known: Labels,
    shares: NDArray[np.int64] | None,
    named: NDArray[np.int64],
    places: NDArray[np.int64],
    distance: NDArray[np.float64],
) -> tuple[ClassReport, ...]:
    reports = []
    for label in known.present.tolist():
        mine = distance[places[named[places] == label]]
        reports.append(
            ClassReport(
                round=1,
                label=label,
                candidates=int((named == label).sum()),
                quota=None if shares is None else int(shares[label]),
                taken=len(mine),
                nearest=float(mine.min()) if len(mine) else float("nan"),
                farthest=float(mine.max()) if len(mine) else float("nan"),
            )
        )
    return tuple(reports)
