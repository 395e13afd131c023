"""Base class of training methods, which implement hooks that the trainer calls.

The trainer owns the clock, the device, precision, logging and checkpoints. A method defines its phases (``phases``),
the training step (``training_step``), and what happens at each event. Checkpoints save its registered state:
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
from labelkit.training.inputs import MethodInputs, MonitorInputs

ConfigT = TypeVar("ConfigT", bound=RunConfig)


@dataclass(frozen=True, slots=True)
class StepOutput:
    """Loss and logged scalars of one training step."""

    loss: Tensor  # scalar to minimize
    # scalars to log, detached by the trainer; copied from the device only if they are written
    logs: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Phase:
    """Part of a run whose epochs use the same images, views, labels and sampling order."""

    epochs: int  # length, >= 1
    # transforms of each image, or a function that returns them for an epoch of the run
    views: tuple[ViewSpec, ...] | Callable[[int], tuple[ViewSpec, ...]]
    sampler: Sampler  # chooses the images of an epoch and their order
    name: str = "train"  # shown in the log
    # (n,) int64 labels of this phase, -1 = unlabeled; default: the labels at the start of training
    labels: NDArray[np.int64] | None = None
    steps: int | None = None  # number of updates; the last epoch may be cut short. Default: whole epochs
    pairing: Pairing | None = None  # chooses the images of second views; default: the same as in first views
    lr: Callable[[int], float] | None = None  # learning rate by the step in the phase, from 0; default: the run's
    # weight decay by the step, for parameter groups with ``is_decayed``; default: constant
    weight_decay: Callable[[int], float] | None = None
    # Adam's betas by the step; default: constant
    betas: Callable[[int], tuple[float, float]] | None = None


PassMode = Literal["eval", "batch-statistics", "train"]


@dataclass(frozen=True, slots=True)
class PassSettings:
    """Settings of an inference pass, which runs each image through a network exactly once.

    Attributes:
        mode: mode of the method's modules. ``batch-statistics``: like ``eval``, but normalization uses the statistics
            of the batch and does not update the running ones; ``train``: dropout and running statistics as in training.
        view: transform of each image; default: the method's ``eval_view``. A random view differs at every step of the
            run.
        order: ``rows``: as listed; ``fixed``: one permutation for the whole run; ``new``: a new one at every step.
            Batch statistics depend on which images share a batch, so images sorted by class must be shuffled.
        batch_size: images per batch; default: up to 512. Batches are the same for any number of processes.
        bank: images to use instead of the training images.
        draw: number of the view, if a step uses several views of an image.
        by_network: whether only ``network.embed`` uses the images, so that cached frozen outputs may replace them.
    """

    mode: PassMode = "eval"
    view: ViewSpec | None = None
    order: Literal["rows", "fixed", "new"] = "rows"
    batch_size: int | None = None
    bank: ImageBank | None = None
    draw: int = 0
    by_network: bool = False


def _nothing(*values: object) -> Any:
    """Ignore all arguments; placeholder for the services of a trainer."""


@dataclass(slots=True)
class TrainState:
    """State of the run and services of the trainer, passed to a method's hooks.

    Without arguments, it is the state outside a run: before the first step, in a single process.
    """

    epoch: int = 0  # number of the current epoch, from 0
    step: int = 0  # updates finished; values at this step apply to the next update
    steps_per_epoch: int = 1  # updates in the current epoch
    phase: int = field(default=0, kw_only=True)  # number of the current phase, from 0
    step_in_phase: int = field(default=0, kw_only=True)  # updates finished in this phase
    phase_steps: int = field(default=0, kw_only=True)  # updates in the whole phase
    log_now: bool = False  # whether the next step is logged, so that costly logs should be computed
    is_main: bool = True  # whether this process writes files
    # runs a network over the images, each exactly once, and returns all results; for the arguments, see
    # `labelkit.training.trainer.Trainer.full_pass`
    full_pass: Callable[..., Tensor] = _nothing
    generator: Callable[[str], np.random.Generator] = lambda purpose: np.random.default_rng(0)
    # like ``full_pass``, but returns only the results of this process; see ``Trainer.local_pass``
    local_pass: Callable[..., tuple[Tensor, NDArray[np.int64]]] = _nothing
    gather_rows: Callable[[Tensor, Tensor, int], Tensor] = _nothing
    # sum or maximum of a small tensor over processes (``algorithms.sinkhorn.Reduce``)
    combine: Callable[[Tensor, Literal["sum", "max"]], Tensor] = lambda value, operation: value
    # writes a separate line to the log, given its kind and values
    log: Callable[[str, Mapping[str, float]], None] = _nothing
    warn: Callable[[str], None] = _nothing  # shows a message to the user
    # returns batches of a phase for a training loop inside a hook, given an epoch number unused by the run
    batches: Callable[[Phase, int], Iterator[Batch]] = lambda phase, epoch: iter(())
    # averages the gradients of parameters over processes in such a loop
    average_gradients: Callable[[Iterable[nn.Parameter]], None] = _nothing

    def mean_count(self, count: float) -> float:
        """Return the mean of the counts that the processes pass."""
        # one exchange for both: the sum of the counts and the number of processes
        total, processes = self.combine(torch.tensor([count, 1.0], dtype=torch.float64), "sum").tolist()
        return float(total / processes)


@dataclass(frozen=True, slots=True)
class ScoreTable:
    """Table of scores, with a single row, in the summary of a finished run."""

    title: str  # the metric, its unit, and the images evaluated
    columns: tuple[str, ...]  # names of the scores
    values: tuple[float | int | None, ...]  # one per column; ``None`` = not measured


class Monitor(ABC):
    """Scores the network after epochs; may use labels that are hidden from the method."""

    #: Whether ``score_before_training`` returns scores.
    compares_with_start: ClassVar[bool] = False

    @abstractmethod
    def __call__(self, method: Method[Any], state: TrainState) -> Mapping[str, float]:
        """Return metrics; raise ``DivergenceError`` if continuing is pointless."""

    def score_before_training(self, method: Method[Any], state: TrainState) -> Mapping[str, float]:
        """Return scores of the features before training, for a later comparison; empty by default."""
        return {}

    def describe(self, metrics: Mapping[str, float]) -> list[str]:
        """Return texts for the progress line after an epoch, even if nothing new was measured; none by default."""
        return []

    def table(self, metrics: Mapping[str, float]) -> ScoreTable | None:
        """Return the score table of a finished run, or ``None`` if nothing was measured."""
        return None

    def extra_state(self) -> dict[str, Any]:
        """Return JSON values that a resumed run needs; empty by default."""
        return {}

    def load_extra_state(self, state: Mapping[str, Any]) -> None:  # noqa: B027 - by default there is nothing to restore
        """Restore the state returned by ``extra_state``."""


class Method(nn.Module, ABC, Generic[ConfigT]):
    """Base class of training methods.

    Args:
        config: the options, which are read only here.
        data: properties of the training set.
    """

    #: Whether training calls backbones as a whole, so that they can be compiled.
    runs_whole_backbone: ClassVar[bool] = True
    #: Whether weight decay also applies to biases and one-dimensional parameters.
    decays_all: ClassVar[bool] = False
    #: Names of buffers that are equal on every process without synchronization.
    equal_buffers: tuple[str, ...] = ()

    #: Network that embeds images; set by the method's ``__init__``.
    network: InferenceNetwork
    #: State at the current step; set by the trainer before each step.
    state: TrainState = TrainState()

    def __init__(self, config: ConfigT, data: DataInfo) -> None:
        super().__init__()
        self.config = config
        self.data = data

    def attach(self, inputs: MethodInputs) -> None:
        """Load files and other resources named in the options, before training starts or resumes."""

    def monitor(self, inputs: MonitorInputs) -> Monitor | None:
        """Return the monitor that evaluates the method after epochs; none by default.

        The method must not store any of the inputs, which only the monitor may see.
        """
        return None

    def describe(self, metrics: Mapping[str, float]) -> list[str]:
        """Return texts for the progress line after an epoch, shown after those of the monitor; none by default."""
        return []

    def remarks(self, metrics: Mapping[str, float]) -> list[str]:
        """Return remarks for the user about a finished run, given its metrics; none by default."""
        return []

    @abstractmethod
    def phases(self, rows: NDArray[np.int64]) -> tuple[Phase, ...]:
        """Return the phases that are known before training, in order; ``rows`` are the readable images."""

    def phase(self, index: int, rows: NDArray[np.int64]) -> Phase | None:
        """Return the phase at ``index``, or ``None`` to end the run; called when the previous phase has ended.

        Default: from ``phases``. A phase may depend on state stored in checkpoints, and must be the same if it is
        requested again.
        """
        phases = self.phases(rows)
        return phases[index] if index < len(phases) else None

    def max_adaptive_steps(self) -> int | None:
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
        """Return the networks to evaluate in addition to the main network, by name; none by default."""
        return {}

    def reuse_frozen(self) -> ReusablePart | None:
        """Make training steps accept cached outputs of the frozen part of the network instead of images.

        Returns:
            The part whose outputs are cached for each view; ``None``: the method has no such part.

        Raises:
            ConfigError: with these options, nothing is frozen, or the outputs vary between passes.
        """
        return None

    def parameter_groups(self) -> Iterator[dict[str, Any]]:
        """Yield parameter groups for the optimizer; by default, one with and, if needed, one without weight decay."""
        decayed = [parameter for parameter in self.parameters() if self.decays_all or parameter.ndim >= 2]
        yield {"params": decayed, "weight_decay": self.config.weight_decay}
        if not self.decays_all:
            yield {"params": [p for p in self.parameters() if p.ndim < 2], "weight_decay": 0.0}

    def on_train_start(self, state: TrainState) -> None:
        """Hook before the first step of a new run; not called when resuming."""

    def on_phase_start(self, state: TrainState) -> None:
        """Hook before the first step of a phase; not called when resuming within it."""

    def on_epoch_start(self, state: TrainState) -> None:
        """Hook before the first step of an epoch; also called when resuming within it."""

    def on_step_start(self, state: TrainState) -> None:
        """Hook before each step."""

    def on_gradients(self, state: TrainState) -> None:
        """Hook after the backward pass, before gradient clipping and the optimizer step."""

    def on_step_end(self, state: TrainState) -> None:
        """Hook after the optimizer step."""

    def on_epoch_end(self, state: TrainState) -> Mapping[str, float]:
        """Hook after each epoch; returns metrics for the log."""
        return {}

    def on_phase_end(self, state: TrainState) -> Mapping[str, float]:
        """Hook after the last epoch of a phase, before the next one starts; returns metrics for the log."""
        return {}

    def load_matching_tensors(self, tensors: Mapping[str, Tensor], where: str) -> str | None:
        """Load matching tensors from a run with a similar network; return their description, or ``None``."""
        return None

    def on_backbone_loaded(self) -> None:
        """Hook after ``--init-from`` has loaded weights into the backbone of ``network`` only."""

    def groupings(self) -> Mapping[str, Tensor]:
        """Return integer cluster ids (n,) by clustering name, -1 = none, to be scored against the true classes."""
        return {}

    def extra_state(self) -> dict[str, Any]:
        """Return the JSON values that a resumed run needs in addition to parameters and buffers."""
        return {}

    def load_extra_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state returned by ``extra_state``."""

    def forward(self, batch: Batch) -> StepOutput:
        """Run ``training_step`` as the module's forward pass, so that gradients are averaged over a process group."""
        return self.training_step(batch)


def trainable_parameter_names(method: nn.Module) -> list[str]:
    """Return the names of the trainable parameters."""
    return [name for name, parameter in method.named_parameters() if parameter.requires_grad]


def count_parameters(method: nn.Module) -> tuple[int, int]:
    """Return the number of all parameters and the number of trainable ones."""
    sizes = [(p.numel(), p.requires_grad) for p in method.parameters()]
    return sum(n for n, _ in sizes), sum(n for n, trainable in sizes if trainable)
