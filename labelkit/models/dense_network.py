"""A vision transformer, an object-aware filter and a projector: features of an image and of each of its patches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Unpack

from torch import Tensor

from labelkit.algorithms.regions import unit
from labelkit.models.heads import CosineClassifier, Projector
from labelkit.models.inference import BackboneOptions
from labelkit.models.object_filter import Fuse, ObjectAwareFilter
from labelkit.models.seeding import seeded_init
from labelkit.models.token_network import TokenNetwork, Tokens
from labelkit.models.vit import UnsupportedBackboneError, head_count


@dataclass(frozen=True, slots=True)
class FilterOptions:
    """Shape of the object-aware filter; see `labelkit.models.object_filter`."""

    num_prototypes: int = 64
    kernel: int = 3
    fuse: Fuse = "concat"
    gradients_to_prototypes: bool = False


class DenseNetwork(TokenNetwork):
    """One branch of CoTAP.

    Args:
        backbone: name of a plain vision transformer with a class token.
        drop_path: rate of stochastic depth in training.
        object_filter: shape of the filter; ``None`` = no filter.
        projector_dims: width of the hidden layers and of the output of the projector.
        num_prototypes: rows that assignments are made to; ``None``: to the projections themselves.
        image_features: what ``embed`` gives: class tokens of the backbone, or filtered ones.
        seed: of all initial values.
        options: see `BackboneOptions`; the size is that of global views.

    Raises:
        ConfigError: the backbone is no such transformer.
        CheckpointError: its weights cannot be had.
    """

    def __init__(
        self,
        backbone: str,
        *,
        drop_path: float = 0.0,
        object_filter: FilterOptions | None = None,
        projector_dims: tuple[int, int] = (2048, 256),
        num_prototypes: int | None = None,
        image_features: Literal["backbone", "filtered"] = "backbone",
        seed: int,
        **options: Unpack[BackboneOptions],
    ) -> None:
        super().__init__(backbone, drop_path=drop_path, seed=seed, **options)
        self.layer = image_features
        width = self.backbone.info.feature_dim
        self.filter: ObjectAwareFilter | None = None
        with seeded_init(seed + 1):
            if object_filter is not None:
                heads = head_count(self.backbone.net)
                self.filter = ObjectAwareFilter(
                    width,
                    object_filter.num_prototypes,
                    object_filter.kernel,
                    heads,
                    object_filter.fuse,
                    gradients_to_prototypes=object_filter.gradients_to_prototypes,
                )
                width = self.filter.out_dim
            self.projector = Projector(width, *projector_dims)
            self.directions = CosineClassifier(projector_dims[1], num_prototypes) if num_prototypes else None

    def class_vectors(self) -> Mapping[str, Tensor]:
        """Directions that patches are assigned to, and prototypes of the filter."""
        found = {} if self.directions is None else {"directions": self.directions.prototypes}
        return found if self.filter is None else {**found, "filter": self.filter.flat_prototypes()}

    @property
    def embed_dim(self) -> int:
        """Width of the features of an image."""
        if self.layer == "filtered" and self.filter is not None:
            return self.filter.out_dim
        return super().embed_dim

    def filtered(self, tokens: Tokens) -> Tokens:
        """The same after the filter, or as they are without one."""
        if self.filter is None:
            return tokens
        patches, image = self.filter(tokens.patches, tokens.image)
        return Tokens(image, patches)

    def project(self, features: Tensor) -> Tensor:
        """Filtered features (..., d) to unit vectors, float32."""
        return unit(self.projector(features))

    def assignment_logits(self, projections: Tensor) -> Tensor:
        """Unit vectors (n, d) to what assignments are made of: themselves, or cosines to prototypes."""
        if self.directions is None:
            return projections
        logits: Tensor = self.directions(projections)
        return logits

    def embed(self, images: Tensor) -> Tensor:
        """Features of images (b, c, h, w), (b, d)."""
        tokens = self.tokens(images)
        return (self.filtered(tokens) if self.layer == "filtered" else tokens).image

    def patch_features(self, images: Tensor) -> Tensor:
        """Features of the patches of images (b, c, h, w), after the filter if there is one: (b, rows, columns, d).

        Raises:
            ConfigError: images of a size that is no whole number of patches.
        """
        patches = super().patch_features(images)
        return patches if self.filter is None else self.filter.filter_patches(patches)

    @property
    def patch_identity(self) -> dict[str, str]:
        """The backbone's last patch tokens, before or behind the filter."""
        layer = "backbone" if self.filter is None else "filtered"
        return {"name": self.backbone.info.name, "layer": layer}

    def embed_with_patches(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """What ``embed`` and ``patch_features`` give, in one pass."""
        tokens = self.tokens(images)
        filtered = self.filtered(tokens)
        return (filtered if self.layer == "filtered" else tokens).image, filtered.patches

    def prototype_attention(self, images: Tensor) -> Tensor:
        """Where each prototype of the filter is found in images (b, c, h, w): (b, heads, rows, cols, m).

        Raises:
            UnsupportedBackboneError: there is no filter.
        """
        if self.filter is None:
            problem = "was trained without an object-aware filter, so that there are no prototypes"
            raise UnsupportedBackboneError(
                self.backbone.info.name, problem, "Give a run of stage 2 with the filter on."
            )
        patches = self.tokens(images).patches
        return self.filter.head_attention(patches).permute(0, 3, 1, 2, 4)
