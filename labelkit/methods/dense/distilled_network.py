"""The network of DINO and iBOT, and the contents of their full checkpoints other than the backbone.

The network is a vision transformer with a head, to whose outputs class tokens and patches are assigned. A full
checkpoint contains the heads of both networks, the mask token and the centers.
"""

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor, nn

from labelkit.data.batch import DataInfo
from labelkit.errors import CheckpointDamaged, ConfigError
from labelkit.methods.dense.networks import TokenNetwork, Tokens
from labelkit.methods.dense.options import SelfDistillationConfig
from labelkit.models.backbones.vit import token_maps
from labelkit.models.heads import Projector, WeightNormalizedLinear
from labelkit.models.seeding import seeded_init

_STUDENT, _MASK_TOKEN = "student", "masked_embed"
# names of the directions and lengths of a weight-normalized layer, before torch 2.0 and as a parametrization
_LAYER = (
    ("weight_v", "weight_g"),
    ("parametrizations.weight.original1", "parametrizations.weight.original0"),
)
_CENTERS = {"image": ("dino_loss.center", "ibot_loss.center"), "patch": ("ibot_loss.center2",)}


def split_checkpoint_branches(state: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Split a checkpoint into student and teacher tensors; if it contains one network, return it twice.

    A released teacher has no mask token, since it sees all patches; it receives the student's.
    """
    networks = {name: value for name, value in state.items() if name.split(".")[0] not in ("optimizer", "fp16_scaler")}
    student = {name: value for name, value in networks.items() if name.split(".")[0] == _STUDENT}
    teacher = {name: value for name, value in networks.items() if name not in student}
    # centers are stored next to both networks and belong to neither
    has_teacher = any(name.endswith(".weight") for name in teacher)
    if not student or not has_teacher:
        return networks, networks
    tokens = {name: value for name, value in student.items() if name.split(".")[-1] == _MASK_TOKEN}
    return student, {**tokens, **{name: value for name, value in teacher.items() if name.split(".")[-1] != _MASK_TOKEN}}


def read_checkpoint_center(state: Mapping[str, Tensor], kind: Literal["image", "patch"], where: str) -> Tensor | None:
    """Return the center (k,) of the ``image`` or ``patch`` outputs in a full checkpoint, or ``None`` if it has none.

    Raises:
        CheckpointDamaged: values are not finite.
    """
    for name in _CENTERS[kind]:
        if name in state:
            return _finite(state[name], name, where).flatten()
    return None


def _read_last_layer(state: Mapping[str, Tensor], where: str) -> tuple[Tensor, Tensor] | None:
    for directions, lengths in _LAYER:
        for name in state:
            other = f"{name.removesuffix(directions)}{lengths}"
            if name.endswith(f"last_layer.{directions}") and other in state:
                rows = _finite(state[name], name, where)
                return rows, _finite(state[other], name, where).reshape(-1, 1)
    return None


def _finite(value: Tensor, name: str, where: str) -> Tensor:
    if not value.is_floating_point() or not bool(torch.isfinite(value).all()):
        raise CheckpointDamaged(where, f"{name}: values are not finite", "Download the file again.")
    return value.float()


class DistillationNetwork(TokenNetwork):
    """Network of DINO and iBOT: a ViT with a projection head and a weight-normalized last layer.

    Class tokens and patches share both layers. With ``hides_patches``, there is a mask token.
    """

    def __init__(self, config: SelfDistillationConfig, data: DataInfo, *, hides_patches: bool) -> None:
        super().__init__(config, data)
        width, dims, learn_lengths = self.backbone.info.feature_dim, config.projector_dims, not config.norm_last_layer
        with seeded_init(config.seed + 1):
            self.projector = Projector(width, *dims)
            self.last_layer = WeightNormalizedLinear(dims[1], config.num_outputs, learn_lengths=learn_lengths)
        self.mask_token = nn.Parameter(torch.zeros(1, width)) if hides_patches else None

    def masked_tokens(self, images: Tensor, mask: Tensor) -> Tokens:
        """Compute the tokens of images (b, c, h, w) whose patches are masked by a bool mask (b, rows, columns)."""
        assert self.mask_token is not None
        return Tokens(*token_maps(self.backbone.net, images, mask, self.mask_token[0]))

    def outputs(self, features: Tensor) -> Tensor:
        """Map class or patch tokens (n, d) to float32 outputs (n, k)."""
        return self.last_layer(self.projector(features))

    def load_head(self, state: Mapping[str, Tensor], where: str) -> list[str]:
        """Load the projector, last layer and mask token of one network in a full checkpoint; return missing names.

        A separate head for patches is ignored.

        Raises:
            ConfigError: sizes differ.
            CheckpointError: there are several projectors, or values are not finite.
        """
        missing = []
        if not self.load_projector_from_state(state, where):
            missing.append("projection")
        layer = _read_last_layer(state, where)
        if layer is None:
            missing.append("last layer")
        else:
            _copy_layer(self.last_layer, layer, where)
        token = next((name for name in state if name.split(".")[-1] == _MASK_TOKEN), None)
        if self.mask_token is not None and token is not None:
            with torch.no_grad():  # as wide as the backbone, which was checked before
                self.mask_token.copy_(_finite(state[token], token, where).flatten())
        elif self.mask_token is not None:
            missing.append("mask token")
        return missing


@torch.no_grad()
def _copy_layer(own: WeightNormalizedLinear, given: tuple[Tensor, Tensor], where: str) -> None:
    directions, lengths = given
    if own.directions.shape != directions.shape:
        shapes = f"{list(directions.shape)} instead of {list(own.directions.shape)}"
        problem = f"does not match the last layer of {where}, which has shape {shapes}"
        raise ConfigError("--num-outputs", problem, "Set --num-outputs to the size in the file.")
    own.directions.copy_(directions)
    if own.lengths is not None:
        own.lengths.copy_(lengths)
    elif not bool((lengths == 1).all()):
        problem = f"the weight vectors in the last layer of {where} do not have unit norm"
        raise ConfigError("--norm-last-layer", problem, "Pass --no-norm-last-layer.")
