"""Our convolutional networks: sizes in closed form, initial values, and use through the table of backbones."""

import math

import pytest
import torch
from labelkit.models.backbones.convnets import CONVNETS
from labelkit.models.backbones.registry import build_backbone
from labelkit.models.backbones.resnet import cifar_resnet
from labelkit.models.batch_norm import use_batch_statistics
from labelkit.models.headed import MultiHeadNetwork, rotate_images
from torch import nn


def count(net: nn.Module) -> int:
    return sum(parameter.numel() for parameter in net.parameters())


def cifar_count(depth: int, width: int, shortcut: str, channels: int = 3) -> int:
    """He et al., Table 6: convolutions without bias, two numbers per normalized channel."""
    blocks = (depth - 2) // 6
    total = 9 * channels * width + 2 * width
    before = width
    for stage in range(3):
        out = width << stage
        for block in range(blocks):
            total += 9 * before * out + 9 * out * out + 4 * out
            if before != out and block == 0 and shortcut != "pad":
                total += (1 if shortcut == "conv1" else 9) * before * out + 2 * out
            before = out
    return total


@pytest.mark.parametrize("shortcut", ["pad", "conv1", "conv3"])
@pytest.mark.parametrize(("depth", "width"), [(8, 4), (32, 16)])
def test_cifar_resnets_have_the_parameters_of_their_formula(depth: int, width: int, shortcut: str) -> None:
    assert count(cifar_resnet(depth, width=width, shortcut=shortcut)) == cifar_count(depth, width, shortcut)  # type: ignore[arg-type] # a Literal


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("convnet_demo", (27 * 16 + 16) + (144 * 32 + 32) + (288 * 64 + 64) + (576 * 128 + 128) + 2 * 240),
        ("resnet20_cifar", 269_072),  # 0.27 million with its classifier of 650, He et al., Table 6
        ("resnet32_cifar", 463_504),
        ("resnet32_wide_cifar", 1_848_608),
        ("resnet110_cifar", cifar_count(110, 16, "pad")),
        ("resnet50_sela", 25_557_032 - 2_049_000),  # torchvision's, without its classifier
    ],
)
def test_named_networks_have_their_published_size(name: str, parameters: int) -> None:
    assert count(build_backbone(name, seed=0)) == parameters


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "filters"), [("alexnet_sela", (96, 256, 384, 384, 256)), ("alexnet_small_sela", (64, 192, 384, 256, 256))]
)
def test_alexnets_have_the_parameters_of_their_formula(name: str, filters: tuple[int, ...]) -> None:
    net = build_backbone(name, seed=0).net
    total, before = 0, 3
    for out, kernel in zip(filters, (11, 5, 3, 3, 3), strict=True):
        total += before * out * kernel**2 + out + 2 * out
        before = out
    assert count(net) == total + 9216 * 4096 + 4096 + 4096 * 4096 + 4096
    convolution, wide = net.features[0], net.hidden[1]
    assert float(convolution.weight.detach().std()) == pytest.approx(math.sqrt(2 / (121 * filters[0])), rel=0.05)
    assert float(wide.weight.detach().std()) == pytest.approx(0.01, rel=0.01)
    assert not convolution.bias.any()
    assert not wide.bias.any()


def test_pre_activation_resnet_has_the_parameters_of_its_formula() -> None:
    total, before = 3 * 64 * 49, 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        width = 64 << stage
        for block in range(blocks):
            total += before * width + 9 * width**2 + 4 * width**2 + 2 * (before + 2 * width)
            total += before * 4 * width if block == 0 else 0
            before = 4 * width
    assert count(build_backbone("resnet50v2_sela", seed=0)) == total


SHALLOW = [name for name in CONVNETS if "50" not in name and "110" not in name]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "channels"),
    [
        pytest.param(name, channels, marks=pytest.mark.slow if row % 8 or channels == 1 else ())
        for row, name in enumerate(SHALLOW)
        for channels in (1, 3)
    ],
)
def test_every_network_gives_features_of_its_stated_width(name: str, channels: int) -> None:
    size = 67 if "alexnet" in name else 32
    backbone = build_backbone(name, in_channels=channels, image_size=size, seed=0)
    assert backbone(torch.randn(2, channels, size, size)).shape == (2, backbone.info.feature_dim)
    assert (backbone.info.image_size, backbone.info.depth) == (size, 0)
    assert len(backbone.info.mean) == len(backbone.info.std) == channels


def test_the_seed_decides_heads_and_backbone() -> None:
    def build(seed: int, heads: tuple[int, ...] = (3, 4)) -> MultiHeadNetwork:
        options = {"in_channels": 1, "image_size": 32, "pretrained": False, "weights": None}
        return MultiHeadNetwork("convnet_demo", heads, seed=seed, **options)  # type: ignore[arg-type] # a plain dict

    first, same, other = build(0).state_dict(), build(0).state_dict(), build(1).state_dict()
    assert all(torch.equal(first[name], same[name]) for name in first)
    assert not torch.equal(first["heads.0.weight"], other["heads.0.weight"])
    network = build(0)
    features = network.embed(torch.randn(2, 1, 32, 32))
    assert [logits.shape for logits in network.head_logits(features)] == [(2, 3), (2, 4)]
    assert network.classify(features).shape == (2, 0)


def test_rotations_turn_counterclockwise_and_keep_the_first_as_it_is() -> None:
    images = torch.arange(8.0).reshape(2, 1, 2, 2)
    turned, turns = rotate_images(images)
    assert turns.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert torch.equal(turned[:2], images)
    assert turned[2, 0].tolist() == [[1, 3], [0, 2]]
    assert turned[4, 0].tolist() == [[3, 2], [1, 0]]
    assert torch.equal(rotate_images(turned[6:])[0][2:4], images)


def test_batch_statistics_normalize_by_the_batch_and_change_nothing() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)).eval()
    rows = torch.randn(7, 3) * 5 + 2
    before = {name: value.clone() for name, value in net.state_dict().items()}
    with use_batch_statistics(net):
        inside = net(rows)
    plain = net[0](rows)
    expected = (plain - plain.mean(0)) / (plain.var(0, unbiased=False) + 1e-5).sqrt()
    torch.testing.assert_close(inside, expected)
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
    assert [layer.training for layer in net] == [False] * 3
    assert not torch.allclose(net(rows), inside)
