"""Small residual network on stored embeddings, used in place of an image backbone.

The output of its layers is added to each embedding. It is zero at first, so that training starts from the unchanged
embeddings, and weight decay pulls back toward them.
"""

import itertools
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labelkit.models.backbones.registry import Backbone, BackboneInfo
from labelkit.models.seeding import seeded_init


@dataclass(frozen=True)
class EmbeddingMLPConfig:
    """Configuration of an ``EmbeddingMLP``: input width, layers and center."""

    dim: int  # embedding dimension, d
    layers: int  # number of linear layers, 1 to 3
    width: int | None = None  # width between the layers; ``None``: d
    # (d,) float32 mean of the embeddings, scaled to length 1; ``None``: zeros, for a checkpoint to fill
    center: Tensor | None = None


class EmbeddingMLP(nn.Module):
    """Residual MLP on embeddings that are normalized to unit length and centered.

    Args:
        shape: see `EmbeddingMLPConfig`.

    Shape:
        - rows: ``(b, d)`` float of any length; a zero vector is only centered.
        - returns: ``(b, d)`` float; before training, the centered embedding times the square root of d.
    """

    center: Tensor

    def __init__(self, shape: EmbeddingMLPConfig) -> None:
        super().__init__()
        width = shape.dim if shape.width is None else shape.width
        self.register_buffer("center", torch.zeros(shape.dim) if shape.center is None else shape.center.clone())
        widths = [shape.dim, *[width] * (shape.layers - 1), shape.dim]
        self.layers = nn.ModuleList(nn.Linear(before, after) for before, after in itertools.pairwise(widths))
        last = self.layers[-1]
        assert isinstance(last, nn.Linear)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)

    def forward_features(self, rows: Tensor) -> Tensor:
        """Map embeddings (b, d) to features (b, d)."""
        # scaled to values of about 1, as layers expect
        centered = (F.normalize(rows, dim=1) - self.center) * rows.shape[1] ** 0.5
        hidden = centered
        for number, layer in enumerate(self.layers):
            hidden = layer(F.gelu(hidden) if number else hidden)
        return centered + hidden

    def forward_head(self, features: Tensor, *, pre_logits: bool) -> Tensor:
        """Return the features unchanged, since there is nothing to pool."""
        del pre_logits
        return features

    def forward(self, rows: Tensor) -> Tensor:
        """Map embeddings (b, d) to features (b, d)."""
        return self.forward_features(rows)


def build_embedding_backbone(shape: EmbeddingMLPConfig, seed: int) -> Backbone:
    """Build a small network on stored embeddings, which are treated as one-pixel images with d channels."""
    with seeded_init(seed):
        layers = EmbeddingMLP(shape)
    name = f"head-{shape.layers}x{shape.width or shape.dim}"
    info = BackboneInfo(
        name=name,
        feature_dim=shape.dim,
        image_size=1,
        in_channels=shape.dim,
        mean=(0.0,) * shape.dim,
        std=(1.0,) * shape.dim,
        pooling="none",
    )
    return Backbone(layers, info)
