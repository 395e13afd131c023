"""Entropy, transport and correlation of attention maps in closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from labelkit.algorithms.attention import carry_map, map_correlation, map_entropy

SAME = torch.tensor([[[1.0, 0, 0], [0, 1, 0]]])
MIRROR = torch.tensor([[[-1.0, 0, 0], [0, 1, 0]]])
RIGHT_HALF = torch.tensor([[[0.5, 0, 0.5], [0, 1, 0]]])
EVERYWHERE = torch.ones(1, 4, 4, dtype=torch.bool)


def random_map(seed: int = 0) -> torch.Tensor:
    return torch.rand(1, 4, 4, generator=torch.Generator().manual_seed(seed))


def test_entropy_is_one_for_even_zero_for_single_and_half_for_two_of_four() -> None:
    maps = torch.tensor([[[0.2, 0.2], [0.2, 0.2]], [[0, 0.3], [0, 0]], [[0.1, 0], [0.1, 0]]])
    torch.testing.assert_close(map_entropy(maps), torch.tensor([1.0, 0.0, 0.5]))


def test_entropy_of_three_shares() -> None:
    expected = -(0.5 * math.log(0.5) + 2 * 0.25 * math.log(0.25)) / math.log(3)
    assert float(map_entropy(torch.tensor([[2.0, 1.0, 1.0]]))) == pytest.approx(expected, abs=1e-6)


def test_a_map_carried_to_its_own_view_stays() -> None:
    values, visible = carry_map(random_map(), RIGHT_HALF, RIGHT_HALF)
    torch.testing.assert_close(values, random_map())
    assert visible.all()


def test_a_mirrored_view_is_mirrored_back() -> None:
    values, visible = carry_map(random_map(), MIRROR, SAME)
    torch.testing.assert_close(values, random_map().flip(-1))
    assert visible.all()


def test_a_view_of_the_right_half_shows_nothing_of_the_left() -> None:
    values, visible = carry_map(random_map(), RIGHT_HALF, SAME)

    assert visible[0].tolist() == [[False, False, True, True]] * 4
    # centers at x = 0.25 and 0.75 of the whole are midway between two patches of the half
    found = random_map()
    torch.testing.assert_close(values[0, :, 2], found[0, :, :2].mean(dim=-1))
    torch.testing.assert_close(values[0, :, 3], found[0, :, 2:].mean(dim=-1))


def test_correlation_is_pearsons_over_what_counts() -> None:
    first, second = random_map(1), random_map(2)
    counted = random_map(3) > 0.4
    expected = np.corrcoef(first[counted].numpy(), second[counted].numpy())[0, 1]

    assert float(map_correlation(first, second, counted)) == pytest.approx(expected, abs=1e-5)
    assert float(map_correlation(first, 3 - 2 * first, EVERYWHERE)) == pytest.approx(-1, abs=1e-6)
