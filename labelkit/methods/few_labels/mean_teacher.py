"""Mean Teacher: a student learns from a few labels, and from the predictions of its own EMA on all images.

Source: A. Tarvainen, H. Valpola, "Mean teachers are better role models" (NeurIPS 2017) and
``CuriousAI/mean-teacher``.
Each step, on a batch of labeled and unlabeled images in two views:
    1. cross-entropy on the labeled images of the first view
    2. squared difference between the student's prediction for the first view and the teacher's for the second,
       with a ramped-up weight
    3. update the teacher, the student's EMA
The teacher runs in training mode, with its own batch norm statistics; it is used for evaluation and embedding.
Departures: EMA decays adapt to short runs, statistics are recomputed before evaluation, images are not whitened.
"""

from typing import Final

import torch

from labelkit.algorithms.precision import promote, without_autocast
from labelkit.data.batch import Batch, DataInfo
from labelkit.data.views.spec import ViewSpec
from labelkit.losses.consistency import LabelLoss
from labelkit.methods.few_labels.losses import SquaredConsistencyLoss
from labelkit.methods.few_labels.options import MeanTeacherConfig, MeanTeacherOptions
from labelkit.methods.few_labels.recipe import StudentNetworks, StudentObjective, StudentObjectiveMethod, head_logits
from labelkit.training.method import StepOutput, TrainState
from labelkit.training.schedules import RampedWeight

#: Weight of the mean squared difference between the logits of two heads (released code, ``symmetric_mse_loss``).
HEAD_WEIGHT: Final = 0.01


class MeanTeacherObjective(StudentObjective):
    r"""Mean Teacher's training loss: cross-entropy with labels and consistency with the teacher's predictions.

    .. math:: J = J_C + \lambda(t) (J_T + J_M) + \lambda_h J_h

    with a weight :math:`\lambda` that grows in the first phase; later phases use its full value.

    Args:
        options: loss weights, and the divisor of :math:`J_C`.
        steps: length of the first phase.
        view: augmentation of an image, drawn independently for student and teacher.
    """

    def __init__(self, options: MeanTeacherOptions, steps: int, view: ViewSpec) -> None:
        super().__init__()
        self.views, self._class_norm = (view, view), options.class_norm
        self._weight = RampedWeight(options.consistency_weight, options.consistency_ramp * steps, "sigmoid")
        self.teacher_in_train_mode = self.runs_master = options.consistency_weight > 0
        self.label_loss = LabelLoss(1.0)
        self.consistency = SquaredConsistencyLoss()

    def forward(self, batch: Batch, networks: StudentNetworks, state: TrainState) -> StepOutput:
        """Return the loss, with gradients only for the student."""
        labels = batch.labels
        labeled = labels >= 0
        count = int((batch.on_host.labels >= 0).sum())
        heads = head_logits(networks.student, batch.views[0])
        mean_count = max(state.mean_count(count), 1.0)
        norm = len(labels) if self._class_norm == "batch" else mean_count
        cross_entropy = self.label_loss(heads[0], labels) * (count / norm)
        logs = {"cross_entropy": cross_entropy.detach()}
        loss = cross_entropy
        weight = self._weight(state.step_in_phase) if state.phase == 0 else self._weight.full
        if weight > 0:
            with torch.no_grad():
                target = head_logits(networks.teacher, batch.views[1])[0]
            consistency = self.consistency(heads[-1], target).mean()
            loss = loss + weight * consistency
            logs["consistency"] = consistency.detach()
            if networks.master is not None:
                with torch.no_grad():
                    # all rows, since batch statistics of a few images would be noisy
                    target = head_logits(networks.master, batch.views[1])[0]
                difference = self.consistency(heads[-1], target)
                agreement = (difference * labeled).sum() / mean_count  # labeled rows only (Eq. 2.7)
                loss = loss + weight * agreement
                logs["master_consistency"] = agreement.detach()
        if len(heads) > 1:
            with without_autocast(heads[0]):  # both heads get gradients
                difference = (promote(heads[0]) - promote(heads[1])).square().mean()
            loss = loss + HEAD_WEIGHT * difference
            logs["head_difference"] = difference.detach()
        return StepOutput(loss, logs)


class MeanTeacher(StudentObjectiveMethod[MeanTeacherConfig]):
    """Mean Teacher training method: consistency with an averaged network; needs at least one label per class."""

    def __init__(self, config: MeanTeacherConfig, data: DataInfo) -> None:
        super().__init__(config, data, num_heads=config.num_heads)
        self.objective = MeanTeacherObjective(config, config.steps, self.weak_view)
