"""The part of a ViT that training never changes, whose output for a view can be cached in place of the view.

In paired training the two views may need different tokens. If the teacher's keys follow the student's queries in
frozen blocks (FlipClass), the teacher's tokens from the first such block on depend on the paired student view. The
student's tokens depend on nothing else, and are cached for every block in which the teacher uses them.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from labelkit.errors import ConfigError
from labelkit.models.backbones.vit import check_vision_transformer, class_token_block, embed_tokens, pools_class_token
from labelkit.models.weights.files import fingerprint


@dataclass(frozen=True, slots=True)
class FrozenPart:
    """Frozen first blocks of a vision transformer, whose tokens are cached for two views of an image.

    Attributes:
        blocks: for the first and second view, the blocks whose input is cached, in order; the depth of the network
            stands for the output of its last block.
        pooled: whether only pooled features are needed, and no tokens, because only heads are trained.
    """

    blocks: tuple[tuple[int, ...], tuple[int, ...]]
    pooled: bool = False

    def kept_at(self, view: int | None) -> tuple[object, ...]:
        """Return the indices of the cached blocks, and ``pooled`` if only pooled features are cached."""
        return (*(self.blocks[1][-1:] if view is None else self.blocks[view]), *(("pooled",) if self.pooled else ()))

    @torch.no_grad()
    def keep(self, net: nn.Module, images: Tensor, view: int | None) -> Tensor:
        """Compute the tokens or pooled features to cache for normalized images (b, c, h, w).

        ``view`` is 0 or 1, or ``None`` for use outside training, where no key moves. Returned are tokens (b, k, t, f)
        that enter the k blocks, (b, t, f) without a view, or features (b, f) if ``pooled``.
        """
        vit: Any = net
        if self.pooled:
            pooled: Tensor = vit.forward_head(vit.forward_features(images), pre_logits=True)
            return pooled
        wanted = self.blocks[1][-1:] if view is None else self.blocks[view]
        tokens = embed_tokens(net, images)
        found = [tokens] if 0 in wanted else []
        for index in range(wanted[-1]):
            tokens = vit.blocks[index](tokens)
            if index + 1 in wanted:
                found.append(tokens)
        kept = torch.stack(found, dim=1)
        return kept[:, 0] if view is None else kept

    def fingerprint(self, net: nn.Module) -> str:
        """Return a digest (64 hexadecimal digits) of the weights that the cached tokens depend on."""
        last = self.blocks[1][-1]
        state = net.state_dict()
        return fingerprint({name: state[name] for name in state if self.pooled or not _is_trained(name, last)})


def find_frozen_part(
    vit: nn.Module, grad_from_block: int, moved_blocks: Collection[int] = (), train_stem: bool = False
) -> FrozenPart:
    """Return which blocks of a timm ViT stay frozen in paired training and which tokens can be cached.

    In ``moved_blocks``, the first view's keys follow the second view's queries. ``grad_from_block`` is the first
    trained block, the depth of the network if there is none. ``ConfigError``: nothing is frozen, or the frozen part
    differs in each pass (dropout, batch statistics).
    """
    check_vision_transformer(vit)
    net: Any = vit
    depth = len(net.blocks)
    if train_stem or grad_from_block == 0:
        problem = "every block is trained, so there is no frozen part to cache"
        remedy = "Pass --grad-from-block (and --no-train-stem), or remove --reuse-frozen."
        raise ConfigError("--reuse-frozen", problem, remedy)
    for name, module in net.named_modules():
        if _is_trained(name, grad_from_block):
            continue
        rate = getattr(module, "drop_prob", None) or (isinstance(module, nn.Dropout) and module.p) or 0.0
        if rate > 0 or isinstance(module, nn.modules.batchnorm._BatchNorm):
            kind = type(module).__name__
            problem = f"{name} of the frozen part is a {kind}, whose output differs between passes"
            raise ConfigError("--reuse-frozen", problem, "Choose another --backbone, or remove --reuse-frozen.")
    moved = tuple(sorted({block for block in moved_blocks if block < grad_from_block}))
    if not moved and grad_from_block == depth:
        return FrozenPart(((depth,), (depth,)), pooled=True)
    return FrozenPart(((min((*moved, grad_from_block)),), (*moved, grad_from_block)))


def pool_tokens(vit: nn.Module, tokens: Tensor, part: FrozenPart) -> Tensor:
    """Compute the pooled features (b, f) from tokens that `FrozenPart.keep` cached without a view."""
    net: Any = vit
    made = tokens.float()
    if part.pooled:
        return made
    depth, first = len(net.blocks), part.blocks[1][-1]
    for index in range(first, depth):
        early = index == depth - 1 and pools_class_token(vit)
        made = class_token_block(vit, made) if early else net.blocks[index](made)
    features: Tensor = net.forward_head(net.norm(made), pre_logits=True)
    return features


def _is_trained(name: str, grad_from_block: int) -> bool:
    """Return whether a module or tensor comes after the frozen part: in a later block, or after all blocks."""
    parts = name.split(".")
    if parts[0] == "blocks":
        return len(parts) > 1 and int(parts[1]) >= grad_from_block
    return parts[0] in ("norm", "fc_norm", "head", "head_drop", "attn_pool")
