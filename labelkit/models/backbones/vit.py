"""Extensions of timm's VisionTransformer: small networks for small images, and functions for its parts.

Only this file depends on timm's ViT internals, so that a new timm release is checked in one place.
timm is imported on first use, so that reading weights does not load it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from labelkit.errors import ConfigError


class UnsupportedBackboneError(ConfigError):
    """Raised for a backbone whose architecture does not support the requested operation."""


SMALL_VITS: dict[str, dict[str, int]] = {
    "vit_nano_p8_32": {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 4, "num_heads": 4},
    "vit_mini_p4_32": {"img_size": 32, "patch_size": 4, "embed_dim": 192, "depth": 9, "num_heads": 3},
    "vit_micro_p8_64": {"img_size": 64, "patch_size": 8, "embed_dim": 64, "depth": 4, "num_heads": 4},
}
"""Small ViTs for training from scratch: options of timm's ``VisionTransformer``."""


def build_small_vit(name: str, *, image_size: int | None = None, in_channels: int = 3, **options: Any) -> nn.Module:
    """Build one of `SMALL_VITS`, by default with its own image size, as a timm network without a classifier."""
    from timm.models import VisionTransformer

    shape: dict[str, Any] = SMALL_VITS[name] | ({} if image_size is None else {"img_size": image_size})
    return VisionTransformer(in_chans=in_channels, num_classes=0, **shape, **options)


def check_vision_transformer(vit: nn.Module, blocks: tuple[int, ...] = ()) -> None:
    """Reject a network that is not a plain timm ViT, or whose given blocks do not use timm's fused-qkv attention."""
    from timm.layers.attention import Attention
    from timm.models.vision_transformer import Block, VisionTransformer

    # Compares functions, not classes: a subclass is accepted if it uses the same functions.
    if not isinstance(vit, VisionTransformer) or type(vit).forward_features is not VisionTransformer.forward_features:
        raise _unsupported(vit, f"{type(vit).__name__} is not timm's VisionTransformer")
    for index in blocks:
        block: Any = vit.blocks[index]
        if type(block).forward is not Block.forward:
            raise _unsupported(vit, f"block {index} is a {type(block).__name__}, not timm's plain Block")
        if type(block.attn).forward is not Attention.forward:
            raise _unsupported(vit, f"block {index} has {type(block.attn).__name__}, not timm's fused-qkv Attention")


def embed_tokens(vit: Any, images: Tensor, mask: Tensor | None = None, mask_token: Tensor | None = None) -> Tensor:
    """Return the input tokens (b, t, f) of a ViT's first block, using timm's private helper.

    ``mask`` (b, rows, columns) marks patches of the images (b, c, h, w) to replace with ``mask_token`` (f,) before
    position embeddings are added.
    """
    patches = vit.patch_embed(images)
    if mask is not None and mask_token is not None:
        where = mask.reshape(*patches.shape[:-1], 1)
        patches = torch.where(where, mask_token.to(patches.dtype), patches)
    tokens = vit._pos_embed(patches)
    return vit.norm_pre(vit.patch_drop(tokens))


def split_qkv(attention: Any, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the queries, keys and values (b, h, t, d), after norms, of timm's ``Attention`` for tokens (b, t, f)."""
    b, t, _ = tokens.shape
    qkv = attention.qkv(tokens).reshape(b, t, 3, attention.num_heads, -1).permute(2, 0, 3, 1, 4)
    queries, keys, values = qkv.unbind(0)
    return attention.q_norm(queries), attention.k_norm(keys), values


def compute_queries(attention: Any, tokens: Tensor) -> Tensor:
    """Compute only the queries (b, h, t, d) of timm's ``Attention``, which equal those of `split_qkv`."""
    return attention.q_norm(_project_qkv(attention, tokens, 0, 1)[0])


def _project_qkv(attention: Any, tokens: Tensor, first: int, count: int) -> Tensor:
    """Return ``count`` of the qkv projections, starting at index ``first``, before norms: (count, b, h, t, d)."""
    width = len(attention.qkv.weight) // 3
    part = slice(first * width, (first + count) * width)
    bias = None if attention.qkv.bias is None else attention.qkv.bias[part]
    made = nn.functional.linear(tokens, attention.qkv.weight[part], bias)
    b, t, _ = tokens.shape
    return made.reshape(b, t, count, attention.num_heads, -1).permute(2, 0, 3, 1, 4)


def key_projection_weight(attention: Any) -> Tensor:
    """Return the detached weight (h d, f) of an attention layer's key projection, with one output per row."""
    weight: Tensor = attention.qkv.weight.detach()
    width = len(weight) // 3
    return weight[width : 2 * width]


def has_key_norm(attention: nn.Module) -> bool:
    """Return whether an attention layer normalizes its keys after their projection."""
    return not isinstance(attention.k_norm, nn.Identity)


def attend(attention: Any, tokens: Tensor, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Compute the output (b, t, f) of timm's ``Attention``, with norm, gate and dropout.

    Queries are (b, h, t, d), keys and values (b, h, s, d). A gate uses ``tokens`` (b, t, f), the input of `split_qkv`.
    """
    dropout = attention.attn_drop.p if attention.training else 0.0
    mixed = nn.functional.scaled_dot_product_attention(queries, keys, values, dropout_p=dropout)
    # Norm and gate exist only in later timm releases.
    mixed = getattr(attention, "norm", nn.Identity())(mixed.transpose(1, 2).flatten(2))
    gate = getattr(attention, "gate", None)
    if gate is not None:
        mixed = mixed * gate(tokens).sigmoid()
    return attention.proj_drop(attention.proj(mixed))


def pools_class_token(vit: Any) -> bool:
    """Return whether a ViT outputs only its class token, and `last_class_token` supports its last block."""
    from timm.layers.attention import Attention
    from timm.models.vision_transformer import Block

    last = vit.blocks[-1]
    plain = type(last).forward is Block.forward and type(last.attn).forward is Attention.forward
    return plain and getattr(vit, "global_pool", "") == "token" and getattr(vit, "attn_pool", None) is None


def last_class_token(vit: Any, tokens: Tensor) -> Tensor:
    """Compute the last block's class token (b, 1, f) alone, with all tokens (b, t, f) as keys and values.

    `pools_class_token` must be true for the network. Computing the other tokens, which are dropped afterwards, would
    waste five sixths of the block's work. The result equals that of the whole block up to rounding.
    """
    block: Any = vit.blocks[-1]
    attn = block.attn
    normed = block.norm1(tokens)
    own = normed[:, :1]
    keys, values = _project_qkv(attn, normed, 1, 2)
    attended = attend(attn, own, compute_queries(attn, own), attn.k_norm(keys), values)
    out = tokens[:, :1] + block.drop_path1(block.ls1(attended))
    return out + block.drop_path2(block.ls2(block.mlp(block.norm2(out))))


def token_maps(
    vit: Any, images: Tensor, mask: Tensor | None = None, mask_token: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Compute a ViT's class tokens (b, f) and patch maps (b, h, w, f), after the last norm, for images (b, c, h, w).

    See `embed_tokens` for ``mask`` and ``mask_token``, which need a network that `check_vision_transformer` accepts.
    """
    tokens: Tensor
    if mask is None:
        tokens = vit.forward_features(images)
    else:
        tokens = vit.norm(vit.blocks(embed_tokens(vit, images, mask, mask_token)))
    rows, columns = vit.patch_embed.dynamic_feat_size(tuple(images.shape[-2:]))
    patches = tokens[:, vit.num_prefix_tokens :]
    return tokens[:, 0], patches.reshape(len(images), int(rows), int(columns), -1)


def last_block_tokens(vit: Any, images: Tensor, last_blocks: int) -> list[tuple[Tensor, Tensor]]:
    """Return the normalized class tokens (b, f) and patch tokens (b, h w, f) of each of the last blocks."""
    found = vit.get_intermediate_layers(images, last_blocks, return_prefix_tokens=True, norm=True)
    return [(prefix[:, 0], patches) for patches, prefix in found]


def patch_size(vit: Any) -> int:
    """Return the patch size of a ViT in pixels."""
    return int(vit.patch_embed.patch_size[0])


def num_attention_heads(vit: Any) -> int:
    """Return the number of attention heads in the last block of a ViT."""
    return int(vit.blocks[-1].attn.num_heads)


def find_patch_embedding(net: nn.Module) -> Any:
    """Return the patch embedding of a timm network with a constant patch grid, or ``None``."""
    found = getattr(net, "patch_embed", None) or getattr(net, "stem", None)
    # networks with stages merge patches later
    staged = any(hasattr(net, name) for name in ("layers", "stages", "levels"))
    return found if hasattr(found, "dynamic_feat_size") and not staged else None


@contextmanager
def allow_any_image_size(net: nn.Module) -> Iterator[None]:
    """Context manager that lets a plain ViT accept any image size divisible by its patch size.

    Other networks stay unchanged. Position embeddings are resampled for sizes other than the network's own, as when
    timm builds it with ``dynamic_img_size``.
    """
    from timm.layers.format import Format
    from timm.layers.patch_embed import PatchEmbed
    from timm.models.vision_transformer import VisionTransformer

    vit: Any = net
    patches = find_patch_embedding(net)
    if not isinstance(net, VisionTransformer) or not isinstance(patches, PatchEmbed) or vit.dynamic_img_size:
        yield
        return
    before = (patches.strict_img_size, patches.flatten, patches.output_fmt)
    vit.dynamic_img_size = True
    patches.strict_img_size, patches.flatten, patches.output_fmt = False, False, Format.NHWC
    try:
        yield
    finally:
        vit.dynamic_img_size = False
        patches.strict_img_size, patches.flatten, patches.output_fmt = before


def has_class_token(vit: nn.Module) -> bool:
    """Return whether a ViT has a class token, which is then its first prefix token."""
    return getattr(vit, "cls_token", None) is not None


def _unsupported(vit: nn.Module, problem: str) -> UnsupportedBackboneError:
    cfg = getattr(vit, "pretrained_cfg", None) or {}
    name = cfg.get("architecture") or type(vit).__name__
    return UnsupportedBackboneError(name, problem, "Choose a plain ViT, for example vit_base_patch16_224.dino.")
