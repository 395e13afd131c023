"""A vision transformer under the head of DINO or iBOT: outputs that class tokens and patches are assigned to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Unpack

import torch
from torch import Tensor, nn

from labelkit.errors import ConfigError
from labelkit.models.distilled_weights import DistilledBranch, LastLayer
from labelkit.models.heads import DirectionLayer, Projector
from labelkit.models.inference import BackboneOptions
from labelkit.models.seeding import seeded_init
from labelkit.models.token_network import TokenNetwork, Tokens
from labelkit.models.vit import token_maps


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
