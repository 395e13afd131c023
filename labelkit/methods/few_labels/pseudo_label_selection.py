"""The search for rows that get a label: rounds, quotas of the classes, and the table of what was found.

Snowball and LMCS share it and differ in the score: which class a row is nearest to, and which rows of a class come
first (``snowball.py``, ``critical_samples.py``). A score is a function of a :class:`Round`:
    1. measure each row that may be found                ``Round.candidates(distance, nearest)``
    2. choose rows of each class, best first
    3. return what was chosen                            ``Round.table(candidates, chosen, ties)``
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

from labelkit.methods.few_labels.nearest_centroid import order_keys

Balance = Literal["balanced", "global"]
MissingClass = Literal["error", "skip"]
Wanted = int | Sequence[int] | NDArray[np.int64]
Count = Wanted | Literal["double"]

# A class is crowded when its share of what was found is this multiple of its share of the given labels.
_CROWDED = 3


@dataclass(frozen=True)
class ClassReport:
    """What one round found of one class.

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
    """Rows that were given a label, in the order of selection: by round, then (if balanced) by class, then by rule.

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
        """Return a copy of ``labels`` in which the rows found have their class."""
        result = np.array(labels, dtype=np.int64)
        result[self.indices] = self.labels
        return result


D = TypeVar("D", bound=Discovery)


class SearchOptions(TypedDict, total=False):
    """Options that every search has; see :func:`search`."""

    num_classes: int | None
    pool: ArrayLike | None
    original: ArrayLike | None
    balance: Balance
    missing_class: MissingClass
    class_names: Sequence[str]


@dataclass(frozen=True)
class Labels:
    """Checked labels of a search.

    Attributes:
        current: (n,) int64 given and found before, -1 = none.
        original: (n,) int64 given alone.
        pool: (m,) int64 rows that may be found, increasing.
        num_classes: c.
        sizes: (c,) int64 given labels of each class; 0 only where ``missing_class`` allows it.
        warnings: see :class:`Discovery`.
    """

    current: NDArray[np.int64]
    original: NDArray[np.int64]
    pool: NDArray[np.int64]
    num_classes: int
    sizes: NDArray[np.int64]
    warnings: tuple[str, ...]

    @property
    def present(self) -> NDArray[np.int64]:
        """Classes with labels."""
        return np.flatnonzero(self.sizes)


@dataclass(frozen=True)
class Candidates:
    """Rows that may be found, by their nearest class. A place is a position in ``Labels.pool``.

    Attributes:
        distance: (m,) float64 to the nearest class, of each place.
        nearest: (m,) int64 that class.
        keys: (m,) float64 to order by, ``distance`` over ``scale`` and rounded.
        scale: median distance.
        order: (m,) int64 places, nearest first.
        groups: places that are chosen among together, nearest first: those of each class, or one group of all.
        wants: rows wanted of each group.
    """

    distance: NDArray[np.float64]
    nearest: NDArray[np.int64]
    keys: NDArray[np.float64]
    scale: float
    order: NDArray[np.int64]
    groups: list[NDArray[np.int64]]
    wants: list[int]


@dataclass(frozen=True)
class Round:
    """One round of a search.

    Attributes:
        number: from 1.
        num_before: rows found in earlier rounds.
        known: labels at its beginning.
        wanted: rows to find.
        shares: (c,) int64 of these of each class; ``None`` where classes have no share of their own.
        class_names: for messages.
    """

    number: int
    num_before: int
    known: Labels
    wanted: int
    shares: NDArray[np.int64] | None
    class_names: Sequence[str]

    def candidates(self, distance: NDArray[np.float64], nearest: NDArray[np.int64]) -> Candidates:
        """Order and group the rows that may be found.

        Args:
            distance: (m,) float64 of each row of the pool to its nearest class.
            nearest: (m,) int64 that class.
        """
        keys, scale = order_keys(distance)
        order = np.lexsort((self.known.pool, keys))
        if self.shares is None:
            return Candidates(distance, nearest, keys, scale, order, [order], [self.wanted])
        groups = [order[nearest[order] == label] for label in range(self.known.num_classes)]
        return Candidates(distance, nearest, keys, scale, order, groups, self.shares.tolist())

    def table(
        self,
        candidates: Candidates,
        chosen: Sequence[NDArray[np.int64]],
        ties: Sequence[NDArray[Any]],
        *,
        labels: NDArray[np.int64] | None = None,
        warnings: Sequence[str] = (),
    ) -> Discovery:
        """Make the table of what was chosen.

        Args:
            candidates: what was chosen among.
            chosen: places of each group, in the order of selection.
            ties: (s,) keys by which rows of the same place in their groups are ranked.
            labels: (s,) int64 classes of the chosen; by default the nearest ones.
            warnings: of the score.
        """
        known, places = self.known, np.concatenate(chosen)
        named = candidates.nearest[places] if labels is None else labels
        position = np.concatenate([np.arange(len(group)) for group in chosen])
        told = [*known.warnings, *warnings]
        if self.shares is None:
            taken = np.bincount(named, minlength=known.num_classes)
            told += _crowded_warnings(taken, known.sizes, self.class_names)
        if not len(known.pool):
            told.append("no row without a label: nothing to find")
        return Discovery(
            indices=known.pool[places],
            labels=named,
            distance=candidates.distance[places],
            round=np.full(len(places), self.number, dtype=np.int16),
            rank=self.num_before + _take_turns(position, *ties),
            per_class=tuple(self._report(label, candidates, places) for label in known.present.tolist()),
            exhausted=len(places) < self.wanted,
            warnings=tuple(told),
        )

    def _report(self, label: int, candidates: Candidates, places: NDArray[np.int64]) -> ClassReport:
        mine = candidates.distance[places[candidates.nearest[places] == label]]
        near, far = extent(mine)
        return ClassReport(
            round=self.number,
            label=label,
            candidates=int((candidates.nearest == label).sum()),
            quota=None if self.shares is None else int(self.shares[label]),
            taken=len(mine),
            nearest=near,
            farthest=far,
        )


def search(
    score: Callable[[Round], D],
    num_rows: int,
    labels: ArrayLike,
    count: Count,
    rounds: int = 1,
    *,
    num_classes: int | None = None,
    pool: ArrayLike | None = None,
    original: ArrayLike | None = None,
    balance: Balance = "balanced",
    missing_class: MissingClass = "error",
    class_names: Sequence[str] = (),
) -> D:
    """Find rows, give them their labels, find more; the features stay.

    Args:
        score: finds the rows of a round.
        num_rows: n.
        labels: (n,) integers, class or -1 = unlabeled; rows found earlier count like given ones.
        count: rows to find in each round, in all or (c,) of each class (balanced only); ``double``: as many as have a
            label then.
        rounds: >= 1; the search ends earlier when a round finds nothing.
        num_classes: c; by default the largest label plus 1.
        pool: (n,) bool, rows that may be found in any round; by default all without a label.
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
    known = check_labels(
        labels,
        num_rows,
        num_classes=num_classes,
        pool=pool,
        original=original,
        missing_class=missing_class,
        class_names=class_names,
    )
    found: list[D] = []
    for number in range(1, rounds + 1):
        asked: Wanted = int((known.current >= 0).sum()) if isinstance(count, str) else count
        wanted, shares = check_count(asked, known.sizes, balance)
        num_before = sum(len(one.indices) for one in found)
        found.append(score(Round(number, num_before, known, wanted, shares, class_names)))
        if not len(found[-1].indices):
            break
        left = known.pool[~np.isin(known.pool, found[-1].indices)]
        known = dataclasses.replace(known, current=found[-1].grown(known.current), pool=left)
    return _joined(found)


def _joined(found: list[D]) -> D:
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
    columns["warnings"] = tuple(dict.fromkeys(columns["warnings"]))
    return dataclasses.replace(found[0], **columns)


def called(label: int, class_names: Sequence[str]) -> str:
    """Return what messages call a class."""
    return f"class {class_names[label]!r}" if class_names else f"class {label}"


def check_labels(
    labels: ArrayLike,
    num_rows: int,
    *,
    num_classes: int | None,
    pool: ArrayLike | None,
    original: ArrayLike | None,
    missing_class: MissingClass,
    class_names: Sequence[str],
) -> Labels:
    """Check labels, pool and classes.

    Args:
        labels: (n,) integers, class or -1.
        num_rows: n.
        num_classes: c; by default the largest label plus 1.
        pool: (n,) bool, rows that may be found; by default all without a label.
        original: (n,) integers, the given ones of ``labels``; by default all of them.
        missing_class: what to do about a class without a label: ``error``, or ``skip`` to never name it.
        class_names: for messages; by default classes are called by their numbers.

    Raises:
        ValueError: lengths, types or values that do not fit, with the first row; no or one class with labels; a class
            without a label.
    """
    current = _class_column(labels, "labels", num_rows, num_classes)
    if num_classes is None:
        num_classes = int(current.max(initial=-1)) + 1
    given = current if original is None else _class_column(original, "original", num_rows, num_classes)
    differ = (given >= 0) & (given != current)
    if differ.any():
        raise ValueError(f"original and labels differ in row {int(differ.argmax())}")
    if pool is None:
        may = current < 0
    else:
        may = np.asarray(pool)
        if may.shape != (num_rows,) or may.dtype != np.bool_:
            raise ValueError(f"pool must be bool of shape ({num_rows},), got {may.dtype} {may.shape}")
        both = may & (current >= 0)
        if both.any():
            raise ValueError(f"pool has row {int(both.argmax())}, which has a label")
    sizes = np.bincount(given[given >= 0], minlength=num_classes)
    if missing_class not in ("error", "skip"):
        raise ValueError(f"missing_class must be error or skip, got {missing_class!r}")
    present = int((sizes > 0).sum())
    if present < 2:
        raise ValueError(f"{present} of {num_classes} classes have labels, need at least 2 to tell apart")
    missing = np.flatnonzero(sizes == 0)
    names = ", ".join(called(int(label), class_names) for label in missing[:5])
    names += f" and {len(missing) - 5} more" if len(missing) > 5 else ""
    if len(missing) and missing_class == "error":
        raise ValueError(f"no row has a label of {names}")
    warnings = (f"no row has a label of {names}: never named",) if len(missing) else ()
    return Labels(current, given, np.flatnonzero(may).astype(np.int64), num_classes, sizes, warnings)


def check_count(count: Wanted, sizes: NDArray[np.int64], balance: Balance) -> tuple[int, NDArray[np.int64] | None]:
    """Return how many rows are wanted, in all and of each class; ``None`` where classes have no share of their own.

    Args:
        count: rows in all, or (c,) of each class.
        sizes: (c,) given labels of each class.
        balance: see :func:`search`.

    Raises:
        ValueError: negative or not whole; counts per class that do not fit the classes or the balance.
    """
    if balance not in ("balanced", "global"):
        raise ValueError(f"balance must be balanced or global, got {balance!r}")
    counts = np.asarray(count)
    if counts.dtype.kind not in "iu" or counts.ndim > 1 or (counts < 0).any():
        raise ValueError(f"count must be a whole number >= 0, or one per class, got {count!r}")
    if counts.ndim == 0:
        return int(counts), quotas(int(counts), sizes) if balance == "balanced" else None
    if counts.shape != sizes.shape:
        raise ValueError(f"count has {len(counts)} entries for {len(sizes)} classes")
    if balance == "global":
        raise ValueError("count per class has no meaning with balance global")
    if (counts[sizes == 0] > 0).any():
        raise ValueError(f"count asks for class {int(((sizes == 0) & (counts > 0)).argmax())}, which has no label")
    return int(counts.sum()), counts.astype(np.int64)


def quotas(count: int, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Share ``count`` among classes like ``sizes``, by largest remainder; ties to the lowest class.

    In whole numbers, so that equal shares are equal.
    """
    total = int(sizes.sum())
    shares, rest = np.divmod(count * sizes.astype(np.int64), total)
    # stable: of equal remainders the lowest class
    more = np.argsort(-rest, kind="stable")[: count - int(shares.sum())]
    shares[more] += 1
    return np.asarray(shares, dtype=np.int64)


def _take_turns(position: NDArray[np.int64], *keys: NDArray[Any]) -> NDArray[np.int64]:
    """Rank from 1 of rows by their place in their class, then by further keys, then by their order here."""
    order = np.lexsort((*reversed(keys), position))
    ranks = np.empty(len(order), dtype=np.int64)
    ranks[order] = np.arange(1, len(order) + 1)
    return ranks


def _crowded_warnings(
    taken: NDArray[np.int64], sizes: NDArray[np.int64], class_names: Sequence[str]
) -> tuple[str, ...]:
    """Warn of classes whose share of the rows found is far above that of the given labels."""
    total = int(taken.sum())
    crowded = np.flatnonzero(taken * sizes.sum() > _CROWDED * sizes * total)
    return tuple(
        f"{int(taken[label])} of {total} found rows are of {called(int(label), class_names)}, more than {_CROWDED} "
        "times its share of the labels"
        for label in crowded
    )


def extent(values: NDArray[np.float64]) -> tuple[float, float]:
    """Return the smallest and the largest of some numbers; NaN without any."""
    return (float(values.min()), float(values.max())) if len(values) else (float("nan"), float("nan"))


def check_choice(name: str, value: object, allowed: Sequence[str]) -> None:
    """Raise ``ValueError`` unless an option is one of the words allowed."""
    if value not in allowed:
        raise ValueError(f"{name} must be {', '.join(allowed[:-1])} or {allowed[-1]}, got {value!r}")


def check_cap(name: str, value: float) -> None:
    """Raise ``ValueError`` unless a share is in (0, 1]."""
    if not 0 < value <= 1:
        raise ValueError(f"{name} must be in (0, 1], got {value}")


def check_factor(name: str, value: int) -> None:
    """Raise ``ValueError`` unless a factor is at least 1."""
    if value < 1:
        raise ValueError(f"{name} must be >= 1, got {value}")


def capped(share: float, count: int) -> int:
    """Whole part of a share of a count."""
    return int(share * count + 1e-9)  # 0.29 * 100 is 28.999...


def _class_column(values: ArrayLike, name: str, num_rows: int, num_classes: int | None) -> NDArray[np.int64]:
    column = np.asarray(values)
    if column.shape != (num_rows,):
        raise ValueError(f"{name} must have shape ({num_rows},), got {column.shape}")
    if column.dtype.kind not in "iu":
        whole = column == np.round(column) if column.dtype.kind == "f" else np.zeros(num_rows, dtype=bool)
        row = int((~whole).argmax())
        raise ValueError(f"{name} must be integers, got {column.dtype} (row {row}: {column[row] if num_rows else ''})")
    limit = np.iinfo(np.int64).max if num_classes is None else num_classes
    bad = (column < -1) | (column >= limit)
    if bad.any():
        row = int(bad.argmax())
        raise ValueError(f"{name} must be in [-1, {limit}), row {row} is {int(column[row])}")
    return column.astype(np.int64)
