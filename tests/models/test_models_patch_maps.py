"""Feature maps of networks: the same numbers as timm gives, in rows and columns."""

from __future__ import annotations

import pytest
import torch
from labelkit.errors import ConfigError
from labelkit.methods.metric.assembly_network import SpatialAssembly
from labelkit.methods.metric.networks import MetricNetwork
from labelkit.models.backbones.registry import build_backbone
from labelkit.models.backbones.vit import UnsupportedBackboneError
from labelkit.models.inference import BackboneNetwork, InferenceNetwork, PixelNetwork
from labelkit.models.multi_head_network import MultiHeadNetwork
from labelkit.models.patch_maps import feature_map
from torch import Tensor, nn


def _images(height: int, width: int | None = None, channels: int = 3) -> Tensor:
    return torch.randn(2, channels, height, width or height, generator=torch.Generator().manual_seed(1))


def _network(name: str, size: int | None = None) -> BackboneNetwork:
    network = BackboneNetwork(name, image_size=size, seed=0)
    network.eval()
    return network


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "size", "prefix", "grid"),
    [
        ("vit_nano_p8_32", 32, 1, 4),
        ("vit_tiny_patch16_224", 32, 1, 2),
        ("deit_tiny_distilled_patch16_224", 32, 2, 2),
        ("vit_tiny_patch16_224.augreg_in21k", 48, 1, 3),
        ("vit_dwee_patch16_reg1_gap_256", 64, 1, 4),
    ],
)
def test_patches_of_a_vit_are_timms_tokens_without_the_prefix(name: str, size: int, prefix: int, grid: int) -> None:
    network, images = _network(name, size), _images(size)

    with torch.no_grad():
        patches = network.patch_features(images)
        tokens = network.backbone.net.forward_features(images)

    assert patches.shape == (2, grid, grid, tokens.shape[2])
    for row in range(grid):
        for column in range(grid):
            assert torch.equal(patches[:, row, column], tokens[:, prefix + row * grid + column])


@pytest.mark.parametrize("shape", [(32, 32), (64, 64), (40, 24), (8, 8)])
def test_other_sizes_give_what_timm_gives_with_dynamic_img_size(shape: tuple[int, int]) -> None:
    from timm.models import VisionTransformer

    network = _network("vit_nano_p8_32")
    dynamic = VisionTransformer(
        img_size=32, patch_size=8, num_classes=0, embed_dim=48, depth=4, num_heads=4, dynamic_img_size=True
    ).eval()
    dynamic.load_state_dict(network.backbone.net.state_dict())
    images = _images(*shape)

    with torch.no_grad():
        patches = network.patch_features(images)
        expected = dynamic.forward_features(images)[:, 1:]

    assert patches.shape[1:3] == (shape[0] // 8, shape[1] // 8)
    assert torch.equal(patches.flatten(1, 2), expected)


def test_looking_at_another_size_leaves_the_network_as_it_was() -> None:
    network, images = _network("vit_nano_p8_32"), _images(32)
    with torch.no_grad():
        before = network.embed(images)
        network.patch_features(_images(48))
        with pytest.raises(AssertionError):
            network.embed(_images(48))
        assert torch.equal(network.embed(images), before)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet18", "smallcnn", "resnet20_cifar", "wrn10_1", "convnet_demo", "googlenet"])
def test_maps_of_convolutional_networks_average_to_their_features(name: str) -> None:
    network, images = _network(name, 64 if name in ("resnet18", "googlenet") else 32), _images(64)

    with torch.no_grad():
        patches = network.patch_features(images)
        features = network.embed(images)

    assert patches.ndim == 4
    assert patches.shape[3] == network.embed_dim
    assert torch.allclose(patches.mean(dim=(1, 2)), features, atol=1e-5)


def test_maps_with_channels_last_stay_as_they_are() -> None:
    network = _network("swin_tiny_patch4_window7_224", 64)
    images = _images(64)

    with torch.no_grad():
        patches = network.patch_features(images)
        assert torch.equal(patches, network.backbone.net.forward_features(images))
    assert patches.shape == (2, 2, 2, 768)


def test_rows_come_from_the_top_and_columns_from_the_left() -> None:
    network, images = _network("smallcnn"), _images(32)
    changed = images.clone()
    changed[:, :, :4, 24:28] += 1

    with torch.no_grad():
        moved = (network.patch_features(changed) - network.patch_features(images)).norm(dim=3).mean(0)

    assert moved[0, 6] > 0
    assert moved[5:].max() == 0
    assert moved[:, :2].max() == 0


def test_networks_of_methods_give_the_maps_of_their_backbone() -> None:
    network = MultiHeadNetwork(
        "vit_nano_p8_32", [5], in_channels=3, image_size=None, pretrained=False, weights=None, seed=0
    ).eval()
    assert isinstance(network, InferenceNetwork)
    images = _images(32)
    with torch.no_grad():
        expected = build_backbone("vit_nano_p8_32", seed=0).eval().patch_features(images)
        assert torch.equal(network.patch_features(images), expected)
    assert network.patch_identity == {"name": "vit_nano_p8_32", "layer": "backbone"}


def test_metric_networks_give_the_maps_that_are_pooled() -> None:
    network = MetricNetwork("smallcnn", embed_dim=8, attention=True, image_size=32).eval()
    images = _images(32)
    with torch.no_grad():
        patches, output = network.patch_features(images), network(images)
    assert torch.equal(patches.mean(dim=(1, 2)), output.features)
    assert network.patch_identity["layer"] == "maps"


def test_an_assembly_refuses_images_of_another_size() -> None:
    network = MetricNetwork("smallcnn", embed_dim=8, image_size=32).eval()
    network.insert_assembly("block5", lambda channels, grid: SpatialAssembly(channels, grid))
    with pytest.raises(ConfigError, match="64 x 64 pixels are not the 32 x 32"):
        network.patch_features(_images(64))


def test_pixels_have_no_map() -> None:
    with pytest.raises(UnsupportedBackboneError, match=r"pixels: has no feature map.*Choose a vision transformer"):
        PixelNetwork(8, 3).patch_features(_images(8))


@pytest.mark.parametrize(
    "features", [torch.zeros(2, 10), torch.zeros(2, 17, 10), [torch.zeros(2, 16, 10)]], ids=["one", "tokens", "list"]
)
def test_features_without_rows_and_columns_are_refused(features: object) -> None:
    class Net(nn.Module):
        def forward_features(self, images: Tensor) -> object:
            return features

    with pytest.raises(UnsupportedBackboneError, match="mynet: has no feature map: its features have no rows"):
        feature_map(Net(), _images(32), "mynet")


def test_a_network_without_forward_features_is_refused() -> None:
    with pytest.raises(UnsupportedBackboneError, match="one vector"):
        feature_map(nn.Flatten(), _images(32), "flat")


@pytest.mark.parametrize(
    ("name", "size", "shape", "message"),
    [
        ("vit_nano_p8_32", 32, (6, 32), "6 x 32 pixels are less than a patch of 8 x 8 for vit_nano_p8_32"),
        ("vit_nano_p8_32", 32, (36, 32), "36 x 32 pixels are no whole number of patches of 8 x 8"),
        ("swin_tiny_patch4_window7_224", 64, (96, 96), "96 x 96 pixels do not fit"),
        ("googlenet", 64, (4, 4), "4 x 4 pixels are too few"),
        ("smallcnn", 32, (2, 2), "2 x 2 pixels are too few"),
    ],
)
def test_sizes_that_do_not_fit_are_named(name: str, size: int, shape: tuple[int, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        _network(name, size).patch_features(_images(*shape))
