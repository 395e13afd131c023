"""What embedding needs of a network, whatever trained it; bare backbones and raw pixels in this form."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from labelkit.models.backbones import Backbone, build_backbone
from labelkit.models.patch_maps import no_feature_map


@dataclass(frozen=True, slots=True)
class InputSpec:
    """What images must look like.

    Attributes:
        size: height and width in pixels.
        channels: 1 or 3.
        mean, std: per channel, of values in [0, 1].
        resize_ratio: the shorter side is resized to ``size * resize_ratio`` before the center crop.
    """

    size: int
    channels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    resize_ratio: float = 1.0


class InferenceNetwork(nn.Module, ABC):
    """A network that turns images into embeddings, and perhaps into logits."""

    @property
    @abstractmethod
    def input_spec(self) -> InputSpec:
        """What images must look like."""

    @property
    @abstractmethod
    def embed_dim(self) -> int:
        """Width of an embedding, d."""

    @property
    @abstractmethod
    def identity(self) -> dict[str, str]:
        """``name``, ``layer`` and ``pooling`` of the embeddings."""

    @abstractmethod
    def embed(self, images: Tensor) -> Tensor:
        """Images (b, c, h, w) to embeddings (b, d), not normalized."""

    def patch_features(self, images: Tensor) -> Tensor:
        """Images (b, c, h, w) to the features of each place (b, rows, cols, w), not normalized: the backbone's.

        Args:
            images: prepared as for ``embed``; of another size where the network can take it.

        Raises:
            UnsupportedBackboneError: the network has no feature map.
            ConfigError: images of a size that it cannot take.
        """
        backbone = getattr(self, "backbone", None)
        if not isinstance(backbone, Backbone):
            raise no_feature_map(self.identity["name"], f"{self.identity['layer']} is one vector for an image")
        return backbone.patch_features(images)

    def embed_with_patches(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """What ``embed`` and ``patch_features`` give, in one pass where the patches are the backbone's."""
        backbone = getattr(self, "backbone", None)
        is_own = type(self).patch_features is not InferenceNetwork.patch_features
        if is_own or not isinstance(backbone, Backbone):
            return self.embed(images), self.patch_features(images)
        return backbone.with_patches(images, self.embed)

    @property
    def patch_identity(self) -> dict[str, str]:
        """``name`` and ``layer`` of the patch features."""
        return {"name": self.identity["name"], "layer": "backbone"}

    def classify(self, embeddings: Tensor) -> Tensor:
        """Embeddings (b, d) to logits (b, ``num_outputs``)."""
        return embeddings.new_zeros((len(embeddings), 0))

    @property
    def num_outputs(self) -> int:
        """Columns of ``classify``; 0 without a classifier."""
        return 0

    def class_vectors(self) -> Mapping[str, Tensor]:
        """Learned vectors (k, ...) of classes, clusters or objects, by name, which are useless when alike."""
        return {}


class BackboneNetwork(InferenceNetwork):
    """A backbone alone.

    Args:
        name: as for ``build_backbone``.
        pretrained, weights, image_size, in_channels, seed: likewise.
    """

    def __init__(
        self,
        name: str,
        *,
        pretrained: bool = False,
        weights: Path | None = None,
        image_size: int | None = None,
        in_channels: int = 3,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.backbone = build_backbone(
            name, pretrained=pretrained, weights=weights, image_size=image_size, in_channels=in_channels, seed=seed
        )

    @property
    def input_spec(self) -> InputSpec:
        """As the backbone was trained."""
        info = self.backbone.info
        return InputSpec(info.image_size, info.in_channels, info.mean, info.std, 1 / info.crop_pct)

    @property
    def embed_dim(self) -> int:
        """Width of the features."""
        return self.backbone.info.feature_dim

    @property
    def identity(self) -> dict[str, str]:
        """The backbone's pooled features."""
        return {"name": self.backbone.info.name, "layer": "backbone", "pooling": self.backbone.info.pooling}

    def embed(self, images: Tensor) -> Tensor:
        """Pooled features."""
        features: Tensor = self.backbone(images)
        return features


class PixelNetwork(InferenceNetwork):
    """The resized image itself, row by row: the baseline under every learned embedding.

    Args:
        size: height and width in pixels.
        channels: 1 or 3.
    """

    def __init__(self, size: int, channels: int) -> None:
        super().__init__()
        self._spec = InputSpec(size, channels, (0.0,) * channels, (1.0,) * channels)
        # a parameter-free module has no device of its own
        self.register_buffer("scale", torch.ones(()), persistent=True)

    @property
    def input_spec(self) -> InputSpec:
        """Values in [0, 1]."""
        return self._spec

    @property
    def embed_dim(self) -> int:
        """Number of values in an image."""
        return self._spec.channels * self._spec.size**2

    @property
    def identity(self) -> dict[str, str]:
        """Nothing but pixels."""
        return {"name": "pixels", "layer": "input", "pooling": "none"}

    def embed(self, images: Tensor) -> Tensor:
        """Flatten."""
        return images.flatten(1)


def per_channel(name: str, values: tuple[float, ...] | None, default: tuple[float, ...]) -> tuple[float, ...]:
    """Return one value for each channel, from one for each, one for all, or the default.

    Raises:
        ValueError: another number of values.
    """
    if values is None:
        return default
    if len(values) not in (1, len(default)):
        raise ValueError(f"{name} has {len(values)} values for {len(default)} channels")
    return values * (len(default) // len(values))
