r"""Push unit vectors apart, each from its nearest other: the prototypes of hyperspherical prototype networks.

Source: P. Mettes, E. van der Pol and C. Snoek, "Hyperspherical Prototype Networks" (NeurIPS 2019), the loss of
separation, and its released code. From random directions, gradient descent on

.. math:: L = \frac{1}{c} \sum_i \max_{j \ne i} w_i \cdot w_j

with rows brought back to length 1 after every step. L is the mean cosine of a vector and its nearest other, at least
-1/(c - 1), reached by the simplex.

The code names a momentum of 0.9 and makes a new optimizer after every step, so that there is none; here neither.

With word vectors v of the class names (privileged information), a second loss of the paper is added: of two others, the
class whose word is nearer shall have the nearer prototype (RankNet, C. Burges et al., 2005):

.. math:: L_{PI} = \frac{1}{|T|} \sum_{(i, j, k) \in T} \log(1 + e^{-s (w_i \cdot w_j - w_i \cdot w_k)})

with T all triplets of different classes and s = 1 where :math:`\cos(v_i, v_j) \ge \cos(v_i, v_k)`, else -1. This is the
paper's cross-entropy. The code differs: it has no logistic function, and its triplets mix ranks with classes.
Departure: a step sees about a million triplets, those of all i up to 100 classes, of some i drawn anew above.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

ITERATIONS: Final = 10_000
LEARNING_RATE: Final = 0.1
_TRIPLETS: Final = 1_000_000


def separated_prototypes(
    num_prototypes: int,
    dim: int,
    generator: np.random.Generator,
    *,
    iterations: int = ITERATIONS,
    lr: float = LEARNING_RATE,
    words: NDArray[np.float64] | None = None,
) -> NDArray[np.float32]:
    """Compute unit vectors pushed apart by gradient descent, from a start that the generator determines.

    Args:
        num_prototypes: c, >= 2.
        dim: d, >= 2.
        generator: draws the start.
        iterations: steps of gradient descent, >= 1.
        lr: length of a step, > 0.
        words: (c, m) word vectors of the classes, whose order of cosines the prototypes shall have too.

    Returns:
        (c, d) float32, rows of length 1.

    Raises:
        ValueError: a word vector has length 0.
    """
    similar = None if words is None else _cosines(words, num_prototypes)
    rows = generator.standard_normal((num_prototypes, dim))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    seen = max(1, min(num_prototypes, _TRIPLETS // num_prototypes**2))
    for _ in range(iterations):
        gradient = separation_gradient(rows)[1]
        if similar is not None and num_prototypes > 2:
            chosen = np.sort(generator.permutation(num_prototypes)[:seen])
            gradient += ranking_gradient(rows, similar, chosen)[1]
        rows -= lr * gradient
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows.astype(np.float32)


def separation_gradient(prototypes: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
    """Return the mean cosine of vectors with their nearest others (the first of ties), and its gradient.

    Args:
        prototypes: (c, d) float64 rows of length 1.

    Returns:
        The loss, and (c, d) float64: a vector pulls at its nearest other, and that one at it.
    """
    count = len(prototypes)
    cosines = prototypes @ prototypes.T
    np.fill_diagonal(cosines, -np.inf)
    nearest = cosines.argmax(axis=1)
    gradient = prototypes[nearest]
    np.add.at(gradient, nearest, prototypes)
    return float(cosines[np.arange(count), nearest].mean()), gradient / count


def ranking_gradient(
    prototypes: NDArray[np.float64], similar: NDArray[np.float64], chosen: NDArray[np.int64]
) -> tuple[float, NDArray[np.float64]]:
    """Return the loss of prototypes whose cosines rank other classes unlike word vectors, and its gradient.

    Args:
        prototypes: (c, d) float64 rows of length 1, c >= 3.
        similar: (c, c) float64, cosines of the word vectors.
        chosen: (a,) the classes i of the triplets, increasing.

    Returns:
        The loss, log 2 where all prototypes are alike, and (c, d) float64.
    """
    count, others = len(prototypes), np.arange(len(prototypes))
    total, weights = 0.0, np.zeros((count, count))
    cosines = prototypes @ prototypes.T
    for i in chosen:
        rest = np.delete(others, i)
        # entry (j, k): whether j is at least as near by its word as k, and by how much by its prototype
        signs = np.where(similar[i, rest][:, None] >= similar[i, rest], 1.0, -1.0)
        ahead = signs * (cosines[i, rest][:, None] - cosines[i, rest])
        terms, slopes = np.logaddexp(0, -ahead), -signs / (1 + np.exp(ahead))
        np.fill_diagonal(terms, 0)
        np.fill_diagonal(slopes, 0)
        total += float(terms.sum())
        weights[i, rest] = slopes.sum(axis=1) - slopes.sum(axis=0)
    triplets = len(chosen) * (count - 1) * (count - 2)
    return total / triplets, (weights + weights.T) @ prototypes / triplets


def _cosines(words: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    lengths = np.linalg.norm(words, axis=1, keepdims=True)
    if len(words) != count or not (lengths > 0).all():
        raise ValueError(f"{count} word vectors of a length above 0 are needed, got {int((lengths > 0).sum())}")
    unit = words / lengths
    cosines: NDArray[np.float64] = unit @ unit.T
    return cosines
