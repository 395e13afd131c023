"""Small vision transformers of every kind that the paired forward pass reads."""

from typing import Any

from labelkit.models.seeding import seeded_init
from timm.models import VisionTransformer
from torch import nn

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "qk_norm": {"qk_norm": True},
    "layer_scale": {"init_values": 0.5},
    "registers": {"reg_tokens": 3, "no_embed_class": True},
    "attention_norm": {"scale_attn_norm": True, "scale_mlp_norm": True},
    "average_pooling": {"class_token": False, "global_pool": "avg"},
    "pre_norm": {"pre_norm": True},
    "no_qkv_bias": {"qkv_bias": False},
}


def tiny_vit(depth: int = 3, **options: Any) -> VisionTransformer:
    """A ViT for 16x16 images, with weights large enough for attention to matter."""
    common = {"img_size": 16, "patch_size": 8, "embed_dim": 24, "num_heads": 3, "num_classes": 0}
    with seeded_init(0):
        vit = VisionTransformer(**common, depth=depth, **options)
        for name, parameter in vit.named_parameters():
            if "qkv" in name or "token" in name:
                nn.init.normal_(parameter, std=0.3)
    return vit
