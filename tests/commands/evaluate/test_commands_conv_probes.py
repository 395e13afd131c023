"""Probes after each convolution: where they sit, how much they pool, what they compute."""

import math

import pytest
import torch
from labelkit.commands.evaluate.probes import ConvProbe, choose_pooling, collect_outputs, find_probed_layers
from labelkit.models.backbones.convnets import _ALEXNET, AlexNet


# maps of the AlexNet of SeLa at 224 pixels, and the pools of eval_linear_probes.py there
@pytest.mark.parametrize(
    ("channels", "side", "pool"),
    [(96, 55, (6, 3, 10)), (256, 27, (4, 0, 6)), (384, 13, (3, 1, 5)), (256, 13, (2, 0, 6)), (9600, 3, (2, 0, 1))],
)
def test_pools_are_the_published_ones(channels: int, side: int, pool: tuple[int, int, int]) -> None:
    assert choose_pooling(channels, side, 9600) == pool
    assert choose_pooling(4, 5, 100) == (1, 0, 5)  # small maps are not pooled, large ones as far as can be
    assert choose_pooling(200, 5, 100) == (5, 0, 1)
    kernel, padding, pooled = pool
    maps = torch.zeros(1, 1, side, side)
    assert torch.nn.functional.max_pool2d(maps, kernel, kernel, padding).shape[-1] == pooled


def test_an_alexnet_has_five_probed_layers_with_its_published_maps() -> None:
    with torch.device("meta"):  # shapes alone: its wide layers have 50 million weights
        network, images = AlexNet(_ALEXNET, 224, 3).eval(), torch.zeros(1, 3, 224, 224)
    layers = find_probed_layers(network)
    assert all(isinstance(layer, torch.nn.ReLU) for layer in layers.values())
    with torch.no_grad(), collect_outputs(list(layers.values())) as maps:
        network(images)
        assert [tuple(one.shape[1:]) for one in maps] == [
            (96, 55, 55), (256, 27, 27), (384, 13, 13), (384, 13, 13), (256, 13, 13),
        ]  # fmt: skip
    with torch.no_grad():
        network(images)
    assert len(maps) == 5  # the hooks are gone


def test_a_probe_is_pool_normalization_and_a_linear_layer() -> None:
    torch.manual_seed(0)
    probe = ConvProbe(3, 6, 4, max_values=30)  # 3 channels of 3 x 3
    assert probe.num_values == 27
    weight = probe[2].weight.detach()
    # the bound of Glorot for a convolution of 3 channels to 4, 3 x 3
    bound = math.sqrt(6 / (3 * 9 + 4 * 9))
    assert float(weight.abs().max()) <= bound
    assert float(weight.abs().max()) > 0.8 * bound
    assert not probe[2].bias.any()
    maps = torch.rand(5, 3, 6, 6, dtype=torch.float64)
    probe.double()
    found = probe(maps)
    pooled = [
        [
            [[float(maps[i, c, 2 * y : 2 * y + 2, 2 * x : 2 * x + 2].max()) for x in range(3)] for y in range(3)]
            for c in range(3)
        ]
        for i in range(5)
    ]
    values = torch.tensor(pooled, dtype=torch.float64)
    mean = values.mean(dim=(0, 2, 3), keepdim=True)
    spread = (values - mean).square().mean(dim=(0, 2, 3), keepdim=True)
    expected = ((values - mean) / (spread + 1e-5).sqrt()).flatten(1) @ weight.double().flatten(1).T
    torch.testing.assert_close(found.detach(), expected)
