"""The search for rows that get a label: distances to class means, rounds, quotas of the classes, what was found.

Snowball and LMCS share it and differ in which rows of a class come first (``snowball_search.py``,
``critical_samples.py``). Each is a function of a :class:`Round`:
    1. measure each row that may be found                ``Round.candidates(distance, nearest)``
    2. choose rows of each class, best first
    3. return what was chosen                            ``Round.table(candidates, chosen, ties)``
Source: dissertation "Deep Learning with Very Few and No Labels", Eq. 2.8 and 3.8 (the same equation). Everything is
computed in float64 from differences, block by block, and ordered by numbers rounded to 9 decimals with ties to the
lowest row, so that neither BLAS nor threads nor block sizes change what is found.
Departure: rows are shared out among the classes (``balance="balanced"``). The literal reading, the best rows of all
(``global``), starves whole classes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

Balance = Literal["balanced", "global"]
MissingClass = Literal["error", "skip"]
Wanted = int | Sequence[int] | NDArray[np.int64]
Count = Wanted | Literal["double"]

BLOCK_ROWS = 4096
_DECIMALS = 9
# A class is crowded when its share of what was found is this multiple of its share of the given labels.
_CROWDED = 3


# ---------------------------------------------------------------- distances and their order


def check_features(array: ArrayLike, name: str = "features") -> NDArray[Any]:
    """Check that a feature array is (n, d), numeric and finite, and return it.

    Args:
        array: (n, d) numbers, d >= 1.
        name: for messages.

    Raises:
        ValueError: another shape or type, or a value that is not finite, with its row.
    """
    features = np.asarray(array)
    if features.ndim != 2 or features.shape[1] == 0:
        raise ValueError(f"{name} must have shape (n, d) with d >= 1, got {features.shape}")
    if features.dtype.kind not in "fiub":
        raise ValueError(f"{name} must be real numbers, got {features.dtype}")
    for start in range(0, len(features), BLOCK_ROWS):
        bad = ~np.isfinite(features[start : start + BLOCK_ROWS]).all(axis=1)
        if bad.any():
            raise ValueError(f"{name} has a value that is not finite in row {start + int(bad.argmax())}")
    return features


def feature_warnings(parts: Sequence[NDArray[Any]]) -> list[str]:
    """Return a warning if all rows of the features are equal."""
    if all(len(features) and (features == features[:1]).all() for features in parts):
        return ["all embeddings are equal, so the first images are taken"]
    return []


def class_means(features: NDArray[Any], labels: NDArray[np.int64], num_classes: int) -> NDArray[np.float64]:
    """Compute the mean features of each class (Eq. 2.8, 3.8), (c, d) float64 with NaN for empty classes."""
    means = np.full((num_classes, features.shape[1]), np.nan)
    for label in np.unique(labels[labels >= 0]):
        means[label] = features[labels == label].astype(np.float64).mean(axis=0)
    return means


def distances_between(rows: NDArray[Any], others: NDArray[Any]) -> NDArray[np.float64]:
    """Compute the Euclidean distances (m, j) between (m, d) and (j, d) rows, infinite for NaN rows.

    By differences and not by squares of the sums, so that exact ties stay exact.
    """
    from scipy.spatial.distance import cdist

    distances = cdist(rows.astype(np.float64), others.astype(np.float64))
    return np.where(np.isnan(distances), np.inf, distances)


def sortable_distances(distance: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
    """Return distances divided by their median and rounded for sorting, and the median (1 if it is 0)."""
    scale = (float(np.median(distance)) if len(distance) else 1.0) or 1.0
    return round_for_sorting(distance / scale), scale


def round_for_sorting(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Round values for comparison, removing the noise in their last digits."""
    return np.round(values, _DECIMALS)


def extent(values: NDArray[np.float64]) -> tuple[float, float]:
    """Return the minimum and maximum of an array, or NaN if it is empty."""
    return (float(values.min()), float(values.max())) if len(values) else (float("nan"), float("nan"))


def check_choice(name: str, value: object, allowed: Sequence[str]) -> None:
    """Check that an option is one of the allowed words."""
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {value!r}")


# ---------------------------------------------------------------- what is found


@dataclass(frozen=True)
class ClassReport:
    """Results of one search round for one class.

    Attributes:
        round: from 1.
        label: the class.
        candidates: pool rows nearest to it.
        quota: how many were wanted of it; ``None`` where classes have no share of their own (``balance="global"``).
        taken: rows found.
        nearest: smallest distance of these; NaN without any.
        farthest: largest.
    """

    round: int
    label: int
    candidates: int
    quota: int | None
    taken: int
    nearest: float
    farthest: float


@dataclass(frozen=True)
class Discovery:
    """Newly labeled rows, ordered by round, then (if balanced) by class, then by the selection rule.

    Attributes:
        indices: (s,) int64 rows.
        labels: (s,) int64 their classes.
        distance: (s,) float64 what they were selected by, smaller is surer.
        round: (s,) int16 from 1.
        rank: (s,) int64 from 1: a second order, in which the classes of a round take turns, so that its beginning
            is about what a smaller count would have found.
        per_class: of each round and class that has labels.
        exhausted: fewer rows than wanted.
        warnings: what a user should know, in sentences.
    """

    indices: NDArray[np.int64]
    labels: NDArray[np.int64]
    distance: NDArray[np.float64]
    round: NDArray[np.int16]
    rank: NDArray[np.int64]
    per_class: tuple[ClassReport, ...]
    exhausted: bool
    warnings: tuple[str, ...]

    def grown(self, labels: ArrayLike) -> NDArray[np.int64]:
        """Return a copy of ``labels`` with the discovered labels filled in."""
        result = np.array(labels, dtype=np.int64)
        result[self.indices] = self.labels
        return result


D = TypeVar("D", bound=Discovery)


@dataclass(frozen=True)
class Candidates:
    """Rows that may be selected, grouped by nearest class; their places are positions in ``Round.pool``.

    Attributes:
        distance: (m,) float64 to the nearest class, of each place.
        nearest: (m,) int64 that class.
        keys: (m,) float64 to order by, ``distance`` over ``scale`` and rounded.
        scale: median distance.
        groups: places that are chosen among together, nearest first: those of each class, or one group of all.
        wants: rows wanted of each group.
    """

    distance: NDArray[np.float64]
    nearest: NDArray[np.int64]
    keys: NDArray[np.float64]
    scale: float
    groups: list[NDArray[np.int64]]
    wants: list[int]


@dataclass(frozen=True)
class Round:
    """State of one round of a search: current labels, candidate rows and quotas.

    Attributes:
        number: from 1.
        num_before: rows found in earlier rounds.
        current: (n,) int64 labels given and found before, -1 = none.
        original: (n,) int64 given alone.
        pool: (m,) int64 rows that may be found, increasing.
        sizes: (c,) int64 given labels of each class; 0 only where ``missing_class`` allows it.
        wanted: rows to find.
        shares: (c,) int64 of these of each class; ``None`` where classes have no share of their own.
        class_names: for messages.
    """

    number: int
    num_before: int
    current: NDArray[np.int64]
    original: NDArray[np.int64]
    pool: NDArray[np.int64]
    sizes: NDArray[np.int64]
    wanted: int
    shares: NDArray[np.int64] | None
    class_names: Sequence[str]

    @property
    def num_classes(self) -> int:
        """Return the number of classes, c."""
        return len(self.sizes)

    def candidates(self, distance: NDArray[np.float64], nearest: NDArray[np.int64]) -> Candidates:
        """Sort and group the rows that may be selected.

        Args:
            distance: (m,) float64 of each row of the pool to its nearest class.
            nearest: (m,) int64 that class.
        """
        keys, scale = sortable_distances(distance)
        order = np.lexsort((self.pool, keys))
        if self.shares is None:
            return Candidates(distance, nearest, keys, scale, [order], [self.wanted])
        groups = [order[nearest[order] == label] for label in range(self.num_classes)]
        return Candidates(distance, nearest, keys, scale, groups, self.shares.tolist())

    def table(
        self,
        candidates: Candidates,
        chosen: Sequence[NDArray[np.int64]],
        ties: Sequence[NDArray[Any]],
        *,
        warnings: Sequence[str] = (),
    ) -> Discovery:
        """Build the table of the selected rows.

        Args:
            candidates: what was chosen among.
            chosen: places of each group, in the order of selection.
            ties: (s,) keys by which rows of the same place in their groups are ranked.
            warnings: of the score.
        """
        places = np.concatenate(chosen)
        named = candidates.nearest[places]
        # the classes take turns: by place in the group, then by the keys, then by the order here
        position = np.concatenate([np.arange(len(group)) for group in chosen])
        rank = np.empty(len(places), dtype=np.int64)
        rank[np.lexsort((*reversed(ties), position))] = np.arange(1, len(places) + 1)
        told = list(warnings)
        if self.shares is None:
            told += self._crowded(np.bincount(named, minlength=self.num_classes))
        if not len(self.pool):
            told.append("every image has a label, so there is nothing to find")
        return Discovery(
            indices=self.pool[places],
            labels=named,
            distance=candidates.distance[places],
            round=np.full(len(places), self.number, dtype=np.int16),
            rank=self.num_before + rank,
            per_class=tuple(self._report(label, candidates, places) for label in np.flatnonzero(self.sizes).tolist()),
            exhausted=len(places) < self.wanted,
            warnings=tuple(told),
        )

    def _report(self, label: int, candidates: Candidates, places: NDArray[np.int64]) -> ClassReport:
        mine = candidates.distance[places[candidates.nearest[places] == label]]
        quota = None if self.shares is None else int(self.shares[label])
        return ClassReport(
            self.number, label, int((candidates.nearest == label).sum()), quota, len(mine), *extent(mine)
        )

    def _crowded(self, taken: NDArray[np.int64]) -> list[str]:
        """Warn of classes whose share of the rows found is far above that of the given labels."""
        total = int(taken.sum())
        crowded = np.flatnonzero(taken * self.sizes.sum() > _CROWDED * self.sizes * total)
        return [
            f"{int(taken[label])} of {total} found images are of {_called([label], self.class_names)}, more than "
            f"{_CROWDED} times its share of the labels"
            for label in crowded
        ]


# ---------------------------------------------------------------- the search


class SearchArguments(TypedDict, total=False):
    """Keyword arguments of :func:`search` that all searches share."""

    num_classes: int | None
    original: ArrayLike | None
    balance: Balance
    missing_class: MissingClass
    class_names: Sequence[str]


def search(
    score: Callable[[Round], D],
    num_rows: int,
    labels: ArrayLike,
    count: Count,
    rounds: int = 1,
    *,
    num_classes: int | None = None,
    original: ArrayLike | None = None,
    balance: Balance = "balanced",
    missing_class: MissingClass = "error",
    class_names: Sequence[str] = (),
) -> D:
    """Select and label rows in rounds, with fixed features.

    Args:
        score: finds the rows of a round.
        num_rows: n.
        labels: (n,) integers, class or -1 = unlabeled; rows found earlier count like given ones.
        count: rows to find in each round, in all or (c,) of each class (balanced only); ``double``: as many as have a
            label then.
        rounds: >= 1; the search ends earlier when a round finds nothing.
        num_classes: c; by default the largest label plus 1.
        original: (n,) integers, the given labels alone, which set the share of each class; by default ``labels``.
        balance: ``balanced``: each class gets its share of ``count``; ``global``: the best rows of all.
        missing_class: about a class without a label: ``error``, or ``skip`` to never name it.
        class_names: for messages; by default classes are called by their numbers.

    Returns:
        What the rounds found, one after the other; fewer than ``count`` where the candidates are too few.

    Raises:
        ValueError: an argument that cannot be used, with the first row at fault; what ``score`` raises.
    """
    if rounds < 1:
        raise ValueError(f"rounds must be >= 1, got {rounds}")
    if isinstance(count, str) and count != "double":
        raise ValueError(f"count must be a number or double, got {count!r}")
    check_choice("balance", balance, ("balanced", "global"))
    check_choice("missing_class", missing_class, ("error", "skip"))
    current = _class_column(labels, "labels", num_rows, num_classes)
    given = current if original is None else _class_column(original, "original", num_rows, num_classes)
    differ = (given >= 0) & (given != current)
    if differ.any():
        raise ValueError(f"original and labels differ in row {int(differ.argmax())}")
    sizes = np.bincount(given[given >= 0], minlength=num_classes or int(current.max(initial=-1)) + 1)
    if (present := int((sizes > 0).sum())) < 2:
        raise ValueError(f"{present} of {len(sizes)} classes have labels, need at least 2 to tell apart")
    missing = np.flatnonzero(sizes == 0)
    unnamed = f"no image has a label of {_called(missing, class_names)}"
    if len(missing) and missing_class == "error":
        raise ValueError(unnamed)
    warnings = [f"{unnamed}, so this class is never predicted"] if len(missing) else []
    found: list[D] = []
    for number in range(1, rounds + 1):
        asked: Wanted = int((current >= 0).sum()) if isinstance(count, str) else count
        wanted, shares = _shared_out(asked, sizes, balance)
        num_before, pool = sum(len(one.indices) for one in found), np.flatnonzero(current < 0)
        found.append(score(Round(number, num_before, current, given, pool, sizes, wanted, shares, class_names)))
        warnings += found[-1].warnings
        if not len(found[-1].indices):
            break
        current = found[-1].grown(current)
    return _joined(found, tuple(dict.fromkeys(warnings)))


def _joined(found: list[D], warnings: tuple[str, ...]) -> D:
    """Join rounds: arrays and tuples one after the other."""
    columns: dict[str, Any] = {}
    for field in dataclasses.fields(found[0]):
        values = [getattr(one, field.name) for one in found]
        if isinstance(values[0], np.ndarray):
            columns[field.name] = np.concatenate(values)
        elif isinstance(values[0], bool):
            columns[field.name] = any(values)
        else:
            columns[field.name] = tuple(item for value in values for item in value)
    return dataclasses.replace(found[0], **{**columns, "warnings": warnings})


def _called(labels: ArrayLike, class_names: Sequence[str]) -> str:
    """Return what messages call some classes: the first five."""
    every = np.asarray(labels).tolist()
    names = [f"class {class_names[label]!r}" if class_names else f"class {label}" for label in every[:5]]
    return ", ".join(names) + (f" and {len(every) - 5} more" if len(every) > 5 else "")


def _shared_out(count: Wanted, sizes: NDArray[np.int64], balance: Balance) -> tuple[int, NDArray[np.int64] | None]:
    """Return how many rows are wanted, in all and of each class; ``None`` where classes have no share of their own.

    Raises:
        ValueError: negative or not whole, or not one for each class.
    """
    counts = np.asarray(count)
    if counts.dtype.kind not in "iu" or counts.ndim > 1 or (counts < 0).any():
        raise ValueError(f"count must be a whole number >= 0, or one per class, got {count!r}")
    if counts.ndim == 0:
        return int(counts), quotas(int(counts), sizes) if balance == "balanced" else None
    if counts.shape != sizes.shape:
        raise ValueError(f"count has {len(counts)} entries for {len(sizes)} classes")
    return int(counts.sum()), counts.astype(np.int64)


def quotas(count: int, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Split ``count`` among classes in proportion to ``sizes``, by largest remainder.

    Ties go to the lowest class. In whole numbers, so that equal shares are equal.
    """
    total = int(sizes.sum())
    shares, rest = np.divmod(count * sizes.astype(np.int64), total)
    # stable: of equal remainders the lowest class
    more = np.argsort(-rest, kind="stable")[: count - int(shares.sum())]
    shares[more] += 1
    return np.asarray(shares, dtype=np.int64)


def _class_column(values: ArrayLike, name: str, num_rows: int, num_classes: int | None) -> NDArray[np.int64]:
    column = np.asarray(values)
    if column.shape != (num_rows,):
        raise ValueError(f"{name} must have shape ({num_rows},), got {column.shape}")
    if column.dtype.kind not in "iu":
        raise ValueError(f"{name} must be integers, got {column.dtype}")
    limit = np.iinfo(np.int64).max if num_classes is None else num_classes
    bad = (column < -1) | (column >= limit)
    if bad.any():
        row = int(bad.argmax())
        raise ValueError(f"{name} must be in [-1, {limit}), row {row} is {int(column[row])}")
    return column.astype(np.int64)
