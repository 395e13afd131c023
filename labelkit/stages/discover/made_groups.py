"""Put rows into a number of groups, those of classes with labels among them: by a tree, or by k-means."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from labelkit.algorithms.clustering import kmeans, nearest_centroids, sum_rows
from labelkit.algorithms.group_levels import GroupLevels, join_groups
from labelkit.algorithms.group_tree import group_tree
from labelkit.algorithms.row_blocks import StoredRows, parts_of
from labelkit.algorithms.small_groups import set_aside_small
from labelkit.errors import ConfigError
from labelkit.stages.group.cluster import semi_supervised_cluster

GroupingName = Literal["tree", "k-means"]


@dataclass(frozen=True)
class MadeGroups:
    """Groups of some rows.

    Attributes:
        ids: (n,) int64, group of each row: those of classes with labels first.
        labels: (k,) int64, label of each group, -1 = a new one.
        centroids: (k, d), means of the members.
        inertia: sum of squared distances to the centroids.
        places: (k, e), means of the members in the numbers that groups were compared in.
    """

    ids: NDArray[np.int64]
    labels: NDArray[np.int64]
    centroids: NDArray[np.float64]
    inertia: float
    places: NDArray[np.float64]

    def levels(self, num_levels: int) -> GroupLevels:
        """Join the groups to so many levels above them."""
        return join_groups(self.places, np.bincount(self.ids, minlength=len(self.labels)), num_levels=num_levels)


@dataclass(frozen=True)
class GroupingRule:
    """How groups are made.

    Attributes:
        name: tree, or k-means.
        min_size: rows of a group without a label.
        num_inits, max_iter, tol: of k-means.
    """

    name: GroupingName = "tree"
    min_size: int = 1
    num_inits: int = 10
    max_iter: int = 100
    tol: float = 1e-4


def make_groups(
    features: NDArray[np.float32] | StoredRows,
    labels: NDArray[np.int64],
    num_groups: int,
    rule: GroupingRule,
    *,
    generator: np.random.Generator,
) -> MadeGroups:
    """Put rows into groups; fewer come out if there are not so many of the least size.

    Args:
        features: (n, d).
        labels: (n,), -1 = none; a class is one group.
        num_groups: at least the number of classes with labels, at most these and one for each row without a label.
        rule: how.
        generator: of draws and starts.

    Raises:
        ConfigError: more groups than a tree of so many rows has leaves.
    """
    if rule.name == "tree":
        tree = group_tree(features, labels, generator=generator)
        if num_groups > tree.most:
            problem = f"{num_groups} classes: a tree of {len(labels):,} rows is made of {tree.most:,} small groups"
            raise ConfigError("--num-classes", problem, "Choose fewer, or pass --grouping k-means.")
        ids, count = tree.cut(max(num_groups, tree.fewest), min_size=rule.min_size)
        of_leaf = np.empty(tree.most, dtype=np.int64)
        of_leaf[tree.leaves] = ids
        weights = tree.sizes[: tree.most].astype(np.float64)
        places = np.zeros((count, tree.places.shape[1]))
        np.add.at(places, of_leaf, tree.places * weights[:, None])
        places = places / np.bincount(of_leaf, weights)[:, None]
        return _made(features, ids, tree.labels, places)
    ids, classes, centroids = _by_kmeans(features, labels, num_groups, rule, generator)
    made = _made(features, ids, classes, centroids)
    return replace(made, places=made.centroids)


def _by_kmeans(
    features: NDArray[np.float32] | StoredRows,
    labels: NDArray[np.int64],
    num_groups: int,
    rule: GroupingRule,
    generator: np.random.Generator,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Return groups, the classes of the first ones, and centroids."""
    classes = np.unique(labels[labels >= 0])

    def part(places: NDArray[np.int64]) -> NDArray[np.float32] | StoredRows:
        if len(places) == len(labels):
            return features
        return features.subset(places) if isinstance(features, StoredRows) else features[places]

    def run(places: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        known = labels[places]
        if len(classes):
            ids, centroids, *_ = semi_supervised_cluster(
                part(places),
                known >= 0,
                known[known >= 0],
                num_groups,
                generator=generator,
                num_inits=rule.num_inits,
                max_iter=rule.max_iter,
                tol=rule.tol,
            )
            return ids, centroids
        found = kmeans(part(places), num_groups, generator=generator, num_inits=rule.num_inits)
        return found.cluster_ids, np.asarray(found.centroids, dtype=np.float32)

    ids, _ = set_aside_small(
        run,
        lambda places, centroids: nearest_centroids(part(places), centroids),
        len(labels),
        min_size=rule.min_size,
        num_named=len(classes),
        always=labels >= 0,
    )
    used = np.union1d(ids, np.arange(len(classes)))
    ids = np.searchsorted(used, ids)
    return ids, classes, np.zeros((len(used), 0))


def _made(
    features: NDArray[np.float32] | StoredRows,
    ids: NDArray[np.int64],
    classes: NDArray[np.int64],
    places: NDArray[np.float64],
) -> MadeGroups:
    count = len(places)
    labels = np.full(count, -1, dtype=np.int64)
    labels[: len(classes)] = classes
    # no group is empty
    centroids = sum_rows(features, ids, count) / np.bincount(ids, minlength=count)[:, None]
    inertia = 0.0
    for where, part in parts_of(features):
        inertia += float(np.square(part - centroids[ids[where]]).sum())
    return MadeGroups(ids, labels, centroids, inertia, places)
