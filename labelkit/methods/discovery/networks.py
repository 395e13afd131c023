"""Networks for category discovery: a backbone for pairs of views, with its last blocks trained, and a classifier."""

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor

from labelkit.data.batch import DataInfo
from labelkit.methods.backbone import backbone_options
from labelkit.methods.discovery.options import ContrastiveTrainConfig
from labelkit.models.frozen_part import FrozenPart, find_frozen_part, pool_cached_tokens
from labelkit.models.heads import CosineClassifier, Projector
from labelkit.models.inference import BackboneNetwork
from labelkit.models.paired_attention import freeze_backbone, paired_forward
from labelkit.models.seeding import seeded_init


class PairedNetwork(BackboneNetwork):
    """A ViT, or a small network on stored embeddings, that processes two views of an image together."""

    crops = False

    def __init__(self, config: ContrastiveTrainConfig, data: DataInfo) -> None:
        options = backbone_options(config, data)
        super().__init__(config.backbone, seed=config.seed, **options)
        self._of_rows = options["rows"] is not None
        if not self._of_rows:
            freeze_backbone(self.backbone.net, config.grad_from_block, config.train_stem, config.linear_probe)
        self._grad_from_block = self.backbone.info.depth if config.linear_probe else config.grad_from_block
        self._train_stem = config.train_stem
        self._kept: FrozenPart | None = None

    def reuse_frozen(self, moved_blocks: Collection[int] = ()) -> FrozenPart:
        """Make ``compute_pair_features`` and ``embed`` accept cached tokens as images; return the frozen part.

        In ``moved_blocks``, the first view's keys follow the second view's queries.

        Raises:
            ConfigError: nothing is frozen, or the frozen part's output varies between passes.
        """
        self._kept = find_frozen_part(self.backbone.net, self._grad_from_block, moved_blocks, self._train_stem)
        return self._kept

    def compute_pair_features(self, first: Tensor, second: Tensor, **options: Any) -> Tensor:
        """Map ``first`` and ``second`` views (b, c, h, w) to features (2b, d), with all first views first.

        After ``reuse_frozen``, views are cached outputs instead. ``options`` are passed to `paired_forward`.
        """
        if self._of_rows:
            return self.backbone(torch.cat([first, second]))
        return paired_forward(
            self.backbone.net,
            first,
            second,
            grad_from_block=self._grad_from_block,
            train_stem=self._train_stem,
            frozen_part=self._kept,
            **options,
        )

    def embed(self, images: Tensor) -> Tensor:
        """Return the features (b, d) of images (b, c, h, w), or of their cached tokens after ``reuse_frozen``."""
        if self._kept is not None and images.ndim < 4:
            return pool_cached_tokens(self.backbone.net, images, self._kept)
        return super().embed(images)


class DiscoveryNetwork(PairedNetwork):
    """A ViT with a contrastive projector and a cosine classifier over old and new classes, old ones first."""

    def __init__(self, config: ContrastiveTrainConfig, data: DataInfo, num_classes: int) -> None:
        super().__init__(config, data)
        dim = self.backbone.info.feature_dim
        with seeded_init(config.seed + 1):
            self.projector = Projector(dim, config.projector_hidden_dim, config.projection_dim)
            self.classifier = CosineClassifier(dim, num_classes)
        self.num_outputs = num_classes

    def classify(self, embeddings: Tensor) -> Tensor:
        """Return the cosines (b, c), in [-1, 1], between embeddings and class prototypes."""
        return self.classifier(embeddings)

    def forward_pair(self, first: Tensor, second: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
        """Map two views (b, c, h, w) to projections (2b, p) and logits (2b, c), with all first views first.

        After ``reuse_frozen``, views are cached outputs instead. ``options`` are passed to `paired_forward`.
        """
        features = self.compute_pair_features(first, second, **options)
        return self.projector(features), self.classifier(features)
