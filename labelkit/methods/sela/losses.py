"""Cross-entropy of several heads against a pseudo-label each (SeLa)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labelkit.algorithms.precision import promote, without_autocast


class MultiHeadCrossEntropy(nn.Module):
    r"""Cross-entropy between each head and its own pseudo-labels, averaged over heads.

    .. math:: L = -\frac{1}{H b} \sum_h \sum_i \log \text{softmax}(\ell^h_i)_{y^h_i}

    In nats, >= 0; equal to the mean of log k over the heads when all logits of a head agree.

    Shape:
        - logits: H tensors ``(b, k_h)`` float; gradients reach all of them.
        - pseudo_labels: ``(H, b)`` integers in ``[0, k_h)``; -1 leaves the image out of that head's mean.
        - returns: ``()`` float32 (float64 stays); a head without any label counts as 0.

    Raises:
        ValueError: not one row of pseudo-labels per head.

    Source:
        ``yukimasano/self-label`` (the mean over heads of the cross-entropy).
    """

    def forward(self, logits: Sequence[Tensor], pseudo_labels: Tensor) -> Tensor:
        """Return the mean cross-entropy over heads."""
        if len(logits) != len(pseudo_labels):
            raise ValueError(f"{len(logits)} heads, {len(pseudo_labels)} rows of pseudo-labels")
        with without_autocast(logits[0]):
            losses = [self._one(promote(scores), labels) for scores, labels in zip(logits, pseudo_labels, strict=True)]
        return torch.stack(losses).mean()

    @staticmethod
    def _one(scores: Tensor, labels: Tensor) -> Tensor:
        known = (labels >= 0).sum().clamp(min=1)
        return F.cross_entropy(scores, labels.long(), ignore_index=-1, reduction="sum") / known
