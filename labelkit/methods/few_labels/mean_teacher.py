"""Mean Teacher: a student learns from a few labels, and from its own average on all images.

Source: A. Tarvainen, H. Valpola, "Mean teachers are better role models" (NeurIPS 2017) and
``CuriousAI/mean-teacher``.
Each step, on a batch of labeled and unlabeled images in two views:
    1. cross-entropy of the labeled images of the first view
    2. squared difference between the student's prediction for the first view and the teacher's for the second,
       with a weight that grows at the start
    3. the teacher moves toward the student
The teacher runs in training mode, with statistics of its own. It is the network that is judged and embeds.
Departures: decays fit to short runs, statistics are taken anew before an evaluation. ``--whitening zca`` whitens after
shifts and mirroring, not before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from labelkit.data.batch import Batch, DataInfo
from labelkit.data.views.spec import ViewSpec
from labelkit.losses.consistency import LabelLoss
from labelkit.methods.few_labels.losses import HeadDifference, SquaredConsistency
from labelkit.methods.few_labels.options import MeanTeacherConfig, MeanTeacherOptions
from labelkit.methods.few_labels.recipe import (
    ObjectiveStudent,
    StudentClock,
    StudentNetworks,
    StudentObjective,
    logits_of,
    student_views,
    teacher_decay,
)
from labelkit.training.method import StepOutput
from labelkit.training.schedules import EMADecay, GrowingWeight
from labelkit.training.timing import RunSize, Scheduled


class MeanTeacherObjective(StudentObjective):
    r"""Cross-entropy of the labeled rows, and squared differences to the predictions for another view.

    .. math:: J = J_C + \lambda(t) (J_T + J_M) + \lambda_h J_h

    Args:
        view: how an image is augmented; student and teacher see it with different random numbers.
        weight: :math:`\lambda` by the step of the first phase; in later phases it is full.
        class_norm: ``labeled``: :math:`J_C` is a mean over labeled rows; ``batch``: their sum over all rows.
        head_weight: :math:`\lambda_h` of the difference between two heads; a single head has none.
    """

    def __init__(
        self,
        view: ViewSpec,
        *,
        weight: GrowingWeight,
        class_norm: Literal["labeled", "batch"] = "labeled",
        head_weight: float = 0.01,
    ) -> None:
        super().__init__()
        self._view = view
        self._weight = weight
        self._class_norm, self._head_weight = class_norm, head_weight
        self.runs_teacher = self.runs_master = weight.full > 0
        self.label_loss = LabelLoss(1.0)
        self.consistency = SquaredConsistency()
        self.head_difference = HeadDifference()

    def views(self) -> tuple[ViewSpec, ...]:
        """The student's view and that of teacher and master."""
        return self._view, self._view

    def forward(self, batch: Batch, networks: StudentNetworks, clock: StudentClock) -> StepOutput:
        """Return the loss, gradients for the student alone."""
        labels = batch.labels
        labeled = labels >= 0
        count = int((batch.on_host.labels >= 0).sum())
        heads = logits_of(networks.student, batch.views[0])
        mean_count = max(clock.mean_count(count), 1.0)
        norm = len(labels) if self._class_norm == "batch" else mean_count
        cross_entropy = self.label_loss(heads[0], labels) * (count / norm)
        logs = {"cross_entropy": cross_entropy.detach()}
        loss = cross_entropy
        weight = self._weight(clock.step_in_phase) if clock.phase == 0 else self._weight.full
        if weight > 0:
            with torch.no_grad():
                target = logits_of(networks.teacher, batch.views[1])[0]
            consistency = self.consistency(heads[-1], target).mean()
            loss = loss + weight * consistency
            logs["consistency"] = consistency.detach()
            if networks.master is not None:
                with torch.no_grad():
                    # all rows, or the statistics of the batch would be those of a few images
                    target = logits_of(networks.master, batch.views[1])[0]
                difference = self.consistency(heads[-1], target)
                agreement = _sum(difference, labeled) / mean_count  # of labeled rows (Eq. 2.7)
                loss = loss + weight * agreement
                logs["master_consistency"] = agreement.detach()
        if len(heads) > 1:
            difference = self.head_difference(heads[0], heads[1])
            loss = loss + self._head_weight * difference
            logs["head_difference"] = difference.detach()
        return StepOutput(loss, logs)


def _sum(rows: Tensor, kept: Tensor) -> Tensor:
    return (rows * kept).sum()


def consistency_weight(steps: int, options: MeanTeacherOptions) -> GrowingWeight:
    """Weight of the consistency, in a run whose (first) phase has so many updates."""
    return GrowingWeight(options.consistency_weight, options.consistency_ramp * steps, "sigmoid")


def mean_teacher_objective(steps: int, options: MeanTeacherOptions, view: ViewSpec) -> MeanTeacherObjective:
    """Build the objective of the options; the (first) phase has so many updates."""
    weight = consistency_weight(steps, options)
    return MeanTeacherObjective(view, weight=weight, class_norm=options.class_norm, head_weight=options.head_weight)


class MeanTeacher(ObjectiveStudent[MeanTeacherConfig]):
    """Needs at least one label of each class."""

    def __init__(self, config: MeanTeacherConfig, data: DataInfo) -> None:
        super().__init__(config, data, num_heads=config.num_heads)
        weak, _ = student_views(config, data, self.network.input_spec.size)
        self.objective = mean_teacher_objective(config.steps, config, weak)

    @classmethod
    def average_decay(cls, config: MeanTeacherConfig) -> EMADecay:
        """It changes when the consistency has its full weight."""
        return teacher_decay(config, config.steps, config.consistency_ramp * config.steps)

    @classmethod
    def scheduled(cls, config: MeanTeacherConfig, size: RunSize) -> Mapping[str, Scheduled]:
        """Decay of the average, and weight of the consistency."""
        weight = consistency_weight(config.steps, config)
        return {**super().scheduled(config, size), "consistency_weight": lambda now: weight(now.step_in_phase)}
