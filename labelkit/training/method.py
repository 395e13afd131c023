"""Base class of training methods: a list of events over shared parts.

The trainer owns the clock, the device, precision, logging and checkpoints. A method defines what comes next
(``phases``), one step (``training_step``), and what happens at the events. Checkpoints save its registered state:
parameters and buffers directly, and other values through ``extra_state``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from labelkit.data.batch import Batch, DataInfo
from labelkit.data.image_bank import ImageBank
from labelkit.data.samplers import Sampler
from labelkit.data.views.spec import Pairing, ViewSpec
from labelkit.models.frozen_part import ReusablePart
from labelkit.models.inference import InferenceNetwork
from labelkit.options.training import RunConfig
from labelkit.training.inputs import MonitorInputs, RunInputs

ConfigT = TypeVar("ConfigT", bound=RunConfig)


@dataclass(frozen=True, slots=True)
class StepOutput:
    """Loss and logged scalars of one training step."""

    loss: Tensor  # scalar to minimize
    # scalars to log, detached; moved off the device only if they are written
    logs: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Phase:
    """Part of the training whose epochs share the same views, samples, labels and order."""

    epochs: int  # length, >= 1
    # transforms of each image, or a function that returns them for an epoch of the run
    views: tuple[ViewSpec, ...] | Callable[[int], tuple[ViewSpec, ...]]
    sampler: Sampler  # the order of one epoch
    name: str = "train"  # shown in the log
    # (n,) int64 labels of this phase, -1 = unlabeled; default: the labels at the start of training
    labels: NDArray[np.int64] | None = None
    steps: int | None = None  # updates of the phase; its last epoch may be cut short. Default: whole epochs
    pairing: Pairing | None = None  # what second views show; default: the same image as the first ones
    lr: Callable[[int], float] | None = None  # at a step of the phase, counted from 0; default: the run's own
    # likewise, for parameter groups with ``is_decayed``; default: as they were built
    weight_decay: Callable[[int], float] | None = None
    # likewise, decays of Adam's moments; default: as the optimizer was built
    betas: Callable[[int], tuple[float, float]] | None = None


PassMode = Literal["eval", "batch-statistics", "train"]


@dataclass(frozen=True, slots=True)
class FullPass:
    """Settings of an inference pass that runs each image through a network exactly once.

    Attributes:
        mode: mode of the method's modules. ``batch-statistics``: like ``eval``, but normalization uses the statistics
            of the batch and does not update the running ones; ``train``: dropout and running statistics as in training.
        view: transform of each image; default: the method's ``eval_view``. A random one is drawn again at every step of
            the run.
        order: ``rows``: as listed; ``fixed``: one permutation for the whole run; ``new``: another at every step.
            Batch statistics depend on which images share a batch, so files sorted by class must not stay together.
        batch_size: images per batch; default: up to 512. Batches are the same for any number of processes.
        bank: images to use instead of the training images.
        draw: number of the view, if one step uses several views of an image.
        by_network: only ``network.embed`` processes the images, so it may get their cached frozen outputs instead.
    """

    mode: PassMode = "eval"
    view: ViewSpec | None = None
    order: Literal["rows", "fixed", "new"] = "rows"
    batch_size: int | None = None
    bank: ImageBank | None = None
    draw: int = 0
    by_network: bool = False


def _nothing(*values: object) -> None:
    """Ignore logs, warnings, gradients and optimizers, as a state without a trainer does."""


@dataclass(slots=True)
class TrainState:
    """State of the run and services of the trainer that are passed to a method at each event.

    Without arguments it is the state of a method outside of a run: before the first step, in a single process.
    """

    epoch: int = 0  # number of the current epoch, from 0
    step: int = 0  # updates finished; values at this step apply to the next update
    steps_per_epoch: int = 1  # updates in the current epoch
    phase: int = field(default=0, kw_only=True)  # number of the current phase, from 0
    step_in_phase: int = field(default=0, kw_only=True)  # updates finished in this phase
    phase_steps: int = field(default=0, kw_only=True)  # updates in the whole phase
    log_now: bool = False  # the logs of the next step are written, so costly ones are worth computing
    is_main: bool = True  # this process writes files
    # runs a network over the images, each exactly once, and returns all results; its arguments are those of
    # `labelkit.training.trainer.Trainer.full_pass`
    embed: Callable[..., Tensor] = _nothing  # type: ignore[assignment] # no trainer
    generator: Callable[[str], np.random.Generator] = lambda purpose: np.random.default_rng(0)
    # likewise, but returns only the results of this process; see ``local_pass`` there
    visit: Callable[..., tuple[Tensor, NDArray[np.int64]]] = _nothing  # type: ignore[assignment] # no trainer
    gather_rows: Callable[[Tensor, Tensor, int], Tensor] = _nothing  # type: ignore[assignment] # no trainer
    # sum or maximum of a small tensor over processes (``algorithms.sinkhorn.Reduce``)
    combine: Callable[[Tensor, Literal["sum", "max"]], Tensor] = lambda value, operation: value
    # writes a separate line to the log, from its kind and its values
    log: Callable[[str, Mapping[str, float]], None] = _nothing
    warn: Callable[[str], None] = _nothing  # shows a message to the user
    # batches of a phase for a training loop inside an event, with an epoch number unused by the run
    batches: Callable[[Phase, int], Iterator[Batch]] = lambda phase, epoch: iter(())
    # averages the gradients of parameters over processes, in such a loop
    average_gradients: Callable[[Iterable[nn.Parameter]], None] = _nothing

    def mean_count(self, count: float) -> float:
        """Return the mean of a count over all processes, each of which passes its own."""
        # one exchange for both: the sum of the counts and the number of processes
        total, processes = self.combine(torch.tensor([count, 1.0], dtype=torch.float64), "sum").tolist()
        return float(total / processes)


@dataclass(frozen=True, slots=True)
class ScoreTable:
    """Row of scores in the summary of a finished run."""

    title: str  # what was measured on which images, with the unit
    columns: tuple[str, ...]  # names of the scores
    values: tuple[float | int | None, ...]  # one for each column; ``None`` = not measured


class Monitor(ABC):
    """Evaluator that scores the network after an epoch and may use labels hidden from the method."""

    #: Whether ``before`` returns scores.
    compares_with_start: ClassVar[bool] = False

    @abstractmethod
    def __call__(self, method: Method[Any], state: TrainState) -> Mapping[str, float]:
        """Return metrics; raise ``DivergenceError`` when continuing is useless."""

    def before(self, method: Method[Any], state: TrainState) -> Mapping[str, float]:
        """Return scores of the features before training, for a later comparison; empty by default."""
        return {}

    def describe(self, metrics: Mapping[str, float]) -> list[str]:
        """Return texts for an epoch's progress line, even if nothing was measured in it; none by default."""
        return []

    def compare(self, before: Mapping[str, float], after: Mapping[str, float]) -> str | None:
        """Return a warning if training worsened the scores in ``before`` (which may be empty), otherwise ``None``."""
        return None

    def table(self, metrics: Mapping[str, float]) -> ScoreTable | None:
        """Return the score table of a finished run, or ``None`` if nothing was measured."""
        return None

    def extra_state(self) -> dict[str, Any]:
        """Return the JSON values that a resumed run needs; empty by default."""
        return {}

    def load_extra_state(self, state: Mapping[str, Any]) -> None:  # noqa: B027 - by default there is nothing to restore
        """Restore the state returned by ``extra_state``."""


class Method(nn.Module, ABC, Generic[ConfigT]):
    """Base class of training methods.

    Args:
        config: its options; read once, here.
        data: facts about the training set.
    """

    #: Whether training runs backbones as a whole, so that they can be compiled.
    runs_whole_backbone: ClassVar[bool] = True
    #: Whether weight decay also applies to biases and one-dimensional parameters.
    decays_all: ClassVar[bool] = False
    #: Names of buffers that are equal on every process without synchronization.
    equal_buffers: tuple[str, ...] = ()

    #: Network that embeds images; set by the method's ``__init__``.
    network: InferenceNetwork
    #: State of the run at its last step.
    _state: TrainState = TrainState()

    def __init__(self, config: ConfigT, data: DataInfo) -> None:
        super().__init__()
        self.config = config
        self.data = data

    def attach(self, inputs: RunInputs) -> None:
        """Load files and other resources named in the options before training starts or resumes."""

    def monitor(self, inputs: MonitorInputs) -> Monitor | None:
        """Return the monitor that evaluates the method after an epoch, or ``None`` by default.

        The method must not store any of the inputs, which only the monitor may know.
        """
        return None

    def describe(self, metrics: Mapping[str, float]) -> list[str]:
        """Return texts for the progress line after an epoch, following those of the monitor; none by default."""
        return []

    def remarks(self, metrics: Mapping[str, float]) -> list[str]:
        """Return remarks for the user about a finished run with these metrics; none by default."""
        return []

    @abstractmethod
    def phases(self, rows: NDArray[np.int64]) -> tuple[Phase, ...]:
        """Return the phases of training in order, as far as they are known before; ``rows`` can be read."""

    def phase(self, index: int, rows: NDArray[np.int64]) -> Phase | None:
        """Return the phase at ``index``, or ``None`` to end the run; called when the previous phase has ended.

        Default: from ``phases``. A phase may depend on state that a checkpoint carries, and must be the same when it is
        requested again.
        """
        phases = self.phases(rows)
        return phases[index] if index < len(phases) else None

    def planned_steps(self) -> int | None:
        """Return the maximum number of updates if phases are decided during training, otherwise ``None``."""
        return None

    def main_network(self) -> InferenceNetwork:
        """Return the network used for evaluation and, after training, for embedding; by default ``network``."""
        return self.network

    @abstractmethod
    def training_step(self, batch: Batch) -> StepOutput:
        """Compute the loss of one batch."""

    @abstractmethod
    def eval_view(self) -> ViewSpec:
        """Return the transform that preprocesses an image for ``network.embed``."""

    def evaluated_networks(self) -> Mapping[str, InferenceNetwork]:
        """Return further networks to evaluate besides the main one, by name; none by default."""
        return {}

    def reuse_frozen(self) -> ReusablePart | None:
        """Allow training steps to take cached outputs of the frozen part of the network instead of images.

        Returns:
            The part whose outputs are cached for each view; ``None``: the method has no such part.

        Raises:
            ConfigError: with these options nothing is frozen, or it changes from pass to pass.
        """
        return None

    def parameter_groups(self) -> Iterator[dict[str, Any]]:
        """Yield parameter groups for the optimizer; by default, one with and, if needed, one without weight decay."""
        decayed = [parameter for parameter in self.parameters() if self.decays_all or parameter.ndim >= 2]
        yield {"params": decayed, "weight_decay": self.config.weight_decay}
        if not self.decays_all:
            yield {"params": [p for p in self.parameters() if p.ndim < 2], "weight_decay": 0.0}

    def on_train_start(self, state: TrainState) -> None:
        """Called before the first step of a new run; not called when resuming."""

    def on_phase_start(self, state: TrainState) -> None:
        """Called before the first step of a phase; not called when resuming inside it."""

    def on_epoch_start(self, state: TrainState) -> None:
        """Called before the first step of an epoch, and also when resuming inside it."""

    def on_step_start(self, state: TrainState) -> None:
        """Store the state of the run before a step."""
        self._state = state

    def on_gradients(self, state: TrainState) -> None:
        """Called after the gradients are computed, before they are clipped and the optimizer steps."""

    def on_step_end(self, state: TrainState) -> None:
        """Called after the optimizer step."""

    def on_epoch_end(self, state: TrainState) -> Mapping[str, float]:
        """Called after an epoch; returns metrics for the log."""
        return {}

    def on_phase_end(self, state: TrainState) -> Mapping[str, float]:
        """Called after the last epoch of a phase, before the next phase starts; returns metrics for the log."""
        return {}

    def load_matching_tensors(self, tensors: Mapping[str, Tensor], where: str) -> str | None:
        """Load the matching tensors of a run with a similar network; return their description, or ``None``."""
        return None

    def on_backbone_loaded(self) -> None:
        """Called after ``--init-from`` loaded weights into only the backbone of ``network``."""

    def groupings(self) -> Mapping[str, Tensor]:
        """Return integer cluster ids (n,) by name, -1 for none; they are scored on images whose true class is known."""
        return {}

    def extra_state(self) -> dict[str, Any]:
        """Return JSON values, besides parameters and buffers, that a resumed run needs."""
        return {}

    def load_extra_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state returned by ``extra_state``."""

    def forward(self, batch: Batch) -> StepOutput:
        """Run ``training_step`` as the module's forward pass, so that a process group averages the gradients."""
        return self.training_step(batch)


def trainable_names(method: nn.Module) -> list[str]:
    """Return the names of the trainable parameters."""
    return [name for name, parameter in method.named_parameters() if parameter.requires_grad]


def count_parameters(method: nn.Module) -> tuple[int, int]:
    """Return the number of all parameters and the number of trainable ones."""
    sizes = [(p.numel(), p.requires_grad) for p in method.parameters()]
    return sum(n for n, _ in sizes), sum(n for n, trainable in sizes if trainable)
