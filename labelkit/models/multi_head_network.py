"""A backbone under several linear heads: one clustering each, and perhaps the four rotations (SeLa)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Unpack

import torch
from torch import Tensor, nn

from labelkit.models.inference import BackboneNetwork, BackboneOptions
from labelkit.models.seeding import seeded_init

NUM_ROTATIONS = 4


class MultiHeadNetwork(BackboneNetwork):
    """A backbone with several linear clustering heads, and optionally a head that predicts rotations.

    Args:
        backbone: any name of ``build_backbone``.
        clusters: outputs of each head.
        rotation: add a head that names the rotation of an image.
        seed: of all initial values.
        options: see `BackboneOptions`.
    """

    crops = False

    def __init__(
        self,
        backbone: str,
        clusters: Sequence[int],
        *,
        rotation: bool = False,
        seed: int,
        **options: Unpack[BackboneOptions],
    ) -> None:
        super().__init__(backbone, seed=seed, **options)
        width = self.backbone.info.feature_dim
        # diversity of the clusterings comes from these initial values alone
        with seeded_init(seed + 1):
            self.heads = nn.ModuleList(nn.Linear(width, k) for k in clusters)
            self.rotation = nn.Linear(width, NUM_ROTATIONS) if rotation else None
            scale = getattr(self.backbone.net, "head_std", None)
            if scale is not None:
                for head in self.heads:
                    nn.init.normal_(head.weight, std=scale)  # type: ignore[arg-type] # a Linear
                    nn.init.zeros_(head.bias)  # type: ignore[arg-type] # likewise

    def class_vectors(self) -> Mapping[str, Tensor]:
        """Return the cluster vectors (k, d) of every head by name."""
        return {f"head{number}": head.get_parameter("weight") for number, head in enumerate(self.heads)}

    def head_logits(self, features: Tensor) -> list[Tensor]:
        """Return the logits (b, k) of every head for features (b, d)."""
        return [head(features) for head in self.heads]

    def rotation_logits(self, features: Tensor) -> Tensor:
        """Return the logits (b, 4) of the rotations by 0, 90, 180 and 270 degrees for features (b, d)."""
        assert self.rotation is not None
        logits: Tensor = self.rotation(features)
        return logits


def rotations(images: Tensor) -> tuple[Tensor, Tensor]:
    """Rotate square images (b, c, h, h) by 0, 90, 180 and 270 degrees.

    Returns:
        (4b, c, h, h), the first b unchanged, and (4b,) int64 number of quarter turns.
    """
    turned = torch.cat([torch.rot90(images, turns, (2, 3)) for turns in range(NUM_ROTATIONS)])
    return turned, torch.arange(NUM_ROTATIONS, device=images.device).repeat_interleave(len(images))
