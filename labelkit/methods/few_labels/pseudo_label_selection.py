"""The search for rows that get a label: distances to class means, rounds, quotas of the classes, and results.

Snowball and LMCS share it and differ in the measure of a row and in the order of the rows of a class
(``snowball_search.py``, ``critical_samples.py``). Each round:
    1. measure: the nearest class of each row without a label, and the distance
    2. choose rows of each class, best first, from a :class:`Round`
    3. return the chosen rows                            ``Round.table(chosen, ties)``
Source: dissertation "Deep Learning with Very Few and No Labels", Eq. 2.8 and 3.8 (the same equation). Everything is
computed in float64 from differences, block by block, and ordered by numbers rounded to 9 decimals with ties to the
lowest row, so that neither BLAS nor threads nor block sizes change the result.
Departure: rows are divided among the classes (``balance="balanced"``). The literal reading, the best rows of all
(``global``), starves whole classes.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_array

Balance = Literal["balanced", "global"]
Count = int | Sequence[int] | NDArray[np.int64] | Literal["double"]

BLOCK_ROWS = 4096
_DECIMALS = 9


# ---------------------------------------------------------------- distances and their order


def check_features(array: ArrayLike) -> NDArray[Any]:
    """Check features (n, d) and return them as an array.

    Raises:
        ValueError: the shape or type is wrong, or a value is not finite.
    """
    return check_array(np.asarray(array), ensure_min_samples=0, input_name="features")


def class_means(features: NDArray[Any], labels: NDArray[np.int64], num_classes: int) -> NDArray[np.float64]:
    """Compute the float64 class means (c, d) of the features (Eq. 2.8, 3.8); those of empty classes are NaN."""
    means = np.full((num_classes, features.shape[1]), np.nan)
    for label in np.unique(labels[labels >= 0]):
        means[label] = features[labels == label].astype(np.float64).mean(axis=0)
    return means


def distances_between(rows: NDArray[Any], others: NDArray[Any]) -> NDArray[np.float64]:
    """Compute the Euclidean distances (m, j) between rows (m, d) and (j, d); distances to NaN rows are infinite.

    Computed from differences and not from squares of the sums, so that exact ties stay exact.
    """
    from scipy.spatial.distance import cdist

    distances = cdist(rows.astype(np.float64), others.astype(np.float64))
    return np.where(np.isnan(distances), np.inf, distances)


def sortable_distances(distance: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
    """Return the distances, divided by their median and rounded for sorting, and that median (or 1 if it is 0)."""
    scale = (float(np.median(distance)) if len(distance) else 1.0) or 1.0
    return round_for_sorting(distance / scale), scale


def round_for_sorting(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Round values for comparison, removing the noise in their last digits."""
    return np.round(values, _DECIMALS)


def compute_min_and_max(values: NDArray[np.float64]) -> tuple[float, float]:
    """Return the minimum and maximum of an array, or two NaNs if it is empty."""
    return (float(values.min()), float(values.max())) if len(values) else (float("nan"), float("nan"))


# ---------------------------------------------------------------- results


@dataclass(frozen=True)
class Discovery:
    """Newly labeled rows, ordered by round, then (if balanced) by class, then by the selection rule."""

    indices: NDArray[np.int64]  # (s,) int64 rows
    labels: NDArray[np.int64]  # (s,) int64 their classes
    distance: NDArray[np.float64]  # (s,) float64 what they were selected by; smaller is more certain
    round: NDArray[np.int16]  # (s,) int16 from 1
    # (s,) int64 from 1: a second order, in which the classes of a round alternate, so that its beginning is
    # approximately the result of a smaller count
    rank: NDArray[np.int64]
    # of each round and class that has labels: ``round`` from 1; ``label``; ``candidates``, pool rows nearest to it;
    # ``quota``, number of rows wanted (``None`` where classes have no quota); ``taken``, rows found; ``nearest`` and
    # ``farthest``, smallest and largest distance of the found rows, NaN without
    per_class: tuple[dict[str, Any], ...]
    exhausted: bool  # whether fewer rows than wanted were found
    warnings: tuple[str, ...]  # messages for the user, in sentences

    def grown(self, labels: ArrayLike) -> NDArray[np.int64]:
        """Return a copy of ``labels`` with the discovered labels filled in."""
        result = np.array(labels, dtype=np.int64)
        result[self.indices] = self.labels
        return result


D = TypeVar("D", bound=Discovery)


@dataclass(frozen=True)
class Round:
    """One round of a search: the candidate rows, grouped by nearest class. Places are positions in ``pool``."""

    number: int  # number of the round, from 1
    num_before: int  # rows found in earlier rounds
    original: NDArray[np.int64]  # (n,) int64 labels given before the search, -1 = none
    pool: NDArray[np.int64]  # (m,) int64 rows that may be found, increasing
    sizes: NDArray[np.int64]  # (c,) int64 given labels of each class
    shares: NDArray[np.int64] | None  # (c,) int64 rows wanted of each class; ``None`` where classes have no quota
    distance: NDArray[np.float64]  # (m,) float64 distance of each place to the nearest class
    nearest: NDArray[np.int64]  # (m,) int64 nearest class of each place
    keys: NDArray[np.float64]  # (m,) float64 sort keys, ``distance`` divided by ``scale`` and rounded
    scale: float  # median distance
    # places that compete for selection, nearest first: a group for each class, or one group of all
    groups: list[NDArray[np.int64]]
    wants: list[int]  # rows wanted of each group

    def table(
        self, chosen: Sequence[NDArray[np.int64]], ties: Sequence[NDArray[Any]], warnings: Sequence[str] = ()
    ) -> Discovery:
        """Build the table of the selected rows.

        Args:
            chosen: places of each group, in the order of selection.
            ties: (s,) keys by which rows at the same position in their groups are ranked.
            warnings: warnings of the selection.
        """
        places = np.concatenate(chosen)
        # the classes alternate: by position in the group, then by the keys, then by the order here
        position = np.concatenate([np.arange(len(group)) for group in chosen])
        rank = np.empty(len(places), dtype=np.int64)
        rank[np.lexsort((*reversed(ties), position))] = np.arange(1, len(places) + 1)
        empty = [] if len(self.pool) else ["every image has a label, so there is nothing to find"]
        return Discovery(
            indices=self.pool[places],
            labels=self.nearest[places],
            distance=self.distance[places],
            round=np.full(len(places), self.number, dtype=np.int16),
            rank=self.num_before + rank,
            per_class=tuple(self._report(label, places) for label in np.flatnonzero(self.sizes).tolist()),
            exhausted=len(places) < sum(self.wants),
            warnings=(*warnings, *empty),
        )

    def _report(self, label: int, places: NDArray[np.int64]) -> dict[str, Any]:
        distances = self.distance[places[self.nearest[places] == label]]
        quota = None if self.shares is None else int(self.shares[label])
        nearest, farthest = compute_min_and_max(distances)
        report = {"round": self.number, "label": label, "candidates": int((self.nearest == label).sum())}
        return {**report, "quota": quota, "taken": len(distances), "nearest": nearest, "farthest": farthest}


# ---------------------------------------------------------------- the search


class SearchArguments(TypedDict, total=False):
    """Keyword arguments of :func:`search` that are common to all searches."""

    num_classes: int | None
    original: ArrayLike | None
    balance: Balance
    class_names: Sequence[str]


Measure = Callable[
    [NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], int], tuple[NDArray[np.float64], NDArray[np.int64]]
]
"""Maps current labels, given ones, the pool and c to each pool row's distance to its nearest class, and this class."""


def search(
    measure: Measure,
    choose: Callable[[Round], D],
    labels: ArrayLike,
    count: Count,
    rounds: int = 1,
    *,
    num_classes: int | None = None,
    original: ArrayLike | None = None,
    balance: Balance = "balanced",
    class_names: Sequence[str] = (),
) -> D:
    """Select and label rows in rounds, with fixed features.

    Args:
        measure: returns the distance of each row to its nearest class, and this class.
        choose: selects the rows of a round.
        labels: (n,) integers, class or -1 = unlabeled; rows found earlier count like given ones.
        count: rows to find in each round, in total or (c,) of each class (balanced only); ``double``: as many as have a
            label at that time.
        rounds: >= 1; the search ends earlier when a round finds nothing.
        num_classes: c; by default the largest label plus 1. A class without a label is never assigned.
        original: (n,) integers, the given labels alone, which set the share of each class; by default ``labels``.
        balance: ``balanced``: each class gets its share of ``count``; ``global``: the best rows of all.
        class_names: for messages; by default classes are called by their numbers.

    Returns:
        The results of all rounds in order; fewer rows than ``count`` if there are too few candidates.
    """
    current = np.asarray(labels, dtype=np.int64)
    given = current if original is None else np.asarray(original, dtype=np.int64)
    sizes = np.bincount(given[given >= 0], minlength=num_classes or int(current.max(initial=-1)) + 1)
    missing = np.flatnonzero(sizes == 0).tolist()
    names = [f"class {class_names[label]!r}" if class_names else f"class {label}" for label in missing[:5]]
    more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
    warnings = (
        [f"no image has a label of {', '.join(names)}{more}, so this class is never predicted"] if missing else []
    )
    found: list[D] = []
    for number in range(1, rounds + 1):
        requested = np.asarray(int((current >= 0).sum()) if isinstance(count, str) else count)
        shares = (
            (quotas(int(requested), sizes) if requested.ndim == 0 else requested) if balance == "balanced" else None
        )
        pool = np.flatnonzero(current < 0)
        distance, nearest = measure(current, given, pool, len(sizes))
        keys, scale = sortable_distances(distance)
        order = np.lexsort((pool, keys))
        groups = [order] if shares is None else [order[nearest[order] == label] for label in range(len(sizes))]
        wants = [int(requested)] if shares is None else shares.tolist()
        before = sum(len(one.indices) for one in found)
        turn = Round(number, before, given, pool, sizes, shares, distance, nearest, keys, scale, groups, wants)
        found.append(choose(turn))
        warnings += found[-1].warnings
        if not len(found[-1].indices):
            break
        current = found[-1].grown(current)
    return _join_rounds(found, tuple(dict.fromkeys(warnings)))


def _join_rounds(found: list[D], warnings: tuple[str, ...]) -> D:
    """Join the results of rounds by concatenating arrays and tuples."""
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


def quotas(count: int, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Split ``count`` among classes in proportion to ``sizes``, using the largest-remainder method.

    Ties go to the lowest class. Computed in integers, so that equal shares are equal.
    """
    total = int(sizes.sum())
    shares, rest = np.divmod(count * sizes.astype(np.int64), total)
    # stable: of equal remainders the lowest class
    more = np.argsort(-rest, kind="stable")[: count - int(shares.sum())]
    shares[more] += 1
    return np.asarray(shares, dtype=np.int64)
