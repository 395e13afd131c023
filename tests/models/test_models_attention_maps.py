"""Attention maps against softmax(Q K^T) computed by hand from the weights of the blocks."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from labelkit.algorithms.attention import attention_update
from labelkit.models.attention import attention_maps
from labelkit.models.backbones.registry import build_backbone
from labelkit.models.paired_attention import BlockLog, KeyUpdate, UnsupportedBackboneError, paired_forward
from labelkit.models.seeding import seeded_init
from timm.models import VisionTransformer
from torch import Tensor, nn

HEADS, WIDTH, BATCH = 3, 8, 2
UPDATE = KeyUpdate(alpha=0.1, beta=0.7, gamma_update=0.4, gamma_reg=0.2)
PREFIXES: dict[str, dict[str, Any]] = {
    "class token": {},
    "registers": {"reg_tokens": 3},
    "registers without position": {"reg_tokens": 2, "no_embed_class": True},
    "normed keys": {"qk_norm": True},
    "layer scale": {"init_values": 0.5},
}


def tiny_vit(**options: Any) -> Any:
    """A ViT of 3 blocks for 16x24 images, 2 rows and 3 columns of patches, in evaluation mode."""
    with seeded_init(0):
        vit = VisionTransformer(
            img_size=(16, 24), patch_size=8, embed_dim=24, depth=3, num_heads=HEADS, num_classes=0, **options
        )
        for name, parameter in vit.named_parameters():
            if "qkv" in name or "token" in name:
                nn.init.normal_(parameter, std=0.3)
    return vit.eval()


def views() -> tuple[Tensor, Tensor]:
    weak, strong = torch.randn(2, BATCH, 3, 16, 24, generator=torch.Generator().manual_seed(0))
    return weak, strong


def by_hand(vit: Any, images: Tensor, update: KeyUpdate | None, aligned: tuple[int, ...]) -> list[Tensor]:
    """Maps (2b, heads, 2, 3) of all blocks, from the plain formulas of a transformer; teacher rows first."""
    maps = []
    tokens = vit._pos_embed(vit.patch_embed(images))
    for index, block in enumerate(vit.blocks):
        x = block.norm1(tokens)
        w, bias = block.attn.qkv.weight, block.attn.qkv.bias
        q, k, v = (
            (x @ weight.T + offset).reshape(len(x), -1, HEADS, WIDTH).transpose(1, 2)
            for weight, offset in zip(w.split(24), bias.split(24), strict=True)
        )
        q, k = block.attn.q_norm(q), block.attn.k_norm(k)
        if update is not None and index in aligned:
            moved = attention_update(
                k[:BATCH],
                q[BATCH:],
                alpha=update.alpha,
                beta=0.7,
                gamma_update=update.gamma_update,
                gamma_reg=update.gamma_reg,
            )
            k = torch.cat([moved, k[BATCH:]])
        weights = torch.softmax(q @ k.transpose(-2, -1) / WIDTH**0.5, dim=-1)  # (2b, h, t, t)
        maps.append(weights[:, :, 0, -6:].reshape(len(x), HEADS, 2, 3))
        tokens = tokens + block.ls1(block.attn.proj((weights @ v).transpose(1, 2).reshape(*x.shape)))
        tokens = tokens + block.ls2(block.mlp(block.norm2(tokens)))
    return maps


@pytest.mark.parametrize("options", PREFIXES.values(), ids=PREFIXES.keys())
def test_maps_are_the_softmax_of_queries_and_keys(options: dict[str, Any]) -> None:
    vit, (weak, strong) = tiny_vit(**options), views()

    seen = attention_maps(vit, weak, strong, blocks=(2, 0, 1))

    expected = by_hand(vit, torch.cat([weak, strong]), None, ())
    assert list(seen) == [0, 1, 2]
    for block in range(3):
        torch.testing.assert_close(seen[block].teacher, expected[block][:BATCH], atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(seen[block].student, expected[block][BATCH:], atol=1e-6, rtol=1e-5)
        assert seen[block].updated is None


@pytest.mark.parametrize("options", PREFIXES.values(), ids=PREFIXES.keys())
def test_updated_maps_are_those_of_moved_keys_and_of_what_follows_from_them(options: dict[str, Any]) -> None:
    vit, (weak, strong) = tiny_vit(**options), views()
    images = torch.cat([weak, strong])

    seen = attention_maps(vit, weak, strong, blocks=(0, 1, 2), update=UPDATE, align_blocks=(0, 1))

    plain, moved = by_hand(vit, images, None, ()), by_hand(vit, images, UPDATE, (0, 1))
    for block in range(3):
        updated = seen[block].updated
        assert updated is not None
        torch.testing.assert_close(seen[block].teacher, plain[block][:BATCH], atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(seen[block].student, plain[block][BATCH:], atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(updated, moved[block][:BATCH], atol=1e-6, rtol=1e-5)
        assert (updated - seen[block].teacher).abs().max() > 1e-3


def test_blocks_below_the_first_aligned_one_do_not_change() -> None:
    vit, (weak, strong) = tiny_vit(), views()

    seen = attention_maps(vit, weak, strong, blocks=(0,), update=UPDATE, align_blocks=(1,))

    assert seen[0].updated is not None
    assert torch.equal(seen[0].updated, seen[0].teacher)


def test_energies_are_those_that_training_records() -> None:
    vit, (weak, strong) = tiny_vit(), views()

    seen = attention_maps(vit, weak, strong, blocks=(0, 1, 2), update=UPDATE, align_blocks=(0, 1))

    record: dict[int, BlockLog] = {}
    paired_forward(
        vit.train(), weak, strong, update=UPDATE, align_blocks=(0, 1), record=record, record_blocks=(0, 1, 2)
    )
    for block in range(3):
        torch.testing.assert_close(seen[block].log, record[block])


def test_the_network_stays_as_it_is_and_keeps_no_graph() -> None:
    vit, (weak, strong) = tiny_vit(), views()
    before, forwards = copy.deepcopy(vit.state_dict()), [module.forward for module in vit.modules()]

    seen = attention_maps(vit, weak, strong, blocks=(2,), update=UPDATE, align_blocks=(0,))

    assert not seen[2].teacher.requires_grad
    torch.testing.assert_close(vit.state_dict(), before, rtol=0, atol=0)
    assert [module.forward for module in vit.modules()] == forwards
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in vit.modules())
    assert not any(module.training for module in vit.modules())


def test_networks_without_class_token_or_attention_are_told() -> None:
    weak, strong = views()
    with pytest.raises(UnsupportedBackboneError, match="no class token"):
        attention_maps(tiny_vit(class_token=False, global_pool="avg"), weak, strong, blocks=(0,))
    with pytest.raises(UnsupportedBackboneError, match="is not timm's VisionTransformer"):
        attention_maps(build_backbone("resnet10t").net.eval(), weak, strong, blocks=(0,))
