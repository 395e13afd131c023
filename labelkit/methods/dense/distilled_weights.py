"""What full checkpoints of DINO and iBOT hold beside a backbone: both networks' heads, mask token and centers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from labelkit.errors import CheckpointDamaged

_STUDENT = "student"
# names of directions and lengths of a weight-normalized layer: as written by torch before 2.0, and by parametrizations
_LAYER = (
    ("weight_v", "weight_g"),
    ("parametrizations.weight.original1", "parametrizations.weight.original0"),
)
_CENTERS = {"image": ("dino_loss.center", "ibot_loss.center"), "patch": ("ibot_loss.center2",)}


@dataclass(frozen=True, slots=True)
class LastLayer:
    """A weight-normalized layer: directions (k, d), and lengths (k, 1)."""

    directions: Tensor
    lengths: Tensor


@dataclass(frozen=True, slots=True)
class DistilledBranch:
    """One network of a full checkpoint.

    Attributes:
        state: its tensors by name, projector and backbone among them.
        image: last layer of its head for class tokens; ``None`` if there is none.
        patch: the same for patches; that of class tokens again where both share it, ``None`` without patches.
        mask_token: (d,) or ``None``.
    """

    state: dict[str, Tensor]
    image: LastLayer | None
    patch: LastLayer | None
    mask_token: Tensor | None


def distilled_branches(state: Mapping[str, Tensor], where: str) -> tuple[DistilledBranch, DistilledBranch]:
    """Return the student and the teacher of a file; the same twice where it holds one network.

    Args:
        state: tensors by name, nested dictionaries dotted.
        where: the file, for messages.

    Raises:
        CheckpointDamaged: values of a head that are not finite.
    """
    networks = {name: value for name, value in state.items() if name.split(".")[0] not in ("optimizer", "fp16_scaler")}
    student = {name: value for name, value in networks.items() if name.split(".")[0] == _STUDENT}
    teacher = {name: value for name, value in networks.items() if name not in student}
    # centers stand beside both networks and are none
    has_teacher = any(name.endswith(".weight") for name in teacher)
    if not student or not has_teacher:
        one = _branch(networks, where)
        return one, one
    return _branch(student, where), _branch(teacher, where)


def distilled_center(state: Mapping[str, Tensor], of: Literal["image", "patch"], where: str) -> Tensor | None:
    """Return the center (k,) of outputs for ``image`` or ``patch`` in a full checkpoint, or ``None``.

    Raises:
        CheckpointDamaged: values that are not finite.
    """
    for name in _CENTERS[of]:
        if name in state:
            return _finite(state[name], name, where).flatten()
    return None


def _branch(state: dict[str, Tensor], where: str) -> DistilledBranch:
    layers = {name: _last_layer(state, name, where) for name in ("last_layer", "last_layer2")}
    tokens = [name for name in state if name.split(".")[-1] == "masked_embed"]
    token = _finite(state[tokens[0]], tokens[0], where).flatten() if tokens else None
    return DistilledBranch(state, layers["last_layer"], layers["last_layer2"], token)


def _last_layer(state: Mapping[str, Tensor], layer: str, where: str) -> LastLayer | None:
    for directions, lengths in _LAYER:
        for name in state:
            start = name.removesuffix(f"{layer}.{directions}")
            if start != name and f"{start}{layer}.{lengths}" in state:
                rows = _finite(state[name], name, where)
                return LastLayer(rows, _finite(state[f"{start}{layer}.{lengths}"], name, where).reshape(-1, 1))
    return None


def _finite(value: Tensor, name: str, where: str) -> Tensor:
    if not value.is_floating_point() or not bool(torch.isfinite(value).all()):
        raise CheckpointDamaged(where, f"{name}: values are not finite", "Get the file again.")
    return value.float()
