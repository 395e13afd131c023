"""Prototypes of hyperspherical prototype networks: against loops, finite differences and known best sets."""

import numpy as np
import pytest
from labelkit.algorithms.prototypes import measure_spread
from labelkit.methods.prototypes.files import optimize_separated_prototypes, separation_loss_and_gradient
from numpy.typing import NDArray


def random_rows(count: int, dim: int) -> NDArray[np.float64]:
    rows = np.random.default_rng(5).standard_normal((count, dim))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def loss_by_loops(rows: NDArray[np.float64]) -> float:
    nearest = [
        max(float(sum(a * b for a, b in zip(u, v, strict=True))) for j, v in enumerate(rows) if j != i)
        for i, u in enumerate(rows)
    ]
    return sum(nearest) / len(rows)


def test_the_loss_is_that_of_scalar_loops() -> None:
    rows = random_rows(7, 3)
    assert separation_loss_and_gradient(rows)[0] == pytest.approx(loss_by_loops(rows), abs=1e-14)


def test_the_gradient_is_that_of_finite_differences() -> None:
    rows, step = random_rows(6, 4), 1e-6
    gradient = separation_loss_and_gradient(rows)[1]
    for place in np.ndindex(rows.shape):
        up, down = rows.copy(), rows.copy()
        up[place] += step
        down[place] -= step
        slope = (loss_by_loops(up) - loss_by_loops(down)) / (2 * step)
        assert gradient[place] == pytest.approx(slope, abs=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize(("count", "dim", "cosine"), [(2, 3, -1.0), (4, 3, -1 / 3), (5, 4, -1 / 4), (6, 3, 0.0)])
def test_few_vectors_end_near_the_best_sets_that_are_known(count: int, dim: int, cosine: float) -> None:
    # steps of fixed length do not settle: they stay within one of the best set, a simplex or opposite pairs
    rows = optimize_separated_prototypes(count, dim, np.random.default_rng(0), iterations=4000, lr=0.01)
    assert measure_spread(rows).mean_nearest_cosine == pytest.approx(cosine, abs=0.02)


def test_a_step_goes_down_the_gradient_and_ends_on_the_sphere() -> None:
    start = np.random.default_rng(3).standard_normal((5, 3))
    start /= np.linalg.norm(start, axis=1, keepdims=True)
    moved = start - 0.1 * separation_loss_and_gradient(start)[1]
    expected = moved / np.linalg.norm(moved, axis=1, keepdims=True)
    found = optimize_separated_prototypes(5, 3, np.random.default_rng(3), iterations=1, lr=0.1)
    np.testing.assert_allclose(found, expected, atol=1e-7)
