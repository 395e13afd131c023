"""Judge labels that were found for unlabeled rows against the truth."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

FIRST = (20, 40, 80, 160)
"""Numbers of best-ranked rows whose precision is shown."""


@dataclass(frozen=True)
class FoundShare:
    """Error rate of the labels found in one round, or for one class.

    Attributes:
        number: the round, or the class that was named.
        found: rows whose truth is known.
        wrong: of these.
        error: wrong / found; NaN without any.
    """

    number: int
    found: int
    wrong: int
    error: float


@dataclass(frozen=True)
class DiscoveryErrors:
    """Error rates of the labels found for unlabeled samples whose true class is known.

    Attributes:
        found: rows whose truth is known.
        wrong: of these.
        error: wrong / found; NaN without any.
        held_error: wrong / (given + found): what a classifier trained on all of them would hold.
        per_round: in order.
        per_class: by the class named, in order.
        precision_of_first: share of right labels among the first by rank, for each of :data:`FIRST` that there are.
    """

    found: int
    wrong: int
    error: float
    held_error: float
    per_round: tuple[FoundShare, ...]
    per_class: tuple[FoundShare, ...]
    precision_of_first: dict[int, float]

    def to_dict(self) -> dict[str, object]:
        """Convert to a dictionary of plain values."""
        return asdict(self)


def discovery_errors(
    labels: ArrayLike, truth: ArrayLike, rounds: ArrayLike, ranks: ArrayLike, *, num_given: int
) -> DiscoveryErrors:
    """Compute the error rates of found labels by comparing them with the true classes.

    Args:
        labels: (s,) integers, classes that were named.
        truth: (s,) integers, true classes, -1 = unknown.
        rounds: (s,) integers from 1.
        ranks: (s,) integers, 1 = best.
        num_given: labels that were there before.

    Raises:
        ValueError: lengths that differ.
    """
    columns = [np.asarray(column, dtype=np.int64) for column in (labels, truth, rounds, ranks)]
    if any(column.shape != columns[0].shape or column.ndim != 1 for column in columns):
        raise ValueError(f"columns have shapes {[column.shape for column in columns]}, must be equal (s,)")
    judged = columns[1] >= 0
    named, true, when, rank = (column[judged] for column in columns)
    wrong = named != true
    by_rank = wrong[np.argsort(rank, kind="stable")]
    total, errors = len(named), int(wrong.sum())
    return DiscoveryErrors(
        found=total,
        wrong=errors,
        error=_share(errors, total),
        held_error=_share(errors, total + num_given),
        per_round=_shares(when, wrong),
        per_class=_shares(named, wrong),
        precision_of_first={first: float(1 - by_rank[:first].mean()) for first in FIRST if first <= total},
    )


def _shares(numbers: NDArray[np.int64], wrong: NDArray[np.bool_]) -> tuple[FoundShare, ...]:
    shares = []
    for number in np.unique(numbers).tolist():
        mine = wrong[numbers == number]
        shares.append(FoundShare(number, len(mine), int(mine.sum()), _share(int(mine.sum()), len(mine))))
    return tuple(shares)


def _share(part: int, whole: int) -> float:
    return part / whole if whole else float("nan")
