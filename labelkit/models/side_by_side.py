"""Embeddings of several networks side by side, each of length 1: what one network does not see, another one does."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from labelkit.models.inference import BackboneNetwork, InferenceNetwork, InputSpec

SEPARATOR = "+"
"""Between the names of networks that embed side by side."""
SIDE_BY_SIDE = "backbones side by side"
"""The layer of their embeddings."""


class SideBySide(InferenceNetwork):
    """Several networks on the same images; each resizes and normalizes them as it was trained.

    Args:
        networks: two or more, of as many channels.
    """

    def __init__(self, networks: Sequence[BackboneNetwork]) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)
        largest = max((network.input_spec for network in networks), key=lambda spec: spec.size)
        channels = largest.channels
        self._spec = InputSpec(largest.size, channels, (0.0,) * channels, (1.0,) * channels, largest.resize_ratio)
        for number, network in enumerate(networks):
            for name, values in (("mean", network.input_spec.mean), ("std", network.input_spec.std)):
                self.register_buffer(f"{name}{number}", torch.tensor(values).reshape(1, -1, 1, 1), persistent=False)

    @property
    def members(self) -> list[BackboneNetwork]:
        """The networks, in the order of their names."""
        return [network for network in self.networks if isinstance(network, BackboneNetwork)]

    @property
    def input_spec(self) -> InputSpec:
        """The largest input of them; values in [0, 1]."""
        return self._spec

    @property
    def embed_dim(self) -> int:
        """The sum of their widths."""
        return sum(network.embed_dim for network in self.members)

    @property
    def identity(self) -> dict[str, str]:
        """Their names and poolings, in order."""
        parts = [network.identity for network in self.members]
        return {
            "name": SEPARATOR.join(part["name"] for part in parts),
            "layer": SIDE_BY_SIDE,
            "pooling": SEPARATOR.join(part["pooling"] for part in parts),
        }

    def embed(self, images: Tensor) -> Tensor:
        """Images (b, c, h, w) in [0, 1] to unit embeddings side by side (b, d)."""
        rows = []
        for number, network in enumerate(self.members):
            size = network.input_spec.size
            fitted = images
            if size != images.shape[-1]:
                fitted = nn.functional.interpolate(images, size=(size, size), mode="bilinear", align_corners=False)
            mean, std = self.get_buffer(f"mean{number}"), self.get_buffer(f"std{number}")
            rows.append(nn.functional.normalize(network.embed((fitted - mean) / std), dim=1))
        return torch.cat(rows, dim=1)
