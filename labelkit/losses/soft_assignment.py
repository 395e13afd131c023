"""Cross-entropy between the soft assignments of a student and balanced ones of its teacher."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from labelkit.algorithms.precision import promote, without_autocast


class SoftAssignmentLoss(nn.Module):
    r"""Cross-entropy of softmax probabilities against given ones.

    .. math:: L = -\frac{1}{n} \sum_i \sum_k q_{ik} \log \text{softmax}(a_i / \tau)_k

    In nats, at least the mean entropy of q; log k where all logits of a row are equal.

    Args:
        temperature: :math:`\tau > 0`.

    Shape:
        - logits: ``(n, k)`` float of any precision, gets gradients.
        - assignments: ``(n, k)`` float, rows sum to 1, no gradient.
        - returns: ``()`` float32 (float64 stays); 0, still differentiable, for n = 0.

    Raises:
        ValueError: the temperature is not positive, or shapes differ.

    Source:
        "Semantic Concentration for Self-Supervised Dense Representations Learning", Eq. 3 and 5, as DINO and Leopart.
    """

    def __init__(self, temperature: float = 0.1) -> None:
        super().__init__()
        if not temperature > 0:
            raise ValueError(f"temperature must be above 0, got {temperature}")
        self.temperature = temperature

    def forward(self, logits: Tensor, assignments: Tensor) -> Tensor:
        """Return the mean."""
        if logits.shape != assignments.shape:
            raise ValueError(f"logits are {tuple(logits.shape)}, assignments {tuple(assignments.shape)}")
        with without_autocast(logits):
            log_p = torch.log_softmax(promote(logits) / self.temperature, dim=-1)
            return -(assignments.detach() * log_p).sum() / max(len(logits), 1)
