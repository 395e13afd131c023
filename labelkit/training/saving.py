"""A whole run into a checkpoint, and out of it again, so that a resumed run ends with the same bits."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

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
from labelkit.training.optim import load_named_optimizer_state, named_optimizer_state

if TYPE_CHECKING:
    from labelkit.training.trainer import Trainer

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


def save_run(trainer: Trainer, writer: CheckpointWriter, *, metrics_bytes: int, best: bool) -> None:
    """Write a checkpoint of everything that a resumed run needs.

    Args:
        trainer: of the run.
        writer: of the run folder.
        metrics_bytes: length of its log.
        best: this one is the best so far.
    """
    writer.kept_step = trainer.guard.good_step
    moments, scalars = named_optimizer_state(trainer.optimizer, trainer.method)
    progress, clock, monitor = trainer.progress, trainer.progress.clock, trainer.monitor
    state = {
        "epoch": clock.epoch,
        "step_in_epoch": clock.step_in_epoch,
        "phase": [clock.phase, clock.phase_epoch, clock.phase_step],
        "summed": progress.means.count,
        "best": progress.best,
        "metrics": progress.metrics,
        "optimizer_scalars": scalars,
        "scaler": trainer.runtime.scaler_state(),
        "method": trainer.method.extra_state(),
        "monitor": monitor.extra_state() if monitor is not None else {},
        "guard": trainer.guard.extra_state(),
        "metrics_bytes": metrics_bytes,
        "exactness": reproducibility_facts(trainer.runtime),
    }
    network = trainer.method.main_network()
    about = {**trainer.metadata, "version": __version__, "fingerprint": fingerprint(network)}
    writer.save(
        clock.step,
        model=trainer.method.state_dict(),
        training=moments,
        per_rank=generator_states(trainer.runtime.device) | progress.means.tensors(),
        state=state,
        # one field: safetensors writes several in random order, and equal runs are to give equal bytes
        metadata={"labelkit": canonical_json(about)},
        best=best,
    )


def restore_run(trainer: Trainer, checkpoint: LoadedCheckpoint) -> None:
    """Restore a run from a checkpoint, and show why bits may differ.

    Raises:
        CheckpointMismatch: parameters differ in name or shape.
    """
    where, state, runtime = str(checkpoint.folder), checkpoint.state, trainer.runtime
    load_model_state(trainer.method, checkpoint.tensors(MODEL), where)
    load_named_optimizer_state(
        trainer.optimizer, trainer.method, checkpoint.tensors(TRAINING), state["optimizer_scalars"], where=where
    )
    # a checkpoint without phases is of a run that had one
    clock = Clock(state["epoch"], state["step"], state["step_in_epoch"], *state.get("phase", (0, 0, 0)))
    progress = trainer.progress = Progress(clock, state["best"], state["metrics"])
    runtime.load_scaler_state(state["scaler"])
    trainer.method.load_extra_state(state["method"])
    if trainer.monitor is not None:
        trainer.monitor.load_extra_state(state["monitor"])
    trainer.guard.load_extra_state(state.get("guard", {}))  # a checkpoint of an earlier version has none
    own = rank_file(runtime.rank)
    # a process that was not there before takes the main one's sums, so that all of them have the same names
    tensors = checkpoint.tensors(own if checkpoint.has(own) else rank_file(0))
    generators = progress.means.restore(tensors, state["summed"], runtime.device)
    if checkpoint.has(own):
        restore_generators(generators, runtime.device)
    now, then = reproducibility_facts(runtime), state["exactness"]
    for key in sorted(now.keys() | then.keys()):
        if now.get(key) != then.get(key):
            trainer.message(f"not bit-exact: {key} {now.get(key)}, was {then.get(key)}")
    if now.get("deterministic") is False:
        trainer.message("not bit-exact: a GPU adds in another order each time without --deterministic")


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
