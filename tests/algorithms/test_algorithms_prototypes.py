"""Spread prototypes against closed forms, scalar loops and known best point sets."""

import itertools
import math

import numpy as np
import pytest
import torch
from labelkit.algorithms import prototypes
from labelkit.algorithms.prototypes import (
    max_cosine_bound,
    measure_spread,
    rms_cosine_bound,
    spread_prototypes,
    uniformity_loss,
)
from numpy.typing import ArrayLike, NDArray

# The specification's worked example.
THREE = [(1.0, 0.0), (0.0, 1.0), (-0.6, 0.8)]


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def random_rows(count: int, dim: int) -> NDArray[np.float64]:
    rows = generator(5).standard_normal((count, dim))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def loss_by_loops(rows: NDArray[np.float64], t: float) -> float:
    terms = [
        math.exp(-t * sum((a - b) ** 2 for a, b in zip(u, v, strict=True))) for u, v in itertools.combinations(rows, 2)
    ]
    return math.log(sum(terms) / len(terms))


def loss_and_gradient(rows: ArrayLike, t: float = 2.0) -> tuple[float, NDArray[np.float64]]:
    """The loss, and its gradient along the sphere as the optimizer has it."""
    _, gradient = prototypes._smooth_max(torch.tensor(np.asarray(rows)), t)
    return uniformity_loss(rows, t), 2 * t * gradient.numpy()


def off_diagonal(rows: NDArray[np.floating]) -> NDArray[np.float64]:
    double = rows.astype(np.float64)
    return (double @ double.T)[~np.eye(len(rows), dtype=bool)]


@pytest.mark.parametrize(("count", "dim"), [(2, 2), (3, 2), (10, 9), (10, 64), (100, 99), (100, 128)])
def test_up_to_d_plus_1_vectors_are_a_simplex(count: int, dim: int) -> None:
    rows = spread_prototypes(count, dim, generator())

    assert rows.shape == (count, dim)
    np.testing.assert_allclose(off_diagonal(rows), -1 / (count - 1), atol=1e-6)
    assert uniformity_loss(rows) == pytest.approx(-4 * count / (count - 1), abs=1e-6)


@pytest.mark.parametrize(
    ("count", "dim", "loss"), [(4, 2, -4.396349), (6, 3, -4.218575), (10, 5, -4.115496), (100, 50, -4.009965)]
)
def test_2d_vectors_are_opposite_pairs_of_orthogonal_axes(count: int, dim: int, loss: float) -> None:
    cosines = np.sort(off_diagonal(spread_prototypes(count, dim, generator())))

    np.testing.assert_allclose(cosines[:count], -1, atol=1e-6)
    np.testing.assert_allclose(cosines[count:], 0, atol=1e-6)
    assert uniformity_loss(spread_prototypes(count, dim, generator())) == pytest.approx(loss, abs=1e-6)


@pytest.mark.parametrize(("count", "dim"), [(5, 3), (8, 5), (100, 84), (60, 32)])
def test_up_to_2d_vectors_reach_the_least_largest_cosine_and_sum_to_zero(count: int, dim: int) -> None:
    rows = spread_prototypes(count, dim, generator())

    assert off_diagonal(rows).max() == pytest.approx(0, abs=1e-6)
    np.testing.assert_allclose(rows.sum(axis=0), 0, atol=1e-4)


@pytest.mark.parametrize(("count", "loss"), [(5, -3.445721), (8, -2.363109), (10, -2.129410)])
def test_vectors_in_the_plane_are_a_regular_polygon(count: int, loss: float) -> None:
    spread = measure_spread(spread_prototypes(count, 2, generator()))

    assert spread.max_cosine == pytest.approx(math.cos(2 * math.pi / count), abs=1e-6)
    assert spread.closest_angle == pytest.approx(360 / count, abs=1e-4)
    assert spread.uniformity == pytest.approx(loss, abs=1e-5)


@pytest.mark.parametrize(
    ("count", "dim", "cosine"),
    [
        (3, 2, -1 / 2),
        (4, 2, 0.0),
        (5, 2, math.cos(2 * math.pi / 5)),
        (10, 2, math.cos(2 * math.pi / 10)),
        (4, 3, -1 / 3),
        (6, 3, 0.0),  # octahedron
        (12, 3, 1 / math.sqrt(5)),  # icosahedron
        (27, 6, 1 / 4),  # lines of a cubic surface
        (10, 9, -1 / 9),
        (30, 29, -1 / 29),
    ],
)
def test_the_optimizer_alone_finds_the_best_sets_that_are_known(count: int, dim: int, cosine: float) -> None:
    rows = spread_prototypes(count, dim, generator(), method="optimize")

    assert off_diagonal(rows).max() == pytest.approx(cosine, abs=1e-5)


def test_the_loss_alone_finds_what_minimizes_it() -> None:
    rows = spread_prototypes(10, 9, generator(), method="optimize", sharpest_t=None)

    assert uniformity_loss(rows) == pytest.approx(-4.444444, abs=1e-6)


@pytest.mark.gpu
@pytest.mark.parametrize("count", [100, 2100])
def test_a_gpu_spreads_as_well(count: int) -> None:
    spreads = [
        measure_spread(spread_prototypes(count, 10, generator(), iterations=30, device=device))
        for device in ("cpu", "cuda")
    ]

    assert spreads[1].max_cosine == pytest.approx(spreads[0].max_cosine, abs=0.02)


def test_rows_have_length_1_and_the_same_seed_gives_the_same_ones() -> None:
    for count, dim in ((5, 8), (7, 4), (30, 4)):
        one, same, other = (spread_prototypes(count, dim, generator(seed), iterations=20) for seed in (0, 0, 1))

        assert one.dtype == np.float32
        np.testing.assert_allclose(np.linalg.norm(one.astype(np.float64), axis=1), 1, atol=1e-6)
        np.testing.assert_array_equal(one, same)
        assert not np.allclose(one, other)


def test_the_loss_and_its_gradient_are_those_of_the_worked_example() -> None:
    loss, gradient = loss_and_gradient(THREE)

    assert loss == pytest.approx(-1.855112, abs=1e-6)
    np.testing.assert_allclose(gradient, [(0, 0.167438), (-2.141730, 0), (1.847334, 1.385500)], atol=1e-6)
    rows = np.asarray(THREE) - 0.1 * gradient
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    assert uniformity_loss(rows) == pytest.approx(-2.927886, abs=1e-6)


def test_the_gradient_is_that_of_finite_differences_along_the_sphere() -> None:
    rows, t, step = random_rows(7, 3), 3.0, 1e-6
    _, gradient = loss_and_gradient(rows, t)

    directions = generator(1).standard_normal(rows.shape)
    directions -= rows * (directions * rows).sum(axis=1, keepdims=True)
    for row in range(len(rows)):
        there, back = rows.copy(), rows.copy()
        there[row] += step * directions[row]
        back[row] -= step * directions[row]
        slope = (loss_by_loops(there, t) - loss_by_loops(back, t)) / (2 * step)
        assert gradient[row] @ directions[row] == pytest.approx(slope, abs=1e-6)
    np.testing.assert_allclose((gradient * rows).sum(axis=1), 0, atol=1e-12)


def test_loss_and_gradient_are_finite_where_plain_exponentials_are_all_zero() -> None:
    loss, gradient = loss_and_gradient([(1.0, 0.0), (-1.0, 0.0)], 1e5)

    assert loss == pytest.approx(-4e5)
    np.testing.assert_allclose(gradient, 0, atol=1e-6)


@pytest.mark.parametrize("chunk", [1, 3, 8])
def test_pieces_of_any_size_give_the_same(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = random_rows(8, 5)
    (loss, gradient), one = loss_and_gradient(rows), measure_spread(rows)
    monkeypatch.setattr(prototypes, "_CHUNK", chunk)
    (pieces_loss, pieces_gradient), other = loss_and_gradient(rows), measure_spread(rows)

    assert pieces_loss == pytest.approx(loss, abs=1e-12)
    np.testing.assert_allclose(pieces_gradient, gradient, atol=1e-12)
    assert one.rms_cosine == pytest.approx(other.rms_cosine)
    assert one.mean_angle == pytest.approx(other.mean_angle)


def test_the_spread_is_that_of_all_pairs() -> None:
    rows = random_rows(6, 3)
    cosines, spread = off_diagonal(rows), measure_spread(rows)

    assert spread.max_cosine == pytest.approx(cosines.max())
    assert spread.min_cosine == pytest.approx(cosines.min())
    assert spread.mean_cosine == pytest.approx(cosines.mean())
    assert spread.rms_cosine == pytest.approx(math.sqrt((cosines**2).mean()))
    assert spread.mean_nearest_cosine == pytest.approx(cosines.reshape(6, 5).max(axis=1).mean())
    assert spread.mean_angle == pytest.approx(np.degrees(np.arccos(cosines)).mean())


@pytest.mark.parametrize(
    ("count", "dim", "rms"), [(100, 10, 0.301511), (100, 16, 0.230283), (100, 32, 0.146508), (200, 50, 0.122782)]
)
def test_the_least_root_mean_square_is_welchs(count: int, dim: int, rms: float) -> None:
    assert rms_cosine_bound(count, dim) == pytest.approx(rms, abs=1e-6)
    assert measure_spread(random_rows(count, dim)).rms_cosine > rms


@pytest.mark.parametrize(
    ("count", "dim", "cosine"),
    [
        (2, 2, -1.0),
        (10, 9, -1 / 9),
        (11, 9, 0.0),
        (18, 9, 0.0),
        (5, 2, math.cos(2 * math.pi / 5)),
        (12, 3, 1 / math.sqrt(5)),  # icosahedron
        (27, 6, 1 / 4),  # lines of a cubic surface
        (240, 8, 1 / 2),  # roots of E8
        (4600, 23, 1 / 3),
        (196560, 24, 1 / 2),  # shortest vectors of the Leech lattice
    ],
)
def test_the_least_largest_cosine_is_that_of_the_best_sets(count: int, dim: int, cosine: float) -> None:
    assert max_cosine_bound(count, dim) == pytest.approx(cosine, abs=1e-9)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"sharpest_t": float("inf")}, "sharpest_t must be positive, got inf"),
        ({"iterations": 0}, "iterations must be >= 1"),
        ({"num_prototypes": 1}, "num_prototypes must be >= 2"),
        ({"dim": 1}, "dim must be >= 2"),
    ],
)
def test_numbers_out_of_range_are_named(options: dict[str, float], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        spread_prototypes(**{"num_prototypes": 5, "dim": 3, "generator": np.random.default_rng(0), **options})
