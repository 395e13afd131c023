"""A classifier for few labels and its average, and the exchangeable part: how the student learns from one batch.

A method owns networks, phases and labels; its objective says which views it needs and what one batch costs. So the same
growth of labels runs on Mean Teacher or MixMatch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from labelkit.data.batch import Batch, DataInfo
from labelkit.data.views.spec import ViewSpec
from labelkit.methods.few_labels.options import FewLabelTrainConfig, TwoStreamTrainConfig
from labelkit.methods.few_labels.recipe import (
    StudentNetwork,
    build_student,
    check_few_labels,
    fit_whitening,
    recalibrate_bn,
    streams,
    student_eval_view,
    student_pace,
    student_phase,
    teacher_decay,
)
from labelkit.models.ema import StudentChain
from labelkit.models.inference import InferenceNetwork
from labelkit.training.inputs import MonitorInputs
from labelkit.training.method import Method, Monitor, Phase, StepOutput, TrainState
from labelkit.training.monitors.classification import ClassificationMonitor
from labelkit.training.schedules import EMADecay
from labelkit.training.timing import Pace, RunSize, Scheduled

FewLabelConfigT = TypeVar("FewLabelConfigT", bound=FewLabelTrainConfig)
TwoStreamConfigT = TypeVar("TwoStreamConfigT", bound=TwoStreamTrainConfig)


@dataclass(frozen=True, slots=True)
class StudentNetworks:
    """The networks of a step, all in training mode.

    Attributes:
        student: the one that is trained.
        teacher: its average.
        master: the teacher's average once it is formed, else ``None``.
    """

    student: StudentNetwork
    teacher: StudentNetwork
    master: StudentNetwork | None = None


def _itself(count: float) -> float:
    return count


def _alone(value: Tensor) -> Tensor:
    return value


@dataclass(frozen=True, slots=True)
class StudentClock:
    """Where the run is, for weights that change.

    Attributes:
        step: updates of the run that are finished, from 0.
        step_in_phase: of these, in the running phase.
        phase: number of the running phase; labels grow between phases.
        mean_count: a count of this process to its mean over processes.
        total: a small tensor of this process to its sum over processes.
    """

    step: int = 0
    step_in_phase: int = 0
    phase: int = 0
    mean_count: Callable[[float], float] = _itself
    total: Callable[[Tensor], Tensor] = _alone

    @classmethod
    def of(cls, state: TrainState | None) -> StudentClock:
        """Read it off the trainer's state; ``None`` is a step outside of a run."""
        if state is None:
            return cls()

        def mean_count(count: float) -> float:
            # one exchange for both: the sum of the counts and the number of processes
            total, processes = state.combine(torch.tensor([count, 1.0], dtype=torch.float64), "sum").tolist()
            return float(total / processes)

        def total(value: Tensor) -> Tensor:
            return state.combine(value, "sum")

        return cls(state.step, state.step_in_phase, state.phase, mean_count, total)


class StudentObjective(nn.Module, ABC):
    """Turns a batch into a loss.

    In a batch, rows with a label (``labels >= 0``) are those of the labeled stream and come first; the others have -1.
    Where labels grow, discovered images are labeled rows like any other. Gradients are averaged over processes, so a
    mean over labeled rows, of which processes may have different numbers, is their sum over ``clock.mean_count``.

    Attributes:
        runs_teacher: a step runs the teacher, in training mode, so that it has running statistics of its own.
        runs_master: likewise the master, once it is formed.
    """

    runs_teacher: bool
    runs_master: bool

    @abstractmethod
    def views(self) -> tuple[ViewSpec, ...]:
        """What is made of each image of a batch."""

    @abstractmethod
    def forward(self, batch: Batch, networks: StudentNetworks, clock: StudentClock) -> StepOutput:
        """Return the loss, with gradients for the student alone, and what to log."""

    def __call__(self, batch: Batch, networks: StudentNetworks, clock: StudentClock) -> StepOutput:
        """Call ``forward``, with its types."""
        output: StepOutput = super().__call__(batch, networks, clock)
        return output


def logits_of(network: StudentNetwork, images: Tensor) -> tuple[Tensor, ...]:
    """Images (b, c, h, w) to the logits (b, k) of each head; the first one predicts."""
    return network.head.every(network.embed(images))


def labeled_and_others(batch: Batch) -> tuple[Tensor, Tensor]:
    """Where a batch has labels and where not, (m,) and (u,) int64; no GPU is waited for."""
    labeled = batch.on_host.labels >= 0
    return batch.places(labeled), batch.places(~labeled)


class AveragedStudent(Method[FewLabelConfigT]):
    """A network that is trained, and its average, which is judged and embeds.

    Attributes:
        network: the one that is trained.
        chain: its average (``chain.teacher``).
        num_classes: of the classifier.

    Args:
        config: the options.
        data: the labels.
        num_heads: linear classifiers; the first one predicts.
        dropout: inside the backbone, if it has any; ``None``: its own.
        with_master: make room for an average of the average.

    Raises:
        DatasetError: see :func:`labelkit.methods.few_labels.recipe.check_few_labels`.
        ConfigError: likewise.
    """

    network: StudentNetwork

    def __init__(
        self,
        config: FewLabelConfigT,
        data: DataInfo,
        *,
        num_heads: int = 1,
        dropout: float | None = None,
        with_master: bool = False,
    ) -> None:
        super().__init__(config, data)
        self.num_classes = check_few_labels(config, data)
        self.network = build_student(config, data, self.num_classes, num_heads=num_heads, dropout=dropout)
        self.chain = StudentChain(self.network, with_master=with_master)
        self._decay = self.average_decay(config)
        self._rows = np.zeros(0, dtype=np.int64)  # rows that batch normalization may look at

    @classmethod
    def average_decay(cls, config: FewLabelConfigT) -> EMADecay:
        """Decay of the average at an update of the run, counted from 1."""
        return teacher_decay(config, config.steps)

    @classmethod
    def paces(cls, config: FewLabelConfigT, size: RunSize) -> tuple[Pace, ...]:
        """One phase of all updates."""
        return (student_pace(config, steps=config.steps, peak=config.lr),)

    @classmethod
    def scheduled(cls, config: FewLabelConfigT, size: RunSize) -> Mapping[str, Scheduled]:
        """Decay of the average."""
        decay = cls.average_decay(config)
        return {"ema_decay": lambda now: decay(now.step + 1)}

    @property
    def runs_teacher(self) -> bool:
        """Whether a step runs the average, in training mode, so that it has running statistics of its own."""
        return False

    def on_train_start(self, state: TrainState) -> None:
        """Start both networks equal, also when weights were taken from elsewhere."""
        fit_whitening(self.network, state, self._rows)
        self.chain.restart(self.network)

    def on_step_end(self, state: TrainState) -> None:
        """Move the average."""
        self.chain.update(self.network, self._decay(state.step + 1), teacher_runs=self.runs_teacher)

    def on_epoch_end(self, state: TrainState) -> Mapping[str, float]:
        """Give all networks running statistics to be judged and saved with; training does not use them."""
        for network in (self.network, self.chain.teacher, self.chain.master):
            if network is not None:
                recalibrate_bn(network, state, self._rows)
        return {}

    def headline(self) -> StudentNetwork:
        """The average."""
        return self.chain.teacher

    def judged(self) -> Mapping[str, InferenceNetwork]:
        """The network and its average."""
        return {"student": self.network, "teacher": self.chain.teacher}

    def monitor(self, inputs: MonitorInputs) -> Monitor:
        """Names given to held-out images."""
        return ClassificationMonitor(inputs.held_out, self.data.class_order)

    def eval_view(self) -> ViewSpec:
        """The image without augmentation."""
        return student_eval_view(self.network.input_spec.size)


class ObjectiveStudent(AveragedStudent[TwoStreamConfigT]):
    """An averaged student that learns by an objective from labeled images beside all others.

    Attributes:
        objective: set by the method.
    """

    objective: StudentObjective
    _state: TrainState | None = None

    def phases(self, rows: NDArray[np.int64]) -> tuple[Phase, ...]:
        """One phase: labeled images again and again beside others."""
        self._rows, config, labels = rows, self.config, self.data.labels
        drawn = streams(labels, rows, batch_size=config.batch_size, labeled_per_batch=config.labeled_batch_size)
        return (student_phase(config, labels, self.objective.views(), drawn, steps=config.steps, peak=config.lr),)

    @property
    def runs_teacher(self) -> bool:
        """Whether the objective does."""
        return self.objective.runs_teacher

    def on_step_start(self, state: TrainState) -> None:
        """Remember where the run is."""
        self._state = state

    def training_step(self, batch: Batch) -> StepOutput:
        """Return the loss of the objective."""
        return self.objective(batch, StudentNetworks(self.network, self.chain.teacher), StudentClock.of(self._state))
