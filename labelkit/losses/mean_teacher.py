"""Consistency of a student with a slower network: squared differences between predictions (Mean Teacher)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from labelkit.algorithms.precision import promote, without_autocast


class SquaredConsistency(nn.Module):
    r"""Mean squared difference between two predictions.

    .. math:: L = \frac{1}{b c} \sum_i \sum_k (\text{softmax}(s_i)_k - \text{softmax}(t_i)_k)^2

    Without unit, in [0, 2 / c]; 0 where both predict the same, 2 / c where both are certain of different classes.

    Shape:
        - student_logits: ``(b, c)`` float; gets gradients.
        - target_logits: ``(b, c)`` float; no gradient.
        - returns: ``(b,)`` float32 (float64 stays), the mean over classes of each row, so that rows can be chosen.

    Raises:
        ValueError: the shapes differ.

    Source:
        Mean Teacher (``CuriousAI/mean-teacher``). The dissertation's Eq. 2.5 prints the sum over classes and says
        "mean squared error"; the released code takes the mean, and so do we.
    """

    def forward(self, student_logits: Tensor, target_logits: Tensor) -> Tensor:
        """Return the difference of each row."""
        _check_pair(student_logits, target_logits)
        with without_autocast(student_logits):
            prediction = F.softmax(promote(student_logits), dim=1)
            target = F.softmax(promote(target_logits.detach()), dim=1)
            return (prediction - target).square().mean(dim=1)


class HeadDifference(nn.Module):
    r"""Mean squared difference between the logits of two heads, :math:`\frac{1}{bc} \sum (a_{ik} - b_{ik})^2`.

    In squared logits, >= 0; 0 where both heads agree.

    Shape:
        - first: ``(b, c)`` float; gets gradients.
        - second: ``(b, c)`` float; gets gradients.
        - returns: ``()`` float32 (float64 stays).

    Raises:
        ValueError: the shapes differ.

    Source:
        ``CuriousAI/mean-teacher:pytorch/main.py`` (``symmetric_mse_loss``).
    """

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        """Return the mean over rows and classes."""
        _check_pair(first, second)
        with without_autocast(first):
            return (promote(first) - promote(second)).square().mean()


def _check_pair(first: Tensor, second: Tensor) -> None:
    if first.shape != second.shape or first.ndim != 2:
        raise ValueError(f"logits must both be (b, c); got {tuple(first.shape)} and {tuple(second.shape)}")
