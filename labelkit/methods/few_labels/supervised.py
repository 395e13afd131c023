"""Supervised: the few labels alone; the baseline of every method that also uses the other images.

Each step: cross-entropy of a batch of labeled images, which repeat often; an average of the network follows it
as in ``train mean-teacher``, with the same student, views, steps and learning rates. No other image is used, not
even by batch normalization.
It is a separate method from ``train softmax``, which counts passes over the labels and refuses fewer of them than a
batch holds.
"""

import numpy as np
from numpy.typing import NDArray

from labelkit.data.batch import Batch, DataInfo
from labelkit.losses.consistency import LabelLoss
from labelkit.methods.few_labels.options import SupervisedConfig
from labelkit.methods.few_labels.recipe import EMAStudentMethod, head_logits, student_phase
from labelkit.training.method import Phase, StepOutput


class Supervised(EMAStudentMethod[SupervisedConfig]):
    """Supervised baseline trained only on the labeled images; needs at least one label per class."""

    def __init__(self, config: SupervisedConfig, data: DataInfo) -> None:
        super().__init__(config, data)
        self.loss = LabelLoss(1.0)

    def phases(self, rows: NDArray[np.int64]) -> tuple[Phase, ...]:
        """Return the single phase, which repeats the labeled images and computes batch norm only from them."""
        config, labels = self.config, self.data.labels
        self._rows = rows[labels[rows] >= 0]
        return (student_phase(config, labels, self._rows, (self.weak_view,), steps=config.steps, peak=config.lr),)

    def training_step(self, batch: Batch) -> StepOutput:
        """Compute the cross-entropy of one batch."""
        (logits,) = head_logits(self.network, batch.images)
        return StepOutput(self.loss(logits, batch.labels))
