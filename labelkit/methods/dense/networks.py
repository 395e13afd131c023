"""A vision transformer with a projector, which outputs features of class tokens and patches."""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from labelkit.data.batch import DataInfo
from labelkit.errors import ConfigError
from labelkit.methods.backbone import backbone_options
from labelkit.methods.dense.options import EMATargetConfig
from labelkit.models.backbones.vit import (
    UnsupportedBackboneError,
    check_vision_transformer,
    has_class_token,
    patch_size,
    token_maps,
)
from labelkit.models.heads import Projector
from labelkit.models.inference import BackboneNetwork
from labelkit.models.weights.files import find_projector_weights

_LAYERS = ("hidden1", "hidden2", "output")


class Tokens(NamedTuple):
    """Class tokens and patch features of a batch of equally large images."""

    image: Tensor  # (b, d) features of the class tokens
    patches: Tensor  # (b, h, w, d) features of the patches


class TokenNetwork(BackboneNetwork):
    """A ViT backbone with a class token that accepts any image size divisible by its patch size.

    Raises:
        ConfigError: the backbone is not a plain vision transformer with a class token.
        CheckpointError: its weights cannot be loaded.

    Attributes:
        projector: applied to the tokens; created by the subclass that knows their width.
    """

    projector: Projector

    def __init__(self, config: EMATargetConfig, data: DataInfo) -> None:
        constructor = {"drop_path_rate": config.drop_path, "dynamic_img_size": True}
        options = backbone_options(config, data)
        super().__init__(config.backbone, seed=config.seed, constructor=constructor, **options)
        check_vision_transformer(self.backbone.net)
        if not has_class_token(self.backbone.net):
            raise UnsupportedBackboneError(config.backbone, "has no class token", "Choose a ViT with a class token.")

    @property
    def patch_size(self) -> int:
        """Return the patch size in pixels."""
        return patch_size(self.backbone.net)

    @property
    def identity(self) -> dict[str, str]:
        """Return the identity of the embedding in a store, with the class token as pooling."""
        return {**super().identity, "pooling": "token"}

    def tokens(self, images: Tensor) -> Tokens:
        """Return the class and patch tokens of images (b, c, h, w) after the final norm."""
        return Tokens(*token_maps(self.backbone.net, images))

    def embed(self, images: Tensor) -> Tensor:
        """Return the class tokens (b, d) of images (b, c, h, w)."""
        return self.tokens(images).image

    def embed_with_patches(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the results of ``embed`` and ``patch_features`` in one pass."""
        tokens = self.tokens(images)
        return tokens.image, tokens.patches

    def load_projector(self, layers: Mapping[str, Tensor], where: str) -> None:
        """Load the projector from tensors (``hidden1.weight`` ...), padding a narrower first layer with zeros.

        Raises:
            ConfigError: widths differ.
        """
        own = self.projector.state_dict()
        given = {name: value.to(own[name]) for name, value in layers.items()}
        first = "hidden1.weight"
        missing = own[first].shape[1] - given[first].shape[1]
        if missing > 0:
            given[first] = torch.cat((given[first], given[first].new_zeros(len(given[first]), missing)), dim=1)
        for name, value in own.items():
            if given[name].shape != value.shape:
                problem = f"{name} in {where} has shape {list(given[name].shape)} instead of {list(value.shape)}"
                raise ConfigError("--projector-dims", problem, "Set --projector-dims to the widths in the file.")
        self.projector.load_state_dict(given)

    def load_projector_from_state(self, state: Mapping[str, Tensor], where: str) -> bool:
        """Load the projector from the state dict of a DINO, iBOT or Leopart head; return False if it has none.

        Raises:
            CheckpointError: there are several heads, or values are not finite.
            ConfigError: the head has other widths.
        """
        layers = find_projector_weights(state, where)
        if layers is None:
            return False
        self.load_projector({f"{_LAYERS[place]}.{kind}": value for (place, kind), value in layers.items()}, where)
        return True
