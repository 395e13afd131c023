"""Supervised: training on the few labels alone, the baseline of all methods that also use unlabeled images.

Each step: cross-entropy on a batch of labeled images, which repeat often; an EMA of the network is updated
as in ``train mean-teacher``, with the same student, views, steps and learning rates. No other image is used, not
even for batch normalization.
It is separate from ``train softmax``, which counts epochs over the labeled images and requires at least a full batch
of them.
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
        """Return the single training phase, which repeats the labeled images; batch norm uses only these."""
        config, labels = self.config, self.data.labels
        self.batch_norm_rows = labeled = rows[labels[rows] >= 0]
        return (student_phase(config, labels, labeled, (self.weak_view,), steps=config.steps, peak_lr=config.lr),)

    def training_step(self, batch: Batch) -> StepOutput:
        """Compute the cross-entropy of one batch."""
        (logits,) = head_logits(self.network, batch.images)
        return StepOutput(self.loss(logits, batch.labels))
