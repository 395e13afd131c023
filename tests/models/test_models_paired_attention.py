"""The paired forward pass against timm's own forward (T9), its updates, freezing, records."""

from typing import Any

import pytest
import torch
from labelkit.algorithms.attention import alignment_energy, attention_update, prior_energy
from labelkit.errors import ConfigError
from labelkit.models.backbones.registry import build_backbone
from labelkit.models.paired_attention import (
    KeyUpdateParams,
    UnsupportedBackboneError,
    freeze_backbone,
    paired_forward,
)
from tests.models.tiny_vits import VARIANTS, tiny_vit
from timm.models import Eva, VisionTransformer
from timm.models.vision_transformer import ResPostBlock
from torch import Tensor, nn

MORE_VARIANTS: dict[str, dict[str, Any]] = {
    **VARIANTS,
    "attention_pooling": {"class_token": False, "global_pool": "map"},
    "dynamic_size": {"dynamic_img_size": True},
}
ALL_BLOCKS = (0, 1, 2)


def views() -> tuple[Tensor, Tensor]:
    weak, strong = torch.randn(2, 4, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    return weak, strong


def plain_forward(vit: Any, weak: Tensor, strong: Tensor) -> Tensor:
    return vit.forward_head(vit.forward_features(torch.cat([weak, strong])), pre_logits=True)


def assert_same(actual: Tensor, expected: Tensor, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(actual, expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("variant", MORE_VARIANTS)
def test_zero_step_equals_timms_forward_for_every_kind_of_vit(variant: str) -> None:
    vit, (weak, strong) = tiny_vit(**MORE_VARIANTS[variant]), views()

    features = paired_forward(vit, weak, strong, update=KeyUpdateParams(gamma_update=0.0), align_blocks=ALL_BLOCKS)

    expected = plain_forward(vit, weak, strong)
    assert_same(features, expected)
    # another step changes the teacher, and leaves the student
    features = paired_forward(vit, weak, strong, update=KeyUpdateParams(gamma_update=0.5), align_blocks=ALL_BLOCKS)
    assert_same(features[4:], expected[4:])
    assert (features[:4] - expected[:4]).abs().amax(dim=1).min() > 1e-3


def test_teacher_attends_to_the_updated_keys() -> None:
    vit, (weak, strong) = tiny_vit(), views()
    block = vit.blocks[0]
    update = KeyUpdateParams(alpha=0.1, beta=0.7, gamma_update=0.4, gamma_reg=0.2)
    tokens = vit.norm_pre(vit._pos_embed(vit.patch_embed(torch.cat([weak, strong]))))
    normed = block.norm1(tokens)
    q, k, v = (part.reshape(8, 5, 3, 8).transpose(1, 2) for part in block.attn.qkv(normed).split(24, dim=-1))
    k = torch.cat([attention_update(k[:4], q[4:], alpha=0.1, beta=0.7, gamma_update=0.4, gamma_reg=0.2), k[4:]])
    mixed = torch.softmax(q @ k.transpose(-2, -1) / 8**0.5, dim=-1) @ v
    tokens = tokens + block.attn.proj(mixed.transpose(1, 2).reshape(8, 5, 24))
    tokens = tokens + block.mlp(block.norm2(tokens))
    expected = vit.forward_head(vit.norm(vit.blocks[1:](tokens)), pre_logits=True)

    assert_same(paired_forward(vit, weak, strong, update=update, align_blocks=[0]), expected)


@pytest.mark.parametrize("align", [(0, 1), (1, 2)])
def test_frozen_prefix_without_gradients_changes_neither_outputs_nor_gradients(align: tuple[int, ...]) -> None:
    weak, strong = views()
    results = []
    for grad_from_block, train_stem in ((0, True), (2, False)):
        vit = tiny_vit()
        freeze_backbone(vit, 2)
        features = paired_forward(
            vit, weak, strong, update=KeyUpdateParams(), align_blocks=align,
            grad_from_block=grad_from_block, train_stem=train_stem,
        )  # fmt: skip
        features.pow(3).sum().backward()
        trained = {name: value.grad for name, value in vit.named_parameters() if value.requires_grad}
        results.append((features.detach(), trained))

    torch.testing.assert_close(results[0][0], results[1][0])
    torch.testing.assert_close(results[0][1], results[1][1])


def test_stopped_increment_gives_the_student_no_gradient_from_the_teacher() -> None:
    weak, strong = views()
    vit, student_view = tiny_vit(), strong.clone().requires_grad_()
    update = KeyUpdateParams(gamma_update=0.5)
    features = paired_forward(vit, weak, student_view, update=update, align_blocks=ALL_BLOCKS, train_stem=True)
    features[:4].pow(3).sum().backward()

    assert torch.equal(student_view.grad, torch.zeros_like(strong))


def test_token_space_moves_the_tokens_that_the_keys_are_made_of() -> None:
    vit, (weak, strong) = tiny_vit(), views()
    attn = vit.blocks[0].attn
    tokens = vit.blocks[0].norm1(vit._pos_embed(vit.patch_embed(torch.cat([weak, strong]))))
    q, k, _ = (part.reshape(8, 5, 3, 8).transpose(1, 2) for part in attn.qkv(tokens).split(24, dim=-1))
    paper = {"alpha": 0.0, "beta": 1.0, "gamma_update": 0.1, "gamma_reg": 0.5}
    step = (attention_update(k[:4], q[4:], **paper) - k[:4]).transpose(1, 2).reshape(4, 5, 24)
    w_k, bias = attn.qkv.weight[24:48], attn.qkv.bias[24:48]
    expected = (tokens[:4] + step @ w_k) @ w_k.T + bias
    moved = attention_update(k[:4], q[4:], **paper, space="token", w_k=w_k)

    assert_same(moved.transpose(1, 2).reshape(4, 5, 24), expected)


def test_autocast_stays_finite_with_keys_beyond_half_range() -> None:
    vit, (weak, strong) = tiny_vit(), views()
    with torch.no_grad():
        for block in vit.blocks:
            block.attn.qkv.weight.mul_(20)

    with torch.autocast("cpu", dtype=torch.bfloat16):
        features = paired_forward(vit, weak, strong, update=KeyUpdateParams(), align_blocks=ALL_BLOCKS)

    assert torch.isfinite(features).all()


def test_record_holds_the_energies_of_the_aligned_block() -> None:
    vit, (weak, strong) = tiny_vit(), views()
    record: dict[int, dict[str, Tensor]] = {}
    tokens = vit.blocks[0].norm1(vit._pos_embed(vit.patch_embed(torch.cat([weak, strong]))))
    q, k, _ = (part.reshape(8, 5, 3, 8).transpose(1, 2) for part in vit.blocks[0].attn.qkv(tokens).split(24, dim=-1))
    before, queries = k[:4], q[4:]
    after = attention_update(before, queries, alpha=0.2, beta=8**-0.5, gamma_update=0.3, gamma_reg=0.0)

    update = KeyUpdateParams(alpha=0.2, beta=8**-0.5, gamma_update=0.3, gamma_reg=0.0)
    paired_forward(vit, weak, strong, update=update, align_blocks=[0], record=record)

    values = record[0]
    for name, keys in (("before", before), ("after", after)):
        energy = alignment_energy(queries, keys, alpha=0.2, beta=8**-0.5).mean() / 5
        torch.testing.assert_close(values[f"energy_align_{name}"], energy.detach())
        torch.testing.assert_close(values[f"energy_prior_{name}"], prior_energy(keys).mean().detach())
    torch.testing.assert_close(values["update_rel"], ((after - before).norm() / before.norm()).detach())
    assert 0 < values["attn_to_query_entropy"] < 1
    assert values["energy_align_after"] < values["energy_align_before"]
    assert list(record) == [0]


def test_other_kinds_of_attention_are_refused_by_name() -> None:
    weak, strong = views()
    eva = Eva(img_size=16, patch_size=8, embed_dim=24, depth=2, num_heads=3, num_classes=0)
    post = tiny_vit(block_fn=ResPostBlock)
    differential = VisionTransformer(
        img_size=16, patch_size=8, embed_dim=24, depth=2, num_heads=3, num_classes=0, attn_layer="diff"
    )

    for vit, found in (
        (eva, "Eva"),
        (post, "ResPostBlock"),
        (differential, "DiffAttention"),
        (nn.Linear(1, 1), "Linear"),
    ):
        with pytest.raises(UnsupportedBackboneError, match=found) as caught:
            paired_forward(vit, weak, strong, update=KeyUpdateParams(), align_blocks=[1])
        assert isinstance(caught.value, ConfigError)


def test_any_network_will_do_as_a_whole() -> None:
    net, (weak, strong) = build_backbone("resnet18", seed=0).net.eval(), views()
    expected = plain_forward(net, weak, strong)

    trained = paired_forward(net, weak, strong, train_stem=True)
    frozen = paired_forward(net, weak, strong)

    assert_same(trained, expected)
    assert_same(frozen, expected)
    assert (trained.requires_grad, frozen.requires_grad) == (True, False)
    with pytest.raises(UnsupportedBackboneError, match="ResNet has no list of blocks"):
        paired_forward(net, weak, strong, record={}, record_blocks=[0])


def test_freezing_leaves_the_chosen_blocks() -> None:
    vit = tiny_vit()

    freeze_backbone(vit, 1)
    names = [name for name, value in vit.named_parameters() if value.requires_grad]
    assert names == [name for name, _ in vit.named_parameters() if name.startswith(("blocks.1.", "blocks.2."))]

    freeze_backbone(vit, 0, train_stem=True)
    assert all(value.requires_grad for value in vit.parameters())

    freeze_backbone(vit, 3, linear_probe=True)
    assert not any(value.requires_grad for value in vit.parameters())
