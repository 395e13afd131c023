"""Mean Teacher: a student learns from a few labels, and from its own average on all images.

Source: A. Tarvainen, H. Valpola, "Mean teachers are better role models" (NeurIPS 2017) and its released code.
Each step, on a batch of labeled and unlabeled images in two views:
    1. cross-entropy of the labeled images of the first view
    2. squared difference between the student's prediction for the first view and the teacher's for the second,
       with a weight that grows at the start
    3. the teacher moves toward the student
The teacher runs in training mode, with statistics of its own. It is the network that is judged and embeds.
Departures: decays fit to short runs (``--no-ema-horizon``), statistics are taken anew before an evaluation
(``--no-bn-recalibration``), weight normalization and ZCA whitening are left out.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from labelkit.config.methods.mean_teacher import MeanTeacherConfig
from labelkit.data.batch import Batch, DataInfo
from labelkit.data.transforms import ViewSpec
from labelkit.engine.few_labels import (
    build_student,
    check_few_labels,
    mean_teacher_objective,
    recalibrate_students,
    streams,
    student_eval_view,
    student_phase,
    student_views,
    teacher_decay,
)
from labelkit.engine.method import Method, Phase, StepOutput, TrainState
from labelkit.engine.students import StudentClock, StudentNetwork, StudentNetworks
from labelkit.models.ema import StudentChain


class MeanTeacher(Method[MeanTeacherConfig]):
    """Needs at least one label of each class."""

    network: StudentNetwork

    def __init__(self, config: MeanTeacherConfig, data: DataInfo) -> None:
        super().__init__(config, data)
        num_classes = check_few_labels(config, data)
        self.network = build_student(config, data, num_classes, num_heads=config.num_heads)
        self.chain = StudentChain(self.network, with_master=False)
        weak, _ = student_views(config, data, self.network.input_spec.size)
        self.objective = mean_teacher_objective(config, config, weak)
        self._decay = teacher_decay(config, config.steps, config.consistency_ramp * config.steps)
        self._state: TrainState | None = None
        self._rows = np.zeros(0, dtype=np.int64)

    def phases(self, rows: NDArray[np.int64]) -> tuple[Phase, ...]:
        """One phase: labeled images again and again beside all others."""
        self._rows, config, labels = rows, self.config, self.data.labels
        drawn = streams(labels, rows, batch_size=config.batch_size, labeled_per_batch=config.labeled_batch_size)
        return (student_phase(config, labels, self.objective.views(), drawn, steps=config.steps, peak=config.lr),)

    def on_train_start(self, state: TrainState) -> None:
        """Start both networks equal, also when weights were taken from elsewhere."""
        self.chain.restart(self.network)

    def on_step_start(self, state: TrainState) -> None:
        """Remember where the run is."""
        self._state = state

    def training_step(self, batch: Batch) -> StepOutput:
        """Return the loss of the objective."""
        return self.objective(batch, StudentNetworks(self.network, self.chain.teacher), StudentClock.of(self._state))

    def on_step_end(self, state: TrainState) -> None:
        """Move the teacher."""
        self.chain.update(self.network, self._decay(state.step + 1), 0.0)

    def on_epoch_end(self, state: TrainState) -> Mapping[str, float]:
        """Prepare student and teacher to be judged."""
        recalibrate_students(self.config, self.network, self.chain, state, self._rows)
        return {}

    def headline(self) -> StudentNetwork:
        """The teacher."""
        return self.chain.teacher

    def judged(self) -> Mapping[str, StudentNetwork]:
        """Student and teacher."""
        return {"student": self.network, "teacher": self.chain.teacher}

    def eval_view(self) -> ViewSpec:
        """The image without augmentation."""
        return student_eval_view(self.network.input_spec.size)
