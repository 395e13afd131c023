"""Rows by their nearest class mean: inputs, distances, order and shares that snowball and LMCS have in common.

Source: dissertation "Deep Learning with Very Few and No Labels", Eq. 2.8 and 3.8 (the same equation). Everything is
computed in float64 from differences, block by block, and ordered by numbers rounded to 9 decimals with ties to the
lowest row, so that neither BLAS nor threads nor block sizes change what is found.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypedDict, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

Balance = Literal["balanced", "global"]
FeatureNorm = Literal["none", "l2"]
MissingClass = Literal["error", "skip"]
Wanted = int | Sequence[int] | NDArray[np.int64]
Count = Wanted | Literal["double"]

BLOCK_ROWS = 4096
_DECIMALS = 9
# A class is crowded when its share of what was found is so many times its share of the given labels.
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
D_co = TypeVar("D_co", bound=Discovery, covariant=True)


class Rows:
    """Checked rows of one feature array, handed out as float64 and normalized as asked.

    Args:
        array: (n, d) numbers, d >= 1.
        name: for messages.
        feature_norm: ``l2`` scales each row to length 1; rows of zeros stay.

    Raises:
        ValueError: another shape or type, or a value that is not finite, with its row.
    """

    def __init__(self, array: ArrayLike, *, name: str = "features", feature_norm: FeatureNorm = "none") -> None:
        found = np.asarray(array)
        if found.ndim != 2 or found.shape[1] == 0:
            raise ValueError(f"{name} must have shape (n, d) with d >= 1, got {found.shape}")
        if found.dtype.kind not in "fiub":
            raise ValueError(f"{name} must be real numbers, got {found.dtype}")
        for start in range(0, len(found), BLOCK_ROWS):
            bad = ~np.isfinite(found[start : start + BLOCK_ROWS]).all(axis=1)
            if bad.any():
                raise ValueError(f"{name} has a value that is not finite in row {start + int(bad.argmax())}")
        if feature_norm not in ("none", "l2"):
            raise ValueError(f"feature_norm must be none or l2, got {feature_norm!r}")
        self._array = found
        self._unit = feature_norm == "l2"

    def __len__(self) -> int:
        return len(self._array)

    def take(self, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return some rows, (m, d) float64."""
        taken = np.asarray(self._array[rows], dtype=np.float64)
        if self._unit:
            lengths = np.sqrt(np.einsum("ij,ij->i", taken, taken))[:, None]
            taken = taken / np.where(lengths > 0, lengths, 1)
        return taken

    def is_constant(self) -> bool:
        """Return whether all rows are the same."""
        return len(self) > 0 and bool((self._array == self._array[:1]).all())


@dataclass(frozen=True)
class Labels:
    """Checked labels of a discovery.

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
        balance: see ``labelkit.algorithms.snowball``.

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


def class_means(rows: Rows, labels: NDArray[np.int64], num_classes: int) -> NDArray[np.float64]:
    """Mean row of each class (Eq. 2.8, 3.8), (c, d) float64; NaN for a class without rows."""
    means = []
    for label in range(num_classes):
        members = np.flatnonzero(labels == label)
        blocks = [members[start : start + BLOCK_ROWS] for start in range(0, max(len(members), 1), BLOCK_ROWS)]
        total = sum((rows.take(block).sum(axis=0) for block in blocks[1:]), start=rows.take(blocks[0]).sum(axis=0))
        means.append(total / len(members) if len(members) else np.full_like(total, np.nan))
    return np.stack(means)


def distances_between(rows: NDArray[np.float64], others: NDArray[np.float64]) -> NDArray[np.float64]:
    """Euclidean distances of (m, d) to (j, d) rows, (m, j).

    By differences and not by squares of the sums, so that exact ties stay exact.
    """
    from scipy.spatial.distance import cdist

    return np.asarray(cdist(rows, others))


def mean_distances(rows: NDArray[np.float64], means: NDArray[np.float64]) -> NDArray[np.float64]:
    """Euclidean distances of (m, d) rows to (c, d) means, (m, c); infinite to a mean that is not there."""
    there = ~np.isnan(means).any(axis=1)
    distances = np.full((len(rows), len(means)), np.inf)
    distances[:, there] = distances_between(rows, means[there])
    return distances


def order_keys(distance: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
    """Return distances over their median, rounded to order by, and that median (1 if it is 0)."""
    scale = float(np.median(distance)) if len(distance) else 1.0
    scale = scale if scale > 0 else 1.0
    return np.round(distance / scale, _DECIMALS), scale


def rounded(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return values as they are compared: without the noise of their last digits."""
    return np.round(values, _DECIMALS)


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


def take_turns(position: NDArray[np.int64], *keys: NDArray[Any]) -> NDArray[np.int64]:
    """Rank from 1 of rows by their place in their class, then by further keys, then by their order here."""
    order = np.lexsort((*reversed(keys), position))
    ranks = np.empty(len(order), dtype=np.int64)
    ranks[order] = np.arange(1, len(order) + 1)
    return ranks


def crowded_warnings(taken: NDArray[np.int64], sizes: NDArray[np.int64], class_names: Sequence[str]) -> tuple[str, ...]:
    """Warn of classes whose share of the rows found is far above that of the given labels."""
    total = int(taken.sum())
    crowded = np.flatnonzero(taken * sizes.sum() > _CROWDED * sizes * total)
    return tuple(
        f"{int(taken[label])} of {total} found rows are of {called(int(label), class_names)}, more than {_CROWDED} "
        "times its share of the labels"
        for label in crowded
    )


class SearchOptions(TypedDict, total=False):
    """Options that all searches have: see :func:`labelkit.algorithms.snowball.discover_confident`."""

    num_classes: int | None
    balance: Balance
    feature_norm: FeatureNorm
    missing_class: MissingClass
    class_names: Sequence[str]


class OneRound(Protocol[D_co]):
    """A search of one round."""

    def __call__(
        self, labels: NDArray[np.int64], count: Wanted, *, pool: NDArray[np.bool_] | None, original: NDArray[Any]
    ) -> D_co:
        """Find ``count`` rows of ``pool`` by the labels there are."""
        ...


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


def repeat_rounds(
    find: OneRound[D],
    labels: ArrayLike,
    count: Count,
    rounds: int,
    *,
    pool: ArrayLike | None = None,
    original: ArrayLike | None = None,
) -> D:
    """Find rows, give them their labels, find more.

    Args:
        find: one round.
        labels: (n,) before the first round.
        count: rows of each round, in all or of each class; ``double``: as many as have a label then.
        rounds: >= 1; ends earlier when a round finds nothing.
        pool: (n,) bool, rows that may be found in any round; by default all without a label.
        original: (n,) the given labels alone; by default ``labels``.

    Raises:
        ValueError: count or rounds out of range; what ``find`` raises.
    """
    if rounds < 1:
        raise ValueError(f"rounds must be >= 1, got {rounds}")
    if isinstance(count, str) and count != "double":
        raise ValueError(f"count must be a number or double, got {count!r}")
    current = np.array(labels, dtype=np.int64)
    given = current if original is None else np.asarray(original)
    may, labeled = None if pool is None else np.asarray(pool), current >= 0
    found: list[D] = []
    for _ in range(rounds):
        wanted: Wanted = int((current >= 0).sum()) if isinstance(count, str) else count
        left = None if may is None else may & ((current < 0) | labeled)
        found.append(find(current, wanted, pool=left, original=given))
        current = found[-1].grown(current)
        if not len(found[-1].indices):
            break
    return _joined(found)


def _joined(found: list[D]) -> D:
    """Join rounds: arrays and tuples one after the other, rounds and ranks going on."""
    numbered: list[D] = []
    ranked = 0
    for number, one in enumerate(found, start=1):
        numbered.append(
            dataclasses.replace(
                one,
                round=np.full_like(one.round, number),
                rank=one.rank + ranked,
                per_class=tuple(dataclasses.replace(report, round=number) for report in one.per_class),
            )
        )
        ranked += len(one.indices)
    columns: dict[str, Any] = {}
    for field in dataclasses.fields(found[0]):
        values = [getattr(one, field.name) for one in numbered]
        if isinstance(values[0], np.ndarray):
            columns[field.name] = np.concatenate(values)
        elif isinstance(values[0], bool):
            columns[field.name] = any(values)
        else:
            columns[field.name] = tuple(item for value in values for item in value)
    columns["warnings"] = tuple(dict.fromkeys(columns["warnings"]))
    return dataclasses.replace(found[0], **columns)


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
