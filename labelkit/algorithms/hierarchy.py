"""Agglomerative clustering: rows are merged into groups, and groups into larger groups, always the cheapest pair.

The cost of a merge is Ward's: the increase in the sum of squared distances to the means. Labeled rows of a class form
one group from the start, and groups with different labels are never merged. The tree is cut at a number of groups or
at a minimum group size. Merging a single outlier costs little, so it seldom stays alone, and nothing forces groups to
have equal sizes.

If there are many rows, they are first reduced to 2,000 small groups by k-means.

Sources:
    J. Ward, "Hierarchical Grouping to Optimize an Objective Function" (1963); merges are found by nearest-neighbor
    chains, F. Murtagh, "A Survey of Recent Advances in Hierarchical Clustering Algorithms" (1983).
    Rows are compared in :class:`ClassProjection`. The use of labels is our addition.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labelkit.algorithms.class_projection import ClassProjection, fit_class_projection, move_toward_neighbors
from labelkit.algorithms.clustering import kmeans, nearest_centroids, sum_rows
from labelkit.algorithms.row_blocks import Rows, StoredRows, iterate_blocks, validate_rows

Doubles = NDArray[np.float64]
Ints = NDArray[np.int64]

MAX_LEAVES: Final = 3000
"""Maximum number of rows for which each row is a leaf."""
_SMALL_GROUPS: Final = 2000
_DRAWN: Final = 20_000
_ITERATIONS: Final = 10


@dataclass(frozen=True)
class Hierarchy:
    """Tree of clusters over m leaves, with merges in order of increasing cost."""

    leaves: Ints  # (n,) leaf of each row: one leaf per labeled class, in the order of ``labels``, then the others
    places: Doubles  # (m, d) mean of each leaf, in the space in which rows are compared
    sizes: Ints  # (m + s,) number of rows in each leaf, then in each merge
    merges: Ints  # (s, 2) pairs of merged nodes: leaves, or earlier merges, where merge i has number m + i
    costs: Doubles  # (s,) cost of each merge, never decreasing
    labels: Ints  # (c,) the labeled classes

    @property
    def min_groups(self) -> int:
        """Minimum number of groups into which the hierarchy can be cut."""
        return len(self.places) - len(self.merges)

    @property
    def max_groups(self) -> int:
        """Maximum number of groups into which the hierarchy can be cut."""
        return len(self.places)

    def clamp(self, num_groups: int) -> int:
        """Return the number nearest to ``num_groups`` into which the hierarchy can be cut."""
        return min(max(num_groups, self.min_groups), self.max_groups)

    def cut(self, num_groups: int, *, min_size: int = 1) -> tuple[Ints, int]:
        """Cut the hierarchy into the given number of groups, and return the group of each sample.

        Args:
            num_groups: from ``min_groups`` to ``max_groups``.
            min_size: smaller groups without a label do not count: the tree is cut further until there are enough other
                groups, or no more are possible. Their rows are assigned to the group with the nearest mean.

        Returns:
            (n,) group of each row, labeled classes first, then the others by decreasing size; the number of groups.

        Raises:
            ValueError: a number is out of range.
        """
        if not self.min_groups <= num_groups <= self.max_groups or min_size < 1:
            wanted = f"{num_groups} groups of at least {min_size} rows each"
            raise ValueError(f"cannot split {self.max_groups} leaves into {wanted}")
        first = self._find_first_undone_merge(num_groups, min_size)
        roots = self._find_roots(first)
        groups, of_leaf = np.unique(roots, return_inverse=True)
        of_leaf = of_leaf.astype(np.int64)
        sizes = self.sizes[groups]
        has_label = np.zeros(len(groups), dtype=bool)
        has_label[of_leaf[: len(self.labels)]] = True
        counts = has_label | (sizes >= min_size)
        if not counts.any():
            counts[sizes.argmax()] = True
        if not counts.all():
            weights = self.sizes[: self.max_groups].astype(np.float64)
            means = sum_rows(self.places * weights[:, None], of_leaf, len(groups))
            means /= np.bincount(of_leaf, weights)[:, None]
            kept = np.flatnonzero(counts)
            nearest = kept[nearest_centroids(means, means[kept])]
            of_leaf = np.where(counts, np.arange(len(groups)), nearest)[of_leaf]
        order = self._number_groups(of_leaf)
        return order[of_leaf][self.leaves], int(order.max()) + 1

    def _number_groups(self, of_leaf: Ints) -> Ints:
        """Return the new number of each group, classes first, then by decreasing size; -1 if it does not exist."""
        sizes = np.bincount(of_leaf, self.sizes[: self.max_groups])
        own = of_leaf[: len(self.labels)]
        others = np.setdiff1d(of_leaf, own)
        order = np.full(len(sizes), -1, dtype=np.int64)
        order[own] = np.arange(len(own))
        order[others[np.argsort(-sizes[others], kind="stable")]] = len(own) + np.arange(len(others))
        return order

    def _find_first_undone_merge(self, num_groups: int, min_size: int) -> int:
        """Return the first merge to undo to obtain enough groups of that size, or as many as possible."""
        counts = (self._has_label | (self.sizes >= min_size)).astype(np.int64)
        top = np.ones(len(self.sizes), dtype=bool)
        top[self.merges.ravel()] = False
        gained = counts[self.merges].sum(axis=1) - counts[self.max_groups :]
        # entry i: number of groups that count if the last i merges are undone
        reached = int(counts[top].sum()) + np.concatenate([[0], np.cumsum(gained[::-1])])
        enough = np.flatnonzero(reached >= num_groups)
        return len(self.merges) - int(enough[0] if len(enough) else reached.argmax())

    def _find_roots(self, first: int) -> Ints:
        """Return the node, (m,), to which each leaf belongs before the merges from ``first`` on."""
        own = np.arange(len(self.sizes), dtype=np.int64)
        own[self.merges[:first].ravel()] = self.max_groups + np.repeat(np.arange(first), 2)
        while (further := own[own]).tobytes() != own.tobytes():
            own = further
        return own[: self.max_groups]

    @cached_property
    def _has_label(self) -> NDArray[np.bool_]:
        """Bool mask of the leaves and merges that contain a labeled row."""
        found = np.zeros(len(self.sizes), dtype=bool)
        found[: len(self.labels)] = True
        for number, (one, other) in enumerate(self.merges.tolist()):
            found[self.max_groups + number] = found[one] or found[other]
        return found


def build_hierarchy(
    x: ArrayLike | StoredRows,
    labels: ArrayLike | None = None,
    *,
    generator: np.random.Generator,
) -> Hierarchy:
    """Build a tree of clusters by agglomerative clustering that keeps labeled classes together.

    Args:
        x: (n, d) rows, n >= 1; only their directions from the mean matter.
        labels: (n,) integers, -1 = none; ``None``: no labels at all.
        generator: draws a sample if there are many rows.

    Raises:
        ValueError: shapes do not match, NaN or infinity.
    """
    rows = validate_rows(x, "x")
    known = np.full(len(rows), -1, dtype=np.int64) if labels is None else np.asarray(labels, dtype=np.int64)
    if known.shape != (len(rows),) or not len(rows):
        raise ValueError(f"x {rows.shape} and labels {known.shape} must have the same number of rows, at least one")
    space = fit_class_projection(rows, known, generator=generator)
    if len(rows) > MAX_LEAVES:
        small, places = _find_small_groups(rows, space, generator)
    else:
        small, places = np.arange(len(rows), dtype=np.int64), space.project(rows)
    places = move_toward_neighbors(places)
    classes, of_class = np.unique(known, return_inverse=True)
    if classes[0] < 0:
        classes, of_class = classes[1:], of_class - 1
    free, of_free = np.unique(small[known < 0], return_inverse=True)
    leaves = of_class.astype(np.int64)
    leaves[known < 0] = len(classes) + of_free
    count = len(classes) + len(free)
    sizes = np.bincount(leaves, minlength=count)
    # each row is represented by its small group
    pairs_there, rows_of_pair = np.unique(leaves * len(places) + small, return_counts=True)
    of_leaf, of_place = np.divmod(pairs_there, len(places))
    means = sum_rows(places[of_place] * rows_of_pair[:, None].astype(np.float64), of_leaf, count) / sizes[:, None]
    pairs, costs = _merge_leaves(means, sizes.astype(np.float64), len(classes))
    merges, all_sizes = _number_merges(pairs, sizes)
    return Hierarchy(leaves, means, all_sizes, merges, costs, classes)


def _find_small_groups(
    rows: Rows, space: ClassProjection, generator: np.random.Generator
) -> tuple[Ints, NDArray[np.float32]]:
    """Return the small group of each row, (n,), and the group centroids, projecting rows block by block."""
    order = generator.permutation(len(rows))[:_DRAWN]
    in_order = np.sort(order)
    drawn = space.project(rows[in_order])[np.searchsorted(in_order, order)]
    start = drawn[: min(_SMALL_GROUPS, len(drawn))]  # dense regions are drawn more often
    found = kmeans(drawn, len(start), generator=generator, init_centroids=start, max_iter=_ITERATIONS)
    own = np.empty(len(rows), dtype=np.int64)
    for where, part in iterate_blocks(rows):
        own[where] = nearest_centroids(space.project(part), found.centroids)
    used, small = np.unique(own, return_inverse=True)
    return small.astype(np.int64), np.asarray(found.centroids[used], dtype=np.float32)


def _merge_leaves(places: Doubles, weights: Doubles, num_classes: int) -> tuple[Ints, Doubles]:
    """Return the pairs of leaves whose groups are merged, by increasing cost, and the costs; classes come first."""
    mass = weights.copy()
    squares = np.square(places).sum(axis=1)
    costs = np.maximum(squares[:, None] + squares - 2 * places @ places.T, 0)
    costs *= mass[:, None] * mass / (mass[:, None] + mass)
    np.fill_diagonal(costs, np.inf)
    own = np.arange(len(places)) < num_classes
    costs[np.ix_(own, own)] = np.inf
    active = np.ones(len(places), dtype=bool)
    pairs: list[tuple[int, int]] = []
    heights: list[float] = []
    chain: list[int] = []
    while True:
        if not chain:
            free = np.flatnonzero(active & ~own)
            if not len(free):
                break
            chain = [int(free[0])]
        last = chain[-1]
        near = int(costs[last].argmin())
        if len(chain) > 1 and costs[last, chain[-2]] <= costs[last, near]:
            near = chain[-2]
        cost = float(costs[last, near])
        if not np.isfinite(cost):
            break  # only one group remains
        if len(chain) < 2 or near != chain[-2]:
            chain.append(near)
            continue
        del chain[-2:]
        kept, removed = (last, near) if own[last] else (near, last)
        joined = (mass[kept] + mass) * costs[kept] + (mass[removed] + mass) * costs[removed] - mass * cost
        joined /= mass[kept] + mass[removed] + mass
        joined[[kept, removed]] = np.inf
        if own[kept]:
            joined[own] = np.inf
        costs[kept], costs[:, kept] = joined, joined
        costs[removed], costs[:, removed] = np.inf, np.inf
        active[removed] = False
        mass[kept] += mass[removed]
        pairs.append((kept, removed))
        heights.append(cost)
    order = np.argsort(heights, kind="stable")
    return np.array(pairs, dtype=np.int64).reshape(-1, 2)[order], np.array(heights, dtype=np.float64)[order]


def _number_merges(pairs: Ints, sizes: Ints) -> tuple[Ints, Ints]:
    """Return the merges as pairs of node numbers, and the sizes of all nodes (leaves, then merges)."""
    count = len(sizes)
    number = np.arange(count + len(pairs), dtype=np.int64)  # of the merge that currently contains each node
    merges = np.empty_like(pairs)
    all_sizes = np.concatenate([sizes, np.zeros(len(pairs), dtype=np.int64)])

    def top(one: int) -> int:
        while number[one] != one:
            number[one] = number[number[one]]
            one = int(number[one])
        return one

    for place, (one, other) in enumerate(pairs.tolist()):
        merges[place] = top(one), top(other)
        number[merges[place]] = count + place
        all_sizes[count + place] = all_sizes[merges[place]].sum()
    return merges, all_sizes
