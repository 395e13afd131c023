"""FreeMatch: what the network is sure of for a weakly changed image, it learns on a strongly changed one.

Sources: Y. Wang et al., "FreeMatch: Self-adaptive Thresholding for Semi-supervised Learning" (ICLR 2023) and
``microsoft/Semi-supervised-learning``; with ``--fixed-threshold 0.95 --fairness-weight 0`` K. Sohn et al., "FixMatch"
(NeurIPS 2020).
Each step, on labeled images and several times as many others:
    1. cross-entropy of the labeled images, weakly changed
    2. thresholds move toward the mean confidence, and for each class with its share of the predictions
    3. cross-entropy of strongly changed images with the class of the weakly changed one, if above its threshold
    4. the published term on the mix of classes, with a small weight
    5. the average moves toward the network; it is the one that is judged and embeds
Departures: RandAugment's geometric operations come before the others; the average fits to short runs
(``--no-ema-horizon``); statistics are taken anew before an evaluation.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from labelkit.config.methods.freematch import FreeMatchConfig
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
from labelkit.engine.student_objectives import freematch_objective
from labelkit.engine.students import StudentClock, StudentNetwork, StudentNetworks
from labelkit.models.ema import StudentChain


class FreeMatch(Method[FreeMatchConfig]):
    """Needs at least one label of each class."""

    network: StudentNetwork

    def __init__(self, config: FreeMatchConfig, data: DataInfo) -> None:
        super().__init__(config, data)
        num_classes = check_few_labels(config, data)
        self.network = build_student(config, data, num_classes)
        self.chain = StudentChain(self.network, with_master=False)
        views = student_views(config, data, self.network.input_spec.size)
        self.objective = freematch_objective(config, views, num_classes)
        self._decay = teacher_decay(config, config.steps)
        self._state: TrainState | None = None
        self._rows = np.zeros(0, dtype=np.int64)

    def phases(self, rows: NDArray[np.int64]) -> tuple[Phase, ...]:
        """One phase: labeled images again and again beside others."""
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
