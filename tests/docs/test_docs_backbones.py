"""The page of backbones: counts of small networks against sums by hand."""

import torch
from labelkit.models.backbones.registry import build_backbone
from torch import nn

from generate.backbones import count_network


def test_a_convolution_and_a_linear_layer_are_counted_as_by_hand() -> None:
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 5 * 4, 6)
    )
    found = count_network(net, (3, 10, 8))
    assert found.multiply_adds == 8 * 3 * 9 * 5 * 4 + 8 * 5 * 4 * 6
    assert found.parameters == (8 * 27 + 8) + 16 + (8 * 5 * 4 * 6 + 6)


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
