"""Backbones by name: facts, features, weights from files, names and sizes that do not exist."""

from pathlib import Path

import pytest
import torch
from huggingface_hub import constants
from labelkit.errors import CheckpointError, ConfigError
from labelkit.models.backbones.registry import build_backbone
from labelkit.models.weights.files import fingerprint
from labelkit.models.weights.published import WeightsPackage
from safetensors.torch import save_file


def images(size: int, channels: int = 3, count: int = 2) -> torch.Tensor:
    return torch.randn(count, channels, size, size, generator=torch.Generator().manual_seed(0))


def test_features_are_the_normed_class_token() -> None:
    backbone = build_backbone("vit_nano_p8_32", seed=0)
    net, batch = backbone.net, images(32)

    tokens = net.norm(net.blocks(net._pos_embed(net.patch_embed(batch))))

    torch.testing.assert_close(backbone(batch), tokens[:, 0])
    assert backbone.info.pooling == "token"


def test_gray_images_are_normalized_by_the_average_of_the_colors() -> None:
    info = build_backbone("resnet18", in_channels=1).info

    assert info.mean == pytest.approx((sum((0.485, 0.456, 0.406)) / 3,))
    assert len(info.std) == 1


def test_seed_decides_the_weights_and_the_global_generator_is_left_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)

    prints = [fingerprint(build_backbone("vit_nano_p8_32", seed=seed)) for seed in (0, 0, 1)]

    assert prints[0] == prints[1] != prints[2]
    assert torch.equal(torch.rand(1), expected)


def test_image_size_of_a_vit_can_be_chosen() -> None:
    backbone = build_backbone("vit_tiny_patch16_224", image_size=64)

    assert backbone.info.image_size == 64
    assert backbone(images(64, count=1)).shape == (1, 192)


def test_unknown_names_are_met_with_the_nearest_ones() -> None:
    with pytest.raises(ConfigError, match=r"unknown backbone 'vit_nano_p8_23'. Did you mean `vit_nano_p8_32`"):
        build_backbone("vit_nano_p8_23")
    with pytest.raises(ConfigError, match="resnet50"):
        build_backbone("resnet5O")
    with pytest.raises(ConfigError, match=r"has no weights named 'dinoo'.*vit_base_patch16_224.dino"):
        build_backbone("vit_base_patch16_224.dinoo")
    with pytest.raises(ConfigError, match="unknown backbone 'hf-hub:someone/else'"):
        build_backbone("hf-hub:someone/else")


def test_weights_file_sets_every_weight(tmp_path: Path) -> None:
    original = build_backbone("vit_nano_p8_32", seed=3)
    save_file(
        {f"module.{name}": value for name, value in original.net.state_dict().items()}, tmp_path / "w.safetensors"
    )

    backbone = build_backbone("vit_nano_p8_32", weights=tmp_path / "w.safetensors", seed=4)

    assert fingerprint(backbone) == fingerprint(original)
    assert backbone.source == "w.safetensors"
    assert len(backbone.weights_sha256) == 64
    assert backbone.load_report.prefix == "module."


def test_weights_of_another_image_size_are_resampled_and_gray_ones_summed(tmp_path: Path) -> None:
    large = build_backbone("vit_nano_p8_32", image_size=64, seed=3)
    save_file(large.net.state_dict(), tmp_path / "w.safetensors")

    small = build_backbone("vit_nano_p8_32", weights=tmp_path / "w.safetensors", in_channels=1, seed=4)

    assert torch.equal(small.net.blocks[3].mlp.fc1.weight, large.net.blocks[3].mlp.fc1.weight)
    torch.testing.assert_close(
        small.net.patch_embed.proj.weight, large.net.patch_embed.proj.weight.sum(1, keepdim=True)
    )
    assert torch.equal(small.net.pos_embed[:, :1], large.net.pos_embed[:, :1])
    assert small.net.pos_embed.std() > 0


def test_published_weights_offline_are_an_error_that_says_how_to_get_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(WeightsPackage, "find", lambda package: None)

    with pytest.raises(CheckpointError) as caught:
        build_backbone("vit_tiny_patch16_224.augreg_in21k", pretrained=True)

    assert caught.value.where == "vit_tiny_patch16_224.augreg_in21k"
    assert "HF_HUB_OFFLINE" in caught.value.problem
    assert "timm/vit_tiny_patch16_224.augreg_in21k" in caught.value.remedy
    assert "--weights FILE" in caught.value.remedy
    assert "installed weights" not in caught.value.remedy
    monkeypatch.setattr(WeightsPackage, "find", lambda package: tmp_path if "lite1" in package.name else None)
    with pytest.raises(CheckpointError, match=r"installed weights, pass --backbone tf_efficientnet_lite1\.in1k\.$"):
        build_backbone("vit_tiny_patch16_224.augreg_in21k", pretrained=True)


def test_mobilenet_of_torchvision_gives_the_same_features_in_timms_network(tmp_path: Path) -> None:
    from torchvision.models import mobilenet_v2

    torch.manual_seed(0)
    theirs = mobilenet_v2(weights=None).eval()
    for name, value in theirs.named_buffers():  # as after training: no normalization is an identity
        if name.endswith("running_mean"):
            value.normal_(std=0.1)
        elif name.endswith("running_var"):
            value.uniform_(0.5, 2)
    path = tmp_path / "mobilenet.safetensors"
    save_file(theirs.state_dict(), path)
    images = torch.randn(2, 3, 64, 64)

    ours = build_backbone("mobilenetv2_100", weights=path).eval()

    with torch.inference_mode():
        expected = theirs.features(images).mean(dim=(2, 3))
        torch.testing.assert_close(ours(images), expected, rtol=1e-4, atol=1e-5)
