"""Agglomerative clustering in a space in which groups are easier to separate: merge the pair with the lowest cost.

    1. rows are projected on the directions in which they vary most
    2. with labels: scaled so that rows of one class vary equally in every direction (halfway: the other half is the
       mean over directions, since there are few labels), then to length 1
    3. rows move toward their neighbors, step by step: a random walk on the graph of neighbors, which weights an edge
       by the typical distances around its ends

Sources:
    step 2: A. Hatch, S. Kajarekar and A. Stolcke, "Within-Class Covariance Normalization for SVM-based Speaker
    Recognition" (2006). Step 3, the weights: L. Zelnik-Manor and P. Perona, "Self-Tuning Spectral Clustering" (2004).
    Numbers of directions, neighbors and steps were chosen on groceries, digits and half of Omniglot.

Rows are joined into groups, and these into larger groups, always the pair with the cheapest union.

The cost of a union is Ward's: the increase of the sum of squared distances to the means. Labeled rows of one
class are one group from the start, and groups with different labels never join. The tree is cut at a number of groups
or at their minimum size. Joining a single odd row costs little, so it seldom stays alone, and nothing forces groups to
have equal sizes.

If there are many rows, 2,000 small groups by k-means take their place.

Sources:
    J. Ward, "Hierarchical Grouping to Optimize an Objective Function" (1963); the order of the unions is found by
    chains of nearest groups, F. Murtagh, "A Survey of Recent Advances in Hierarchical Clustering Algorithms" (1983).
    Rows are compared in :class:`ClassSpace`. The use of labels is our addition.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labelkit.algorithms.clustering import kmeans, nearest_centroids
from labelkit.algorithms.projection import principal_directions
from labelkit.algorithms.row_blocks import Rows, StoredRows, blocks, iterate_blocks, validate_rows

Floats = NDArray[np.float32]

MAX_DIRECTIONS: Final = 128
MAX_SAMPLED: Final = 20_000
"""Maximum number of rows that the directions are computed from; a sample is drawn from more."""
_NEIGHBORS: Final = 10
_USUAL: Final = 7
"""The distance to this neighbor is the typical distance around a row."""
_STEPS: Final = 8
_STAYING: Final = 0.5
"""Share of a row that remains in each step."""


@dataclass(frozen=True)
class ClassSpace:
    """Fitted projection of samples into a space where classes are easier to separate (steps 1 and 2 of the module)."""

    mean: NDArray[np.float64]  # (d,) mean of the rows
    directions: NDArray[np.float64]  # (d, e) in which they vary most, e at most 128
    scales: NDArray[np.float64] | None  # (e, e), or ``None`` without labels

    def place(self, rows: Rows) -> Floats:
        """Project samples (n, d) into the space.

        Returns:
            (n, e) rows of length 1; zeros for rows equal to the mean.
        """
        places = self._along(rows)
        if self.scales is not None:
            for block in blocks(*places.shape):
                places[block] = places[block] @ self.scales
        return _normalize(places)

    def _along(self, rows: Rows) -> Floats:
        places = np.empty((len(rows), self.directions.shape[1]), dtype=np.float32)
        for where, part in iterate_blocks(rows):
            places[where] = (part - self.mean) @ self.directions
        return places

    def scaled(self, rows: Rows, labels: NDArray[np.int64]) -> Self:
        """Return a copy scaled so that labeled samples (m, d) vary equally within their classes."""
        return replace(self, scales=_within_class_scales(self._along(rows), labels))


def fit_class_space(rows: Rows, labels: NDArray[np.int64], *, generator: np.random.Generator) -> ClassSpace:
    """Fit a projection that separates classes, given samples and their known labels.

    Args:
        rows: (n, d), n >= 1.
        labels: (n,), -1 = none.
        generator: draws the rows that directions are computed from, if there are many.
    """
    drawn = rows[:] if len(rows) <= MAX_SAMPLED else rows[np.sort(generator.permutation(len(rows))[:MAX_SAMPLED])]
    directions, _ = principal_directions(drawn, min(MAX_DIRECTIONS, drawn.shape[1]))
    space = ClassSpace(drawn.mean(axis=0, dtype=np.float64), directions, None)
    known = np.flatnonzero(labels >= 0)
    known = known[generator.permutation(len(known))[:MAX_SAMPLED]] if len(known) > MAX_SAMPLED else known
    known = np.sort(known)
    return space.scaled(rows[known], labels[known]) if len(known) else space


def move_to_neighbors(places: Floats) -> Floats:
    """Move embeddings toward their neighbors by a random walk on the neighbor graph (step 3 of the module).

    Args:
        places: (m, d) rows of length 1, or zeros; at most a few thousand, since all pairs are compared.

    Returns:
        (m, d) rows of length 1, or zeros.
    """
    from scipy.sparse import csr_array

    count = len(places)
    width = min(_NEIGHBORS, count - 1)
    if width < 1:
        return places
    squares = np.maximum(2 - 2 * (places @ places.T), 0)
    np.fill_diagonal(squares, np.inf)
    near = np.argpartition(squares, width - 1, axis=1)[:, :width]
    found = np.take_along_axis(squares, near, axis=1).astype(np.float64)
    usual = np.sqrt(np.sort(found, axis=1)[:, min(_USUAL, width) - 1]) + 1e-6
    weights = np.exp(-found / (usual[:, None] * usual[near])) + 1e-12
    starts = np.repeat(np.arange(count), width)
    edges = csr_array((weights.ravel(), (starts, near.ravel())), shape=(count, count))
    edges = csr_array(edges + edges.T)
    totals: NDArray[np.float64] = np.asarray(edges.sum(axis=1)).reshape(-1, 1)
    moving = places.astype(np.float64)
    for _ in range(_STEPS):
        moving = _STAYING * moving + (1 - _STAYING) * np.asarray(edges @ moving) / totals
    return _normalize(moving.astype(np.float32))


def _within_class_scales(places: Floats, labels: NDArray[np.int64]) -> NDArray[np.float64] | None:
    """Return a (d, d) matrix that makes classes vary equally in all directions; ``None`` if no class has two labels."""
    classes, members, counts = np.unique(labels[labels >= 0], return_inverse=True, return_counts=True)
    freedom = int(counts.sum()) - len(classes)
    if freedom < 1:
        return None
    known = places[labels >= 0].astype(np.float64)
    means = np.zeros((len(classes), known.shape[1]))
    np.add.at(means, members, known)
    known -= (means / counts[:, None])[members]
    scatter = known.T @ known / freedom
    usual = float(np.trace(scatter)) / len(scatter)
    if usual <= 0:
        return None  # the labeled rows of each class are equal, so there is nothing to learn from them
    values, vectors = np.linalg.eigh(0.5 * scatter + 0.5 * usual * np.eye(len(scatter)))
    return np.asarray(vectors / np.sqrt(values), dtype=np.float64)


def _normalize(places: ArrayLike) -> Floats:
    rows = np.asarray(places, dtype=np.float32)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    # rows that differ from the mean only by rounding have no direction
    lengths = np.where(lengths > 1e-6, lengths, np.inf)
    return np.asarray(rows / lengths, dtype=np.float32)


Doubles = NDArray[np.float64]
Ints = NDArray[np.int64]

MAX_LEAVES: Final = 3000
"""Maximum number of rows that are each a leaf."""
_SMALL_GROUPS: Final = 2000
_DRAWN: Final = 20_000
_ITERATIONS: Final = 10


@dataclass(frozen=True)
class Hierarchy:
    """Tree of clusters over m leaves, with merges in order of increasing cost."""

    leaves: Ints  # (n,) leaf of each row: first one for each labeled class, in the order of ``labels``, then others
    places: Doubles  # (m, d) mean of each leaf, in the space in which rows are compared
    sizes: Ints  # (m + s,) number of rows of each leaf, then of each union
    unions: Ints  # (s, 2) pairs of leaves or unions that are joined: union i has number m + i
    costs: Doubles  # (s,) of the unions; they never decrease
    labels: Ints  # (c,) the labeled classes

    @property
    def fewest(self) -> int:
        """Minimum number of groups to cut the hierarchy into."""
        return len(self.places) - len(self.unions)

    @property
    def most(self) -> int:
        """Maximum number of groups to cut the hierarchy into."""
        return len(self.places)

    def cut(self, num_groups: int, *, min_size: int = 1) -> tuple[Ints, int]:
        """Cut the hierarchy into a number of groups, and return the group of each sample.

        Args:
            num_groups: in [fewest, most].
            min_size: groups of fewer rows without a label do not count: the tree is cut further until there are enough
                others, or there cannot be more. Their rows are assigned to the group with the nearest mean.

        Returns:
            ((n,) groups: class by class, then the others, the largest first; their number).

        Raises:
            ValueError: a number is out of range.
        """
        if not self.fewest <= num_groups <= self.most or min_size < 1:
            wanted = f"{num_groups} groups of at least {min_size} rows each"
            raise ValueError(f"cannot split {self.most} leaves into {wanted}")
        first = self._find_union_to_undo(num_groups, min_size)
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
            weights = self.sizes[: self.most].astype(np.float64)
            means = np.zeros((len(groups), self.places.shape[1]))
            np.add.at(means, of_leaf, self.places * weights[:, None])
            means /= np.bincount(of_leaf, weights)[:, None]
            kept = np.flatnonzero(counts)
            nearest = kept[nearest_centroids(means, means[kept])]
            of_leaf = np.where(counts, np.arange(len(groups)), nearest)[of_leaf]
        order = self._number_groups(of_leaf)
        return order[of_leaf][self.leaves], int(order.max()) + 1

    def _number_groups(self, of_leaf: Ints) -> Ints:
        """Return the new number of each group: class by class, then by decreasing size; -1 = does not exist."""
        sizes = np.bincount(of_leaf, self.sizes[: self.most])
        own = of_leaf[: len(self.labels)]
        others = np.setdiff1d(of_leaf, own)
        order = np.full(len(sizes), -1, dtype=np.int64)
        order[own] = np.arange(len(own))
        order[others[np.argsort(-sizes[others], kind="stable")]] = len(own) + np.arange(len(others))
        return order

    def _find_union_to_undo(self, num_groups: int, min_size: int) -> int:
        """Return the first union to undo for enough groups of that size, or for as many as possible."""
        counts = (self._has_label | (self.sizes >= min_size)).astype(np.int64)
        top = np.ones(len(self.sizes), dtype=bool)
        top[self.unions.ravel()] = False
        gained = counts[self.unions].sum(axis=1) - counts[self.most :]
        # entry i: number of groups that count if the last i unions are undone
        reached = int(counts[top].sum()) + np.concatenate([[0], np.cumsum(gained[::-1])])
        enough = np.flatnonzero(reached >= num_groups)
        return len(self.unions) - int(enough[0] if len(enough) else reached.argmax())

    def _find_roots(self, first: int) -> Ints:
        """Return the leaf or union, (m,), that each leaf belongs to without the unions from ``first`` on."""
        own = np.arange(len(self.sizes), dtype=np.int64)
        own[self.unions[:first].ravel()] = self.most + np.repeat(np.arange(first), 2)
        while (further := own[own]).tobytes() != own.tobytes():
            own = further
        return own[: self.most]

    @cached_property
    def _has_label(self) -> NDArray[np.bool_]:
        """Whether each leaf and union contains a labeled row."""
        found = np.zeros(len(self.sizes), dtype=bool)
        found[: len(self.labels)] = True
        for number, (one, other) in enumerate(self.unions.tolist()):
            found[self.most + number] = found[one] or found[other]
        return found


def build_hierarchy(
    x: ArrayLike | StoredRows,
    labels: ArrayLike | None = None,
    *,
    generator: np.random.Generator,
) -> Hierarchy:
    """Build a tree of clusters by agglomerative clustering, with labeled classes kept together.

    Args:
        x: (n, d) rows, n >= 1; only their directions from the mean count.
        labels: (n,) integers, -1 = none; ``None``: no labels at all.
        generator: draws samples if there are many rows.

    Raises:
        ValueError: shapes do not match, NaN or infinity.
    """
    rows = validate_rows(x, "x")
    known = np.full(len(rows), -1, dtype=np.int64) if labels is None else np.asarray(labels, dtype=np.int64)
    if known.shape != (len(rows),) or not len(rows):
        raise ValueError(f"x {rows.shape} and labels {known.shape} must have the same number of rows, at least one")
    space = fit_class_space(rows, known, generator=generator)
    if len(rows) > MAX_LEAVES:
        small, places = _find_small_groups(rows, space, generator)
    else:
        small, places = np.arange(len(rows), dtype=np.int64), space.place(rows)
    places = move_to_neighbors(places)
    classes, of_class = np.unique(known, return_inverse=True)
    if classes[0] < 0:
        classes, of_class = classes[1:], of_class - 1
    free, of_free = np.unique(small[known < 0], return_inverse=True)
    leaves = of_class.astype(np.int64)
    leaves[known < 0] = len(classes) + of_free
    count = len(classes) + len(free)
    sizes = np.bincount(leaves, minlength=count)
    # a row is at the place of its small group
    pairs_there, rows_of_pair = np.unique(leaves * len(places) + small, return_counts=True)
    of_leaf, of_place = np.divmod(pairs_there, len(places))
    sums = np.zeros((count, places.shape[1]))
    np.add.at(sums, of_leaf, places[of_place].astype(np.float64) * rows_of_pair[:, None])
    means = sums / sizes[:, None]
    pairs, costs = _merge_leaves(means, sizes.astype(np.float64), len(classes))
    unions, all_sizes = _number_unions(pairs, sizes)
    return Hierarchy(leaves, means, all_sizes, unions, costs, classes)


def _find_small_groups(
    rows: Rows, space: ClassSpace, generator: np.random.Generator
) -> tuple[Ints, NDArray[np.float32]]:
    """Return the small group of each row, (n,), and their centroids; rows are projected block by block."""
    order = generator.permutation(len(rows))[:_DRAWN]
    in_order = np.sort(order)
    drawn = space.place(rows[in_order])[np.searchsorted(in_order, order)]
    start = drawn[: min(_SMALL_GROUPS, len(drawn))]  # dense places are drawn more often
    found = kmeans(drawn, len(start), generator=generator, init_centroids=start, max_iter=_ITERATIONS)
    own = np.empty(len(rows), dtype=np.int64)
    for where, part in iterate_blocks(rows):
        own[where] = nearest_centroids(space.place(part), found.centroids)
    used, small = np.unique(own, return_inverse=True)
    return small.astype(np.int64), np.asarray(found.centroids[used], dtype=np.float32)


def _merge_leaves(places: Doubles, weights: Doubles, num_classes: int) -> tuple[Ints, Doubles]:
    """Return the pairs of leaves whose groups are joined, by increasing cost, and the costs; classes come first."""
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
            break  # only one group is left
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


def _number_unions(pairs: Ints, sizes: Ints) -> tuple[Ints, Ints]:
    """Return the unions as pairs of leaf or union numbers, and the sizes of leaves and unions."""
    count = len(sizes)
    number = np.arange(count + len(pairs), dtype=np.int64)  # of the union that currently contains each leaf or union
    unions = np.empty_like(pairs)
    all_sizes = np.concatenate([sizes, np.zeros(len(pairs), dtype=np.int64)])

    def top(one: int) -> int:
        while number[one] != one:
            number[one] = number[number[one]]
            one = int(number[one])
        return one

    for place, (one, other) in enumerate(pairs.tolist()):
        unions[place] = top(one), top(other)
        number[unions[place]] = count + place
        all_sizes[count + place] = all_sizes[unions[place]].sum()
    return unions, all_sizes
