"""Losses on a classifier's cosine logits: view consistency, class balance and supervised cross-entropy.

Source: SimGCD (CVMI-Lab/SimGCD), ``DistillLoss`` and its training loop.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labelkit.algorithms.precision import promote, without_autocast
from labelkit.algorithms.temperature import TemperatureLoss, require_positive


class DistillationLoss(nn.Module):
    r"""Cross-entropy between a student's prediction and a teacher's sharpened prediction.

    .. math:: L = -\frac1b \sum_i \sum_k q_{ik} \log p_{ik}, \quad
        q_i = \text{softmax}(t_i / \tau_t), \; p_i = \text{softmax}(s_i / \tau_s)

    In nats, >= 0; equal to the entropy of q if both agree, and to log c if all of the student's
    logits are equal.

    Args:
        student_temperature: :math:`\tau_s > 0`.

    Shape:
        - student_logits: ``(b, c)`` float; receives the gradient :math:`(p - q) / (\tau_s b)`.
        - teacher_logits: ``(b, c)`` float; no gradient.
        - teacher_temperature: float > 0, usually below the student's.
        - returns: ``()`` float32 (float64 is preserved); 0, still differentiable, if b is 0.

    Raises:
        ValueError: a temperature is not positive, or the shapes differ.
    """

    def __init__(self, student_temperature: float) -> None:
        super().__init__()
        self.student_temperature = require_positive(student_temperature, "student_temperature")

    def forward(self, student_logits: Tensor, teacher_logits: Tensor, teacher_temperature: float) -> Tensor:
        """Compute the loss of student logits (b, c) against teacher logits (b, c), averaged over the batch."""
        require_positive(teacher_temperature, "teacher_temperature")
        if student_logits.shape != teacher_logits.shape or student_logits.ndim != 2:
            raise ValueError(
                "student and teacher logits must both have shape (b, c), "
                f"got {tuple(student_logits.shape)} and {tuple(teacher_logits.shape)}"
            )
        with without_autocast(student_logits):
            target = F.softmax(promote(teacher_logits.detach()) / teacher_temperature, dim=1)
            log_prediction = F.log_softmax(promote(student_logits) / self.student_temperature, dim=1)
            return -(target * log_prediction).sum() / max(len(target), 1)


class MeanEntropyRegularizer(TemperatureLoss):
    r"""Class-balance regularizer: log c minus the entropy of a batch's mean prediction.

    .. math:: L = \log c - H(\bar p), \quad \bar p = \frac1m \sum_i \text{softmax}(l_i / \tau)

    In nats, in [0, log c]: 0 when the mean prediction is uniform, log c when every sample is
    assigned to the same class with certainty.

    Args:
        temperature: :math:`\tau > 0`.

    Shape:
        - logits: ``(m, c)`` float, all views of all images. Gradients reach all rows, and are finite
          even if a probability underflows to 0.
        - returns: ``()`` float32 (float64 is preserved); 0, still differentiable, if m is 0.

    Raises:
        ValueError: the temperature is not positive.

    Source:
        SimGCD's ``me_max`` term, which omits ``log c``: a constant that keeps the value >= 0.
    """

    def forward(self, logits: Tensor) -> Tensor:
        """Compute log c minus the entropy of the mean prediction from logits (m, c)."""
        if logits.ndim != 2:
            raise ValueError(f"logits must have shape (m, c), got {tuple(logits.shape)}")
        if not len(logits):
            return logits.sum()
        with without_autocast(logits):
            log_predictions = F.log_softmax(promote(logits) / self.temperature, dim=1)
            # Average in log space: for p that underflowed, p log p would have the gradient 0 * inf.
            log_mean = torch.logsumexp(log_predictions, dim=0) - math.log(len(logits))
            return math.log(logits.shape[1]) + (log_mean.exp() * log_mean).sum()


class LabelLoss(TemperatureLoss):
    r"""Cross-entropy loss on the labeled samples of a batch.

    .. math:: L = -\frac{1}{|A|} \sum_{i \in A} \log \text{softmax}(l_i / \tau)_{y_i}

    with A the rows whose label y is not -1. In nats, >= 0; equal to log c when all logits are equal.

    Args:
        temperature: :math:`\tau > 0`.

    Shape:
        - logits: ``(m, c)`` float; gradients reach labeled rows only.
        - labels: ``(m,)`` int64 in ``[-1, c)``; rows with -1 are ignored.
        - returns: ``()`` float32 (float64 is preserved); 0, still differentiable, if nothing is labeled.

    Raises:
        ValueError: the temperature is not positive.
    """

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Compute the loss from logits (m, c) and labels (m,), averaged over labeled samples."""
        with without_autocast(logits):
            scaled = promote(logits) / self.temperature
            total = F.cross_entropy(scaled, labels, ignore_index=-1, reduction="sum")
            return total / (labels >= 0).sum().clamp(min=1)
