"""Spatial assembly: orientation, normalization, where it starts, what it must not be put before."""

import pytest
import torch
from labelkit.methods.metric.assembly import SpatialAssembly, assemble, sinkhorn_normalize
from torch import nn


def test_an_output_position_gets_its_column_of_the_weights() -> None:
    """SAN §8.1: the other orientation would give 1.7, 2.3, 2.9, 3.1."""
    maps = torch.tensor([[1, 2, 3, 4], [10, 20, 30, 40]], dtype=torch.float64).reshape(1, 2, 2, 2)
    weights = torch.tensor(
        [[0.6, 0.2, 0.1, 0.1], [0.1, 0.6, 0.2, 0.1], [0.1, 0.1, 0.6, 0.2], [0.2, 0.1, 0.1, 0.6]], dtype=torch.float64
    )
    moved = assemble(maps, weights[None])
    assert moved[0, 0].flatten().tolist() == pytest.approx([1.9, 2.1, 2.7, 3.3])
    assert moved[0, 1].flatten().tolist() == pytest.approx([19, 21, 27, 33])
    assert torch.allclose(moved.mean((2, 3)), maps.mean((2, 3)))


def test_at_first_the_share_asked_for_stays_whatever_the_image() -> None:
    module = SpatialAssembly(8, (3, 4), diagonal=0.7, width=5)
    _, seen = module(torch.randn(3, 8, 3, 4))
    expected = torch.full((12, 12), 0.3 / 11).fill_diagonal_(0.7)
    assert torch.allclose(seen.weights, expected.expand(3, -1, -1), atol=1e-6)


def test_worked_example_of_the_normalization() -> None:
    """SAN §8.6."""
    logits = torch.tensor([[0, 1, 2], [1, 0, 0], [2, 1, 0]], dtype=torch.float64)
    once = sinkhorn_normalize(logits, 1).exp()
    expected = [[0.067622, 0.348915, 0.687792], [0.432719, 0.302170, 0.219126], [0.499660, 0.348915, 0.093082]]
    assert torch.allclose(once, torch.tensor(expected, dtype=torch.float64), atol=6e-7)
    assert once.sum(1).tolist() == pytest.approx([1.104328, 0.954015, 0.941657], abs=1e-6)
    assert once.sum(0).tolist() == pytest.approx([1, 1, 1], abs=1e-12)
    many = sinkhorn_normalize(logits, 20).exp()
    expected = [[0.055429, 0.302456, 0.642114], [0.431922, 0.318964, 0.249113], [0.512649, 0.378579, 0.108772]]
    assert torch.allclose(many, torch.tensor(expected, dtype=torch.float64), atol=6e-7)


def varied(module: SpatialAssembly) -> SpatialAssembly:
    """Give the last layer weights, so that images are assembled differently."""
    torch.manual_seed(2)
    for parameter in module.votes.parameters():
        nn.init.normal_(parameter, std=0.5)
    return module


def test_columns_sum_to_one_and_every_image_has_its_own_weights() -> None:
    module = varied(SpatialAssembly(8, (4, 4), diagonal=0.5, width=6))
    moved, seen = module(torch.randn(3, 8, 4, 4))
    assert torch.allclose(seen.weights.sum(1), torch.ones(3, 16), atol=1e-5)
    assert (seen.weights.sum(2) - 1).abs().max() < 0.1
    assert seen.weights.var(0).sum() > 1e-4
    assert torch.allclose(moved, assemble(seen.maps, seen.weights))
    assert seen.grid == (4, 4)


def test_half_precision_keeps_the_weights_in_single() -> None:
    module = varied(SpatialAssembly(8, (4, 4), diagonal=0.5))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        moved, seen = module(torch.randn(2, 8, 4, 4).bfloat16())
    assert seen.weights.dtype == torch.float32
    assert moved.dtype == torch.bfloat16
    assert (seen.weights.sum(1) - 1).abs().max() < 1e-5


def test_votes_go_from_the_position_that_has_the_features() -> None:
    """A bias for output position 2 raises column 2 of every row."""
    module = SpatialAssembly(4, (2, 2), diagonal=0.4)
    with torch.no_grad():
        module.votes.layer.weight[1, :, 0, 0] = 1.0  # features of a position pull it to position 1
    module.eval()
    maps = torch.zeros(1, 4, 2, 2)
    _, seen = module(maps)
    votes = module._votes(maps)
    assert votes[0, :, [0, 2, 3]].abs().sum() == 0
    assert votes[0, :, 1].abs().sum() > 0
    assert torch.allclose(seen.weights.sum(1), torch.ones(1, 4))
