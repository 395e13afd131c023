"""Assembly terms against the worked numbers of the SAN specification (section 8) and plain loops."""

import itertools
import math

import pytest
import torch
from labelkit.methods.metric.assembly import assembly_coherence, assembly_correlation, assembly_entropy
from torch import Tensor

SYMMETRIC = [[0.7, 0.2, 0.1], [0.2, 0.5, 0.3], [0.1, 0.3, 0.6]]
COLUMNS_ONLY = [[0.7, 0.6, 0.1], [0.2, 0.1, 0.3], [0.1, 0.3, 0.6]]


def table(rows: list[list[float]]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def even(n: int) -> Tensor:
    return torch.full((n, n), 1 / n, dtype=torch.float64)


def diagonal(share: float, n: int = 2) -> Tensor:
    rest = (1 - share) / (n - 1)
    return torch.full((n, n), rest, dtype=torch.float64).fill_diagonal_(share)


def permutation(places: list[int]) -> Tensor:
    """Return w with w(P(v), v) = 1."""
    w = torch.zeros(len(places), len(places), dtype=torch.float64)
    w[torch.tensor(places), torch.arange(len(places))] = 1
    return w


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        (torch.eye(4, dtype=torch.float64), 0.0),
        (permutation([2, 0, 3, 1]), 0.0),
        (even(4), 16.0),
        (even(9), 57.058650),
        (even(49), 550.241565),
        (diagonal(0.9), 1.875982),
        (diagonal(0.75), 3.245112),
        (table(SYMMETRIC), 7.875434),
        (table(COLUMNS_ONLY), 7.798149),
    ],
)
def test_entropy_in_bits(weights: Tensor, expected: float) -> None:
    assert float(assembly_entropy(weights.log())) == pytest.approx(expected, abs=5e-7)


def test_gradient_of_the_entropy() -> None:
    """Through the scaling of rows and columns, which are as they should be already."""
    weights = diagonal(0.9).requires_grad_()
    assembly_entropy(weights.log()).backward()
    assert torch.allclose(weights.grad, diagonal(0) * (5.705865 + 0.633985) - 0.633985, atol=5e-7)


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        (even(4), 6.0),
        (even(9), 16.0),
        (even(49), 96.0),
        (permutation([1, 0]), 0.0),
        (diagonal(0.9), 0.72),
        (diagonal(0.75), 1.5),
        (table(SYMMETRIC), 3.24),
        (table(COLUMNS_ONLY), 3.4),
    ],
)
def test_correlation(weights: Tensor, expected: float) -> None:
    assert float(assembly_correlation(weights)) == pytest.approx(expected, abs=1e-9)


FLAT = torch.ones(1, 2, 3, 3, dtype=torch.float64)
ROTATED = permutation([6, 3, 0, 7, 4, 1, 8, 5, 2])
ROLLED = permutation([2, 0, 1, 5, 3, 4, 8, 6, 7])
SWAPPED = permutation([8, 1, 2, 3, 4, 5, 6, 7, 0])


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        (torch.eye(9, dtype=torch.float64), 0.0),
        (even(9), 0.214850),
        (ROTATED, 1.248527),
        (ROLLED, 0.350000),
        (SWAPPED, 0.362132),
    ],
)
def test_coherence_of_like_features(weights: Tensor, expected: float) -> None:
    assert float(assembly_coherence(weights[None], FLAT)) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("height", "width"), [(3, 4), (1, 3), (2, 2)])
def test_coherence_is_the_sum_of_five_loops(height: int, width: int) -> None:
    torch.manual_seed(height)
    n = height * width
    weights = torch.rand(2, n, n, dtype=torch.float64)
    maps = torch.randn(2, 3, height, width, dtype=torch.float64)
    found = assembly_coherence(weights, maps)
    expected, pairs = [0.0, 0.0], 0
    for b in range(2):
        w = weights[b]
        for i, j in itertools.product(range(height), range(width)):
            for di, dj in itertools.product((-1, 0, 1), repeat=2):
                if (di, dj) == (0, 0) or not (0 <= i + di < height and 0 <= j + dj < width):
                    continue
                pairs += b
                p, q = maps[b, :, i, j], maps[b, :, i + di, j + dj]
                alpha = max(0.0, float(p @ q / (p.norm() * q.norm())))
                squares = 0.0
                for y, x in itertools.product(range(height), range(width)):
                    inside = 0 <= y + di < height and 0 <= x + dj < width
                    other = float(w[(i + di) * width + j + dj, (y + di) * width + x + dj]) if inside else 0.0
                    squares += (float(w[i * width + j, y * width + x]) - other) ** 2
                expected[b] += alpha * (math.sqrt(squares + 1e-12) - 1e-6)
    assert found.tolist() == pytest.approx([value / pairs for value in expected], abs=1e-9)


def test_features_get_no_gradient_from_coherence() -> None:
    maps = torch.rand(1, 2, 3, 3, requires_grad=True)
    weights = torch.rand(1, 9, 9, requires_grad=True)
    assembly_coherence(weights, maps).sum().backward()
    assert maps.grad is None
    assert weights.grad is not None


def test_positions_without_features_are_like_no_neighbor() -> None:
    assert float(assembly_coherence(even(9)[None], torch.zeros_like(FLAT))) == 0
