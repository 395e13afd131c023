"""Counts of small networks against sums by hand."""

from __future__ import annotations

import pytest
import torch
from labelkit.cli.list_backbones import count_network
from labelkit.models.backbones.registry import build_backbone
from torch import nn


def test_a_convolution_and_a_linear_layer_are_counted_as_by_hand() -> None:
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 5 * 4, 6)
    )
    found = count_network(net, (3, 10, 8))
    assert found.multiply_adds == 8 * 3 * 9 * 5 * 4 + 8 * 5 * 4 * 6
    assert found.parameters == (8 * 27 + 8) + 16 + (8 * 5 * 4 * 6 + 6)
    assert found.output == (6,)


def test_attention_is_counted_and_the_device_changes_nothing() -> None:
    # 16 patches and a class token of 48 features, 4 blocks; projections of 12 * 48^2, two products of tokens
    tokens, width = 17, 48
    blocks = 4 * (tokens * 12 * width**2 + 2 * tokens**2 * width)
    patches = 16 * 3 * 64 * width
    real = build_backbone("vit_nano_p8_32", seed=0)
    with torch.device("meta"):
        shadow = build_backbone("vit_nano_p8_32")
    assert count_network(shadow, (3, 32, 32)).multiply_adds == blocks + patches
    assert count_network(shadow, (3, 32, 32)) == count_network(real, (3, 32, 32))


@pytest.mark.parametrize("training", [True, False])
def test_the_network_is_left_as_it_was(training: bool) -> None:
    net = nn.Sequential(nn.Linear(3, 2), nn.Dropout()).train(training)
    net[0].bias.requires_grad_(False)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    count_network(net, (1, 2, 3))
    assert (net.training, net[1].training) == (training, training)
    assert [one.requires_grad for one in net.parameters()] == [True, False]
    assert all(torch.equal(value, net.state_dict()[name]) for name, value in before.items())
