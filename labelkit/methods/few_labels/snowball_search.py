"""Snowball's score: unlabeled rows near the mean of a class get its label.

Source: dissertation "Deep Learning with Very Few and No Labels", Sec. 2.3.3 and 2.4; selection rules Sec. 2.4.1 and
2.4.3(3), fusion of networks Sec. 2.4.3(4). Rounds and shares of the classes: ``label_search.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labelkit.methods.few_labels.nearest_centroid import (
    BLOCK_ROWS,
    Rows,
    class_means,
    mean_distances,
    order_keys,
    spread_warnings,
)
from labelkit.methods.few_labels.pseudo_label_selection import (
    Count,
    Discovery,
    Labels,
    Round,
    SearchOptions,
    capped,
    check_choice,
    check_factor,
    search,
)

Select = Literal["min", "far", "random", "max"]
Fusion = Literal["none", "distance", "cascade", "rank"]
Score = Literal["distance", "softmax"]

# Largest share of the candidates in the confident set of far (ours; Sec. 2.4.1 has no limit).
_FAR_CAP = 0.5
# Probabilities may have been stored in half precision.
_SUM_TOLERANCE = 0.01


def discover_confident(
    features: ArrayLike | Sequence[ArrayLike],
    labels: ArrayLike,
    count: Count,
    rounds: int = 1,
    *,
    select: Select = "min",
    far_factor: int = 10,
    fusion: Fusion = "none",
    score: Score = "distance",
    seed: int = 0,
    **options: Unpack[SearchOptions],
) -> Discovery:
    """Give ``count`` unlabeled rows the class whose mean is nearest.

    Args:
        features: (n, d) numbers; with ``score="softmax"`` (n, c) class probabilities instead. A list or tuple of such
            arrays, one per network, for ``fusion``.
        labels: (n,) integers, class or -1 = unlabeled.
        count: rows to find in each round, or ``double``.
        rounds: >= 1.
        select: which rows of a class (or of all): ``min`` the nearest; ``far`` the farthest of a confident set of
            ``far_factor`` times as many nearest; ``random``; ``max`` the farthest.
        far_factor: >= 1; the confident set is at most half of the candidates (but not less than what is wanted of
            them).
        fusion: of several arrays: ``distance`` means of the distances; ``cascade`` features side by side; ``rank``
            mean of the ranks, label by majority.
        score: ``distance``, or ``softmax``: 1 - probability in place of a distance (confidence-based self-training).
        seed: of ``random``, the same in each round.
        options: labels, count, rounds and these: see :func:`labelkit.methods.few_labels.pseudo_label_selection.search`.

    Returns:
        The rows with labels and distances (``rank``: mean rank).

    Raises:
        ValueError: an argument that cannot be used, with the first row at fault.
    """
    check_choice("score", score, ("distance", "softmax"))
    parts = _parts(features)
    if score == "softmax":
        options["num_classes"] = _check_probabilities(parts, options.get("num_classes"))
    confident = _Confident(parts, select, far_factor, fusion, score, seed)
    return search(confident, len(parts[0]), labels, count, rounds, **options)


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


@dataclass(frozen=True)
class _Confident:
    """The score; see :func:`discover_confident`."""

    parts: Sequence[Rows]
    select: Select
    far_factor: int
    fusion: Fusion
    score: Score
    seed: int

    def __post_init__(self) -> None:
        """Check the options."""
        check_choice("select", self.select, ("min", "far", "random", "max"))
        check_choice("fusion", self.fusion, ("none", "distance", "cascade", "rank"))
        if self.fusion == "none" and len(self.parts) > 1:
            raise ValueError(f"{len(self.parts)} feature arrays and no fusion")
        check_factor("far_factor", self.far_factor)

    def __call__(self, turn: Round) -> Discovery:
        candidates, pool = turn.candidates(*self._nearest(turn.known)), turn.known.pool
        generator = np.random.RandomState(self.seed)
        warnings, chosen, was_capped = [*spread_warnings(self.parts)], [], False
        for group, want in zip(candidates.groups, candidates.wants, strict=True):
            # every group draws, so that one class's candidates do not depend on the quota of another
            drawn = group[generator.permutation(len(group))] if self.select == "random" else group
            rows, cut = self._chosen(drawn, pool, candidates.keys, want)
            chosen.append(rows)
            was_capped |= cut
        if was_capped:
            warnings.append(f"the confident set of far is cut to {_FAR_CAP} of the candidates")
        tie = {"max": -candidates.keys, "random": candidates.nearest}.get(self.select, candidates.keys)
        return turn.table(candidates, chosen, [tie[np.concatenate(chosen)]], warnings=warnings)

    def _chosen(
        self, group: NDArray[np.int64], pool: NDArray[np.int64], keys: NDArray[np.float64], want: int
    ) -> tuple[NDArray[np.int64], bool]:
        """Return the chosen of a group that is ordered best first, and whether ``_FAR_CAP`` cut the confident set."""
        if self.select == "max":
            return group[np.lexsort((pool[group], -keys[group]))][:want], False
        if self.select != "far" or want == 0:
            return group[:want], False
        confident = min(self.far_factor * want, len(group))
        limit = max(want, capped(_FAR_CAP, len(group)))
        kept = group[: min(confident, limit)]
        return kept[max(0, len(kept) - want) :], limit < confident

    def _nearest(self, known: Labels) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Return what each pool row is judged by and its class."""
        parts, kind = self.parts, "none" if len(self.parts) == 1 else self.fusion
        if self.score == "softmax":
            absent = known.sizes == 0
            measures = [partial(_doubts, rows, absent) for rows in parts]
        else:
            measures = [
                partial(_distances, rows, class_means(rows, known.current, known.num_classes)) for rows in parts
            ]
        blocks = [known.pool[start : start + BLOCK_ROWS] for start in range(0, len(known.pool), BLOCK_ROWS)]
        labels = np.empty(len(known.pool), dtype=np.int64)
        nearest = [np.empty((0, len(parts) if kind == "rank" else 1))]
        for number, block in enumerate(blocks):
            named, column = fuse([measure(block) for measure in measures], kind)
            labels[number * BLOCK_ROWS :][: len(block)] = named
            nearest.append(column)
        distances = np.concatenate(nearest)
        return mean_ranks(distances) if kind == "rank" else distances[:, 0], labels


def _parts(features: ArrayLike | Sequence[ArrayLike]) -> list[Rows]:
    several = isinstance(features, list | tuple) and len(features) > 0 and np.ndim(features[0]) == 2
    arrays: Sequence[ArrayLike] = features if several else [features]  # type: ignore[assignment,list-item] # looked at
    parts = [Rows(array, name=f"features[{number}]" if several else "features") for number, array in enumerate(arrays)]
    for number, rows in enumerate(parts):
        if len(rows) != len(parts[0]):
            raise ValueError(f"features[{number}] has {len(rows)} rows, features[0] has {len(parts[0])}")
    return parts


def _check_probabilities(parts: Sequence[Rows], num_classes: int | None) -> int:
    """Return the number of classes; by default that of the columns.

    Raises:
        ValueError: another number of columns, or rows that are no probabilities.
    """
    if num_classes is None:
        num_classes = parts[0].dim
    for number, rows in enumerate(parts):
        if rows.dim != num_classes:
            raise ValueError(f"features[{number}] has {rows.dim} columns for {num_classes} classes")
        for start in range(0, len(rows), BLOCK_ROWS):
            block = rows.take(np.arange(start, min(start + BLOCK_ROWS, len(rows))))
            bad = (block < 0).any(axis=1) | (np.abs(block.sum(axis=1) - 1) > _SUM_TOLERANCE)
            if bad.any():
                raise ValueError(f"row {start + int(bad.argmax())} is no probabilities: negative, or not summing to 1")
    return num_classes


def _distances(rows: Rows, means: NDArray[np.float64], block: NDArray[np.int64]) -> NDArray[np.float64]:
    return mean_distances(rows.take(block), means)


def _doubts(rows: Rows, absent: NDArray[np.bool_], block: NDArray[np.int64]) -> NDArray[np.float64]:
    return np.where(absent, np.inf, 1 - rows.take(block))
