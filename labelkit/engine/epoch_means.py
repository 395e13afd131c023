"""Means over the steps of an epoch, summed where the losses are, so that no step waits for a copy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import torch
from torch import Tensor

_PREFIX: Final = "epoch_sum/"


class EpochMeans:
    """Sums of the scalars of each step; diagnostics (``diag/...``) are left out.

    Attributes:
        count: steps that were added.
    """

    def __init__(self) -> None:
        self.count = 0
        self._sums: dict[str, Tensor] = {}

    def add(self, loss: Tensor, logs: Mapping[str, Tensor]) -> None:
        """Add a step."""
        values = {"loss": loss.detach(), **{name: value for name, value in logs.items() if value.ndim == 0}}
        for name, value in values.items():
            if name.startswith("diag/"):
                continue
            self._sums[name] = self._sums[name] + value if name in self._sums else value.detach().clone()
        self.count += 1

    def is_finite(self) -> bool:
        """Whether all losses were; a sum keeps any NaN."""
        total = self._sums.get("loss")
        return total is None or bool(torch.isfinite(total))

    def take(self, mean: Callable[[Tensor], Tensor]) -> dict[str, float]:
        """Return the means, and begin anew.

        Args:
            mean: of a scalar over the processes.
        """
        # sorted: a restored epoch has its sums in another order, and processes exchange them one by one
        means = {name: float(mean(value / self.count)) for name, value in sorted(self._sums.items())}
        self._sums, self.count = {}, 0
        return means

    def tensors(self) -> dict[str, Tensor]:
        """Return the sums for a checkpoint."""
        return {f"{_PREFIX}{name}": value for name, value in self._sums.items()}

    def restore(self, tensors: Mapping[str, Tensor], count: int, device: torch.device) -> dict[str, Tensor]:
        """Take the sums out of tensors of a checkpoint; return the others."""
        self._sums = {k.removeprefix(_PREFIX): v.to(device) for k, v in tensors.items() if k.startswith(_PREFIX)}
        self.count = count
        return {name: value for name, value in tensors.items() if not name.startswith(_PREFIX)}
