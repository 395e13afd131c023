"""Squared consistency loss shared by few-label methods, and MixMatch's sharpening and loss.

Source: D. Berthelot et al., "MixMatch" (NeurIPS 2019), Eq. 7 and 3 to 5; ``google-research/mixmatch``.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from labelkit.algorithms.precision import promote, without_autocast
from labelkit.algorithms.temperature import require_positive


class SquaredConsistencyLoss(nn.Module):
    r"""Mean squared difference between the class probabilities predicted by two networks.

    .. math:: L = \frac{1}{b c} \sum_i \sum_k (\text{softmax}(s_i)_k - \text{softmax}(t_i)_k)^2

    Dimensionless, in [0, 2 / c]; 0 if both predict the same, 2 / c if both are certain of different classes.

    Shape:
        - student_logits: ``(b, c)`` float; receives gradients.
        - target_logits: ``(b, c)`` float; no gradient.
        - returns: ``(b,)`` float32 (float64 is preserved), each row's mean over classes, so that rows can be selected.

    Raises:
        ValueError: the shapes differ.

    Source:
        Mean Teacher (``CuriousAI/mean-teacher``). The dissertation's Eq. 2.5 prints the sum over classes and says
        "mean squared error"; the released code takes the mean, and so do we.
    """

    def forward(self, student_logits: Tensor, target_logits: Tensor) -> Tensor:
        """Return, for each sample, the mean squared difference (b,) between the softmax outputs of both networks."""
        shapes = tuple(student_logits.shape), tuple(target_logits.shape)
        if shapes[0] != shapes[1] or len(shapes[0]) != 2:
            raise ValueError(f"both logits must have shape (b, c), got {shapes[0]} and {shapes[1]}")
        with without_autocast(student_logits):
            prediction = F.softmax(promote(student_logits), dim=1)
            target = F.softmax(promote(target_logits.detach()), dim=1)
            return (prediction - target).square().mean(dim=1)


def sharpen(probabilities: Tensor, temperature: float) -> Tensor:
    """Sharpen probabilities (b, c) by raising them to the power ``1 / temperature`` and renormalizing.

    Raises:
        ValueError: the temperature is not positive.
    """
    require_positive(temperature, "temperature")
    # relative to the maximum, since powers of tiny numbers underflow
    powers = (probabilities / probabilities.amax(dim=1, keepdim=True)).pow(1 / temperature)
    return powers / powers.sum(dim=1, keepdim=True)


class MixMatchLoss(nn.Module):
    r"""MixMatch's loss: cross-entropy on labeled rows and squared error of probabilities on the others.

    .. math:: L_x = -\frac1b \sum_{i \le b} \sum_k r_{ik} \log p_{ik}, \quad
        L_u = \frac{1}{(m - b) c} \sum_{i > b} \sum_k (p_{ik} - r_{ik})^2

    Both are 0 if prediction and target agree with certainty; if they agree otherwise, :math:`L_x` is the entropy of the
    targets. The two are returned separately, since the weight of the second grows during training.

    Shape:
        - logits: ``(m, c)`` float; receives gradients.
        - targets: ``(m, c)`` float, rows sum to 1; no gradient.
        - num_labeled: b, number of labeled rows, which come first.
        - returns: :math:`L_x` and :math:`L_u`, two ``()`` float32 (float64 is preserved); a part without rows is 0.

    Raises:
        ValueError: shapes differ, or ``num_labeled`` exceeds the number of rows.
    """

    def forward(self, logits: Tensor, targets: Tensor, num_labeled: int) -> tuple[Tensor, Tensor]:
        """Return the loss terms of the labeled and of the unlabeled rows."""
        if logits.shape != targets.shape or logits.ndim != 2 or not 0 <= num_labeled <= len(logits):
            raise ValueError(
                f"logits {tuple(logits.shape)} and targets {tuple(targets.shape)} must both have shape (m, c), with m "
                f">= {num_labeled} labeled rows"
            )
        with without_autocast(logits):
            scores, targets = promote(logits), targets.detach()
            log_predictions = F.log_softmax(scores[:num_labeled], dim=1)
            labeled = -(targets[:num_labeled] * log_predictions).sum() / max(num_labeled, 1)
            rest = (F.softmax(scores[num_labeled:], dim=1) - targets[num_labeled:]).square()
            return labeled, rest.sum() / max(rest.numel(), 1)
