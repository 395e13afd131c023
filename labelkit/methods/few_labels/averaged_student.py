"""A classifier for few labels and its average: what methods share in which labels do not grow.

Methods say how one batch is learned from, by an objective or a step of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from labelkit.data.batch import Batch, DataInfo
from labelkit.data.views.spec import ViewSpec
from labelkit.methods.few_labels.options import FewLabelTrainConfig, TwoStreamTrainConfig
from labelkit.methods.few_labels.recipe import (
    build_student,
    check_few_labels,
    fit_whitening,
    recalibrate_students,
    streams,
    student_eval_view,
    student_pace,
    student_phase,
    teacher_decay,
)
from labelkit.methods.few_labels.students import StudentClock, StudentNetwork, StudentNetworks, StudentObjective
from labelkit.models.ema import StudentChain
from labelkit.training.inputs import MonitorInputs
from labelkit.training.method import Method, Monitor, Phase, StepOutput, TrainState
from labelkit.training.monitors.classification import ClassificationMonitor
from labelkit.training.schedules import EMADecay
from labelkit.training.timing import Pace, RunSize, Scheduled

FewLabelConfigT = TypeVar("FewLabelConfigT", bound=FewLabelTrainConfig)
TwoStreamConfigT = TypeVar("TwoStreamConfigT", bound=TwoStreamTrainConfig)


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

    Raises:
        DatasetError: see :func:`labelkit.methods.few_labels.recipe.check_few_labels`.
        ConfigError: likewise.
    """

    network: StudentNetwork

    def __init__(self, config: FewLabelConfigT, data: DataInfo, *, num_heads: int = 1) -> None:
        super().__init__(config, data)
        self.num_classes = check_few_labels(config, data)
        self.network = build_student(config, data, self.num_classes, num_heads=num_heads)
        self.chain = StudentChain(self.network, with_master=False)
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
        """Prepare network and average to be judged."""
        recalibrate_students(self.config, self.network, self.chain, state, self._rows)
        return {}

    def headline(self) -> StudentNetwork:
        """The average."""
        return self.chain.teacher

    def judged(self) -> Mapping[str, StudentNetwork]:
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
