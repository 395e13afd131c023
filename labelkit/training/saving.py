"""Run state that checkpoints save, so that resumed runs are bit-identical."""

import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from labelkit import __version__
from labelkit.training.devices import Runtime

_PREFIX: Final = "epoch_sum/"


class EpochMeans:
    """Computes epoch means of the logged scalars, except diagnostics (``diag/...``), from running sums."""

    def __init__(self) -> None:
        self.count = 0  # number of steps added
        self._sums: dict[str, Tensor] = {}

    def add(self, loss: Tensor, logs: Mapping[str, Tensor]) -> None:
        """Add the loss and the logged scalars of a step."""
        values = {"loss": loss.detach(), **{name: value for name, value in logs.items() if value.ndim == 0}}
        for name, value in values.items():
            if name.startswith("diag/"):
                continue
            self._sums[name] = self._sums[name] + value if name in self._sums else value.detach().clone()
        self.count += 1

    def is_finite(self) -> bool:
        """Return whether all losses added so far were finite."""
        total = self._sums.get("loss")
        return total is None or bool(torch.isfinite(total))

    def pop_means(self, mean: Callable[[Tensor], Tensor]) -> dict[str, float]:
        """Return the means of the scalars and reset the sums; ``mean`` averages a scalar over the processes."""
        # sorted, since a resumed epoch has its sums in another order, and processes exchange them one by one
        means = {name: float(mean(value / self.count)) for name, value in sorted(self._sums.items())}
        self._sums, self.count = {}, 0
        return means

    def tensors(self) -> dict[str, Tensor]:
        """Return the running sums as tensors for a checkpoint."""
        return {f"{_PREFIX}{name}": value for name, value in self._sums.items()}

    def restore(self, tensors: Mapping[str, Tensor], count: int, device: torch.device) -> dict[str, Tensor]:
        """Restore the sums from a checkpoint's tensors and return the remaining tensors."""
        self._sums = {k.removeprefix(_PREFIX): v.to(device) for k, v in tensors.items() if k.startswith(_PREFIX)}
        self.count = count
        return {name: value for name, value in tensors.items() if not name.startswith(_PREFIX)}


@dataclass
class TrainingPosition:
    """Current epoch, step and phase of the run."""

    epoch: int = 0  # current epoch, from 0
    step: int = 0  # number of optimizer updates so far
    step_in_epoch: int = 0  # number of updates in the current epoch so far
    phase: int = 0  # current phase, from 0; the last one after the end of training
    phase_epoch: int = 0  # number of epochs before the phase
    phase_step: int = 0  # number of updates before the phase


def reproducibility_properties(runtime: Runtime) -> dict[str, Any]:
    """Return the properties of the system that must match for a resumed run to be bit-exact."""
    return {
        "labelkit": __version__,
        "torch": torch.__version__,
        "device": runtime.device.type,
        "machine": platform.machine(),
        "processes": runtime.world_size,
        "threads": torch.get_num_threads(),
        **({"compiled": True} if runtime.compiles else {}),
        **gpu_properties(runtime.device),
    }


def gpu_properties(device: torch.device) -> dict[str, Any]:
    """Return the GPU properties that affect results bit for bit, or an empty dictionary without a GPU."""
    if device.type != "cuda":
        return {}
    return {
        "gpu": torch.cuda.get_device_name(device),
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call] # torch does not say
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }
