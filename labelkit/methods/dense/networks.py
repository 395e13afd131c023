"""Networks whose tokens are trained.

A vision transformer under a projector, looked at by its class token and its patches.

A vision transformer under the head of DINO or iBOT: outputs that class tokens and patches are assigned to.

A vision transformer, an object-aware filter and a projector: features of an image and of each of its patches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, Unpack

import torch
from torch import Tensor, nn

from labelkit.algorithms.regions import unit
from labelkit.errors import ConfigError
from labelkit.methods.dense.distilled_weights import DistilledBranch, LastLayer
from labelkit.methods.dense.object_filter import ObjectAwareFilter
from labelkit.models.backbones.vit import (
    UnsupportedBackboneError,
    check_vision_transformer,
    has_class_token,
    head_count,
    patch_size,
    token_maps,
)
from labelkit.models.heads import DirectionLayer, Projector
from labelkit.models.inference import BackboneNetwork, BackboneOptions
from labelkit.models.seeding import seeded_init
from labelkit.models.weights.files import load_weights_file, projector_weights

_LAYERS = ("hidden1", "hidden2", "output")


class Tokens(NamedTuple):
    """Features of a batch of images of one size.

    Attributes:
        image: (b, d) of the class tokens.
        patches: (b, h, w, d).
    """

    image: Tensor
    patches: Tensor


class TokenNetwork(BackboneNetwork):
    """A backbone that has a class token, for images of any whole number of patches.

    Args:
        backbone: name of a plain vision transformer with a class token.
        drop_path: rate of stochastic depth in training.
        seed: of all initial values.
        options: see `BackboneOptions`; the size is that of large views.

    Raises:
        ConfigError: the backbone is no such transformer.
        CheckpointError: its weights cannot be had.

    Attributes:
        projector: behind the tokens; made by the class that knows their width.
    """

    projector: Projector

    def __init__(self, backbone: str, *, drop_path: float = 0.0, seed: int, **options: Unpack[BackboneOptions]) -> None:
        constructor = {"drop_path_rate": drop_path, "dynamic_img_size": True}
        super().__init__(backbone, seed=seed, constructor=constructor, **options)
        check_vision_transformer(self.backbone.net)
        if not has_class_token(self.backbone.net):
            raise UnsupportedBackboneError(backbone, "has no class token", "Choose a ViT that has one.")

    @property
    def patch_size(self) -> int:
        """Side of a patch in pixels."""
        return patch_size(self.backbone.net)

    @property
    def identity(self) -> dict[str, str]:
        """The class token."""
        return {**super().identity, "pooling": "token"}

    def tokens(self, images: Tensor) -> Tokens:
        """Features after the last LayerNorm, of images (b, c, h, w)."""
        return Tokens(*token_maps(self.backbone.net, images))

    def embed(self, images: Tensor) -> Tensor:
        """Class tokens of images (b, c, h, w), (b, d)."""
        return self.tokens(images).image

    def embed_with_patches(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """What ``embed`` and ``patch_features`` give, in one pass."""
        tokens = self.tokens(images)
        return tokens.image, tokens.patches

    def take_projector(self, layers: Mapping[str, Tensor], where: str) -> None:
        """Start the projector from another one; its first layer may be narrower, what it lacks gets zeros.

        Args:
            layers: ``hidden1.weight``, ``hidden1.bias`` and so on, of a projector of this kind.
            where: what they are from, for messages.

        Raises:
            ConfigError: other widths.
        """
        own = self.projector.state_dict()
        given = {name: value.to(own[name]) for name, value in layers.items()}
        first = "hidden1.weight"
        missing = own[first].shape[1] - given[first].shape[1]
        if missing > 0:
            given[first] = torch.cat((given[first], given[first].new_zeros(len(given[first]), missing)), dim=1)
        for name, value in own.items():
            if given[name].shape != value.shape:
                raise ConfigError(
                    "--projector-dims",
                    f"the projector of {where} has {name} {list(given[name].shape)}, here {list(value.shape)}",
                    "Give its widths, or --projector-init scratch.",
                )
        self.projector.load_state_dict(given)

    def take_projector_file(self, path: Path) -> bool:
        """Start the projector from the head in a file of DINO, iBOT or Leopart; False if it holds none.

        Raises:
            CheckpointError: the file cannot be read.
            ConfigError: a head of other widths.
        """
        return self.take_projector_of(load_weights_file(path), str(path))

    def take_projector_of(self, state: Mapping[str, Tensor], where: str) -> bool:
        """Do the same with tensors by name.

        Raises:
            CheckpointError: several heads, or values that are not finite.
            ConfigError: a head of other widths.
        """
        layers = projector_weights(state, where)
        if layers is None:
            return False
        self.take_projector({f"{_LAYERS[place]}.{kind}": value for (place, kind), value in layers.items()}, where)
        return True


class DistillationNetwork(TokenNetwork):
    """One branch of DINO or iBOT.

    Args:
        backbone: name of a plain vision transformer with a class token.
        drop_path: rate of stochastic depth in training.
        projector_dims: width of the hidden layers and of the output of the projector, which tokens and patches share.
        num_outputs: k, rows of the last layer.
        learn_lengths: whether the lengths of these rows are trained.
        hides_patches: make a mask token.
        num_patch_outputs: rows of a last layer that patches have for themselves; ``None``: they share that one.
        seed: of all initial values.
        options: see `BackboneOptions`; the size is that of large views.

    Raises:
        ConfigError: the backbone is no such transformer.
        CheckpointError: its weights cannot be had.
    """

    def __init__(
        self,
        backbone: str,
        *,
        drop_path: float = 0.0,
        projector_dims: tuple[int, int] = (2048, 256),
        num_outputs: int,
        learn_lengths: bool,
        hides_patches: bool = False,
        num_patch_outputs: int | None = None,
        seed: int,
        **options: Unpack[BackboneOptions],
    ) -> None:
        super().__init__(backbone, drop_path=drop_path, seed=seed, **options)
        width = self.backbone.info.feature_dim
        with seeded_init(seed + 1):
            self.projector = Projector(width, *projector_dims)
            self.last_layer = DirectionLayer(projector_dims[1], num_outputs, learn_lengths=learn_lengths)
            self.patch_layer: DirectionLayer | None = None
            if num_patch_outputs is not None:
                self.patch_layer = DirectionLayer(projector_dims[1], num_patch_outputs, learn_lengths=learn_lengths)
        self.mask_token = nn.Parameter(torch.zeros(1, width)) if hides_patches else None

    def class_vectors(self) -> Mapping[str, Tensor]:
        """Directions that class tokens are assigned to, and those of patches if they have their own."""
        found = {"outputs": self.last_layer.directions}
        return found if self.patch_layer is None else {**found, "patch outputs": self.patch_layer.directions}

    def masked_tokens(self, images: Tensor, hidden: Tensor) -> Tokens:
        """Features of images (b, c, h, w) of which some patches (b, rows, columns) are hidden."""
        assert self.mask_token is not None
        return Tokens(*token_maps(self.backbone.net, images, hidden, self.mask_token[0]))

    def image_outputs(self, features: Tensor) -> Tensor:
        """Class tokens (b, d) to outputs (b, k), float32."""
        outputs: Tensor = self.last_layer(self.projector(features))
        return outputs

    def patch_outputs(self, features: Tensor) -> Tensor:
        """Patches (n, d) to outputs (n, k), float32."""
        layer = self.last_layer if self.patch_layer is None else self.patch_layer
        outputs: Tensor = layer(self.projector(features))
        return outputs

    def take_head(self, branch: DistilledBranch, where: str) -> list[str]:
        """Start projector, last layers and mask token from those of a full checkpoint.

        Args:
            branch: of the checkpoint.
            where: its file, for messages.

        Returns:
            what the checkpoint lacks, in words.

        Raises:
            ConfigError: other sizes.
            CheckpointError: several projectors.
        """
        missing = []
        if not self.take_projector_of(branch.state, where):
            missing.append("projection")
        for name, option, own, given in (
            ("last layer", "--num-outputs", self.last_layer, branch.image),
            ("last layer for patches", "--num-patch-outputs", self.patch_layer, branch.patch),
        ):
            if own is not None and given is not None:
                _take_layer(own, given, option, where)
            elif own is not None:
                missing.append(name)
        if self.mask_token is not None and branch.mask_token is not None:
            with torch.no_grad():
                self.mask_token.copy_(branch.mask_token)  # of the backbone's width, which fitted
        elif self.mask_token is not None:
            missing.append("mask token")
        return missing


@torch.no_grad()
def _take_layer(own: DirectionLayer, given: LastLayer, option: str, where: str) -> None:
    if own.directions.shape != given.directions.shape:
        shapes = f"{list(given.directions.shape)}, here {list(own.directions.shape)}"
        raise ConfigError(
            option, f"the last layer of {where} is {shapes}", "Give its sizes, or --projector-init scratch."
        )
    own.directions.copy_(given.directions)
    if own.lengths is not None:
        own.lengths.copy_(given.lengths)
    elif not bool((given.lengths == 1).all()):
        problem = f"the rows of the last layer of {where} have other lengths than 1"
        raise ConfigError("--norm-last-layer", problem, "Leave it out, or pass --projector-init scratch.")


@dataclass(frozen=True, slots=True)
class FilterOptions:
    """Shape of the object-aware filter; see `labelkit.methods.dense.object_filter`."""

    num_prototypes: int = 64
    kernel: int = 3


class DenseNetwork(TokenNetwork):
    """One branch of CoTAP.

    Args:
        backbone: name of a plain vision transformer with a class token.
        drop_path: rate of stochastic depth in training.
        object_filter: shape of the filter; ``None`` = no filter.
        projector_dims: width of the hidden layers and of the output of the projector.
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
                self.filter = ObjectAwareFilter(width, object_filter.num_prototypes, object_filter.kernel, heads)
                width = self.filter.out_dim
            self.projector = Projector(width, *projector_dims)

    def class_vectors(self) -> Mapping[str, Tensor]:
        """Prototypes of the filter."""
        return {} if self.filter is None else {"filter": self.filter.flat_prototypes()}

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
