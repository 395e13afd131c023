"""Published weights on this machine: from a package, from the cache of the hub; which network `auto` takes."""

import sys
from pathlib import Path

import pytest
import timm
import torch
from huggingface_hub import constants
from labelkit.errors import CheckpointRefused
from labelkit.models.backbones.registry import build_backbone
from labelkit.models.weights import published
from labelkit.models.weights.published import (
    PACKAGES,
    embedding_image_size,
    find_best_available_backbone,
    find_recorded_weights,
)
from safetensors.torch import save_file
from torch import nn

LITE0 = PACKAGES[0]


@pytest.fixture
def no_packages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without any weights; returns the folder of the hub's cache."""
    monkeypatch.setattr(published, "find_spec", lambda name: None)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    return tmp_path


def cache(folder: Path, name: str) -> nn.Module:
    """Put random weights of a network where the hub's client keeps them, and return the network."""
    repository = folder / f"models--timm--{name}"
    snapshot = repository / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("a" * 40)
    network = timm.create_model(name)
    save_file(network.state_dict(), snapshot / "model.safetensors")
    return network


def test_package_of_lite0_fits_timms_network_tensor_by_tensor_in_order() -> None:
    path = LITE0.find()
    assert path is not None  # `.[dev]` brings it
    in_file = list(torch.load(path, weights_only=True).values())  # in its own order

    backbone = build_backbone("tf_efficientnet_lite0", pretrained=True)

    loaded = list(backbone.net.state_dict().values())
    # the file ends with the classifier's weight and bias
    assert all(torch.equal(a, b) for a, b in zip(in_file[:-2], loaded, strict=True))
    assert backbone.source == LITE0.source
    assert backbone.weights_sha256 == LITE0.sha256
    assert find_recorded_weights(backbone.source) == path
    assert LITE0.name not in sys.modules  # the package is never imported


def test_another_file_in_a_package_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / LITE0.name / LITE0.file
    file.parent.mkdir(parents=True)
    (tmp_path / LITE0.name / "__init__.py").touch()
    file.write_bytes(b"not the weights")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))

    with pytest.raises(CheckpointRefused, match="is not the file from"):
        build_backbone("tf_efficientnet_lite0", pretrained=True)


def test_published_weights_come_from_the_cache_without_a_network(
    no_packages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    original = cache(no_packages, "vit_tiny_patch16_224.augreg_in21k")

    backbone = build_backbone("vit_tiny_patch16_224.augreg_in21k", pretrained=True)

    assert torch.equal(backbone.net.blocks[5].attn.qkv.weight, original.blocks[5].attn.qkv.weight)
    assert backbone.source == "hf://timm/vit_tiny_patch16_224.augreg_in21k/model.safetensors"
    assert set(backbone.load_report.unexpected) == {"head.weight", "head.bias"}


def test_best_is_what_comes_first_in_the_list(no_packages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(published, "PREFERRED_BACKBONES", ("resnet10t.c3_in1k", "mobilenetv3_small_050.lamb_in1k"))
    cache(no_packages, "mobilenetv3_small_050.lamb_in1k")

    assert find_best_available_backbone() == "mobilenetv3_small_050.lamb_in1k"
    cache(no_packages, "resnet10t.c3_in1k")
    assert find_best_available_backbone() == "resnet10t.c3_in1k"


def test_every_candidate_is_a_network_with_published_weights() -> None:
    singles = [part for name in published.PREFERRED_BACKBONES for part in name.split("+")]
    for name in (*singles, published.DEFAULT_DOWNLOAD, *(package.backbone for package in PACKAGES)):
        cfg = timm.get_pretrained_cfg(name, allow_unregistered=False)
        assert cfg is not None, name
        assert cfg.hf_hub_id, name


def test_dinov2_is_embedded_at_224_pixels_and_others_at_their_own() -> None:
    assert embedding_image_size("vit_small_patch14_reg4_dinov2.lvd142m") == 224
    assert embedding_image_size("vit_small_patch16_224.dino") is None
