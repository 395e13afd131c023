"""The base class of methods: a list of events over shared parts.

The trainer owns the clock, the device, precision, logging and checkpoints. A method says what it
wants next (``phases``), what one step is (``training_step``), and what happens at the events. Its state is what it
registers: parameters and buffers travel through checkpoints, other values go through ``extra_state``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from labelkit.data.batch import Batch, DataInfo
from labelkit.data.image_bank import ImageBank
from labelkit.data.samplers import Sampler
from labelkit.data.views.spec import Pairing, ViewSpec
from labelkit.models.frozen_part import ReusablePart
from labelkit.models.inference import InferenceNetwork
from labelkit.models.paired_attention import KeyUpdate
from labelkit.options.training import RunConfig
from labelkit.training.inputs import MonitorInputs, RunInputs
from labelkit.training.timing import GroupRates, Pace, RunSize, Scheduled

ConfigT = TypeVar("ConfigT", bound=RunConfig)


@dataclass(frozen=True, slots=True)
class StepOutput:
    """Result of one training step.

    Attributes:
        loss: scalar to descend.
        logs: scalars to log, detached; not moved off the device unless they are written.
    """

    loss: Tensor
    logs: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Phase:
    """A number of epochs that are trained alike: the same views, samples, labels and order.

    Attributes:
        epochs: length, >= 1.
        views: transforms of each image, or a function that returns them for an epoch of the run.
        sampler: the order of one epoch.
        name: shown in the log.
        labels: (n,) int64 labels of this phase, -1 = unlabeled; default: the labels at the start of training.
        steps: updates of the phase; its last epoch may be cut short. Default: whole epochs.
        lr: learning rate at a step of the phase, from 0; default: the run's own.
        weight_decay: of groups of parameters with ``is_decayed``, at a step of the phase; default: as they were built.
        betas: decays of Adam's moments, at a step of the phase; default: as the optimizer was built.
        pairing: what second views show; default: the same image as the first ones.
    """

    epochs: int
    views: tuple[ViewSpec, ...] | Callable[[int], tuple[ViewSpec, ...]]
    sampler: Sampler
    name: str = "train"
    labels: NDArray[np.int64] | None = None
    steps: int | None = None
    lr: Callable[[int], float] | None = None
    weight_decay: Callable[[int], float] | None = None
    betas: Callable[[int], tuple[float, float]] | None = None
    pairing: Pairing | None = None


PassMode = Literal["eval", "batch-statistics", "train"]


@dataclass(frozen=True, slots=True)
class FullPass:
    """Runs images through a network, each exactly once.

    Attributes:
        mode: of the method's modules. ``eval``; ``batch-statistics``: the same, but normalization uses the statistics
            of the batch and leaves the running ones alone; ``train``: dropout and running statistics as in training.
        view: how an image is prepared; default: the method's ``eval_view``. One with randomness gets new numbers at
            every step of the run.
        order: ``rows``: as listed; ``fixed``: one permutation for the whole run; ``new``: another at every step.
            Neighbors of an image decide its batch statistics, so files sorted by class must not stay together.
        batch_size: images of a batch; default: up to 512. Batches are the same for any number of processes.
        bank: other images than the ones trained on.
        draw: number of the view, where an image is looked at in several views of one step.
        by_network: images are looked at through ``network.embed`` alone, which may get what was kept of them.
    """

    mode: PassMode = "eval"
    view: ViewSpec | None = None
    order: Literal["rows", "fixed", "new"] = "rows"
    batch_size: int | None = None
    bank: ImageBank | None = None
    draw: int = 0
    by_network: bool = False


def _nothing(*values: object) -> None:
    """Do what a state without a trainer does with logs, warnings, gradients and optimizers."""


@dataclass(slots=True)
class TrainState:
    """What a method may request from the trainer at an event.

    Attributes:
        epoch: passes finished; the number of the running one, from 0.
        step: optimizer updates finished.
        steps_per_epoch: updates in this epoch.
        log_now: the coming step's logs are written, so costly ones are worth computing.
        is_main: this process writes files.
        combine: sum or maximum of a small tensor over processes (``algorithms.sinkhorn.Reduce``).
        log: writes a line of its own to the log: what it is about, and its values.
        warn: shows a line to a person.
        phase: number of the running phase, from 0.
        step_in_phase: updates finished in it.
        phase_steps: updates of all of it.
        batches: batches of a phase for a training loop inside an event; keep its epoch apart from those of the run.
        average_gradients: gives parameters the mean of their gradients over processes, in such a loop.
    """

    epoch: int
    step: int
    steps_per_epoch: int
    log_now: bool
    is_main: bool
    full_pass: Callable[..., Tensor]
    generator: Callable[[str], np.random.Generator]
    local_pass: Callable[..., tuple[Tensor, NDArray[np.int64]]] = _nothing  # type: ignore[assignment] # no trainer
    gather_rows: Callable[[Tensor, Tensor, int], Tensor] = _nothing  # type: ignore[assignment] # no trainer
    combine: Callable[[Tensor, Literal["sum", "max"]], Tensor] = lambda value, operation: value
    log: Callable[[str, Mapping[str, float]], None] = _nothing
    warn: Callable[[str], None] = _nothing
    phase: int = 0
    step_in_phase: int = 0
    phase_steps: int = 0
    batches: Callable[[Phase, int], Iterator[Batch]] = lambda phase, epoch: iter(())
    average_gradients: Callable[[Iterable[nn.Parameter]], None] = _nothing

    def embed(
        self,
        network: Callable[[Tensor], Tensor],
        rows: NDArray[np.int64] | None = None,
        how: FullPass | None = None,
    ) -> Tensor:
        """Run ``network`` over the images, each row exactly once.

        Args:
            network: images (b, c, h, w) to (b, d).
            rows: rows of the data set; default: all that can be read.
            how: in which mode and order; default: evaluation, in the order of ``rows``.

        Returns:
            (len(rows), d) float32 in the order of ``rows``, on the CPU, equal on every process.
        """
        return self.full_pass(network, rows) if how is None else self.full_pass(network, rows, how)

    def visit(
        self,
        network: Callable[[Tensor], Tensor],
        rows: NDArray[np.int64] | None = None,
        how: FullPass | None = None,
    ) -> tuple[Tensor, NDArray[np.int64]]:
        """Do the same as ``embed``, but leave every process its own part.

        Returns:
            (m, d) float32 on the CPU and (m,) int64, the rows they belong to; over all processes each row once.
        """
        return self.local_pass(network, rows, how)


@dataclass(frozen=True, slots=True)
class ScoreTable:
    """Scores of a finished run for a person.

    Attributes:
        title: what was measured on which images, with the unit.
        columns: names of the scores.
        values: one for each column; ``None`` = not measured.
    """

    title: str
    columns: tuple[str, ...]
    values: tuple[float | int | None, ...]


class Monitor(ABC):
    """Looks at the network after an epoch, with knowledge that the method must not have."""

    #: ``before`` is worth a call.
    compares_with_start: ClassVar[bool] = False

    @abstractmethod
    def __call__(self, method: Method[Any], state: TrainState) -> Mapping[str, float]:
        """Return metrics; raise ``DivergenceError`` when going on is useless."""

    def before(self, method: Method[Any], state: TrainState) -> Mapping[str, float]:
        """Return scores of the features that training starts from, if they mean something; default: nothing."""
        return {}

    def describe(self, metrics: Mapping[str, float]) -> list[str]:
        """Return parts of the line after an epoch, in which the monitor need not have measured; default: none."""
        return []

    def compare(self, before: Mapping[str, float], after: Mapping[str, float]) -> str | None:
        """Return a warning where training made worse what ``before`` found (it may be empty); default: nothing."""
        return None

    def table(self, metrics: Mapping[str, float]) -> ScoreTable | None:
        """Return the scores of a finished run; ``None`` if nothing was measured. Default: nothing."""
        return None

    def extra_state(self) -> dict[str, Any]:
        """Return JSON values that a resumed run needs; default: none."""
        return {}

    def load_extra_state(self, state: Mapping[str, Any]) -> None:  # noqa: B027 - by default there is nothing to take
        """Restore what ``extra_state`` returned."""


class Method(nn.Module, ABC, Generic[ConfigT]):
    """One training method.

    Args:
        config: its options; read once, here.
        data: facts about the training set.
    """

    #: Metric of an epoch by which ``best`` is chosen (lowest); never one that needs hidden labels.
    best_metric: ClassVar[str] = "loss"
    #: Losses pull images together: features are looked at after every epoch and compared with those before training.
    may_collapse: ClassVar[bool] = False
    #: Training runs backbones as a whole, so that they can be compiled.
    runs_whole_backbone: ClassVar[bool] = True
    #: Buffers that are equal on every process without being sent to it.
    equal_buffers: tuple[str, ...] = ()

    #: What embeds images; set by the method's ``__init__``.
    network: InferenceNetwork
    #: Where the run is, from the first step on.
    _state: TrainState | None = None

    def __init__(self, config: ConfigT, data: DataInfo) -> None:
        super().__init__()
        self.config = config
        self.data = data

    def attach(self, inputs: RunInputs) -> None:
        """Take what the options name from files and other images; before training, also before it is resumed.

        Args:
            inputs: what the run has.
        """

    def monitor(self, inputs: MonitorInputs) -> Monitor | None:
        """Return what evaluates the method after an epoch; default: nothing.

        Args:
            inputs: what the monitor may know. The method must keep nothing of it.
        """
        return None

    def describe(self, metrics: Mapping[str, float]) -> list[str]:
        """Return parts of the line after an epoch, behind those of the monitor; default: none."""
        return []

    def remarks(self, metrics: Mapping[str, float]) -> list[str]:
        """Return what a person should know about a finished run with these metrics; default: nothing."""
        return []

    @abstractmethod
    def phases(self, rows: NDArray[np.int64]) -> tuple[Phase, ...]:
        """Return what to train on, in order, as far as it is known before training.

        Args:
            rows: rows of the data set that can be read.
        """

    def phase(self, index: int, rows: NDArray[np.int64]) -> Phase | None:
        """Return phase ``index`` when the one before has ended; ``None`` ends the run. Default: from ``phases``.

        A phase may depend on state that a checkpoint carries, and must be the same when it is asked for again.
        """
        phases = self.phases(rows)
        return phases[index] if index < len(phases) else None

    @classmethod
    def paces(cls, config: ConfigT, size: RunSize) -> tuple[Pace, ...]:
        """Return how long the phases are and how the optimizer changes in them, without images.

        Where phases are decided on the way, those of a run that finds all that it looks for. Default: as many passes
        over all images as the options say.

        Args:
            config: the options.
            size: number of images.
        """
        return (Pace(config.length()["epochs"], size.known_images()),)

    @classmethod
    def group_rates(cls, config: ConfigT) -> GroupRates:
        """Return how the learning rates of groups of parameters differ; default: one group, without a name."""
        return {"": {}}

    @classmethod
    def scheduled(cls, config: ConfigT, size: RunSize) -> Mapping[str, Scheduled]:
        """Return what else changes during training, by name, as the steps of this method use it; default: nothing."""
        return {}

    def planned_steps(self) -> int | None:
        """Return the most updates that a run can take, if its phases are decided on the way; else ``None``."""
        return None

    def headline(self) -> InferenceNetwork:
        """Return the network that is evaluated, and that embeds after training; default: ``network``."""
        return self.network

    @abstractmethod
    def training_step(self, batch: Batch) -> StepOutput:
        """Turn one batch into one loss."""

    @abstractmethod
    def eval_view(self) -> ViewSpec:
        """Return how an image is prepared for ``network.embed``."""

    def judged(self) -> Mapping[str, InferenceNetwork]:
        """Return further networks to evaluate, by name, next to the headline; default: none."""
        return {}

    def reuse_frozen(self) -> ReusablePart | None:
        """Let training steps take what the frozen part of the network makes of views, and not images.

        Returns:
            What is kept of each view; ``None``: the method has no such part.

        Raises:
            ConfigError: with these options nothing is frozen, or it changes from pass to pass.
        """
        return None

    def key_update(self) -> tuple[KeyUpdate, tuple[int, ...]] | None:
        """Return how the teacher's keys move in training, and in which blocks; ``None``: they do not."""
        return None

    def parameter_groups(self) -> Iterator[dict[str, Any]]:
        """Return groups for the optimizer; default: no weight decay on biases and one-dimensional parameters."""
        decayed: list[nn.Parameter] = []
        plain: list[nn.Parameter] = []
        for parameter in self.parameters():
            if parameter.requires_grad:
                (decayed if parameter.ndim >= 2 else plain).append(parameter)
        yield {"params": decayed, "weight_decay": self.config.weight_decay}
        yield {"params": plain, "weight_decay": 0.0}

    def on_train_start(self, state: TrainState) -> None:
        """Before the first step of a new run; a resumed run skips it."""

    def on_phase_start(self, state: TrainState) -> None:
        """Before the first step of a phase; a run that is resumed inside skips it."""

    def on_epoch_start(self, state: TrainState) -> None:
        """Before the first step of an epoch, also of one that is resumed inside."""

    def on_step_start(self, state: TrainState) -> None:
        """Before a step: remember where the run is."""
        self._state = state

    def on_gradients(self, state: TrainState) -> None:
        """After the gradients of a step are there, before they are limited and the optimizer moves."""

    def on_step_end(self, state: TrainState) -> None:
        """After the optimizer moved."""

    def on_epoch_end(self, state: TrainState) -> Mapping[str, float]:
        """After an epoch; returns metrics for the log."""
        return {}

    def on_phase_end(self, state: TrainState) -> Mapping[str, float]:
        """After the last epoch of a phase, before the next one is asked for; returns metrics for the log."""
        return {}

    @property
    def takes_whole_runs(self) -> bool:
        """Return whether ``--init-from`` a run of the same network gives all of it; if not, ``take_parts`` is asked."""
        return True

    def take_parts(self, tensors: Mapping[str, Tensor], where: str) -> str | None:
        """Take the tensors that fit from a run with a similar network; say which, or ``None`` if none fits.

        Args:
            tensors: parameters and buffers of the run, by name.
            where: its folder.
        """
        return None

    def on_backbone_taken(self) -> None:
        """After ``--init-from`` gave weights to the backbone of ``network`` alone."""

    def groupings(self) -> Mapping[str, Tensor]:
        """Return groups of the rows, by name: (n,) integers, -1 = none; scored where truth is known."""
        return {}

    def extra_state(self) -> dict[str, Any]:
        """Return JSON values beyond parameters and buffers that a resumed run needs."""
        return {}

    def load_extra_state(self, state: Mapping[str, Any]) -> None:
        """Restore what ``extra_state`` returned."""

    def forward(self, batch: Batch) -> StepOutput:
        """Call ``training_step``; this is what runs under a process group."""
        return self.training_step(batch)


def trainable_names(method: nn.Module) -> list[str]:
    """Names of the parameters that are trained."""
    return [name for name, parameter in method.named_parameters() if parameter.requires_grad]


def count_parameters(method: nn.Module) -> tuple[int, int]:
    """Return (all, trainable) numbers of parameters."""
    sizes = [(p.numel(), p.requires_grad) for p in method.parameters()]
    return sum(n for n, _ in sizes), sum(n for n, trainable in sizes if trainable)
