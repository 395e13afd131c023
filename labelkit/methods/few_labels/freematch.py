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
Departures: RandAugment's geometric operations come before the others; the average fits to short runs; statistics are
taken anew before an evaluation.
"""

from __future__ import annotations

import torch

from labelkit.data.batch import Batch, DataInfo
from labelkit.data.views.spec import ViewSpec
from labelkit.losses.consistency import LabelLoss
from labelkit.methods.few_labels.freematch_losses import AdaptiveThreshold, FairnessLoss, PseudoLabelLoss
from labelkit.methods.few_labels.options import FreeMatchConfig
from labelkit.methods.few_labels.recipe import (
    ObjectiveStudent,
    StudentNetworks,
    StudentObjective,
    head_logits,
    split_labeled,
    student_views,
)
from labelkit.training.method import StepOutput, TrainState


class FreeMatchObjective(StudentObjective):
    r"""FreeMatch's training loss: cross-entropy of labels and confident pseudo-labels, and a fairness term.

    .. math:: J = J_X + J_U + \lambda_f J_F

    1. one pass over labeled images, weak and strong views of the others
    2. thresholds follow the mean confidence and the mix of predicted classes; or one is fixed (FixMatch)
    3. :math:`J_X` of labeled rows; :math:`J_U` of sure rows
    4. :math:`J_F`: FreeMatch's term on the mix of classes

    Args:
        weak: how an image is augmented for its label.
        strong: how it is augmented to learn that.
        num_classes: k.
        decay: of the averages behind the thresholds.
        fixed_threshold: FixMatch's; ``None``: adaptive.
        fairness_weight: :math:`\lambda_f`.
    """

    def __init__(
        self,
        weak: ViewSpec,
        strong: ViewSpec,
        *,
        num_classes: int,
        decay: float,
        fixed_threshold: float | None,
        fairness_weight: float,
    ) -> None:
        super().__init__()
        self._views = weak, strong
        self._fairness_weight = fairness_weight
        self.runs_teacher = self.runs_master = False
        self.threshold = AdaptiveThreshold(num_classes, decay, fixed_threshold)
        self.label_loss, self.pseudo_label_loss = LabelLoss(1.0), PseudoLabelLoss()
        self.fairness = FairnessLoss()

    def views(self) -> tuple[ViewSpec, ...]:
        """Return the weak and the strong view."""
        return self._views

    def forward(self, batch: Batch, networks: StudentNetworks, state: TrainState) -> StepOutput:
        """Return the loss, with gradients only for the student.

        Args:
            batch: labeled rows and others.
            networks: the teacher has no part in the loss.
            state: where the run is.
        """
        student, (labeled, unlabeled) = networks.student, split_labeled(batch)
        weak, strong = batch.views[0], batch.views[1]
        count, others = len(labeled), len(unlabeled)
        logits = head_logits(student, torch.cat([weak[labeled], weak[unlabeled], strong[unlabeled]]))[0]
        own, weak_logits, strong_logits = torch.split(logits, [count, others, others])
        mean_count = max(state.mean_count(count), 1.0)
        cross_entropy = self.label_loss(own, batch.labels[labeled]) * (count / mean_count)
        loss, logs = cross_entropy, {"cross_entropy": cross_entropy.detach()}
        if others:
            with torch.no_grad():
                predictions = weak_logits.float().softmax(dim=1)
                self.threshold.update(predictions, lambda value: state.combine(value, "sum"))
                kept = self.threshold(predictions)
            pseudo = self.pseudo_label_loss(strong_logits, predictions.argmax(dim=1), kept)
            loss = loss + pseudo
            logs |= {
                "unlabeled": pseudo.detach(),
                "kept": kept.float().mean(),
                "threshold": self.threshold.confidence.clone(),
            }
            if self._fairness_weight:
                shares = self.threshold.class_shares, self.threshold.predicted_shares
                fairness = self.fairness(strong_logits, kept, *shares)
                loss = loss + self._fairness_weight * fairness
                logs["fairness"] = fairness.detach()
        return StepOutput(loss, logs)


class FreeMatch(ObjectiveStudent[FreeMatchConfig]):
    """Training method FreeMatch: pseudo-labels above adaptive thresholds; needs at least one label per class."""

    def __init__(self, config: FreeMatchConfig, data: DataInfo) -> None:
        super().__init__(config, data, dropout=0.0)  # it brings its own noise
        weak, strong = student_views(config, data, self.network.input_spec.size)
        self.objective = FreeMatchObjective(
            weak,
            strong,
            num_classes=self.num_classes,
            decay=config.threshold_decay,
            fixed_threshold=config.fixed_threshold,
            fairness_weight=config.fairness_weight,
        )
