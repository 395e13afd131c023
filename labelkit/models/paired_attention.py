"""Paired forward pass: in chosen blocks of a ViT, one view's keys are aligned to the queries of another view.

Source: "Flipped Classroom: Aligning Teacher Attention with Student in Generalized Category
Discovery", Sec. 4; the update itself is in `labelkit.algorithms.attention`. View 0 (weak) is the
teacher, view 1 (strong) the student; both share all weights and the batch. Keys of an image
interact only with queries of the same image, block and head; only the teacher's keys change.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from labelkit.algorithms.attention import (
    UpdateSpace,
    alignment_energy,
    attention_entropy,
    attention_update,
    prior_energy,
)
from labelkit.errors import ConfigError
from labelkit.models.backbones.vit import (
    UnsupportedBackboneError,
    attend,
    check_vision_transformer,
    compute_queries,
    embed_tokens,
    has_key_norm,
    key_projection_weight,
    last_class_token,
    pools_class_token,
    split_qkv,
)
from labelkit.models.frozen_part import FrozenPart

BlockLog = dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class KeyUpdateParams:
    """Parameters for updating the teacher's keys; see `labelkit.algorithms.attention.attention_update`.

    Attributes:
        alpha: weight of the key norms in the energy, >= 0.
        beta: sharpness of the attention from keys to queries, > 0.
        gamma_update: step size, >= 0.
        gamma_reg: weight of the regularization of the keys, >= 0.
        space: space in which the step is taken: ``"key"``, ``"token"`` or ``"literal"``.
    """

    alpha: float = 0.0
    beta: float = 1.0
    gamma_update: float = 0.1
    gamma_reg: float = 0.5
    space: UpdateSpace = "key"


def paired_forward(
    vit: nn.Module,
    weak: Tensor,
    strong: Tensor,
    *,
    update: KeyUpdateParams | None = None,
    align_blocks: Collection[int] = (),
    grad_from_block: int = 0,
    train_stem: bool = False,
    record: dict[int, BlockLog] | None = None,
    record_blocks: Collection[int] | None = None,
    collect: dict[int, tuple[Tensor, Tensor]] | None = None,
    collect_blocks: Collection[int] = (),
    frozen_part: FrozenPart | None = None,
) -> Tensor:
    """Compute the pooled features of both views, updating the teacher's keys in the aligned blocks.

    The network is used unmodified: no hooks, no replaced methods. In evaluation mode, without
    ``update``, or without ``align_blocks`` this is the plain forward pass of both views.

    Args:
        vit: timm ``VisionTransformer``; aligned and recorded blocks need its fused-qkv attention.
            Any timm network works if nothing is aligned or recorded and it is trained entirely
            or not at all.
        weak: ``(b, c, h, w)`` float, the teacher's view.
        strong: ``(b, c, h, w)`` float, the student's view of the same images.
        update: parameters of the key update; ``None``: keys are not updated.
        align_blocks: 0-based indices of the blocks whose keys are updated, in any order.
        grad_from_block: earlier blocks run without gradients. The returned values do not depend on it.
        train_stem: whether to keep gradients for the layers before the first block.
        record: filled in place, by block index, with detached ``()`` tensors averaged over images
            and heads: ``energy_align_before/after`` (per key token), ``energy_prior_before/after``,
            ``update_rel`` (norm of the change of the keys over their norm) and
            ``attn_to_query_entropy`` (in [0, 1]). Without ``update`` the energies are those of
            its defaults, for comparison. Costs a few percent; pass ``None`` otherwise.
        record_blocks: blocks to record; by default the aligned ones.
        collect: filled in place, by block index, with the teacher's keys and the student's queries,
            both ``(b, heads, t, head width)``, with gradients, before any update.
        collect_blocks: blocks to collect.
        frozen_part: the cached part, if the views are outputs of `labelkit.models.frozen_part` instead of images.

    Returns:
        ``(2b, f)`` features, the teacher's first.

    Raises:
        ConfigError: a block index is outside the network.
        UnsupportedBackboneError: unsupported network or attention, or an update in token space
            in a block that normalizes its keys.
    """
    if frozen_part is not None and frozen_part.pooled:
        return torch.cat([weak, strong]).float()
    net: Any = vit
    wanted = align_blocks if update is not None and vit.training else ()
    watched: Collection[int] = ()
    if record is not None:
        watched = wanted if record_blocks is None else record_blocks
    grad = torch.is_grad_enabled()
    as_a_whole = (train_stem and grad_from_block == 0) or (not train_stem and grad_from_block >= _num_blocks(vit))
    gathered: Collection[int] = collect_blocks if collect is not None else ()
    if frozen_part is None and as_a_whole and not wanted and not watched and not gathered:
        with torch.set_grad_enabled(grad and train_stem):
            whole: Tensor = net.forward_head(net.forward_features(torch.cat([weak, strong])), pre_logits=True)
        return whole

    depth = _depth(vit)
    aligned = validate_block_indices(wanted, depth)
    recorded = validate_block_indices(watched, depth, "record_blocks")
    special = {*aligned, *recorded, *validate_block_indices(gathered, depth, "collect_blocks")}
    check_vision_transformer(vit, tuple(sorted(special)))
    settings = update or KeyUpdateParams()

    def special_block(index: int, tokens: Tensor, others: Tensor | None = None) -> Tensor:
        made, keys, moved, queries = paired_block(vit, index, tokens, settings, align=index in aligned, student=others)
        if collect is not None and index in gathered:
            collect[index] = (keys, queries)
        if record is not None and index in recorded:
            with torch.no_grad():
                record[index] = _compute_energies(keys, moved, queries, settings)
        return made

    if frozen_part is None:
        first = 0
        with torch.set_grad_enabled(grad and train_stem):
            tokens = embed_tokens(vit, torch.cat([weak, strong]))
    else:
        first = frozen_part.blocks[1][-1]
        students = {block: strong[:, place].float() for place, block in enumerate(frozen_part.blocks[1])}
        teachers = weak[:, 0].float()
        with torch.no_grad():
            for index in range(frozen_part.blocks[0][0], first):
                # the student's tokens are cached for the blocks in which the teacher uses them
                others = students.get(index)
                teachers = net.blocks[index](teachers) if others is None else special_block(index, teachers, others)
        tokens = torch.cat([teachers, students[first]])
    ends_early = depth - 1 not in special and pools_class_token(vit)
    for index in range(first, depth):
        with torch.set_grad_enabled(grad and index >= grad_from_block):
            if index in special:
                tokens = special_block(index, tokens)
            elif ends_early and index == depth - 1:
                tokens = last_class_token(vit, tokens)
            else:
                tokens = net.blocks[index](tokens)
    with torch.set_grad_enabled(grad and (train_stem or grad_from_block < depth)):
        features: Tensor = net.forward_head(net.norm(tokens), pre_logits=True)
    return features


def freeze_backbone(vit: nn.Module, grad_from_block: int, train_stem: bool = False, linear_probe: bool = False) -> None:
    """Freeze a ViT except for the blocks from ``grad_from_block`` on.

    Unless ``train_stem`` is set, everything else is frozen, including the final norm, class token,
    position embeddings and patch embedding.

    Args:
        vit: a network with a list ``blocks``; any network if all or none of it is trained.
        grad_from_block: first trainable block, 0-based.
        train_stem: whether to train everything; needs ``grad_from_block == 0``.
        linear_probe: whether to freeze everything; ``grad_from_block`` is then ignored.

    Raises:
        ConfigError: no block would be trained and ``linear_probe`` is off, the block is negative,
            or ``train_stem`` is set with frozen blocks.
        UnsupportedBackboneError: the network has no list of blocks.
    """
    if linear_probe:
        vit.requires_grad_(False)
        return
    if train_stem:
        if grad_from_block != 0:
            problem = f"a trainable stem before frozen blocks gets no gradients (grad_from_block {grad_from_block})"
            raise ConfigError("train_stem", problem, "Set grad_from_block to 0 as well.")
        vit.requires_grad_(True)
        return
    depth = _depth(vit)
    if not 0 <= grad_from_block < depth:
        problem = f"there is no block {grad_from_block} to train in a backbone of {depth} blocks"
        raise ConfigError(
            "grad_from_block", problem, f"Choose 0 to {depth - 1}, or set linear_probe to train only the heads."
        )
    for name, parameter in vit.named_parameters():
        parts = name.split(".")
        parameter.requires_grad_(parts[0] == "blocks" and int(parts[1]) >= grad_from_block)


def validate_block_indices(blocks: Collection[int], depth: int, name: str = "align_blocks") -> tuple[int, ...]:
    """Return sorted, unique block indices; raise ``ConfigError`` for option ``name`` if a block does not exist."""
    outside = [index for index in blocks if not 0 <= index < depth]
    if outside:
        problem = f"there is no block {', '.join(map(str, outside))} in a backbone of {depth} blocks"
        raise ConfigError(name, problem, f"Choose blocks from 0 to {depth - 1}.")
    return tuple(sorted(set(blocks)))


def paired_block(
    vit: Any,
    index: int,
    tokens: Tensor,
    update: KeyUpdateParams,
    *,
    align: bool,
    student: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Run a timm ``Block`` on tokens (2b, t, f), aligning the teacher's keys (first half) to the student's queries.

    Keys change only with ``align``. If ``student`` (b, t, f) are passed, ``tokens`` and the result are the
    teacher's, (b, t, f). Also returns the teacher's keys before and after the update and the student's queries.
    """
    block = vit.blocks[index]
    normed = block.norm1(tokens)
    queries, keys, values = split_qkv(block.attn, normed)
    half = len(keys) // 2 if student is None else len(keys)
    student_queries = queries[half:] if student is None else compute_queries(block.attn, block.norm1(student))
    moved = teacher_keys = keys[:half]
    if align:
        moved = attention_update(
            teacher_keys,
            student_queries,
            alpha=update.alpha,
            beta=update.beta,
            gamma_update=update.gamma_update,
            gamma_reg=update.gamma_reg,
            space=update.space,
            w_k=_w_k(vit, index, update.space),
        )
        keys = torch.cat([moved, keys[half:]])
    tokens = tokens + block.drop_path1(block.ls1(attend(block.attn, normed, queries, keys, values)))
    out: Tensor = tokens + block.drop_path2(block.ls2(block.mlp(block.norm2(tokens))))
    return out, teacher_keys, moved, student_queries


def _compute_energies(before: Tensor, after: Tensor, queries: Tensor, update: KeyUpdateParams) -> BlockLog:
    """Return the diagnostics of one block, each a mean over images and heads."""
    num_keys, alpha, beta = before.shape[2], update.alpha, update.beta
    return {
        "energy_align_before": alignment_energy(queries, before, alpha=alpha, beta=beta).mean() / num_keys,
        "energy_align_after": alignment_energy(queries, after, alpha=alpha, beta=beta).mean() / num_keys,
        "energy_prior_before": prior_energy(before).mean(),
        "energy_prior_after": prior_energy(after).mean(),
        "update_rel": (after - before).float().norm() / before.float().norm().clamp(min=1e-12),
        "attn_to_query_entropy": attention_entropy(before, queries, beta=beta),
    }


def _w_k(vit: Any, index: int, space: UpdateSpace) -> Tensor | None:
    """Return the key projection of a block if the update space needs it."""
    if space == "key":
        return None
    attention = vit.blocks[index].attn
    name = type(vit).__name__
    if space == "token" and has_key_norm(attention):
        problem = f"block {index} normalizes its keys after the projection, so tokens cannot be updated"
        raise UnsupportedBackboneError(name, problem, 'Use the update space "key".')
    w_k = key_projection_weight(attention)
    if space == "literal" and w_k.shape[0] != w_k.shape[1]:
        problem = f"block {index} has keys of width {w_k.shape[0]} for tokens of width {w_k.shape[1]}"
        raise UnsupportedBackboneError(name, problem, 'Use the update space "key" or "token".')
    return w_k


def _num_blocks(vit: nn.Module) -> int:
    """Return the number of blocks; 0 for networks without a list of blocks."""
    blocks = getattr(vit, "blocks", None)
    return len(blocks) if isinstance(blocks, nn.Sequential | nn.ModuleList) else 0


def _depth(vit: nn.Module) -> int:
    depth = _num_blocks(vit)
    if not depth:
        problem = f"{type(vit).__name__} has no list of blocks"
        raise UnsupportedBackboneError(type(vit).__name__, problem, "Choose a ViT, or train the whole network.")
    return depth
