"""Networks against the sizes and the preparation that publications print, to the digits that they print."""

from __future__ import annotations

from functools import cache

import pytest
import torch
import torchvision.models
from labelkit.models.backbones import Backbone, build_backbone
from labelkit.models.convnets import CONVNETS, wide_resnet
from labelkit.models.counting import NetworkCounts, count_network
from labelkit.models.vit import SMALL_VITS
from tests.published_statistics import FIGURES, NO_FIGURE, PREPARATIONS, Figure, Preparation, agrees, figures_of, stated
from torch import nn
from torchvision.models import GoogLeNet

TORCHVISION = {
    "alexnet_small_sela": "AlexNet_Weights",
    "googlenet": "GoogLeNet_Weights",
    "resnet18": "ResNet18_Weights",
    "resnet50": "ResNet50_Weights",
    "resnet50_sela": "ResNet50_Weights",
    "resnet101": "ResNet101_Weights",
    "swin_tiny_patch4_window7_224": "Swin_T_Weights",
    "vit_base_patch16_224": "ViT_B_16_Weights",
}


@cache
def built(name: str, size: int | None = None) -> Backbone:
    with torch.device("meta"):
        return build_backbone(name, image_size=size)


@cache
def counts(name: str, size: int | None = None) -> NetworkCounts:
    side = built(name, size).info.image_size
    return count_network(built(name, size), (3, side, side))


def title(figure: Figure | Preparation) -> str:
    return f"{figure.network}, {figure.source}"


@pytest.mark.parametrize("figure", FIGURES, ids=title)
def test_a_network_has_its_published_size_but_for_the_differences_that_are_named(figure: Figure) -> None:
    expected = figure.expected(counts(figure.network, figure.image_size))
    for number, text in figure.printed().items():
        value, _ = stated(text)
        assert agrees(expected[number], text) is (number not in figure.counted_otherwise), (number, expected[number])
        assert expected[number] == pytest.approx(value, rel=0.06)  # counted in another way, of the same network
    differs = figure.counted_otherwise or figure.more_parameters or figure.more_multiply_adds
    assert bool(figure.why) is bool(differs)
    assert figure.printed()


@pytest.mark.parametrize(
    ("network", "features"),
    [("vit_small_patch16_224", 384), ("vit_base_patch8_224", 768), ("resnet50", 2048), ("googlenet", 1024)],
)
def test_one_image_becomes_features_of_the_published_width(network: str, features: int) -> None:
    """Caron et al., ICCV 2021, Table 1, column dim; Szegedy et al., CVPR 2015, Table 1, row avg pool."""
    assert counts(network).output == (features,) == (built(network).info.feature_dim,)


def test_every_network_of_ours_has_a_figure_or_a_reason() -> None:
    own = {*SMALL_VITS, *CONVNETS}
    assert {name for name in own if not figures_of(name)} == NO_FIGURE.keys()
    assert figures_of("resnet50.a1_in1k") == figures_of("resnet50") != ()


@pytest.mark.parametrize(("network", "weights"), TORCHVISION.items())
def test_what_torchvision_says_of_its_weights_is_what_we_quote(network: str, weights: str) -> None:
    meta = getattr(torchvision.models, weights).IMAGENET1K_V1.meta
    (figure,) = (one for one in figures_of(network) if one.source.startswith("torchvision"))
    assert (figure.parameters, figure.multiply_adds) == (f"{meta['num_params']:,}", f"{meta['_ops']:.3f} G")


def test_the_first_googlenet_differs_from_torchvision_s_as_we_say() -> None:
    with torch.device("meta"):
        net = GoogLeNet(aux_logits=False, init_weights=False)
    channels = sum(one.out_channels for one in net.modules() if isinstance(one, nn.Conv2d))
    third = [net.get_submodule(f"inception{name}.branch3.1.conv") for name in "3a 3b 4a 4b 4c 4d 4e 5a 5b".split()]
    pairs = sum(one.in_channels * one.out_channels for one in third)
    (figure,) = (one for one in figures_of("googlenet") if "Caffe" in one.source)
    # scale and shift of every channel become one bias
    assert figure.more_parameters == (25 - 9) * pairs - channels
    assert {one.kernel_size for one in third} == {(3, 3)}


@pytest.mark.parametrize(
    ("depth", "widen", "printed"), [(16, 4, "2.7 M"), (40, 4, "8.9 M"), (16, 8, "11.0 M"), (28, 10, "36.5 M")]
)
def test_wide_resnets_have_the_sizes_of_their_paper(depth: int, widen: int, printed: str) -> None:
    """Zagoruyko and Komodakis, BMVC 2016, Table 4, with 10 classes."""
    with torch.device("meta"):
        net = wide_resnet(depth, widen)
    total = sum(one.numel() for one in net.parameters()) + 10 * (64 * widen + 1)
    assert agrees(total, printed)


@pytest.mark.parametrize("given", PREPARATIONS, ids=title)
def test_images_are_prepared_as_published_but_for_what_is_named(given: Preparation) -> None:
    info = built(given.network, 224 if "dinov2" in given.network else None).info
    resize = round(info.image_size / info.crop_pct)
    ours = (resize, info.image_size, info.interpolation, info.mean, info.std)
    published = (given.resize, given.crop, given.interpolation, given.mean, given.std)
    assert (ours == published) is not bool(given.why)
    assert info.mean == pytest.approx(given.mean, abs=0.003)
    assert info.std == pytest.approx(given.std, abs=0.003)


@pytest.mark.parametrize(
    ("text", "value", "digit"),
    [("0.46 M", 460_000, 10_000), ("25,557,032", 25_557_032, 1), ("4.1 G", 4.1e9, 1e8), ("60 M", 60e6, 1e6)],
)
def test_a_printed_number_has_a_value_and_a_last_digit(text: str, value: float, digit: float) -> None:
    assert stated(text) == pytest.approx((value, digit))


def test_a_count_agrees_if_rounding_or_cutting_gives_the_digits() -> None:
    assert agrees(464_154, "0.46 M")
    assert agrees(85_798_656, "85 M")  # cut off
    assert agrees(85_798_656, "86 M")  # rounded
    assert not agrees(84_999_999, "86 M")
    assert not agrees(25_557_033, "25,557,032")
    with pytest.raises(ValueError, match="not a number like"):
        stated("about 3")
