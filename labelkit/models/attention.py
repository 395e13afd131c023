"""What the class tokens of teacher and student attend to, before and after the teacher's keys have moved.

The forward pass is that of `labelkit.models.paired_attention`; the network is only read, without hooks.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from labelkit.models.backbones.vit import (
    UnsupportedBackboneError,
    check_vision_transformer,
    embed_tokens,
    has_class_token,
    patch_grid,
)
from labelkit.models.paired_attention import BlockLog, KeyUpdate, check_blocks, paired_block


@dataclass(frozen=True, slots=True)
class BlockAttention:
    """Attention maps from the class token to the patches in one transformer block, for teacher and student views.

    Class and register tokens are left out. A map is ``(b, heads, rows, columns)`` in at least float32. Its values are
    in [0, 1] and sum to what prefix tokens leave over, so to less than 1.

    Attributes:
        teacher: of the teacher's view in the plain forward pass, as at evaluation.
        student: of the student's view; the update does not change it.
        updated: of the teacher's view in the pass where its keys move; ``None`` if none do. Blocks above an aligned
            one differ from ``teacher`` because their input does.
        log: means over images and heads, as ``record`` of `paired_forward`: the step of this block in the pass where
            keys move. Where they do not move in this block, before and after are equal.
    """

    teacher: Tensor
    student: Tensor
    updated: Tensor | None
    log: BlockLog


def attention_maps(
    vit: nn.Module,
    weak: Tensor,
    strong: Tensor,
    *,
    blocks: Collection[int],
    update: KeyUpdate | None = None,
    align_blocks: Collection[int] = (),
) -> dict[int, BlockAttention]:
    """Compute the class-token attention of both views, with and without the update of the teacher's keys.

    Args:
        vit: timm ``VisionTransformer`` with a class token, in evaluation mode: nothing is dropped. The keys move
            nevertheless, as they do in training.
        weak: ``(b, c, h, w)`` float, the teacher's view.
        strong: ``(b, c, h, w)`` float, the student's view of the same images.
        blocks: 0-based indices of the blocks to look at.
        update: how keys move; ``None`` for not at all.
        align_blocks: blocks whose keys move.

    Returns:
        What was seen, by block index, increasing.

    Raises:
        ConfigError: a block index outside the network.
        UnsupportedBackboneError: another kind of network or attention, or no class token.
    """
    check_vision_transformer(vit)
    net: Any = vit
    depth = len(net.blocks)
    wanted = check_blocks(blocks, depth, "blocks")
    aligned = check_blocks(align_blocks, depth) if update is not None else ()
    check_vision_transformer(vit, tuple(sorted({*wanted, *aligned})))
    if not has_class_token(vit):
        problem = "has no class token whose attention could be shown"
        raise UnsupportedBackboneError(type(vit).__name__, problem, "Choose a ViT that pools by its class token.")
    images = torch.cat([weak, strong])
    settings = update or KeyUpdate()
    maps, logs = _look(vit, images, wanted, settings, ())
    moved = None
    if aligned:
        moved, logs = _look(vit, images, wanted, settings, aligned)
    half = len(weak)
    return {
        block: BlockAttention(
            maps[block][:half], maps[block][half:], None if moved is None else moved[block][:half], logs[block]
        )
        for block in wanted
    }


def _look(
    vit: nn.Module, images: Tensor, blocks: tuple[int, ...], update: KeyUpdate, aligned: tuple[int, ...]
) -> tuple[dict[int, Tensor], dict[int, BlockLog]]:
    """Run the blocks up to the last wanted one; return its maps (2b, h, rows, columns) and logs by block."""
    net: Any = vit
    rows, columns = patch_grid(vit, *images.shape[-2:])
    maps: dict[int, Tensor] = {}
    logs: dict[int, BlockLog] = {}
    with torch.no_grad():
        tokens = embed_tokens(vit, images)
        for index in range(max(blocks, default=-1) + 1):
            if index not in blocks and index not in aligned:
                tokens = net.blocks[index](tokens)
                continue
            log: BlockLog = {}
            seen: list[Tensor] = []
            tokens = paired_block(vit, index, tokens, update, move=index in aligned, log=log, attention=seen)
            if index in blocks:
                maps[index] = seen[0][:, :, net.num_prefix_tokens :].reshape(*seen[0].shape[:2], rows, columns)
                logs[index] = log
    return maps, logs
