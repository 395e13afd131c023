"""A backbone, perhaps a linear layer and a normalization, and a classifier on the embedding."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Generic, TypeVar

from torch import Tensor, nn

from labelkit.models.backbones import build_backbone
from labelkit.models.heads import CosineClassifier, LinearHeads
from labelkit.models.inference import InferenceNetwork, InputSpec, per_channel
from labelkit.models.seeding import seeded_init

HeadT = TypeVar("HeadT", bound=nn.Module)


class ClassifierNetwork(InferenceNetwork, Generic[HeadT]):
    """Embeddings, and the scores of the classes from them.

    Args:
        backbone: any name of ``build_backbone``.
        head: width of the embedding to a module from embeddings to scores.
        num_classes: columns of the scores, c.
        embed_dim: width of the embedding; ``None``: the backbone's features, without a linear layer.
        embedding_bn: normalize the embedding over the batch.
        in_channels: 1 or 3.
        image_size: side of the input in pixels; ``None`` = the backbone's.
        pretrained: take the hub's weights.
        weights: take those of this file.
        mean, std: of images in [0, 1], one value per channel or one for all; ``None`` = the backbone's.
        seed: of all initial values.
    """

    def __init__(
        self,
        backbone: str,
        head: Callable[[int], HeadT],
        num_classes: int,
        *,
        embed_dim: int | None,
        embedding_bn: bool,
        in_channels: int,
        image_size: int | None,
        pretrained: bool,
        weights: Path | None,
        mean: tuple[float, ...] | None,
        std: tuple[float, ...] | None,
        seed: int,
    ) -> None:
        super().__init__()
        self.backbone = build_backbone(
            backbone, pretrained=pretrained, weights=weights, image_size=image_size, in_channels=in_channels, seed=seed
        )
        info = self.backbone.info
        self._mean = per_channel("mean", mean, info.mean)
        self._std = per_channel("std", std, info.std)
        self._dim = info.feature_dim if embed_dim is None else embed_dim
        self._num_classes = num_classes
        with seeded_init(seed + 1):
            self.projection = nn.Identity() if embed_dim is None else nn.Linear(info.feature_dim, embed_dim)
            self.normalization = nn.BatchNorm1d(self._dim) if embedding_bn else nn.Identity()
            self.head = head(self._dim)

    @property
    def input_spec(self) -> InputSpec:
        """As the backbone was made for, but for mean and std that were given."""
        info = self.backbone.info
        return InputSpec(info.image_size, info.in_channels, self._mean, self._std, 1 / info.crop_pct)

    @property
    def embed_dim(self) -> int:
        """Width of the embedding."""
        return self._dim

    @property
    def identity(self) -> dict[str, str]:
        """The embedding that the classifier sees."""
        layer = "projection" if isinstance(self.projection, nn.Linear) else "backbone"
        return {"name": self.backbone.info.name, "layer": layer, "pooling": self.backbone.info.pooling}

    @property
    def num_outputs(self) -> int:
        """Classes."""
        return self._num_classes

    def embed(self, images: Tensor) -> Tensor:
        """Embeddings (b, d)."""
        embeddings: Tensor = self.normalization(self.projection(self.backbone(images)))
        return embeddings

    def class_vectors(self) -> Mapping[str, Tensor]:
        """Rows of the head that predicts, if it learns any."""
        head: nn.Module = self.head.heads[0] if isinstance(self.head, LinearHeads) else self.head
        weight = getattr(head, "weight", None)
        return {"head": weight} if isinstance(weight, nn.Parameter) else {}

    def classify(self, embeddings: Tensor) -> Tensor:
        """Scores (b, c) of the classes."""
        scores: Tensor = self.head(embeddings)
        return scores


class ScaledCosineHead(nn.Module):
    """Learned class vectors; logits are ``scale`` times the cosines with them.

    Args:
        dim: width of the embeddings.
        num_classes: c.
        scale: inverse temperature, > 0.
    """

    def __init__(self, dim: int, num_classes: int, scale: float) -> None:
        super().__init__()
        if not scale > 0:
            raise ValueError(f"scale must be positive, got {scale}")
        self.cosine = CosineClassifier(dim, num_classes)
        self.scale = scale

    @property
    def weight(self) -> Tensor:
        """(c, d) class vectors."""
        return self.cosine.prototypes

    def forward(self, embeddings: Tensor) -> Tensor:
        """Embeddings (b, d) to logits (b, c)."""
        logits: Tensor = self.scale * self.cosine(embeddings)
        return logits
