"""Whether there are classes without a label at all: a test with a known error rate.

Were every class labeled, labels drawn by chance would seldom miss large parts of the data. A Ward tree, built without
any label, is cut into its largest branches that hold no labeled row. The rows in the five largest of them are compared
with the same number where as many labels of each class are drawn at random from the rows that a classifier gives to it.
With two or three labels of each class, that can hardly tell.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labelkit.algorithms.label_propagation import neighbor_graph

_BRANCHES: Final = 5
_DIMENSIONS: Final = 64
_SMOOTHINGS: Final = 2
#: Inverse regularization of logistic regression on rows of length 1.
_C: Final = 30.0
#: Share of the neighbors in diffusion, and what diffusion leaves to a class that it does not reach.
_ALPHA: Final = 0.9
_ITERATIONS: Final = 30
_FLOOR: Final = 1e-3


def chance_all_labeled(
    features: ArrayLike, labels: ArrayLike, *, generator: np.random.Generator, num_draws: int = 100
) -> float:
    """Compare the rows that the labels miss with those that random labels would miss.

    Args:
        features: (n, d) float rows of length 1, n >= 4; some thousands at most, since the tree takes n squared.
        labels: (n,) int64, -1 = unlabeled; drawn at random within each class. At least two classes.
        generator: of the draws.
        num_draws: random draws of as many labels.

    Returns:
        p-value of "every class has a label": share of the draws that miss at least as many rows, in [0, 1]. At or below
        .05 some classes have no label; where all have one, that happens in about one of twenty cases.

    Raises:
        ValueError: labels of fewer than two classes.
    """
    from scipy.cluster.hierarchy import linkage

    rows, known = np.asarray(features, dtype=np.float32), np.asarray(labels, dtype=np.int64)
    labeled = np.flatnonzero(known >= 0)
    classes, own = np.unique(known[labeled], return_inverse=True)
    if len(classes) < 2:
        raise ValueError(f"labels must be of two classes or more, got {len(classes)}")
    graph = neighbor_graph(rows)
    guesses = _guess(rows, graph, labeled, own)
    places = _smoothed(rows, graph)
    parents, sizes = _parents(linkage(places, "ward"), len(rows))
    missed = int(sizes[_missed(parents, sizes, labeled)].sum())
    counts = np.bincount(own)
    members = [np.flatnonzero(guesses == label) for label in range(len(classes))]
    at_least = 0
    for _ in range(num_draws):
        drawn = [
            generator.choice(rows_of, min(count, len(rows_of)), replace=False)
            for rows_of, count in zip(members, counts, strict=True)
        ]
        at_least += int(sizes[_missed(parents, sizes, np.concatenate(drawn))].sum()) >= missed
    return at_least / num_draws


def _guess(
    rows: NDArray[np.float32], graph: Any, labeled: NDArray[np.int64], own: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the class of each row by logistic regression times label diffusion; labeled rows keep theirs."""
    from sklearn.linear_model import LogisticRegression

    shares = LogisticRegression(C=_C, max_iter=500).fit(rows[labeled], own).predict_proba(rows)
    start = np.zeros(shares.shape)
    start[labeled, own] = 1
    flow = start
    for _ in range(_ITERATIONS):
        flow = _ALPHA * (graph @ flow) + (1 - _ALPHA) * start
    flow = flow / flow.sum(axis=0)  # each class spreads as much as any other
    flow /= flow.sum(axis=1, keepdims=True) + 1e-12
    guesses: NDArray[np.int64] = (shares * (flow + _FLOOR)).argmax(axis=1)
    guesses[labeled] = own
    return guesses


def _smoothed(rows: NDArray[np.float32], graph: Any) -> NDArray[np.float64]:
    """Return rows on their main directions, averaged with their neighbors."""
    from sklearn.decomposition import PCA

    found = PCA(min(_DIMENSIONS, *rows.shape), random_state=0).fit_transform(rows).astype(np.float64)
    for _ in range(_SMOOTHINGS):
        found /= np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-12)
        found = 0.5 * found + 0.5 * (graph @ found)
    return np.asarray(found / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-12))


def _parents(tree: NDArray[np.float64], n: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the parent of each node of a linkage, -1 for the root, and the rows below each node."""
    parents, sizes = np.full(2 * n - 1, -1), np.ones(2 * n - 1, dtype=np.int64)
    nodes = np.arange(n, 2 * n - 1)
    parents[tree[:, 0].astype(np.int64)], parents[tree[:, 1].astype(np.int64)] = nodes, nodes
    sizes[n:] = tree[:, 3]
    return parents, sizes


def _missed(parents: NDArray[np.int64], sizes: NDArray[np.int64], labeled: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the nodes of the largest branches that hold none of the labeled rows, the largest first."""
    reached = np.zeros(len(parents), dtype=np.bool_)
    nodes = np.asarray(labeled)
    while len(nodes):
        reached[nodes] = True
        nodes = np.unique(parents[nodes])
        nodes = nodes[(nodes >= 0) & ~reached[nodes]]
    free = np.flatnonzero(~reached)
    free = free[reached[parents[free]]]
    return free[np.argsort(-sizes[free], kind="stable")[:_BRANCHES]]
