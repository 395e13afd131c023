"""Backbone and projection head of contrastive category discovery (GCD)."""

from __future__ import annotations

from typing import Unpack

from torch import Tensor

from labelkit.models.heads import CosineClassifier, Projector
from labelkit.models.inference import BackboneOptions
from labelkit.models.paired_network import PairedNetwork
from labelkit.models.seeding import seeded_init


class ContrastiveNetwork(PairedNetwork):
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
        super().__init__(
            backbone,
            grad_from_block=grad_from_block,
            train_stem=train_stem,
            linear_probe=linear_probe,
            seed=seed,
            **options,
        )
        with seeded_init(seed + 1):
            # DINO's head: a narrow place, then cosines to many directions
            self.projector = Projector(self.backbone.info.feature_dim, hidden_dim, bottleneck_dim)
            self.directions = CosineClassifier(bottleneck_dim, head_dim)

    def forward_pair(self, first: Tensor, second: Tensor) -> Tensor:
        """Two views (b, c, h, w) of the same images to projections (2b, head_dim), rows 0..b-1 of ``first``.

        After ``reuse_frozen`` what is kept of views takes their place.
        """
        features = self.features_of_pair(first, second)
        projections: Tensor = self.directions(self.projector(features))
        return projections
