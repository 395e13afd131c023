"""MixMatch: guess labels for unlabeled images, blend them with labeled ones, fit the blends.

Source: D. Berthelot et al., "MixMatch: A Holistic Approach to Semi-Supervised Learning" (NeurIPS 2019) and its released
code.
Each step, on as many labeled images as others, in two weak views:
    1. the mean prediction for the two views, sharpened, is the guess
    2. every row is blended with another one, image and label alike
    3. cross-entropy of labeled blends, squared error of the others with a weight that grows at the start
    4. the average moves toward the network; it is the one that is judged and embeds
Departures: weight decay (of kernels alone, decoupled) comes just before an update instead of just after it; the average
fits to short runs (``--no-ema-horizon``); statistics are taken anew before an evaluation, as the released code can;
accuracy is the last one, not the median of the last 20.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from labelkit.config.methods.mixmatch import MixMatchConfig
from labelkit.data.batch import Batch, DataInfo
from labelkit.data.transforms import ViewSpec
from labelkit.engine.few_labels import (
    build_student,
    check_few_labels,
    recalibrate_students,
    streams,
    student_eval_view,
    student_phase,
    student_views,
    teacher_decay,
)
from labelkit.engine.method import Method, Phase, StepOutput, TrainState
from labelkit.engine.student_objectives import mixmatch_objective
from labelkit.engine.students import StudentClock, StudentNetwork, StudentNetworks
from labelkit.models.ema import StudentChain


class MixMatch(Method[MixMatchConfig]):
    """Needs at least one label of each class."""

    network: StudentNetwork

    def __init__(self, config: MixMatchConfig, data: DataInfo) -> None:
        super().__init__(config, data)
        self.network = build_student(config, data, check_few_labels(config, data))
        self.chain = StudentChain(self.network, with_master=False)
        weak, _ = student_views(config, data, self.network.input_spec.size)
        self.objective = mixmatch_objective(config, config, weak)
        self._decay = teacher_decay(config, config.steps)
        self._state: TrainState | None = None
        self._rows = np.zeros(0, dtype=np.int64)

    def phases(self, rows: NDArray[np.int64]) -> tuple[Phase, ...]:
        """One phase: labeled images again and again beside as many others."""
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
        """Move the average."""
        self.chain.update(self.network, self._decay(state.step + 1), 0.0)

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

    def eval_view(self) -> ViewSpec:
        """The image without augmentation."""
        return student_eval_view(self.network.input_spec.size)
