"""Selection of rows to pseudo-label: distances to class means, rounds, class quotas, and results.

Shared by Snowball and LMCS, which differ in how they measure rows and in the order of rows within a class
(``snowball_search.py``, ``critical_samples.py``). Each round:
    1. measure the distance of each unlabeled row to its nearest class
    2. choose rows of each class, best first, from a :class:`SearchRound`
    3. return the chosen rows                            ``SearchRound.build_discovery(chosen, ties)``
Source: dissertation "Deep Learning with Very Few and No Labels", Eq. 2.8 and 3.8 (the same equation). Everything is
computed in float64 from differences, block by block, and sorted by values rounded to 9 decimals, with ties going to
the lowest row, so that neither BLAS nor threads nor block sizes change the result.
Departure: rows are divided among the classes (``balance="balanced"``). The literal reading, the best rows overall
(``global``), starves whole classes.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_array

from labelkit.formatting import join_first_few

Balance = Literal["balanced", "global"]
Count = int | Sequence[int] | NDArray[np.int64] | Literal["double"]

BLOCK_ROWS = 4096
_DECIMALS = 9


def check_features(features: ArrayLike) -> NDArray[Any]:
    """Check the shape and values of features (n, d), and return them as an array.

    Raises:
        ValueError: the shape or type is wrong, or a value is not finite.
    """
    return check_array(np.asarray(features), ensure_min_samples=0, input_name="features")


def euclidean_distances(rows: NDArray[Any], others: NDArray[Any]) -> NDArray[np.float64]:
    """Compute the Euclidean distances (m, j) between rows (m, d) and (j, d); distances to NaN rows are infinite.

    Computed from differences rather than expanded squares, so that exact ties stay exact.
    """
    from scipy.spatial.distance import cdist

    distances = cdist(rows.astype(np.float64), others.astype(np.float64))
    return np.where(np.isnan(distances), np.inf, distances)


def round_distances_for_sorting(distances: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
    """Divide distances by their median (or by 1 if it is 0) and round them for sorting; also return the divisor."""
    scale = (float(np.median(distances)) if len(distances) else 1.0) or 1.0
    return round_for_sorting(distances / scale), scale


def round_for_sorting(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Round values, so that noise in the last digits does not affect their order."""
    return np.round(values, _DECIMALS)


def compute_min_and_max(values: NDArray[np.float64]) -> tuple[float, float]:
    """Return the minimum and maximum of an array, or two NaNs if it is empty."""
    return (float(values.min()), float(values.max())) if len(values) else (float("nan"), float("nan"))


@dataclass(frozen=True)
class Discovery:
    """Newly labeled rows, ordered by round, then (if balanced) by class, then by the selection rule."""

    indices: NDArray[np.int64]  # (s,) int64 rows
    labels: NDArray[np.int64]  # (s,) int64 their classes
    distance: NDArray[np.float64]  # (s,) float64 selection criterion; smaller is more certain
    round: NDArray[np.int16]  # (s,) int16 from 1
    # (s,) int64 from 1: an alternative order in which the classes of a round alternate, so that its first rows
    # approximate the result of a smaller count
    rank: NDArray[np.int64]
    # for each round and class with labels: ``round`` from 1; ``label``; ``candidates``, pool rows nearest to it;
    # ``quota``, number of rows requested (``None`` if classes have no quota); ``taken``, rows found; ``nearest`` and
    # ``farthest``, minimum and maximum distance of the found rows, NaN if there are none
    per_class: tuple[dict[str, Any], ...]
    exhausted: bool  # whether fewer rows than requested were found
    warnings: tuple[str, ...]  # messages for the user

    def fill_in(self, labels: ArrayLike) -> NDArray[np.int64]:
        """Return a copy of ``labels`` that includes the discovered labels."""
        result = np.array(labels, dtype=np.int64)
        result[self.indices] = self.labels
        return result


D = TypeVar("D", bound=Discovery)


@dataclass(frozen=True)
class SearchRound:
    """Candidate rows of one search round, grouped by nearest class; places are positions in ``pool``."""

    number: int  # number of the round, from 1
    num_before: int  # rows found in earlier rounds
    original: NDArray[np.int64]  # (n,) int64 labels given before the search, -1 = none
    pool: NDArray[np.int64]  # (m,) int64 candidate rows, increasing
    sizes: NDArray[np.int64]  # (c,) int64 number of given labels of each class
    shares: NDArray[np.int64] | None  # (c,) int64 rows requested of each class; ``None`` if classes have no quota
    distance: NDArray[np.float64]  # (m,) float64 distance of each place to the nearest class
    nearest: NDArray[np.int64]  # (m,) int64 nearest class of each place
    keys: NDArray[np.float64]  # (m,) float64 sort keys, ``distance`` divided by ``scale`` and rounded
    scale: float  # median distance
    # places that compete for selection, nearest first: a group for each class, or one group of all
    groups: list[NDArray[np.int64]]
    wants: list[int]  # rows requested of each group

    def build_discovery(
        self, chosen: Sequence[NDArray[np.int64]], ties: Sequence[NDArray[Any]], warnings: Sequence[str] = ()
    ) -> Discovery:
        """Build the round's discovery from the selected rows.

        Args:
            chosen: selected places of each group, in order.
            ties: (s,) keys that rank rows at the same position in their groups.
            warnings: warnings from the selection.
        """
        places = np.concatenate(chosen)
        # the classes alternate: by position in the group, then by the keys, then by the order here
        position = np.concatenate([np.arange(len(group)) for group in chosen])
        rank = np.empty(len(places), dtype=np.int64)
        rank[np.lexsort((*reversed(ties), position))] = np.arange(1, len(places) + 1)
        empty = [] if len(self.pool) else ["every image has a label, so there is nothing to discover"]
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


class SearchArguments(TypedDict, total=False):
    """Keyword arguments of :func:`search_in_rounds` that all searches accept."""

    num_classes: int | None
    original: ArrayLike | None
    balance: Balance
    class_names: Sequence[str]


Measure = Callable[
    [NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], int], tuple[NDArray[np.float64], NDArray[np.int64]]
]
"""Maps current labels, given labels, the pool and c to each pool row's distance to its nearest class and that class."""


def search_in_rounds(
    measure: Measure,
    choose: Callable[[SearchRound], D],
    labels: ArrayLike,
    count: Count,
    rounds: int = 1,
    *,
    num_classes: int | None = None,
    original: ArrayLike | None = None,
    balance: Balance = "balanced",
    class_names: Sequence[str] = (),
) -> D:
    """Select unlabeled rows in rounds and assign a class to each, with fixed features.

    Args:
        measure: returns the distance of each row to its nearest class, and that class.
        choose: selects the rows of a round.
        labels: (n,) integers, class or -1 = unlabeled; labels discovered earlier count like given ones.
        count: rows to find per round, in total or (c,) per class (balanced only); ``double``: the number of labels at
            that time.
        rounds: >= 1; the search ends early if a round finds nothing.
        num_classes: c; by default, the largest label plus 1. A class without a label is never assigned.
        original: (n,) integers, the given labels alone, which determine each class's share; by default, ``labels``.
        balance: ``balanced``: each class gets its share of ``count``; ``global``: the best rows overall.
        class_names: class names for messages; by default, class numbers are used.

    Returns:
        The results of all rounds in order; fewer rows than ``count`` if there are too few candidates.
    """
    current = np.asarray(labels, dtype=np.int64)
    given = current if original is None else np.asarray(original, dtype=np.int64)
    sizes = np.bincount(given[given >= 0], minlength=num_classes or int(current.max(initial=-1)) + 1)
    missing = np.flatnonzero(sizes == 0).tolist()
    names = join_first_few((f"class {class_names[i]!r}" if class_names else f"class {i}" for i in missing), 5)
    warnings = [f"no image is labeled as {names}, which will never be predicted"] if missing else []
    found: list[D] = []
    for number in range(1, rounds + 1):
        requested = np.asarray(int((current >= 0).sum()) if isinstance(count, str) else count)
        shares = None
        if balance == "balanced":
            shares = split_into_quotas(int(requested), sizes) if requested.ndim == 0 else requested
        pool = np.flatnonzero(current < 0)
        distance, nearest = measure(current, given, pool, len(sizes))
        keys, scale = round_distances_for_sorting(distance)
        order = np.lexsort((pool, keys))
        groups = [order] if shares is None else [order[nearest[order] == label] for label in range(len(sizes))]
        wants = [int(requested)] if shares is None else shares.tolist()
        before = sum(len(one.indices) for one in found)
        turn = SearchRound(number, before, given, pool, sizes, shares, distance, nearest, keys, scale, groups, wants)
        found.append(choose(turn))
        warnings += found[-1].warnings
        if not len(found[-1].indices):
            break
        current = found[-1].fill_in(current)
    return _join_rounds(found, tuple(dict.fromkeys(warnings)))


def _join_rounds(found: list[D], warnings: tuple[str, ...]) -> D:
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


def split_into_quotas(count: int, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Divide ``count`` among classes in proportion to ``sizes``, using the largest-remainder method.

    Ties go to the lowest class. Computed in integers, so that equal shares are equal.
    """
    total = int(sizes.sum())
    shares, rest = np.divmod(count * sizes.astype(np.int64), total)
    # stable sort: equal remainders favor the lowest class
    more = np.argsort(-rest, kind="stable")[: count - int(shares.sum())]
    shares[more] += 1
    return np.asarray(shares, dtype=np.int64)
