"""Numbers in which groups of rows are easier to tell apart: within classes everything is near, near rows are nearer.

    1. rows on the directions in which they vary most
    2. with labels: scaled so that rows of one class vary equally in every direction (halfway: the other half is the
       mean over directions, since labels are few), then to length 1
    3. rows move toward their near ones, step by step: a random walk on the graph of neighbors, which weighs an edge
       by the distances usual around its ends

Sources:
    step 2: A. Hatch, S. Kajarekar and A. Stolcke, "Within-Class Covariance Normalization for SVM-based Speaker
    Recognition" (2006). Step 3, the weights: L. Zelnik-Manor and P. Perona, "Self-Tuning Spectral Clustering" (2004).
    Numbers of directions, neighbors and steps were chosen on groceries, digits and half of Omniglot.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labelkit.algorithms.projection import principal_directions
from labelkit.algorithms.row_blocks import Rows, blocks, parts_of

Floats = NDArray[np.float32]

MOST_DIRECTIONS: Final = 128
MOST_SAMPLED: Final = 20_000
"""Of more rows, so many are drawn to find the directions."""
_NEIGHBORS: Final = 10
_USUAL: Final = 7
"""The distance to this neighbor is the one usual around a row."""
_STEPS: Final = 8
_STAYING: Final = 0.5
"""What a row keeps of itself in a step."""


@dataclass(frozen=True)
class ClassSpace:
    """Steps 1 and 2, as learned from some rows.

    Attributes:
        mean: (d,) of the rows.
        directions: (d, e) in which they vary most, e at most 128.
        scales: (e, e), or ``None`` without labels.
    """

    mean: NDArray[np.float64]
    directions: NDArray[np.float64]
    scales: NDArray[np.float64] | None

    def place(self, rows: Rows) -> Floats:
        """Place rows, (n, d).

        Returns:
            (n, e) rows of length 1; zeros where a row is the mean of all.
        """
        places = self._along(rows)
        if self.scales is not None:
            for block in blocks(*places.shape):
                places[block] = places[block] @ self.scales
        return _unit(places)

    def _along(self, rows: Rows) -> Floats:
        places = np.empty((len(rows), self.directions.shape[1]), dtype=np.float32)
        for where, part in parts_of(rows):
            places[where] = (part - self.mean) @ self.directions
        return places

    def scaled(self, rows: Rows, labels: NDArray[np.int64]) -> ClassSpace:
        """The same space, scaled so that some labeled rows, (m, d), vary equally within their classes."""
        return replace(self, scales=_within_class_scales(self._along(rows), labels))


def class_space(rows: Rows, labels: NDArray[np.int64], *, generator: np.random.Generator) -> ClassSpace:
    """Learn steps 1 and 2.

    Args:
        rows: (n, d), n >= 1.
        labels: (n,), -1 = none.
        generator: draws the rows that directions are made from, where there are many.
    """
    drawn = rows[:] if len(rows) <= MOST_SAMPLED else rows[np.sort(generator.permutation(len(rows))[:MOST_SAMPLED])]
    directions, _ = principal_directions(drawn, min(MOST_DIRECTIONS, drawn.shape[1]))
    space = ClassSpace(drawn.mean(axis=0, dtype=np.float64), directions, None)
    known = np.flatnonzero(labels >= 0)
    known = known[generator.permutation(len(known))[:MOST_SAMPLED]] if len(known) > MOST_SAMPLED else known
    known = np.sort(known)
    return space.scaled(rows[known], labels[known]) if len(known) else space


def near_space(places: Floats) -> Floats:
    """Step 3, for at most a few thousand rows: all pairs are compared.

    Args:
        places: (m, d) rows of length 1, or zeros.

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
    return _unit(moving.astype(np.float32))


def _within_class_scales(places: Floats, labels: NDArray[np.int64]) -> NDArray[np.float64] | None:
    """(d, d) matrix after which classes vary equally in all directions; ``None`` if no class has two labels."""
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
        return None  # labeled rows of a class are equal: nothing to learn from them
    values, vectors = np.linalg.eigh(0.5 * scatter + 0.5 * usual * np.eye(len(scatter)))
    return np.asarray(vectors / np.sqrt(values), dtype=np.float64)


def _unit(places: ArrayLike) -> Floats:
    rows = np.asarray(places, dtype=np.float32)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    # rows that differ from the mean by rounding alone have no direction
    lengths = np.where(lengths > 1e-6, lengths, np.inf)
    return np.asarray(rows / lengths, dtype=np.float32)
