"""Optimizers, with their state stored by parameter name, so that reordered parameters cannot mix up moments."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from labelkit.errors import CheckpointMismatch

# A run has one optimizer; the number leaves room for more in the checkpoint format.
_PREFIX = "optimizer.0/"


def build_optimizer(
    groups: Iterable[dict[str, Any]], *, name: str, lr: float, momentum: float = 0.9, nesterov: bool = False
) -> torch.optim.Optimizer:
    """Build an ``sgd`` (optionally ``nesterov``), ``adam`` or ``adamw`` optimizer over the trainable parameters.

    Raises:
        ValueError: the name is unknown, or there are no trainable parameters.
    """
    trained = ({**group, "params": [p for p in group["params"] if p.requires_grad]} for group in groups)
    kept = [group for group in trained if group["params"]]
    if not kept:
        raise ValueError("no parameter is trainable")
    if name == "sgd":
        return torch.optim.SGD(kept, lr=lr, momentum=momentum, nesterov=nesterov)
    if name == "adam":
        return torch.optim.Adam(kept, lr=lr)
    if name == "adamw":
        return torch.optim.AdamW(kept, lr=lr)
    raise ValueError(f"unknown optimizer {name!r}")


def set_lr(optimizer: torch.optim.Optimizer, lr: float, epoch: int = 0) -> None:
    """Set each parameter group's learning rate: ``lr`` times ``lr_scale``, or 0 before its ``first_epoch``."""
    for group in optimizer.param_groups:
        group["lr"] = float(lr * group.get("lr_scale", 1.0)) if epoch >= group.get("first_epoch", 0) else 0.0


def named_optimizer_state(
    optimizer: torch.optim.Optimizer, module: nn.Module
) -> tuple[dict[str, Tensor], dict[str, float | int | bool]]:
    """Return the optimizer state as tensors and scalars with keys ``optimizer.0/<parameter>/<key>``."""
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    tensors: dict[str, Tensor] = {}
    scalars: dict[str, float | int | bool] = {}
    for parameter, values in optimizer.state.items():
        for key, value in values.items():
            label = f"{_PREFIX}{names[id(parameter)]}/{key}"
            if isinstance(value, Tensor):
                tensors[label] = value.detach()
            elif value is not None:
                scalars[label] = value
    return tensors, scalars


def load_named_optimizer_state(
    optimizer: torch.optim.Optimizer,
    module: nn.Module,
    tensors: Mapping[str, Tensor],
    scalars: Mapping[str, float | int | bool],
    *,
    where: str,
) -> None:
    """Restore the optimizer state returned by ``named_optimizer_state``.

    Raises:
        CheckpointMismatch: the state includes a parameter that is not trained here.
    """
    parameters = {name: p for name, p in module.named_parameters() if p.requires_grad}
    for label, value in [*tensors.items(), *scalars.items()]:
        if not label.startswith(_PREFIX):
            continue
        name, _, key = label.removeprefix(_PREFIX).rpartition("/")
        if name not in parameters:
            raise CheckpointMismatch(where, f"contains optimizer state for {name!r}, which is not trained here", "")
        parameter = parameters[name]
        if isinstance(value, Tensor):
            # Adam's step counter stays on the CPU, as in a new optimizer.
            device = parameter.device if value.ndim else torch.device("cpu")
            optimizer.state[parameter][key] = value.to(device).clone()
        else:
            optimizer.state[parameter][key] = value
