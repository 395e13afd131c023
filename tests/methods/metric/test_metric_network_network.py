"""Networks of metric learning: published numbers of parameters and sizes, attention, unit embeddings, frozen layers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from labelkit.data.batch import DataInfo
from labelkit.errors import CheckpointError, ConfigError
from labelkit.methods.metric.networks import MetricNetwork
from labelkit.methods.metric.options import SANConfig
from labelkit.methods.metric.tac_ccl import CBAM
from labelkit.models.backbones.registry import build_backbone
from torch import nn


def build(backbone: str, *, in_channels: int = 3, attention: Any = None, **options: Any) -> MetricNetwork:
    data = DataInfo(2, np.zeros(2, dtype=np.int64), (), (), 0, None, in_channels, 32)
    config = SANConfig(backbone=backbone, weights=None).model_copy(update=options)
    return MetricNetwork(config, data, attention)


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.fixture(scope="module")
def googlenet() -> MetricNetwork:
    return build("googlenet", attention=CBAM).eval()


def test_googlenet_has_the_parameters_of_the_specification(googlenet: MetricNetwork) -> None:
    """T§2.1, 2.2."""
    assert count(googlenet.backbone) == 5_599_904
    assert count(googlenet.projection) == 524_800
    assert count(googlenet.attention.channel_gate) == 132_160
    assert count(googlenet.attention) == 132_260
    assert count(nn.Linear(1024, 128)) == 131_200


@pytest.mark.parametrize("size", [224, 227])
def test_googlenet_has_maps_of_seven_by_seven(googlenet: MetricNetwork, size: int) -> None:
    shapes: dict[str, tuple[int, ...]] = {}
    net = googlenet.backbone.net
    hooks = [
        net.get_submodule(name).register_forward_hook(
            lambda module, inputs, output, name=name: shapes.update({name: tuple(output.shape[1:])})
        )
        for name in ("inception3b", "inception4e", "maxpool4", "inception5a")
    ]
    with torch.no_grad():
        output = googlenet(torch.zeros(1, 3, size, size))
    for hook in hooks:
        hook.remove()
    assert shapes == {
        "inception3b": (480, 28, 28),
        "inception4e": (832, 14, 14),
        "maxpool4": (832, 7, 7),
        "inception5a": (832, 7, 7),
    }
    assert output.maps.shape == (1, 1024, 7, 7)
    assert output.attention.shape == (1, 7, 7)
    assert googlenet.map_shape == (1024, 7, 7)


def test_published_weights_with_classifiers_fit_and_gray_images_too(tmp_path: Path) -> None:
    own = build_backbone("googlenet")
    state = {name: value + 0.5 for name, value in own.net.state_dict().items() if value.is_floating_point()}
    state |= {"fc.weight": torch.zeros(1000, 1024), "fc.bias": torch.zeros(1000), "aux1.fc2.bias": torch.zeros(3)}
    torch.save(state, tmp_path / "googlenet.pth")
    loaded = build_backbone("googlenet", weights=tmp_path / "googlenet.pth", in_channels=1)
    assert torch.equal(loaded.net.conv1.conv.weight, state["conv1.conv.weight"])
    assert loaded(torch.zeros(2, 1, 64, 64)).shape == (2, 1024)


def test_published_weights_that_must_be_fetched_by_hand_are_named() -> None:
    with pytest.raises(CheckpointError, match=r"googlenet-1378be20\.pth"):
        build_backbone("googlenet", pretrained=True)
    with pytest.raises(ConfigError, match="no published weights"):
        build_backbone("smallcnn", pretrained=True)


@pytest.mark.parametrize(
    ("name", "parameters", "shape"),
    [
        ("smallcnn", 9 * (3 * 16 + 16 * 32 + 32 * 64 + 64 * 64 + 64 * 128) + 2 * 304, (128, 8, 8)),
        ("smallcnn_pool", 9 * (3 * 16 + 16 * 32 + 32 * 64 + 64 * 64 + 64 * 128) + 2 * 304, (128, 4, 4)),
        ("smallcnn_wide", 9 * (3 * 32 + 32 * 64 + 64 * 128 + 128 * 128 + 128 * 256) + 2 * 608, (256, 8, 8)),
        ("resnet18", 11_176_512, (512, 7, 7)),
    ],
)
def test_other_backbones_have_the_maps_of_the_specification(
    name: str, parameters: int, shape: tuple[int, int, int]
) -> None:
    network = build(name, embed_dim=64)
    assert count(network.backbone) == parameters
    assert network.map_shape == shape


def test_attention_without_weights_quarters_the_maps() -> None:
    """T§8.13: every gate is one half, so a bias-free embedding is that of no attention."""
    cbam = CBAM(1024)
    assert count(cbam) == 132_260
    for parameter in cbam.parameters():
        nn.init.zeros_(parameter)
    maps = torch.rand(2, 1024, 7, 7)
    gated, gate = cbam.eval()(maps)
    assert (gate == 0.5).all()
    assert torch.allclose(gated, maps / 4)
    with pytest.raises(ValueError, match="at least 16 channels"):
        CBAM(8)


@pytest.mark.parametrize("pool", ["avg", "max", "avg+max"])
def test_embeddings_are_unit_rows_of_the_pool_asked_for(pool: str) -> None:
    network = build("smallcnn", embed_dim=7, pool=pool, in_channels=1).eval()
    output = network(torch.randn(3, 1, 32, 32))
    average, largest = output.maps.mean((2, 3)), output.maps.amax((2, 3))
    expected = {"avg": average, "max": largest, "avg+max": average + largest}[pool]
    assert torch.allclose(output.features, expected)
    assert torch.allclose(output.embeddings.norm(dim=1), torch.ones(3))
    assert torch.equal(network.embed(torch.zeros(2, 1, 32, 32))[0], network.embed(torch.zeros(1, 1, 32, 32))[0])
    assert network.embed_dim == 7


def test_frozen_normalization_keeps_its_statistics_but_not_that_of_attention() -> None:
    network = build("smallcnn", embed_dim=8, attention=CBAM, freeze_bn=True).train()
    before = {name: value.clone() for name, value in network.named_buffers() if "running_mean" in name}
    network(torch.randn(4, 3, 32, 32))
    after = dict(network.named_buffers())
    changed = {name for name, value in before.items() if not torch.equal(value, after[name])}
    assert changed == {"attention.normalization.running_mean"}
    assert network.backbone.net.block1[1].weight.requires_grad


def with_assembly(backbone: str, before: str, **options: Any) -> MetricNetwork:
    size = options.pop("image_size", None)
    network = build(backbone, embed_dim=8, image_size=size, seed=1).eval()
    network.insert_assembly(before, width=8, seed=4, **options)
    return network


PLACES = [
    ("googlenet", "inception5a", (832, 7, 7)),
    pytest.param("googlenet", "maxpool4", (832, 14, 14), marks=pytest.mark.slow),
    pytest.param("googlenet", "inception5b", (832, 7, 7), marks=pytest.mark.slow),
    pytest.param("bn_inception", "inception5a", (1056, 7, 7), marks=pytest.mark.slow),
    ("resnet18", "layer4", (256, 14, 14)),
    ("smallcnn_pool", "block4", (64, 8, 8)),
]


@pytest.mark.slow
@pytest.mark.parametrize(("backbone", "before", "shape"), PLACES)
def test_an_assembly_sits_at_the_places_of_the_specification_and_has_an_effect(
    backbone: str, before: str, shape: tuple[int, int, int]
) -> None:
    """SAN §2.1, 8.12."""
    network = with_assembly(backbone, before)
    assert (network.assembly.channels, *network.assembly.grid) == shape
    torch.manual_seed(0)
    nn.init.normal_(network.assembly.votes.layer.weight, std=3)
    images = torch.randn(2, 3, *(2 * (network.input_spec.size,)))
    with torch.no_grad():
        moved = network(images)
        with network.without_assembly():
            still = network(images)
    assert moved.assembly is not None
    assert still.assembly is None
    difference = torch.nn.functional.normalize(moved.features, dim=1) - torch.nn.functional.normalize(
        still.features, dim=1
    )
    assert difference.norm(dim=1).min() > 1e-3


def test_an_assembly_changes_no_initial_value() -> None:
    """SAN §8.16: the numbers of the assembly come from a generator of their own."""
    plain = build("smallcnn_pool", embed_dim=8, seed=1).eval()
    moved = with_assembly("smallcnn_pool", "block4")
    assert all(torch.equal(value, moved.state_dict()[name]) for name, value in plain.state_dict().items())
