"""Maps of four depths, and heads on them, against their formulas step by step."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from labelkit.errors import ConfigError
from labelkit.models.backbones.registry import build_backbone
from labelkit.models.inference import BackboneNetwork, PixelNetwork
from labelkit.protocols.segmentation.pyramid_heads import FPNHead, LevelRescaler, UperNetHead, extract_level_maps
from labelkit.protocols.segmentation.segmenter import Segmenter
from tests.tiers import quick_every

SIDES = (8, 4, 2, 1)
WIDTHS = (3, 5, 6, 7)


@pytest.fixture
def maps() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(2, width, side, side, generator=generator) for width, side in zip(WIDTHS, SIDES, strict=True)]


def up(rows: torch.Tensor, side: int) -> torch.Tensor:
    return F.interpolate(rows, (side, side), mode="bilinear", align_corners=False)


@torch.no_grad()
@pytest.mark.parametrize(
    ("name", "size", "blocks"), [("vit_nano_p8_32", 40, [0, 1, 2, 3]), ("vit_mini_p4_32", 32, [1, 3, 5, 8])]
)
def test_levels_of_a_vit_are_its_quarters(name: str, size: int, blocks: list[int]) -> None:
    net: Any = build_backbone(name, seed=0).net.eval()
    seen: list[torch.Tensor] = []
    hooks = [block.register_forward_hook(lambda _, __, tokens: seen.append(tokens)) for block in net.blocks]
    found = extract_level_maps(net, torch.rand(2, 3, size, size), name)
    for hook in hooks:
        hook.remove()
    side = size // net.patch_embed.patch_size[0]
    for one, block in zip(found, blocks, strict=True):
        for row in range(side):
            torch.testing.assert_close(one[:, :, row], seen[block][:, 1 + row * side : 1 + (row + 1) * side].mT)


@torch.no_grad()
def test_levels_of_a_convolutional_network_are_its_last_stages() -> None:
    net: Any = build_backbone("resnet18", seed=0).net.eval()
    images = torch.rand(1, 3, 64, 64)
    found = extract_level_maps(net, images, "resnet18")
    assert [tuple(one.shape[1:]) for one in found] == [(64, 16, 16), (128, 8, 8), (256, 4, 4), (512, 2, 2)]
    torch.testing.assert_close(found[-1], net.forward_features(images))


@torch.no_grad()
def test_maps_of_one_size_become_four() -> None:
    sizes = LevelRescaler(4)
    maps = [torch.rand(1, 4, 5, 5) for _ in range(4)]
    found = sizes(maps)
    assert [one.shape[-1] for one in found] == [20, 10, 5, 3]
    assert found[2] is maps[2]
    assert found[3][0, 0, 0, 0] == maps[3][0, 0, :2, :2].max()


@torch.no_grad()
def test_the_pyramid_head_is_its_formula(maps: list[torch.Tensor]) -> None:
    head = FPNHead(WIDTHS, 3, pyramid=8, hidden=4)
    inner, outer = head.pyramid.inner_blocks, head.pyramid.layer_blocks
    merged = [None, None, None, inner[3](maps[3])]
    for level in (2, 1, 0):  # from coarse to fine, the nearest place of the coarser level is added
        above = merged[level + 1].repeat_interleave(2, 2).repeat_interleave(2, 3)
        merged[level] = inner[level](maps[level]) + above
    levels = [conv(one) for conv, one in zip(outer, merged, strict=True)]
    parts = [head.refine[0][0](levels[0]), up(head.refine[1][0](levels[1]), 8)]
    parts.append(up(head.refine[2][1](up(head.refine[2][0](levels[2]), 4)), 8))
    parts.append(up(head.refine[3][2](up(head.refine[3][1](up(head.refine[3][0](levels[3]), 2)), 4)), 8))
    torch.testing.assert_close(head(maps), head.map(sum(parts)))
    assert head(maps).shape == (2, 3, 8, 8)


@torch.no_grad()
def test_the_upernet_head_is_its_formula(maps: list[torch.Tensor]) -> None:
    maps[3] = torch.randn(2, 7, 6, 6)
    maps[2] = torch.randn(2, 6, 12, 12)
    head = UperNetHead(WIDTHS, 3, hidden=4)
    parts = [maps[3]]
    for pool, side in zip(head.pools, (1, 2, 3, 6), strict=True):
        step = 6 // side
        means = maps[3].reshape(2, 7, side, step, side, step).mean((3, 5))
        parts.append(up(pool(means), 6))
    above = {3: head.top(torch.cat(parts, 1))}
    for level in (2, 1, 0):
        above[level] = head.lateral[level](maps[level]) + up(above[level + 1], maps[level].shape[-1])
    levels = [up(head.smooth[level](above[level]), 8) for level in range(3)] + [up(above[3], 8)]
    torch.testing.assert_close(head(maps), head.map(head.fuse(torch.cat(levels, 1))))


@pytest.mark.parametrize("kind", quick_every(3, ["linear", "fcn", "fpn", "upernet"]))
def test_all_of_a_segmenter_is_trained_and_what_it_was_made_of_is_not(kind: Any) -> None:
    inner = BackboneNetwork("vit_nano_p8_32", seed=1)
    segmenter = Segmenter(inner, kind, 5, size=32, seed=2)
    logits = segmenter.logits(torch.rand(2, 3, 48, 48))
    assert logits.shape[:2] == (2, 5)
    logits.square().sum().backward()
    without = {name for name, parameter in segmenter.named_parameters() if parameter.grad is None}
    # levels are taken before the last norm
    assert without == (set() if kind in ("linear", "fcn") else {"backbone.net.norm.weight", "backbone.net.norm.bias"})
    assert all(parameter.grad is None for parameter in inner.parameters())
    again = Segmenter(inner, kind, 5, size=32, seed=2)
    assert all(torch.equal(one, other) for one, other in zip(segmenter.parameters(), again.parameters(), strict=True))
    assert segmenter.patch_features(torch.rand(1, 3, 32, 32)).shape[-1] == 5


def test_networks_without_levels_or_backbone_are_refused() -> None:
    with pytest.raises(ConfigError, match="pixels has no backbone to train"):
        Segmenter(PixelNetwork(8, 3), "linear", 2, size=8, seed=0)
    with pytest.raises(ConfigError, match="has no feature maps from several depths"):
        Segmenter(BackboneNetwork("convnet_demo"), "fpn", 2, size=32, seed=0)
