"""Concatenated embeddings: unit embeddings of several networks, or class tokens of several blocks of one network.

Different networks capture different properties. Published linear classifiers use class tokens of several blocks.
Source: ``facebookresearch/dino:eval_linear.py``: the class tokens of the last four blocks for ViT-S, the class token of
the last block and the mean of its patches for ViT-B; all after the last norm.
"""

import re
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from labelkit.errors import ConfigError
from labelkit.models.backbones.registry import Backbone
from labelkit.models.backbones.vit import check_vision_transformer, has_class_token, last_block_tokens
from labelkit.models.inference import BackboneNetwork, InferenceNetwork, InputSpec

SEPARATOR = "+"
"""Separator between the names of concatenated networks."""
SIDE_BY_SIDE = "backbones side by side"
"""Layer name recorded for concatenated embeddings."""


class ConcatenatedNetworks(InferenceNetwork):
    """Network that concatenates unit embeddings of several networks, each with its own input size and normalization.

    Args:
        networks: two or more networks with equal numbers of channels.
    """

    def __init__(self, networks: Sequence[BackboneNetwork]) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)
        largest = max((network.input_spec for network in networks), key=lambda spec: spec.size)
        channels = largest.channels
        self.input_spec = InputSpec(largest.size, channels, (0.0,) * channels, (1.0,) * channels, largest.resize_ratio)
        self.embed_dim = sum(network.embed_dim for network in networks)
        for number, network in enumerate(networks):
            for name, values in (("mean", network.input_spec.mean), ("std", network.input_spec.std)):
                self.register_buffer(f"{name}{number}", torch.tensor(values).reshape(1, -1, 1, 1), persistent=False)

    @property
    def members(self) -> list[BackboneNetwork]:
        """Return the concatenated networks, in order."""
        return [network for network in self.networks if isinstance(network, BackboneNetwork)]

    @property
    def identity(self) -> dict[str, str]:
        """Return the joined names and poolings of the networks, in order."""
        parts = [network.identity for network in self.members]
        return {
            "name": SEPARATOR.join(part["name"] for part in parts),
            "layer": SIDE_BY_SIDE,
            "pooling": SEPARATOR.join(part["pooling"] for part in parts),
        }

    def embed(self, images: Tensor) -> Tensor:
        """Return the concatenated unit embeddings (b, d) of images (b, c, h, w) in [0, 1]."""
        rows = []
        for number, network in enumerate(self.members):
            size = network.input_spec.size
            fitted = images
            if size != images.shape[-1]:
                fitted = nn.functional.interpolate(images, size=(size, size), mode="bilinear", align_corners=False)
            mean, std = self.get_buffer(f"mean{number}"), self.get_buffer(f"std{number}")
            rows.append(nn.functional.normalize(network.embed((fitted - mean) / std), dim=1))
        return torch.cat(rows, dim=1)


_LAYER = re.compile(r"class tokens of (\d{1,4}) blocks?( and mean patch)?")


class ConcatenatedTokenViT(InferenceNetwork):
    """A ViT whose embedding concatenates the class tokens of its last blocks and, optionally, the mean patch token.

    Args:
        inner: a network on a plain ViT.
        last_blocks: number of last blocks whose class tokens are used, the deepest last.
        mean_patch: whether to append the mean patch token of the last block.

    Raises:
        ConfigError: the network has no backbone, no class token, or fewer blocks.
        UnsupportedBackboneError: its backbone is not a plain ViT.
    """

    def __init__(self, inner: InferenceNetwork, last_blocks: int, *, mean_patch: bool) -> None:
        super().__init__()
        backbone, name = getattr(inner, "backbone", None), inner.identity["name"]
        if not isinstance(backbone, Backbone):
            raise ConfigError("--last-blocks", f"{name} has no blocks", "Choose a ViT, or remove --last-blocks.")
        check_vision_transformer(backbone.net)
        if not has_class_token(backbone.net):
            raise ConfigError("--last-blocks", f"{name} has no class token", "Choose a ViT with a class token.")
        if last_blocks > backbone.info.depth:
            problem = f"{name} has {backbone.info.depth} blocks, but {last_blocks} were requested"
            raise ConfigError("--last-blocks", problem, "Request fewer blocks.")
        self.inner, self.last_blocks, self.mean_patch = inner, last_blocks, mean_patch
        self.input_spec = inner.input_spec
        self.embed_dim = backbone.info.feature_dim * (last_blocks + mean_patch)

    @property
    def identity(self) -> dict[str, str]:
        """Return the network's name and pooling, and a layer name that lists the concatenated tokens."""
        layer = f"class tokens of {self.last_blocks} block{'s' if self.last_blocks > 1 else ''}"
        return {**self.inner.identity, "layer": layer + (" and mean patch" if self.mean_patch else "")}

    def embed(self, images: Tensor) -> Tensor:
        """Return the concatenated tokens (b, d) of images (b, c, h, w)."""
        tokens = last_block_tokens(self._net, images, self.last_blocks)
        parts = [classes for classes, _ in tokens]
        if self.mean_patch:
            parts.append(tokens[-1][1].mean(dim=1))
        return torch.cat(parts, dim=1)

    def patch_features(self, images: Tensor) -> Tensor:
        """Return the patch features of the underlying network."""
        return self.inner.patch_features(images)

    @property
    def patch_identity(self) -> dict[str, str]:
        """Return the patch identity of the underlying network."""
        return self.inner.patch_identity

    @property
    def _net(self) -> torch.nn.Module:
        backbone = self.inner.backbone
        assert isinstance(backbone, Backbone)
        return backbone.net


def parse_concatenated_layer(layer: str) -> tuple[int, bool] | None:
    """Parse ``last_blocks`` and ``mean_patch`` from a `ConcatenatedTokenViT`'s layer name, else ``None``."""
    found = _LAYER.fullmatch(layer)
    return None if found is None else (int(found[1]), found[2] is not None)
