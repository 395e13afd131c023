"""A test of "every class has a label": its error rate, its power, and its count by brute force."""

from __future__ import annotations

import numpy as np
import pytest
from labelkit.algorithms.unlabeled_classes import _missed, _parents, chance_all_labeled
from numpy.typing import NDArray
from scipy.cluster.hierarchy import cut_tree, linkage


def blobs(seed: int, classes: int = 6, size: int = 40) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Unit rows in classes that overlap a little."""
    random = np.random.default_rng(seed)
    centers = random.standard_normal((classes, 12))
    truth = np.repeat(np.arange(classes), size)
    rows = centers[truth] + 0.5 * random.standard_normal((len(truth), 12))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32), truth


def some_labels(truth: NDArray[np.int64], classes: int, each: int, seed: int) -> NDArray[np.int64]:
    """Labels of some rows of the first classes, the others -1."""
    random, labels = np.random.default_rng(seed), np.full(len(truth), -1)
    for label in range(classes):
        labels[random.choice(np.flatnonzero(truth == label), each, replace=False)] = label
    return labels


def chances(labeled_classes: int) -> list[float]:
    found = []
    for seed in range(10):
        rows, truth = blobs(seed)
        labels = some_labels(truth, labeled_classes, 4, seed)
        found.append(chance_all_labeled(rows, labels, generator=np.random.default_rng(seed)))
    return found


def test_classes_without_a_label_are_noticed() -> None:
    assert np.mean([chance <= 0.05 for chance in chances(3)]) >= 0.9


def test_labels_of_all_classes_are_seldom_doubted() -> None:
    assert np.mean([chance <= 0.05 for chance in chances(6)]) <= 0.2


def test_largest_missed_branches_are_those_of_every_cut_of_the_tree() -> None:
    rows, _ = blobs(0, classes=3, size=10)
    tree, n, labeled = linkage(rows, "ward"), len(rows), np.array([0, 7, 12])
    free: set[frozenset[int]] = set()
    for cut in cut_tree(tree).T:
        groups = [np.flatnonzero(cut == group) for group in np.unique(cut)]
        free |= {frozenset(group.tolist()) for group in groups if not np.isin(labeled, group).any()}
    largest = [branch for branch in free if not any(branch < other for other in free)]
    expected = sum(sorted((len(branch) for branch in largest), reverse=True)[:5])

    parents, sizes = _parents(tree, n)
    assert sizes[_missed(parents, sizes, labeled)].sum() == expected


def test_labels_of_one_class_are_refused() -> None:
    rows, _ = blobs(0)
    labels = np.full(len(rows), -1)
    labels[:3] = 0

    with pytest.raises(ValueError, match="two classes"):
        chance_all_labeled(rows, labels, generator=np.random.default_rng(0))
