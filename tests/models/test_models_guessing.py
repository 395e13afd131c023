"""Networks found by their weights, and weights of torchvision in timm's network."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from labelkit.errors import ConfigError
from labelkit.models.backbones.registry import build_backbone
from labelkit.models.weights.infer_architecture import guess_backbone
from safetensors.torch import save_file


def saved(path: Path, name: str, **others: torch.Tensor) -> Path:
    """Weights of a network, as a training script may save them."""
    state = build_backbone(name, seed=0).net.state_dict()
    save_file({f"module.{key}": value.contiguous() for key, value in state.items()} | others, path)
    return path


@pytest.mark.parametrize("name", ["vit_nano_p8_32", "vit_micro_p8_64"])
def test_a_network_is_known_by_its_weights_whatever_head_is_on_it(tmp_path: Path, name: str) -> None:
    path = saved(tmp_path / "w.safetensors", name, **{"module.head.weight": torch.zeros(5, 7)})

    assert guess_backbone(path, ["vit_nano_p8_32", "vit_micro_p8_64", "mobilenetv2_100"]) == name


def test_weights_that_fit_nothing_are_described(tmp_path: Path) -> None:
    save_file({"a.weight": torch.zeros(3, 4), "b.weight": torch.zeros(2)}, tmp_path / "w.safetensors")

    with pytest.raises(ConfigError, match=r"2 tensors, the largest a\.weight \[3, 4\]"):
        guess_backbone(tmp_path / "w.safetensors", ["vit_nano_p8_32"])


def test_networks_that_fit_alike_are_listed(tmp_path: Path) -> None:
    path = saved(tmp_path / "w.safetensors", "vit_tiny_patch16_224")

    with pytest.raises(ConfigError, match="equally well: deit_tiny_patch16_224, vit_tiny_patch16_224"):
        guess_backbone(path, ["vit_tiny_patch16_224", "deit_tiny_patch16_224", "vit_nano_p8_32"])


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
