"""A slow copy of a network: the exponential moving average of its weights."""

from __future__ import annotations

import copy
from typing import Any, Self

import torch
from torch import nn


class EMATeacher(nn.Module):
    r"""A copy of a network whose weights follow it: :math:`t \leftarrow m t + (1 - m) s`.

    The copy stays in evaluation mode, needs no gradients, and starts equal to the network.
    Buffers (running statistics, counters) are copied at each update, not averaged.

    Args:
        module: the network to follow; it is copied and not changed.
        decay: m in [0, 1); 0 makes the teacher equal to the student after each update.

    Raises:
        ValueError: ``decay`` is outside [0, 1).

    Attributes:
        module: the copy.
        decay: m; may be changed between updates.
    """

    def __init__(self, module: nn.Module, decay: float) -> None:
        super().__init__()
        if not 0 <= decay < 1:
            raise ValueError(f"decay must be in [0, 1), got {decay}")
        self.decay = decay
        self.module = copy.deepcopy(module).requires_grad_(False)
        self.train(False)

    def train(self, mode: bool = True) -> Self:
        """Stay in evaluation mode, whatever ``mode`` says."""
        del mode
        return super().train(False)

    @torch.no_grad()
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the copy on the arguments, without gradients."""
        return self.module(*args, **kwargs)

    @torch.no_grad()
    def update(self, student: nn.Module) -> None:
        """Move one step toward ``student``.

        Args:
            student: a module with the parameters and buffers of the one copied.

        Raises:
            ValueError: names of parameters or buffers differ.
        """
        for kind in ("parameters", "buffers"):
            own: dict[str, torch.Tensor] = dict(getattr(self.module, f"named_{kind}")())
            other: dict[str, torch.Tensor] = dict(getattr(student, f"named_{kind}")())
            if own.keys() != other.keys():
                raise ValueError(f"student has other {kind} than the teacher: {sorted(own.keys() ^ other.keys())[:5]}")
            for name, value in own.items():
                if kind == "parameters" and value.is_floating_point():
                    value.lerp_(other[name].to(value), 1 - self.decay)
                else:
                    value.copy_(other[name])
