"""Class tokens of several blocks of a vision transformer, side by side, as published linear classifiers take them.

Source: ``facebookresearch/dino:eval_linear.py``: of ViT-S the class tokens of the last four blocks, of ViT-B that of
the last one and the mean of its patches; all behind the last norm.
"""

from __future__ import annotations

import re

import torch
from torch import Tensor

from labelkit.errors import ConfigError
from labelkit.models.backbones.registry import Backbone
from labelkit.models.backbones.vit import block_tokens, check_vision_transformer, has_class_token
from labelkit.models.inference import InferenceNetwork, InputSpec

_LAYER = re.compile(r"class tokens of (\d{1,4}) blocks?( and mean patch)?")


class JoinedTokens(InferenceNetwork):
    """A network whose embedding is replaced by class tokens of its last blocks, and perhaps the mean of the patches.

    Args:
        inner: a network on a plain ViT.
        last_blocks: blocks whose class tokens are taken, the deepest last.
        mean_patch: append the mean of the patches of the last block.

    Raises:
        ConfigError: it has no backbone, or fewer blocks.
        UnsupportedBackboneError: that is no plain ViT, or has no class token.
    """

    def __init__(self, inner: InferenceNetwork, last_blocks: int, *, mean_patch: bool) -> None:
        super().__init__()
        backbone, name = getattr(inner, "backbone", None), inner.identity["name"]
        if not isinstance(backbone, Backbone):
            raise ConfigError("--last-blocks", f"{name} has no blocks", "Choose a ViT, or leave it out.")
        check_vision_transformer(backbone.net)
        if not has_class_token(backbone.net):
            raise ConfigError("--last-blocks", f"{name} has no class token", "Choose a ViT that has one.")
        if last_blocks > backbone.info.depth:
            problem = f"{name} has {backbone.info.depth} blocks, {last_blocks} were asked for"
            raise ConfigError("--last-blocks", problem, "Ask for fewer.")
        self.inner, self._backbone_info = inner, backbone.info
        self.last_blocks, self.mean_patch = last_blocks, mean_patch

    @property
    def input_spec(self) -> InputSpec:
        """As of the network."""
        return self.inner.input_spec

    @property
    def embed_dim(self) -> int:
        """The width of a token for each of them."""
        return self._backbone_info.feature_dim * (self.last_blocks + self.mean_patch)

    @property
    def identity(self) -> dict[str, str]:
        """The network's name and pooling, and which tokens."""
        layer = f"class tokens of {self.last_blocks} block{'s' if self.last_blocks > 1 else ''}"
        return {**self.inner.identity, "layer": layer + (" and mean patch" if self.mean_patch else "")}

    def embed(self, images: Tensor) -> Tensor:
        """Images (b, c, h, w) to tokens side by side (b, d)."""
        tokens = block_tokens(self._net, images, self.last_blocks)
        parts = [classes for classes, _ in tokens]
        if self.mean_patch:
            parts.append(tokens[-1][1].mean(dim=1))
        return torch.cat(parts, dim=1)

    def patch_features(self, images: Tensor) -> Tensor:
        """Those of the network."""
        return self.inner.patch_features(images)

    @property
    def patch_identity(self) -> dict[str, str]:
        """That of the network."""
        return self.inner.patch_identity

    @property
    def _net(self) -> torch.nn.Module:
        backbone = self.inner.backbone
        assert isinstance(backbone, Backbone)
        return backbone.net


def joined_layer(layer: str) -> tuple[int, bool] | None:
    """Return ``last_blocks`` and ``mean_patch`` of an embedding's layer; ``None`` if it is another one."""
    found = _LAYER.fullmatch(layer)
    return None if found is None else (int(found[1]), found[2] is not None)
