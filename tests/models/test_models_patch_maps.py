"""Feature maps of networks: the same numbers as timm gives, in rows and columns."""

import numpy as np
import pytest
import torch
from labelkit.data.batch import DataInfo
from labelkit.methods.metric.networks import MetricNetwork
from labelkit.methods.metric.options import TACCCLConfig
from labelkit.methods.metric.tac_ccl import CBAM
from labelkit.models.backbones.registry import build_backbone
from labelkit.models.headed import MultiHeadNetwork
from labelkit.models.inference import BackboneNetwork, InferenceNetwork
from torch import Tensor


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
    data = DataInfo(2, np.zeros(2, dtype=np.int64), (), (), 0, None, 3, 32)
    network = MetricNetwork(TACCCLConfig(backbone="smallcnn", embed_dim=8, image_size=32), data, CBAM).eval()
    images = _images(32)
    with torch.no_grad():
        patches, output = network.patch_features(images), network(images)
    assert torch.equal(patches.mean(dim=(1, 2)), output.features)
    assert network.patch_identity["layer"] == "maps"
