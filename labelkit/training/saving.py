"""A whole run into a checkpoint, and out of it again, so that a resumed run ends with the same bits."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor

from labelkit import __version__
from labelkit.models.weights.files import fingerprint
from labelkit.store.commit import canonical_json
from labelkit.training.checkpoint import (
    MODEL,
    TRAINING,
    CheckpointWriter,
    LoadedCheckpoint,
    load_model_state,
    rank_file,
)
from labelkit.training.devices import Runtime, generator_states, restore_generators
from labelkit.training.guards import Guard
from labelkit.training.method import Method, Monitor
from labelkit.training.optim import load_named_optimizer_state, named_optimizer_state

_PREFIX: Final = "epoch_sum/"


class EpochMeans:
    """Running sums of the logged scalars except diagnostics (``diag/...``), for the means of an epoch.

    Attributes:
        count: steps that were added.
    """

    def __init__(self) -> None:
        self.count = 0
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

    def take(self, mean: Callable[[Tensor], Tensor]) -> dict[str, float]:
        """Return the means of the scalars and reset the sums.

        Args:
            mean: of a scalar over the processes.
        """
        # sorted: a restored epoch has its sums in another order, and processes exchange them one by one
        means = {name: float(mean(value / self.count)) for name, value in sorted(self._sums.items())}
        self._sums, self.count = {}, 0
        return means

    def tensors(self) -> dict[str, Tensor]:
        """Return the running sums as tensors for a checkpoint."""
        return {f"{_PREFIX}{name}": value for name, value in self._sums.items()}

    def restore(self, tensors: Mapping[str, Tensor], count: int, device: torch.device) -> dict[str, Tensor]:
        """Restore the sums from tensors of a checkpoint and return the remaining tensors."""
        self._sums = {k.removeprefix(_PREFIX): v.to(device) for k, v in tensors.items() if k.startswith(_PREFIX)}
        self.count = count
        return {name: value for name, value in tensors.items() if not name.startswith(_PREFIX)}


@dataclass
class Clock:
    """Current epoch, step and phase of the run.

    Attributes:
        epoch: the running epoch, from 0.
        step: optimizer updates finished.
        step_in_epoch: of these, in the running epoch.
        phase: the running phase, from 0; the last one when all are over.
        phase_epoch, phase_step: epochs and updates before that phase.
    """

    epoch: int = 0
    step: int = 0
    step_in_epoch: int = 0
    phase: int = 0
    phase_epoch: int = 0
    phase_step: int = 0


@dataclass
class Progress:
    """Clock, best score and metrics of a run, as saved in checkpoints.

    Attributes:
        clock: where it is.
        best: lowest value of the method's ``best_metric``; ``None`` before the first epoch.
        metrics: of the last epoch.
        means: of the running one.
    """

    clock: Clock = field(default_factory=Clock)
    best: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    means: EpochMeans = field(default_factory=EpochMeans)


@dataclass(frozen=True, slots=True)
class RunParts:
    """Components of a run whose state a checkpoint saves and a resumed run restores."""

    method: Method[Any]
    optimizer: torch.optim.Optimizer
    runtime: Runtime
    guard: Guard
    monitor: Monitor | None

    def save(
        self,
        writer: CheckpointWriter,
        progress: Progress,
        *,
        metrics_bytes: int,
        metadata: Mapping[str, str],
        best: bool,
    ) -> None:
        """Write a checkpoint of all components.

        Args:
            writer: of the run folder.
            progress: of the run.
            metrics_bytes: length of its log.
            metadata: what the weights say of themselves, beside version and fingerprint.
            best: this one is the best so far.
        """
        writer.kept_step = self.guard.good_step
        moments, scalars = named_optimizer_state(self.optimizer, self.method)
        clock = progress.clock
        state = {
            "epoch": clock.epoch,
            "step_in_epoch": clock.step_in_epoch,
            "phase": [clock.phase, clock.phase_epoch, clock.phase_step],
            "summed": progress.means.count,
            "best": progress.best,
            "metrics": progress.metrics,
            "optimizer_scalars": scalars,
            "scaler": self.runtime.scaler_state(),
            "method": self.method.extra_state(),
            "monitor": self.monitor.extra_state() if self.monitor is not None else {},
            "guard": self.guard.extra_state(),
            "metrics_bytes": metrics_bytes,
            "exactness": reproducibility_facts(self.runtime),
        }
        about = {**metadata, "version": __version__, "fingerprint": fingerprint(self.method.main_network())}
        writer.save(
            clock.step,
            model=self.method.state_dict(),
            training=moments,
            per_rank=generator_states(self.runtime.device) | progress.means.tensors(),
            state=state,
            # one field: safetensors writes several in random order, and equal runs are to give equal bytes
            metadata={"labelkit": canonical_json(about)},
            best=best,
        )

    def restore(self, checkpoint: LoadedCheckpoint, say: Callable[[str], None]) -> Progress:
        """Restore all components from a checkpoint and return the progress of the run.

        Args:
            checkpoint: of the run.
            say: shows a line: what was passed over, and why bits may differ.

        Raises:
            CheckpointMismatch: parameters differ in name or shape.
        """
        where, state = str(checkpoint.folder), checkpoint.state
        load_model_state(self.method, checkpoint.tensors(MODEL), where)
        load_named_optimizer_state(
            self.optimizer, self.method, checkpoint.tensors(TRAINING), state["optimizer_scalars"], where=where
        )
        # a checkpoint without phases is of a run that had one
        clock = Clock(state["epoch"], state["step"], state["step_in_epoch"], *state.get("phase", (0, 0, 0)))
        progress = Progress(clock, state["best"], state["metrics"])
        self.runtime.load_scaler_state(state["scaler"])
        self.method.load_extra_state(state["method"])
        if self.monitor is not None:
            self.monitor.load_extra_state(state["monitor"])
        self.guard.load_extra_state(state.get("guard", {}))  # a checkpoint of an earlier version has none
        own = rank_file(self.runtime.rank)
        # a process that was not there before takes the main one's sums, so that all of them have the same names
        tensors = checkpoint.tensors(own if checkpoint.has(own) else rank_file(0))
        generators = progress.means.restore(tensors, state["summed"], self.runtime.device)
        if checkpoint.has(own):
            restore_generators(generators, self.runtime.device)
        now, then = reproducibility_facts(self.runtime), state["exactness"]
        for key in sorted(now.keys() | then.keys()):
            if now.get(key) != then.get(key):
                say(f"not bit-exact: {key} {now.get(key)}, was {then.get(key)}")
        if now.get("deterministic") is False:
            say("not bit-exact: a GPU adds in another order each time without --deterministic")
        return progress


def reproducibility_facts(runtime: Runtime) -> dict[str, Any]:
    """Return the properties that must match for a resumed run to be bit-exact."""
    return {
        "labelkit": __version__,
        "torch": torch.__version__,
        "device": runtime.device.type,
        "machine": platform.machine(),
        "processes": runtime.world_size,
        "threads": torch.get_num_threads(),
        **({"compiled": True} if runtime.compiles else {}),
        **gpu_facts(runtime.device),
    }


def gpu_facts(device: torch.device) -> dict[str, Any]:
    """Return the GPU properties that affect results bit for bit, or an empty dictionary without a GPU."""
    if device.type != "cuda":
        return {}
    return {
        "gpu": torch.cuda.get_device_name(device),
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call] # torch does not say
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }
