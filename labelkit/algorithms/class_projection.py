"""Move samples into a space in which classes are easier to separate.

    1. project rows onto their principal directions
    2. with labels: scale them so that the variance within classes is equal in all directions (halfway, by averaging
       it with its mean over directions, since labels are few), then to unit length
    3. move rows toward their neighbors, step by step: a random walk on the neighbor graph, which weights an edge by
       the typical distances around its ends

Sources:
    step 2: A. Hatch, S. Kajarekar and A. Stolcke, "Within-Class Covariance Normalization for SVM-based Speaker
    Recognition" (2006). Step 3, the weights: L. Zelnik-Manor and P. Perona, "Self-Tuning Spectral Clustering" (2004).
    The numbers of directions, neighbors and steps were chosen on groceries, digits and half of Omniglot.
"""

from dataclasses import dataclass, replace
from typing import Final, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labelkit.algorithms.clustering import sum_rows
from labelkit.algorithms.projection import principal_directions, project_rows
from labelkit.algorithms.row_blocks import Rows, row_slices

Floats = NDArray[np.float32]

MAX_DIRECTIONS: Final = 128
_MAX_SAMPLED: Final = 20_000
"""Maximum number of rows from which directions are computed; a larger set is sampled."""
_NEIGHBORS: Final = 10
_USUAL: Final = 7
"""The distance to this neighbor is the typical distance around a row."""
_STEPS: Final = 8
_STAYING: Final = 0.5
"""Weight of a row's own position in each step."""


@dataclass(frozen=True)
class ClassProjection:
    """Projection into a space in which classes are easier to separate (steps 1 and 2 of the module docstring)."""

    mean: NDArray[np.float64]  # (d,) mean of the rows
    directions: NDArray[np.float64]  # (d, e) principal directions, e at most 128
    scales: NDArray[np.float64] | None  # (e, e) scaling matrix, or ``None`` without labels

    def project(self, rows: Rows) -> Floats:
        """Project samples (n, d) into the fitted space.

        Returns:
            (n, e) unit-norm rows; zeros for rows equal to the mean.
        """
        places = project_rows(rows, self.mean, self.directions)
        if self.scales is not None:
            for block in row_slices(*places.shape):
                places[block] = places[block] @ self.scales
        return _normalize(places)

    def whiten_within_classes(self, rows: Rows, labels: NDArray[np.int64]) -> Self:
        """Return a copy that whitens the labeled samples (m, d) within their classes."""
        return replace(self, scales=_within_class_scales(project_rows(rows, self.mean, self.directions), labels))


def fit_class_projection(rows: Rows, labels: NDArray[np.int64], *, generator: np.random.Generator) -> ClassProjection:
    """Fit a projection that separates the classes of partly labeled samples.

    Args:
        rows: (n, d), n >= 1.
        labels: (n,), -1 = none.
        generator: samples the rows from which directions are computed, if there are many.
    """
    drawn = rows[:] if len(rows) <= _MAX_SAMPLED else rows[np.sort(generator.permutation(len(rows))[:_MAX_SAMPLED])]
    directions, _ = principal_directions(drawn, min(MAX_DIRECTIONS, drawn.shape[1]))
    space = ClassProjection(drawn.mean(axis=0, dtype=np.float64), directions, None)
    known = np.flatnonzero(labels >= 0)
    known = known[generator.permutation(len(known))[:_MAX_SAMPLED]] if len(known) > _MAX_SAMPLED else known
    known = np.sort(known)
    return space.whiten_within_classes(rows[known], labels[known]) if len(known) else space


def move_toward_neighbors(embeddings: Floats) -> Floats:
    """Move embeddings toward their neighbors by a random walk on the neighbor graph (step 3 of the module docstring).

    Args:
        embeddings: (m, d) unit-norm or all-zero rows; at most a few thousand, since all pairs are compared.

    Returns:
        (m, d) unit-norm or all-zero rows.
    """
    from scipy.sparse import csr_array

    count = len(embeddings)
    width = min(_NEIGHBORS, count - 1)
    if width < 1:
        return embeddings
    squares = np.maximum(2 - 2 * (embeddings @ embeddings.T), 0)
    np.fill_diagonal(squares, np.inf)
    near = np.argpartition(squares, width - 1, axis=1)[:, :width]
    found = np.take_along_axis(squares, near, axis=1).astype(np.float64)
    usual = np.sqrt(np.sort(found, axis=1)[:, min(_USUAL, width) - 1]) + 1e-6
    weights = np.exp(-found / (usual[:, None] * usual[near])) + 1e-12
    starts = np.repeat(np.arange(count), width)
    edges = csr_array((weights.ravel(), (starts, near.ravel())), shape=(count, count))
    edges = csr_array(edges + edges.T)
    totals: NDArray[np.float64] = np.asarray(edges.sum(axis=1)).reshape(-1, 1)
    moving = embeddings.astype(np.float64)
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
    known -= (sum_rows(known, members, len(classes)) / counts[:, None])[members]
    scatter = known.T @ known / freedom
    usual = float(np.trace(scatter)) / len(scatter)
    if usual <= 0:
        return None  # the labeled rows of each class are identical, so there is nothing to learn from them
    values, vectors = np.linalg.eigh(0.5 * scatter + 0.5 * usual * np.eye(len(scatter)))
    return np.asarray(vectors / np.sqrt(values), dtype=np.float64)


def _normalize(places: ArrayLike) -> Floats:
    rows = np.asarray(places, dtype=np.float32)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    # rows that differ from the mean only by rounding have no direction
    lengths = np.where(lengths > 1e-6, lengths, np.inf)
    return np.asarray(rows / lengths, dtype=np.float32)
