"""Interface of all networks that embed images, and its implementations for backbones and raw pixels."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict, Unpack

import torch
from torch import Tensor, nn

from labelkit.models.backbones.registry import build_backbone
from labelkit.models.patch_maps import make_no_feature_map_error
from labelkit.models.row_layers import EmbeddingMLPConfig, build_embedding_backbone
from labelkit.models.weights.published import recorded_network_name


@dataclass(frozen=True, slots=True)
class InputSpec:
    """Input format of a network: image size, channels, normalization and resize ratio.

    Attributes:
        size: height and width in pixels.
        channels: 1 or 3.
        mean, std: normalization per channel, for values in [0, 1].
        resize_ratio: the shorter side is resized to ``size * resize_ratio`` before the center crop.
    """

    size: int
    channels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    resize_ratio: float = 1.0


class InferenceNetwork(nn.Module, ABC):
    """Base class for networks that turn images into embeddings and, with a classifier, logits.

    Attributes:
        input_spec: image size, channels and normalization that the network expects.
        embed_dim: width of an embedding, d.
        num_outputs: number of columns of ``classify``, 0 without a classifier.
    """

    input_spec: InputSpec
    embed_dim: int
    num_outputs: int = 0

    @property
    @abstractmethod
    def identity(self) -> dict[str, str]:
        """Return the ``name``, ``layer`` and ``pooling`` that a store records for the embeddings."""

    @abstractmethod
    def embed(self, images: Tensor) -> Tensor:
        """Return the unnormalized embeddings (b, d) of images (b, c, h, w)."""

    def patch_features(self, images: Tensor) -> Tensor:
        """Compute unnormalized features (b, rows, cols, w) at each position of images (b, c, h, w).

        Images are prepared as for ``embed``, or of another size that the network accepts.

        Raises:
            UnsupportedBackboneError: the network has no feature map.
            ConfigError: the network does not accept images of this size.
        """
        del images
        raise make_no_feature_map_error(self.identity["name"], f"{self.identity['layer']} is one vector per image")

    def embed_with_patches(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the results of ``embed`` and ``patch_features``, in one pass if the network supports it."""
        return self.embed(images), self.patch_features(images)

    @property
    def patch_identity(self) -> dict[str, str]:
        """Return the ``name`` and ``layer`` that a store records for the patch features."""
        return {"name": self.identity["name"], "layer": "backbone"}

    def classify(self, embeddings: Tensor) -> Tensor:
        """Return the logits (b, ``num_outputs``) of embeddings (b, d)."""
        return embeddings.new_zeros((len(embeddings), 0))


class BackboneOptions(TypedDict, total=False):
    """Keyword arguments that configure the backbone of a network.

    Attributes:
        in_channels: 1 or 3; by default 3.
        image_size: side of the input in pixels; ``None``, the default: the backbone's.
        pretrained: whether to use the hub's weights; by default no.
        weights: file with the weights to use.
        mean, std: of images in [0, 1], one value per channel or one for all; ``None``, the default: the backbone's.
        rows: shape of a small network that replaces the backbone if the inputs are stored embeddings.
        freeze_stages: number of initial stages to freeze; by default none.
    """

    in_channels: int
    image_size: int | None
    pretrained: bool
    weights: Path | None
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None
    rows: EmbeddingMLPConfig | None
    freeze_stages: int


class BackboneNetwork(InferenceNetwork):
    """Network that embeds images as pooled backbone features; base class of the networks that methods train.

    Args:
        name: name of the backbone, as for ``build_backbone``.
        seed: seed for all initial weights.
        constructor: options for the backbone's own constructor.
        options: other options of the backbone; see `BackboneOptions`.

    Raises:
        ConfigError, CheckpointError: as ``build_backbone``.
        ValueError: the number of values of mean or std is neither 1 nor the number of channels.
    """

    #: name of the layer that outputs the embedding
    layer = "backbone"
    #: whether images are resized to more than the input size and cropped, as in the backbone's training
    crops = True

    def __init__(
        self,
        name: str,
        *,
        seed: int = 0,
        constructor: Mapping[str, Any] | None = None,
        **options: Unpack[BackboneOptions],
    ) -> None:
        super().__init__()
        mean, std = options.pop("mean", None), options.pop("std", None)
        rows, frozen = options.pop("rows", None), options.pop("freeze_stages", 0)
        if rows is None:
            self.backbone = build_backbone(name, seed=seed, **options, **(constructor or {}))
            if frozen:
                self.backbone.freeze_stages(frozen)
        else:
            self.backbone = build_embedding_backbone(rows, seed)
        info = self.backbone.info
        self.input_spec = InputSpec(
            info.image_size,
            info.in_channels,
            values_per_channel("mean", mean, info.mean),
            values_per_channel("std", std, info.std),
            1 / info.crop_pct if self.crops else 1.0,
        )
        self.embed_dim = info.feature_dim

    @property
    def identity(self) -> dict[str, str]:
        """Return the backbone's name (marked if its weights are not the published ones), pooling and layer."""
        backbone = self.backbone
        name = recorded_network_name(backbone.info.name, backbone.weights_sha256, backbone.source)
        return {"name": name, "layer": self.layer, "pooling": backbone.info.pooling}

    def embed(self, images: Tensor) -> Tensor:
        """Return the pooled features (b, d) of images (b, c, h, w)."""
        return self.backbone(images)

    def patch_features(self, images: Tensor) -> Tensor:
        """Return the features (b, rows, cols, w) at each position; see `Backbone.patch_features`."""
        return self.backbone.patch_features(images)

    def embed_with_patches(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the results of ``embed`` and ``patch_features`` in one pass of the backbone."""
        return self.backbone.run_with_patches(images, self.embed)


class PixelNetwork(InferenceNetwork):
    """Baseline whose embedding is the flattened pixels of the resized image.

    Args:
        size: height and width in pixels.
        channels: 1 or 3.
    """

    def __init__(self, size: int, channels: int) -> None:
        super().__init__()
        self.input_spec = InputSpec(size, channels, (0.0,) * channels, (1.0,) * channels)
        self.embed_dim = channels * size**2
        # gives the module a device, since it has no parameters
        self.register_buffer("scale", torch.ones(()), persistent=True)

    @property
    def identity(self) -> dict[str, str]:
        """Return the identity of embeddings that are raw pixels."""
        return {"name": "pixels", "layer": "input", "pooling": "none"}

    def embed(self, images: Tensor) -> Tensor:
        """Flatten images (b, c, h, w) to (b, c h w)."""
        return images.flatten(1)


def values_per_channel(name: str, values: tuple[float, ...] | None, default: tuple[float, ...]) -> tuple[float, ...]:
    """Return ``values`` with one value per channel; a single value is repeated, ``None`` is the default."""
    if values is None:
        return default
    if len(values) not in (1, len(default)):
        raise ValueError(f"{name} must have one value per channel ({len(default)}), got {len(values)}")
    return values * (len(default) // len(values))
