r"""Push unit vectors apart, each from its nearest other: the prototypes of hyperspherical prototype networks.

Source: P. Mettes, E. van der Pol and C. Snoek, "Hyperspherical Prototype Networks" (NeurIPS 2019), the loss of
separation, and its released code. From random directions, gradient descent on

.. math:: L = \frac{1}{c} \sum_i \max_{j \ne i} w_i \cdot w_j

with rows brought back to length 1 after every step. L is the mean cosine of a vector and its nearest other, at least
-1/(c - 1), reached by the simplex.

The code names a momentum of 0.9 and makes a new optimizer after every step, so that there is none; here neither. Its
second loss, which orders prototypes by word vectors of the class names, is left out.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

ITERATIONS: Final = 10_000
LEARNING_RATE: Final = 0.1


def separated_prototypes(
    num_prototypes: int,
    dim: int,
    generator: np.random.Generator,
    *,
    iterations: int = ITERATIONS,
    lr: float = LEARNING_RATE,
) -> NDArray[np.float32]:
    """Return unit vectors pushed apart; the same generator gives the same ones.

    Args:
        num_prototypes: c, >= 2.
        dim: d, >= 2.
        generator: draws the start.
        iterations: steps of gradient descent, >= 1.
        lr: length of a step, > 0.

    Returns:
        (c, d) float32, rows of length 1.

    Raises:
        ValueError: a number is out of range.
    """
    if num_prototypes < 2 or dim < 2:
        raise ValueError(f"num_prototypes and dim must be >= 2, got {num_prototypes} and {dim}")
    if iterations < 1 or not lr > 0:
        raise ValueError(f"iterations must be >= 1 and lr > 0, got {iterations} and {lr}")
    rows = generator.standard_normal((num_prototypes, dim))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    for _ in range(iterations):
        rows -= lr * separation_gradient(rows)[1]
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows.astype(np.float32)


def separation_gradient(prototypes: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
    """Return the mean cosine of a vector and its nearest other, and its gradient; of equally near ones, the first.

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
