"""Which stages a network has, and that the rest of it gives the same from what left the frozen ones."""

from typing import Any

import pytest
import torch
from labelkit.errors import ConfigError
from labelkit.models.backbones.registry import build_backbone
from labelkit.models.batch_norm import use_batch_statistics
from labelkit.models.frozen_part import stage_names
from torch import Tensor

NETWORKS = {
    "resnet18": ("layer1", 4, 64),
    "tf_efficientnet_lite0": ("blocks.0", 7, 64),
    "convnext_atto": ("stages.0", 4, 64),
    "googlenet": ("inception3a", 9, 64),
    "bn_inception": ("inception3a", 10, 64),
    "alexnet_small_sela": ("features.0", 10, 64),
    "smallcnn": ("block1", 5, 32),
    "wrn10_1": ("stages.stem", 4, 32),
}


def images(size: int) -> Tensor:
    return torch.randn(3, 3, size, size, generator=torch.Generator().manual_seed(1))


def build(name: str, size: int, count: int) -> Any:
    backbone = build_backbone(name, image_size=size, seed=0)
    backbone.freeze_stages(count)
    return backbone


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_what_left_the_frozen_stages_gives_features_and_gradients_of_images(name: str) -> None:
    first, number, size = NETWORKS[name]
    assert stage_names(build_backbone(name, image_size=size, seed=0).net)[0] == first
    for count in (1, number - 1, number):
        backbone = build(name, size, count).train()
        part = backbone.reuse_frozen()
        kept = part.compute_cached(backbone.net, images(size), 0)
        assert tuple(kept.shape[1:]) == part.shape
        trained = [parameter for parameter in backbone.parameters() if parameter.requires_grad]
        found = []
        for given in (images(size), kept):
            torch.manual_seed(0)  # dropout
            features = backbone(given)
            gradients = torch.autograd.grad(features.square().sum(), trained) if features.requires_grad else ()
            found.append((features, gradients))
        (whole, slopes), (short, slopes_short) = found
        assert torch.allclose(short, whole, atol=1e-6), count
        assert len(slopes) == len(trained)
        for one, other in zip(slopes, slopes_short, strict=True):
            assert torch.allclose(one, other, rtol=1e-4, atol=1e-5), count


def test_frozen_stages_keep_weights_and_statistics_in_training() -> None:
    backbone = build("resnet18", 64, 2)
    before = {name: value.clone() for name, value in backbone.net.state_dict().items()}
    backbone.train()
    with use_batch_statistics(backbone):
        backbone(images(64) + 5)
    backbone(images(64) + 5).sum().backward()
    for name, parameter in backbone.net.named_parameters():
        frozen = name.startswith(("conv1", "bn1", "layer1", "layer2"))
        assert (parameter.grad is None) == frozen == (not parameter.requires_grad), name
    for name, value in backbone.net.state_dict().items():
        if "running" in name:
            assert torch.equal(value, before[name]) == name.startswith(("bn1", "layer1", "layer2")), name


@pytest.mark.parametrize(
    ("name", "count", "problem"),
    [
        ("resnet18", 5, "has 4 stages: layer1, layer2, layer3, layer4"),
        ("vit_nano_p8_32", 2, "cannot be split after blocks.1"),
        ("hrnet_w18_small", 1, "cannot be split after layer1"),
    ],
)
def test_networks_that_cannot_be_cut_there_are_refused(name: str, count: int, problem: str) -> None:
    backbone = build_backbone(name, seed=0)
    with pytest.raises(ConfigError, match=problem):
        backbone.freeze_stages(count)


def test_frozen_normalization_keeps_its_statistics_where_others_take_those_of_the_batch() -> None:
    backbone = build("resnet18", 64, 2).eval()
    expected = backbone.frozen.compute_cached(backbone.net, images(64) + 5, None)
    with use_batch_statistics(backbone):
        assert torch.equal(backbone.frozen.compute_cached(backbone.net, images(64) + 5, None), expected)


def test_the_digest_is_that_of_the_frozen_weights() -> None:
    one, other = build("resnet18", 64, 2), build("resnet18", 64, 2)
    first = one.reuse_frozen().fingerprint(one.net)
    with torch.no_grad():
        other.net.layer3[0].conv1.weight.mul_(2)
    assert other.reuse_frozen().fingerprint(other.net) == first
    with torch.no_grad():
        other.net.layer2[0].conv1.weight.mul_(2)
    assert other.reuse_frozen().fingerprint(other.net) != first
