"""A backbone, perhaps a linear layer and a normalization, and a classifier on the embedding."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic, TypeVar, Unpack

from torch import Tensor, nn

from labelkit.models.heads import LinearHeads
from labelkit.models.inference import BackboneNetwork, BackboneOptions
from labelkit.models.seeding import seeded_init

HeadT = TypeVar("HeadT", bound=nn.Module)


class ClassifierNetwork(BackboneNetwork, Generic[HeadT]):
    """A backbone with an embedding layer and a classification head.

    Args:
        backbone: any name of ``build_backbone``.
        head: width of the embedding to a module from embeddings to scores.
        num_classes: columns of the scores, c.
        embed_dim: width of the embedding; ``None``: the backbone's features, without a linear layer.
        embedding_bn: normalize the embedding over the batch.
        seed: of all initial values.
        options: see `BackboneOptions`.
    """

    def __init__(
        self,
        backbone: str,
        head: Callable[[int], HeadT],
        num_classes: int,
        *,
        embed_dim: int | None,
        embedding_bn: bool,
        seed: int,
        **options: Unpack[BackboneOptions],
    ) -> None:
        super().__init__(backbone, seed=seed, **options)
        width = self.backbone.info.feature_dim
        self.layer = "backbone" if embed_dim is None else "projection"
        self.embed_dim = width if embed_dim is None else embed_dim
        self.num_outputs = num_classes
        with seeded_init(seed + 1):
            self.projection = nn.Identity() if embed_dim is None else nn.Linear(width, embed_dim)
            self.normalization = nn.BatchNorm1d(self.embed_dim) if embedding_bn else nn.Identity()
            self.head = head(self.embed_dim)

    def embed(self, images: Tensor) -> Tensor:
        """Return the embeddings (b, d) of images (b, c, h, w)."""
        embeddings: Tensor = self.normalization(self.projection(self.backbone(images)))
        return embeddings

    def class_vectors(self) -> Mapping[str, Tensor]:
        """Return the weight rows of the head that predicts, or nothing if it learns none."""
        head: nn.Module = self.head.heads[0] if isinstance(self.head, LinearHeads) else self.head
        weight = getattr(head, "weight", None)
        return {"head": weight} if isinstance(weight, nn.Parameter) else {}

    def classify(self, embeddings: Tensor) -> Tensor:
        """Return the class scores (b, c) of embeddings (b, d)."""
        scores: Tensor = self.head(embeddings)
        return scores
