"""Backbone and projection head of contrastive category discovery (GCD)."""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor

from labelkit.models.heads import CosineClassifier, Projector
from labelkit.models.inference import BackboneNetwork, BackboneOptions
from labelkit.models.paired_attention import freeze_backbone, paired_forward
from labelkit.models.seeding import seeded_init


class ContrastiveNetwork(BackboneNetwork):
    """A vision transformer with a wide contrastive head and no classifier.

    Args:
        backbone: name of a vision transformer.
        grad_from_block: first block that is trained.
        train_stem: train what is around the blocks too.
        linear_probe: train the head alone.
        hidden_dim: of the head's layers.
        bottleneck_dim: of the head's narrow place.
        head_dim: of its output.
        seed: of all initial values.
        options: see `BackboneOptions`.
    """

    crops = False

    def __init__(
        self,
        backbone: str,
        *,
        grad_from_block: int,
        train_stem: bool,
        linear_probe: bool,
        hidden_dim: int,
        bottleneck_dim: int,
        head_dim: int,
        seed: int,
        **options: Unpack[BackboneOptions],
    ) -> None:
        super().__init__(backbone, seed=seed, **options)
        self._of_rows = options.get("rows") is not None
        if not self._of_rows:
            freeze_backbone(self.backbone.net, grad_from_block, train_stem, linear_probe)
        with seeded_init(seed + 1):
            # DINO's head: a narrow place, then cosines to many directions
            self.projector = Projector(self.backbone.info.feature_dim, hidden_dim, bottleneck_dim)
            self.directions = CosineClassifier(bottleneck_dim, head_dim)
        self._grad_from_block = self.backbone.info.depth if linear_probe else grad_from_block
        self._train_stem = train_stem

    def forward_pair(self, first: Tensor, second: Tensor) -> Tensor:
        """Two views (b, c, h, w) of the same images to projections (2b, head_dim), rows 0..b-1 of ``first``."""
        if self._of_rows:
            features = self.backbone(torch.cat([first, second]))
        else:
            features = paired_forward(
                self.backbone.net, first, second, grad_from_block=self._grad_from_block, train_stem=self._train_stem
            )
        projections: Tensor = self.directions(self.projector(features))
        return projections
