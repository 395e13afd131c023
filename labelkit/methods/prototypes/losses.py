"""DL2PA's losses: pull embeddings toward the fixed prototype of their class, and spread learned class vectors."""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labelkit.algorithms.precision import promote, without_autocast


class InnerProductLoss(nn.Module):
    r"""Squared difference between 1 and the cosine similarity of each embedding to its prototype.

    .. math:: L = \sum_i \omega_i (1 - \cos_i)^2 \quad\text{or}\quad L = \frac{1}{2b} \sum_i \omega_i (1 - \cos_i)^2

    Dimensionless, 0 to 4 (2) for each image; 0 if all embeddings point at their prototypes. The gradient also vanishes
    for an embedding opposite its prototype; it is largest at 120 degrees.

    Args:
        reduction: ``sum``, as in the released code for balanced data, or ``half-mean``, as in the paper.

    Shape:
        - embeddings: ``(b, d)`` float of any norm; normalized here, receives gradients.
        - prototypes: ``(b, d)`` unit rows, the prototype of each image's class.
        - weights: ``(b,)`` :math:`\omega`, nonnegative; ones by default.
        - returns: ``()`` float32 (float64 is preserved).

    Raises:
        ValueError: shapes differ.

    Source:
        DL2PA, Eq. 6. Its gradient is :math:`-(1 - \cos) w`; Eq. 7 as printed is a scalar, which is wrong.
    """

    def __init__(self, reduction: Literal["sum", "half-mean"] = "half-mean") -> None:
        super().__init__()
        self.reduction = reduction

    def forward(self, embeddings: Tensor, prototypes: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return the weighted sum over the batch, or half of the weighted mean, depending on ``reduction``."""
        if embeddings.shape != prototypes.shape:
            raise ValueError(
                f"embeddings and prototypes must have the same shape, got {tuple(embeddings.shape)} and "
                f"{tuple(prototypes.shape)}"
            )
        # half precision is too coarse for 1 - cos when cos is near 1
        with without_autocast(embeddings):
            unit = F.normalize(promote(embeddings), dim=1, eps=1e-8)
            terms = (1 - (unit * prototypes.to(unit.dtype)).sum(1)).square()
            terms = terms if weights is None else weights.to(unit.dtype) * terms
            return terms.sum() if self.reduction == "sum" else 0.5 * terms.mean()


class WeightedCrossEntropy(nn.Module):
    r"""Cross-entropy averaged over a batch of weighted images.

    .. math:: L = -\frac{1}{b} \sum_i \omega_i \log \text{softmax}(\ell_i)_{y_i}

    In nats, >= 0; log c if all logits are equal and all weights are 1. The mean is over images, not over weights, so
    that the losses of two half batches average to that of the whole.

    Shape:
        - logits: ``(b, c)`` float; receives gradients.
        - labels: ``(b,)`` int64 in ``[0, c)``.
        - weights: ``(b,)`` :math:`\omega`; ones by default.
        - returns: ``()`` float32 (float64 is preserved).
    """

    def forward(self, logits: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return the weighted mean of the loss over images."""
        with without_autocast(logits):
            terms = F.cross_entropy(promote(logits), labels, reduction="none")
            return (terms if weights is None else weights.to(terms.dtype) * terms).mean()


class UniformityLoss(nn.Module):
    r"""Logarithm of the mean Gaussian potential of unit vectors; small if they are spread evenly over the sphere.

    .. math:: L = \log \frac{2}{c (c - 1)} \sum_{i < j} \exp(-2 t (1 - w_i \cdot w_j))

    with t = 2. Dimensionless, from :math:`-2tc/(c-1)` (simplex) to 0 (all directions equal).

    Shape:
        - vectors: ``(c, d)`` float, c >= 2, of any norm; normalized here, receives gradients.
        - returns: ``()`` float32 (float64 is preserved).

    Raises:
        ValueError: there are fewer than 2 vectors.

    Source:
        DL2PA, Eq. 5 with the mean over pairs of its released code.
    """

    def forward(self, vectors: Tensor) -> Tensor:
        """Return the logarithm of the mean potential over pairs."""
        count = len(vectors)
        if count < 2:
            raise ValueError(f"at least 2 vectors are required, got {count}")
        with without_autocast(vectors):
            unit = F.normalize(promote(vectors), dim=1)
            exponents = 4 * (unit @ unit.T - 1)
            same = torch.eye(count, dtype=torch.bool, device=vectors.device)
            off_diagonal = exponents.masked_fill(same, -math.inf)
            return off_diagonal.flatten().logsumexp(0) - math.log(count * (count - 1))


def balanced_class_weights(counts: Tensor) -> Tensor:
    """Compute class weights with which all classes that have images contribute equally.

    Args:
        counts: ``(c,)`` number of images of each class, in a batch over all processes or in the whole dataset.

    Returns:
        ``(c,)`` float32: images / (classes present * images of the class); 1 for absent classes.

    Source:
        The released code's ``E_k^2`` (per batch); weights over the whole dataset are ours.
    """
    counts = counts.float()
    share = counts.sum() / (counts > 0).sum().clamp(min=1)
    return torch.where(counts > 0, share / counts.clamp(min=1), torch.ones_like(counts))
