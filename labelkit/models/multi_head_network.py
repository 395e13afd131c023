"""A backbone under several linear heads: one clustering each, and perhaps the four rotations (SeLa)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from labelkit.models.backbones import build_backbone
from labelkit.models.inference import InferenceNetwork, InputSpec, per_channel
from labelkit.models.seeding import seeded_init

NUM_ROTATIONS = 4


class MultiHeadNetwork(InferenceNetwork):
    """Features, and the logits of every head from them; two methods, never a switch.

    Args:
        backbone: any name of ``build_backbone``.
        clusters: outputs of each head.
        in_channels: 1 or 3.
        image_size: side of the input in pixels; ``None`` = the backbone's.
        pretrained: take the hub's weights.
        weights: take those of this file.
        mean, std: of images in [0, 1], one value per channel or one for all; ``None`` = the backbone's.
        rotation: add a head that names the rotation of an image.
        seed: of all initial values.
    """

    def __init__(
        self,
        backbone: str,
        clusters: Sequence[int],
        *,
        in_channels: int,
        image_size: int | None,
        pretrained: bool,
        weights: Path | None,
        mean: tuple[float, ...] | None = None,
        std: tuple[float, ...] | None = None,
        rotation: bool = False,
        seed: int,
    ) -> None:
        super().__init__()
        self.backbone = build_backbone(
            backbone, pretrained=pretrained, weights=weights, image_size=image_size, in_channels=in_channels, seed=seed
        )
        info = self.backbone.info
        self._mean = per_channel("mean", mean, info.mean)
        self._std = per_channel("std", std, info.std)
        # diversity of the clusterings comes from these initial values alone
        with seeded_init(seed + 1):
            self.heads = nn.ModuleList(nn.Linear(info.feature_dim, k) for k in clusters)
            self.rotation = nn.Linear(info.feature_dim, NUM_ROTATIONS) if rotation else None
            scale = getattr(self.backbone.net, "head_std", None)
            if scale is not None:
                for head in self.heads:
                    nn.init.normal_(head.weight, std=scale)  # type: ignore[arg-type] # a Linear
                    nn.init.zeros_(head.bias)  # type: ignore[arg-type] # likewise

    @property
    def input_spec(self) -> InputSpec:
        """As the backbone was made for, but for mean and std that were given."""
        info = self.backbone.info
        return InputSpec(info.image_size, info.in_channels, self._mean, self._std)

    @property
    def embed_dim(self) -> int:
        """Width of the backbone's features."""
        return self.backbone.info.feature_dim

    @property
    def identity(self) -> dict[str, str]:
        """The backbone's pooled features, before the heads."""
        return {"name": self.backbone.info.name, "layer": "backbone", "pooling": self.backbone.info.pooling}

    def embed(self, images: Tensor) -> Tensor:
        """Features (b, d) of the backbone."""
        features: Tensor = self.backbone(images)
        return features

    def class_vectors(self) -> Mapping[str, Tensor]:
        """Clusters of every head."""
        return {f"head{number}": head.get_parameter("weight") for number, head in enumerate(self.heads)}

    def head_logits(self, features: Tensor) -> list[Tensor]:
        """Features (b, d) to the logits (b, k) of every head."""
        return [head(features) for head in self.heads]

    def rotation_logits(self, features: Tensor) -> Tensor:
        """Features (b, d) to the logits (b, 4) of the rotations by 0, 90, 180 and 270 degrees."""
        assert self.rotation is not None
        logits: Tensor = self.rotation(features)
        return logits


def rotations(images: Tensor) -> tuple[Tensor, Tensor]:
    """Turn square images (b, c, h, h) by 0, 90, 180 and 270 degrees.

    Returns:
        (4b, c, h, h), the first b unchanged, and (4b,) int64 number of quarter turns.
    """
    turned = torch.cat([torch.rot90(images, turns, (2, 3)) for turns in range(NUM_ROTATIONS)])
    return turned, torch.arange(NUM_ROTATIONS, device=images.device).repeat_interleave(len(images))
