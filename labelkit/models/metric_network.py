"""The network of metric learning: a convolutional backbone, perhaps attention, a pool, and a unit embedding."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from labelkit.algorithms.precision import promote, without_autocast
from labelkit.errors import ConfigError
from labelkit.models.backbones import build_backbone
from labelkit.models.cbam import CBAM
from labelkit.models.inference import InferenceNetwork, InputSpec, per_channel
from labelkit.models.seeding import seeded_init

Pool = Literal["avg", "max", "avg+max"]


@dataclass(frozen=True, slots=True)
class MetricOutput:
    """What a batch came to.

    Attributes:
        maps: (b, f, h, w), the last feature maps, after attention if there is any.
        features: (b, f), pooled.
        embeddings: (b, d) float32, unit rows.
        attention: (b, h, w) in (0, 1), the spatial gate; ``None`` without attention.
    """

    maps: Tensor
    features: Tensor
    embeddings: Tensor
    attention: Tensor | None


class MetricNetwork(InferenceNetwork):
    """Images to unit embeddings; maps, features and attention on the way.

    Args:
        backbone: a convolutional one, any name of ``build_backbone``.
        embed_dim: width of the embedding, d.
        pool: how the positions of the last maps become one vector.
        attention: put CBAM on the last maps.
        attention_reduction: width of the maps over the hidden width of its channel gate.
        freeze_bn: normalization of the backbone uses its running statistics and keeps them; its scale and shift are
            trained. Attention's is never frozen.
        in_channels, image_size, pretrained, weights: as for ``build_backbone``.
        mean, std: of images in [0, 1], one value per channel or one for all; ``None`` = the backbone's.
        seed: of all initial values.

    Raises:
        ConfigError: a backbone without feature maps.
    """

    def __init__(
        self,
        backbone: str,
        *,
        embed_dim: int,
        pool: Pool = "avg",
        attention: bool = False,
        attention_reduction: int = 16,
        freeze_bn: bool = False,
        in_channels: int = 3,
        image_size: int | None = None,
        pretrained: bool = False,
        weights: Path | None = None,
        mean: tuple[float, ...] | None = None,
        std: tuple[float, ...] | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.backbone = build_backbone(
            backbone, pretrained=pretrained, weights=weights, image_size=image_size, in_channels=in_channels, seed=seed
        )
        info = self.backbone.info
        self._mean = per_channel("mean", mean, info.mean)
        self._std = per_channel("std", std, info.std)
        self.pool: Pool = pool
        self.freeze_bn = freeze_bn
        #: (f, h, w) of the last maps
        self.map_shape = self._look_at_maps()
        width = self.map_shape[0]
        with seeded_init(seed + 1):
            self.projection = nn.Linear(width, embed_dim)
            nn.init.kaiming_normal_(self.projection.weight, mode="fan_out")
            nn.init.zeros_(self.projection.bias)
        self.attention: CBAM | None = None
        if attention:
            with seeded_init(seed + 2):
                self.attention = CBAM(width, attention_reduction)

    @torch.no_grad()
    def _look_at_maps(self) -> tuple[int, int, int]:
        """Shape of the maps of one image, tried out."""
        info, was_training = self.backbone.info, self.backbone.training
        self.backbone.eval()
        maps = self._maps(torch.zeros(1, info.in_channels, info.image_size, info.image_size))
        self.backbone.train(was_training)
        if maps.ndim != 4:
            raise ConfigError(
                "--backbone",
                f"{info.name} has no feature maps (its features have shape {tuple(maps.shape[1:])} for each image)",
                "Choose a convolutional network, e.g. resnet18, googlenet or smallcnn.",
            )
        return maps.shape[1], maps.shape[2], maps.shape[3]

    def train(self, mode: bool = True) -> MetricNetwork:
        """Set the mode; frozen normalization stays in evaluation mode."""
        super().train(mode)
        if self.freeze_bn:
            for layer in self.backbone.modules():
                if isinstance(layer, _BatchNorm):
                    layer.eval()
        return self

    @property
    def input_spec(self) -> InputSpec:
        """As the backbone was made for, but for mean and std that were given."""
        info = self.backbone.info
        return InputSpec(info.image_size, info.in_channels, self._mean, self._std, 1 / info.crop_pct)

    @property
    def embed_dim(self) -> int:
        """Width of the embedding."""
        return self.projection.out_features

    @property
    def identity(self) -> dict[str, str]:
        """The unit embedding."""
        return {"name": self.backbone.info.name, "layer": "projection", "pooling": self.pool}

    def new_modules(self) -> list[nn.Module]:
        """What is not part of the backbone, and so starts from random values even with pretrained weights."""
        return [module for module in (self.projection, self.attention) if module is not None]

    def _maps(self, images: Tensor) -> Tensor:
        # not typed by timm
        maps: Tensor = self.backbone.net.forward_features(images)  # type: ignore[operator] # a method of all of them
        return maps

    def pooled(self, maps: Tensor) -> Tensor:
        """Maps (b, f, h, w) to features (b, f)."""
        average, largest = maps.mean(dim=(2, 3)), maps.amax(dim=(2, 3))
        return {"avg": average, "max": largest, "avg+max": average + largest}[self.pool]

    def forward(self, images: Tensor) -> MetricOutput:
        """Images (b, c, h, w) to all that there is."""
        maps, gate = self._maps(images), None
        if self.attention is not None:
            maps, gate = self.attention(maps)
        features = self.pooled(maps)
        projected = self.projection(features)
        with without_autocast(projected):
            return MetricOutput(maps, features, F.normalize(promote(projected), dim=1), gate)

    def embed(self, images: Tensor) -> Tensor:
        """Unit embeddings (b, d)."""
        return self.forward(images).embeddings

    def features(self, images: Tensor) -> Tensor:
        """Pooled features (b, f) of unit length, which first clusterings start from."""
        return F.normalize(promote(self.forward(images).features), dim=1)
