"""FreeMatch: confident predictions for weakly augmented images are the targets for strongly augmented ones.

Sources: Y. Wang et al., "FreeMatch: Self-adaptive Thresholding for Semi-supervised Learning" (ICLR 2023), Eq. 5 to 11,
and ``microsoft/Semi-supervised-learning``; with ``--fixed-threshold 0.95 --fairness-weight 0`` K. Sohn et al.,
"FixMatch" (NeurIPS 2020).
Each step, on labeled images and several times as many unlabeled ones:
    1. cross-entropy on the labeled images, weakly augmented
    2. update the thresholds: the mean confidence, scaled for each class by its share of the predictions
    3. cross-entropy of strongly augmented images with the class predicted for the weak view, if above its threshold
    4. the published fairness term on the class distribution, with a small weight
    5. update the EMA network, which is used for evaluation and embedding
Departures: RandAugment's geometric operations come before the others; the EMA decay adapts to short runs; batch norm
statistics are recomputed before evaluation.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labelkit.algorithms.precision import promote, without_autocast
from labelkit.data.batch import Batch, DataInfo
from labelkit.data.views.spec import ViewSpec
from labelkit.losses.consistency import LabelLoss
from labelkit.methods.few_labels.options import FreeMatchConfig
from labelkit.methods.few_labels.recipe import (
    StudentNetworks,
    StudentObjective,
    StudentObjectiveMethod,
    head_logits,
    labeled_and_unlabeled_positions,
)
from labelkit.training.distributed import check_divisible
from labelkit.training.method import StepOutput, TrainState


class AdaptiveThresholds(nn.Module):
    r"""Confidence thresholds for pseudo-labels that follow the model's running mean confidence.

    .. math:: \tau \leftarrow m \tau + (1 - m)\,\overline{\max_k p_k}, \quad
        \tilde p \leftarrow m \tilde p + (1 - m)\,\bar p, \quad
        \tau_k = \tau\, \tilde p_k / \max_j \tilde p_j

    All start at 1 / c. A row is selected if the probability of its class k is at least :math:`\tau_k`.

    Args:
        num_classes: c.
        decay: m in [0, 1).
        fixed: use this threshold for all classes instead (FixMatch); the averages are still updated.

    Attributes:
        confidence: () float32, :math:`\tau`.
        class_shares: (c,) float32, :math:`\tilde p`.
        predicted_shares: (c,) float32, average share of images predicted as each class.
    """

    def __init__(self, num_classes: int, decay: float = 0.999, fixed: float | None = None) -> None:
        super().__init__()
        self.decay, self.fixed = decay, fixed
        self.confidence: Tensor = nn.Buffer(torch.tensor(1 / num_classes))
        self.class_shares: Tensor = nn.Buffer(torch.full((num_classes,), 1 / num_classes))
        self.predicted_shares: Tensor = nn.Buffer(torch.full((num_classes,), 1 / num_classes))

    @torch.no_grad()
    def update(self, probabilities: Tensor, state: TrainState) -> None:
        """Update the running averages with predictions (b, c) for weak views, over all processes."""
        surest, classes = probabilities.max(dim=1)
        counts = _count_classes(classes, probabilities.shape[1]).to(probabilities.dtype)
        sums = state.combine(torch.cat([surest.sum()[None], probabilities.sum(0), counts, counts.sum()[None]]), "sum")
        means = sums[:-1] / sums[-1].clamp(min=1)
        c = probabilities.shape[1]
        for average, value in (
            (self.confidence, means[0]),
            (self.class_shares, means[1 : c + 1]),
            (self.predicted_shares, means[c + 1 :]),
        ):
            average.lerp_(value, 1 - self.decay)

    def forward(self, probabilities: Tensor) -> Tensor:
        """Return a (b,) bool mask of the predictions (b, c) that reach their class's threshold."""
        surest, classes = probabilities.max(dim=1)
        if self.fixed is not None:
            return surest >= self.fixed
        return surest >= (self.confidence * self.class_shares / self.class_shares.max())[classes]


class PseudoLabelLoss(nn.Module):
    r"""Cross-entropy between predictions for strong views and pseudo-labels from weak views, on selected images only.

    .. math:: L = -\frac1b \sum_{i \in A} \log \text{softmax}(s_i)_{\hat y_i}

    The mean is over all b rows, so the loss scales with the share of selected rows. In nats, >= 0.

    Shape:
        - logits: ``(b, c)`` float of the strong views; receives gradients.
        - pseudo_labels: ``(b,)`` int64.
        - selected: ``(b,)`` bool, A.
        - returns: ``()`` float32 (float64 is preserved); 0, still differentiable, if nothing is selected.
    """

    def forward(self, logits: Tensor, pseudo_labels: Tensor, selected: Tensor) -> Tensor:
        """Return the mean loss over all images of the batch."""
        with without_autocast(logits):
            terms = F.cross_entropy(promote(logits), pseudo_labels, reduction="none")
            return (terms * selected).sum() / max(len(terms), 1)


class FairnessLoss(nn.Module):
    r"""FreeMatch's fairness loss on class frequencies: the negative cross-entropy of two normalized distributions.

    .. math:: L = \sum_k \text{norm}(\tilde p / \tilde h)_k \log \text{norm}(\bar p / \bar h)_k

    with the running shares :math:`\tilde p, \tilde h` of ``AdaptiveThresholds``, and :math:`\bar p, \bar h` the mean
    prediction and the predicted shares of the selected strong views. In nats, <= 0; -log c if both are uniform.

    As published, minimizing it raises the cross-entropy: it moves the batch away from the running distribution. Its
    weight is small, and 0 disables it.

    Shape:
        - logits: ``(b, c)`` float of the strong views; receives gradients.
        - selected: ``(b,)`` bool.
        - class_shares, predicted_shares: ``(c,)`` float, no gradient.
        - returns: ``()`` float32 (float64 is preserved); 0, still differentiable, if nothing is selected.
    """

    def forward(self, logits: Tensor, selected: Tensor, class_shares: Tensor, predicted_shares: Tensor) -> Tensor:
        """Return the loss, summed over classes."""
        places = selected.nonzero().squeeze(1)  # the only GPU synchronization
        if not len(places):
            return promote(logits).sum() * 0
        with without_autocast(logits):
            predictions = F.softmax(promote(logits[places]), dim=1)
            counts = _count_classes(predictions.argmax(dim=1), logits.shape[1])
            expected = _normalize(class_shares, predicted_shares)
            found = _normalize(predictions.mean(dim=0), counts / counts.sum())
            return (expected * (found + 1e-12).log()).sum()


def _count_classes(classes: Tensor, num_classes: int) -> Tensor:
    """Count the rows of each class, (c,) int64; ``bincount`` would synchronize with the GPU."""
    return (classes[:, None] == torch.arange(num_classes, device=classes.device)).sum(dim=0)


def _normalize(shares: Tensor, by: Tensor) -> Tensor:
    """Return ``shares / by`` as a distribution, with 0 for classes that were never predicted."""
    ratios = torch.where(by > 0, shares / by.clamp(min=1e-12), 0.0)
    return ratios / ratios.sum()


class FreeMatchObjective(StudentObjective):
    r"""FreeMatch's training loss: cross-entropy with labels and confident pseudo-labels, plus a fairness term.

    .. math:: J = J_X + J_U + \lambda_f J_F

    1. one forward pass over labeled images and the weak and strong views of unlabeled ones
    2. thresholds from the mean confidence and the distribution of predicted classes, or a fixed one (FixMatch)
    3. :math:`J_X` on labeled rows; :math:`J_U` on confident rows
    4. :math:`J_F`: FreeMatch's fairness term on the class distribution

    Args:
        config: options with the thresholds and :math:`\lambda_f`.
        num_classes: k.
        views: weak and strong augmentations.
    """

    def __init__(self, config: FreeMatchConfig, num_classes: int, views: tuple[ViewSpec, ViewSpec]) -> None:
        super().__init__()
        self.views, self._fairness_weight = views, config.fairness_weight
        self.teacher_in_train_mode = self.runs_master = False
        self.threshold = AdaptiveThresholds(num_classes, config.threshold_decay, config.fixed_threshold)
        self.label_loss, self.pseudo_label_loss = LabelLoss(1.0), PseudoLabelLoss()
        self.fairness = FairnessLoss()

    def forward(self, batch: Batch, networks: StudentNetworks, state: TrainState) -> StepOutput:
        """Return the loss on labeled and unlabeled rows, with gradients only for the student; no teacher is used."""
        student, (labeled, unlabeled) = networks.student, labeled_and_unlabeled_positions(batch)
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
                self.threshold.update(predictions, state)
                selected = self.threshold(predictions)
            pseudo = self.pseudo_label_loss(strong_logits, predictions.argmax(dim=1), selected)
            loss = loss + pseudo
            logs |= {
                "unlabeled": pseudo.detach(),
                "kept": selected.float().mean(),
                "threshold": self.threshold.confidence.clone(),
            }
            if self._fairness_weight:
                shares = self.threshold.class_shares, self.threshold.predicted_shares
                fairness = self.fairness(strong_logits, selected, *shares)
                loss = loss + self._fairness_weight * fairness
                logs["fairness"] = fairness.detach()
        return StepOutput(loss, logs)


class FreeMatch(StudentObjectiveMethod[FreeMatchConfig]):
    """FreeMatch training method: pseudo-labels selected by adaptive thresholds; needs at least one label per class."""

    def __init__(self, config: FreeMatchConfig, data: DataInfo) -> None:
        super().__init__(config, data, dropout=0.0)  # the method adds its own noise
        check_divisible("--labeled-batch-size", config.labeled_batch_size)
        self.objective = FreeMatchObjective(config, self.num_classes, (self.weak_view, self.strong_view))
