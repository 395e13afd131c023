"""ConvNet-13, ResNet-26 shake-shake and Wide ResNets: published sizes, gradients, gates, the cut."""

import pytest
import torch
from labelkit.models.backbones.convnets import WideBlock, wide_resnet
from labelkit.models.backbones.registry import Backbone, build_backbone
from labelkit.models.backbones.resnet import ShakeShake, shake_resnet26, shake_shake
from labelkit.models.backbones.staged_network import StagedNetwork
from labelkit.models.heads import LinearHeads
from tests.tiers import quick_every
from torch import nn

SMALL = ("convnet13_w16", "convnet13_w32", "resnet26_shake_w32", "wrn10_1", "wrn16_2", "wrn28_2")


def count(*modules: nn.Module) -> int:
    return sum(parameter.numel() for module in modules for parameter in module.parameters())


def staged(backbone: Backbone) -> StagedNetwork:
    assert isinstance(backbone.net, StagedNetwork)
    return backbone.net


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "num_classes", "heads", "parameters"),
    quick_every(
        3,
        [
            ("convnet13", 10, 1, 3_123_850),
            ("convnet13", 100, 1, 3_135_460),
            ("convnet13", 10, 2, 3_125_140),
            ("convnet13", 100, 2, 3_148_360),
            ("convnet13_w32", 10, 1, 197_290),
            ("convnet13_w16", 10, 1, 50_010),
            ("resnet26_shake", 10, 1, 26_193_466),
            ("resnet26_shake", 100, 1, 26_228_116),
            ("resnet26_shake", 10, 2, 26_197_316),
            ("resnet26_shake", 100, 2, 26_266_616),
            ("resnet26_shake_w32", 10, 1, 2_923_322),
            ("wrn28_2", 10, 1, 1_467_610),
            ("wrn28_2", 100, 1, 1_479_220),
            ("wrn16_2", 10, 1, 691_674),
            ("wrn10_1", 10, 1, 19_858),
        ],
    ),
)
def test_networks_with_their_heads_have_the_published_number_of_parameters(
    name: str, num_classes: int, heads: int, parameters: int
) -> None:
    backbone = build_backbone(name, seed=0)
    assert count(backbone, LinearHeads(backbone.info.feature_dim, num_classes, heads)) == parameters


@pytest.mark.parametrize(
    ("name", "side", "shape"),
    [("wrn28_2", 32, (64, 16, 16)), ("convnet13", 32, (256, 8, 8)), ("wrn10_1", 16, (16, 8, 8))],
)
def test_the_cut_lies_before_the_last_stage(name: str, side: int, shape: tuple[int, int, int]) -> None:
    assert staged(build_backbone(name, seed=0)).run_early_stages(torch.zeros(1, 3, side, side)).shape[1:] == shape


@pytest.mark.parametrize("name", SMALL)
def test_the_two_parts_in_a_row_are_the_network(name: str) -> None:
    backbone = build_backbone(name, seed=0).eval()
    net, images = staged(backbone), torch.randn(2, 3, 16, 16)
    assert torch.equal(net.run_last_stage(net.run_early_stages(images)), backbone(images))


def test_only_the_first_group_feeds_its_shortcut_with_the_activated_input() -> None:
    blocks = [module for module in wide_resnet(16, 2).modules() if isinstance(module, WideBlock)]
    assert [(block.shortcut is not None, block.activate_shortcut) for block in blocks] == [
        (True, True), (False, False), (True, False), (False, False), (True, False), (False, False),
    ]  # fmt: skip
    assert {block.bn1.momentum for block in blocks} == {1e-3}


def test_gates_blend_forward_and_backward_independently() -> None:
    a = torch.full((2, 1, 1, 1), 4.0, requires_grad=True)
    b = torch.full((2, 1, 1, 1), 8.0, requires_grad=True)
    forward_gates = torch.tensor([0.25, 1.0]).reshape(2, 1, 1, 1)
    backward_gates = torch.tensor([0.5, 0.125]).reshape(2, 1, 1, 1)
    out = ShakeShake.apply(a, b, forward_gates, backward_gates)
    assert out.flatten().tolist() == [0.25 * 4 + 0.75 * 8, 4.0]
    out.backward(torch.full_like(out, 2.0))
    assert a.grad.flatten().tolist() == [1.0, 0.25]
    assert b.grad.flatten().tolist() == [1.0, 1.75]


def test_every_image_has_its_own_two_gates_in_training_and_halves_outside() -> None:
    a = torch.ones(500, 1, 2, 2, requires_grad=True)
    torch.manual_seed(0)
    out = shake_shake(a, torch.zeros(500, 1, 2, 2), training=True)
    out.sum().backward()
    forward, backward = out.detach()[:, 0, 0, 0], a.grad[:, 0, 0, 0]
    assert bool((out == out[:, :, :1, :1]).all())  # one gate for all positions
    for gates in (forward, backward):
        assert len(gates.unique()) == 500
        assert 0 <= float(gates.min()) < 0.02
        assert 0.98 < float(gates.max()) <= 1
    assert abs(float(torch.corrcoef(torch.stack([forward, backward]))[0, 1])) < 0.15  # 3 / sqrt(500)
    assert torch.equal(shake_shake(torch.full((2, 1, 1, 1), 3.0), torch.ones(2, 1, 1, 1), training=False).flatten(),
                       torch.tensor([2.0, 2.0]))  # fmt: skip


def test_shake_convolutions_are_drawn_by_their_outgoing_connections() -> None:
    net = shake_resnet26(32)
    block = net.stages[2][1]
    assert float(block.branch1.conv1.weight.detach().std()) == pytest.approx((2 / (9 * 64)) ** 0.5, rel=0.02)
