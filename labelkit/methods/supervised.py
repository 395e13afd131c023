"""Supervised: the few labels alone; the baseline of every method that also uses the other images.

Each step: cross-entropy of a batch of labeled images, which come again and again; an average of the network follows it
as in ``train mean-teacher``, with the same student, views, steps and learning rates. No other image is looked at, not
even by batch normalization.
A method of its own and not ``train softmax``: that one counts passes over the labels, and refuses fewer of them than a
batch holds.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from labelkit.config.methods.supervised import SupervisedConfig
from labelkit.data.batch import Batch, DataInfo
from labelkit.data.samplers import Stream
from labelkit.data.transforms import ViewSpec
from labelkit.engine.few_labels import (
    build_student,
    check_few_labels,
    recalibrate_students,
    student_eval_view,
    student_phase,
    student_views,
    teacher_decay,
)
from labelkit.engine.method import Method, Phase, StepOutput, TrainState
from labelkit.engine.students import StudentNetwork, logits_of
from labelkit.losses.consistency import LabelLoss
from labelkit.models.ema import StudentChain


class Supervised(Method[SupervisedConfig]):
    """Needs at least one label of each class."""

    network: StudentNetwork

    def __init__(self, config: SupervisedConfig, data: DataInfo) -> None:
        super().__init__(config, data)
        self.network = build_student(config, data, check_few_labels(config, data))
        self.chain = StudentChain(self.network, with_master=False)
        self.loss = LabelLoss(1.0)
        self._view, _ = student_views(config, data, self.network.input_spec.size)
        self._decay = teacher_decay(config, config.steps)
        self._labeled = np.zeros(0, dtype=np.int64)

    def phases(self, rows: NDArray[np.int64]) -> tuple[Phase, ...]:
        """One phase: labeled images again and again."""
        config, labels = self.config, self.data.labels
        self._labeled = rows[labels[rows] >= 0]
        drawn = (Stream("labeled", self._labeled, config.batch_size),)
        return (student_phase(config, labels, (self._view,), drawn, steps=config.steps, peak=config.lr),)

    def on_train_start(self, state: TrainState) -> None:
        """Start both networks equal, also when weights were taken from elsewhere."""
        self.chain.restart(self.network)

    def training_step(self, batch: Batch) -> StepOutput:
        """Cross-entropy."""
        (logits,) = logits_of(self.network, batch.images)
        return StepOutput(self.loss(logits, batch.labels))

    def on_step_end(self, state: TrainState) -> None:
        """Move the average."""
        self.chain.update(self.network, self._decay(state.step + 1), 0.0)

    def on_epoch_end(self, state: TrainState) -> Mapping[str, float]:
        """Prepare network and average to be judged, by the labeled images alone."""
        recalibrate_students(self.config, self.network, self.chain, state, self._labeled)
        return {}

    def headline(self) -> StudentNetwork:
        """The average."""
        return self.chain.teacher

    def judged(self) -> Mapping[str, StudentNetwork]:
        """The network and its average."""
        return {"student": self.network, "teacher": self.chain.teacher}

    def eval_view(self) -> ViewSpec:
        """The image without augmentation."""
        return student_eval_view(self.network.input_spec.size)
