"""Networks against the sizes that publications print, to the digits that they print."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from labelkit.cli.list_backbones import NetworkCounts, count_network
from labelkit.models.backbones.convnets import wide_resnet
from labelkit.models.backbones.registry import Backbone, build_backbone
from tests.published_statistics import FIGURES, Figure, agrees, stated


@cache
def built(name: str, size: int | None = None) -> Backbone:
    with torch.device("meta"):
        return build_backbone(name, image_size=size)


@cache
def counts(name: str, size: int | None = None) -> NetworkCounts:
    side = built(name, size).info.image_size
    return count_network(built(name, size), (3, side, side))


def title(figure: Figure) -> str:
    return f"{figure.network}, {figure.source}"


@pytest.mark.slow
@pytest.mark.parametrize(
    "figure",
    [pytest.param(figure, marks=pytest.mark.slow if row % 9 else ()) for row, figure in enumerate(FIGURES)],
    ids=title,
)
def test_a_network_has_its_published_size_but_for_the_differences_that_are_named(figure: Figure) -> None:
    expected = figure.expected(counts(figure.network, figure.image_size))
    for number, text in figure.printed().items():
        value, _ = stated(text)
        assert agrees(expected[number], text) is (number not in figure.counted_otherwise), (number, expected[number])
        assert expected[number] == pytest.approx(value, rel=0.06)  # counted in another way, of the same network
    differs = figure.counted_otherwise or figure.more_parameters or figure.more_multiply_adds
    assert bool(figure.why) is bool(differs)
    assert figure.printed()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("network", "features"),
    [("vit_small_patch16_224", 384), ("vit_base_patch8_224", 768), ("resnet50", 2048), ("googlenet", 1024)],
)
def test_one_image_becomes_features_of_the_published_width(network: str, features: int) -> None:
    """Caron et al., ICCV 2021, Table 1, column dim; Szegedy et al., CVPR 2015, Table 1, row avg pool."""
    assert counts(network).output == (features,) == (built(network).info.feature_dim,)


@pytest.mark.parametrize(
    ("depth", "widen", "printed"), [(16, 4, "2.7 M"), (40, 4, "8.9 M"), (16, 8, "11.0 M"), (28, 10, "36.5 M")]
)
def test_wide_resnets_have_the_sizes_of_their_paper(depth: int, widen: int, printed: str) -> None:
    """Zagoruyko and Komodakis, BMVC 2016, Table 4, with 10 classes."""
    with torch.device("meta"):
        net = wide_resnet(depth, widen)
    total = sum(one.numel() for one in net.parameters()) + 10 * (64 * widen + 1)
    assert agrees(total, printed)
