"""Pull embeddings to the fixed prototype of their class, and keep learned class vectors apart (DL2PA)."""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labelkit.algorithms.precision import promote, without_autocast


class InnerProductLoss(nn.Module):
    r"""Squared difference between 1 and the cosine of each embedding to its prototype.

    .. math:: L = \sum_i \omega_i (1 - \cos_i)^2 \quad\text{or}\quad L = \frac{1}{2b} \sum_i \omega_i (1 - \cos_i)^2

    Dimensionless, 0 to 4 (2) for each image; 0 where all embeddings point at their prototypes. The gradient vanishes
    also where one points the opposite way; it is largest at 120 degrees.

    Args:
        reduction: ``sum``, the released code's for balanced data, or ``half-mean``, the paper's.

    Shape:
        - embeddings: ``(b, d)`` float of any length; normalized here, gets gradients.
        - prototypes: ``(b, d)`` unit rows, the prototype of the class of each image.
        - weights: ``(b,)`` :math:`\omega`, not negative; ones by default.
        - returns: ``()`` float32 (float64 stays).

    Raises:
        ValueError: shapes differ.

    Source:
        DL2PA, Eq. 6. Its gradient is :math:`-(1 - \cos) w`; the printed Eq. 7 is a scalar and wrong.
    """

    def __init__(self, reduction: Literal["sum", "half-mean"] = "half-mean") -> None:
        super().__init__()
        self.reduction = reduction

    def forward(self, embeddings: Tensor, prototypes: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return the weighted sum over the batch, or half of the weighted mean, depending on ``reduction``."""
        if embeddings.shape != prototypes.shape:
            raise ValueError(
                f"embeddings {tuple(embeddings.shape)} and prototypes {tuple(prototypes.shape)} must have the same d"
            )
        # half precision has no digits left for 1 - cos near 1
        with without_autocast(embeddings):
            unit = F.normalize(promote(embeddings), dim=1, eps=1e-8)
            terms = (1 - (unit * prototypes.to(unit.dtype)).sum(1)).square()
            terms = terms if weights is None else weights.to(unit.dtype) * terms
            return terms.sum() if self.reduction == "sum" else 0.5 * terms.mean()


class WeightedCrossEntropy(nn.Module):
    r"""Cross-entropy averaged over a batch in which each image has a weight.

    .. math:: L = -\frac{1}{b} \sum_i \omega_i \log \text{softmax}(\ell_i)_{y_i}

    In nats, >= 0; log c where all logits are equal and all weights are 1. The mean is over images, not over weights, so
    that halves of a batch average to the whole.

    Shape:
        - logits: ``(b, c)`` float; gets gradients.
        - labels: ``(b,)`` int64 in ``[0, c)``.
        - weights: ``(b,)`` :math:`\omega`; ones by default.
        - returns: ``()`` float32 (float64 stays).
    """

    def forward(self, logits: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return the weighted mean over images."""
        with without_autocast(logits):
            terms = F.cross_entropy(promote(logits), labels, reduction="none")
            return (terms if weights is None else weights.to(terms.dtype) * terms).mean()


class UniformityLoss(nn.Module):
    r"""Logarithm of the mean Gaussian potential of unit vectors, small if they spread evenly over the sphere.

    .. math:: L = \log \frac{2}{c (c - 1)} \sum_{i < j} \exp(-2 t (1 - w_i \cdot w_j))

    Dimensionless, from :math:`-2tc/(c-1)` (simplex) to 0 (all directions equal).

    with t = 2.

    Shape:
        - vectors: ``(c, d)`` float, c >= 2, of any length; normalized here, gets gradients.
        - returns: ``()`` float32 (float64 stays).

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


def balancing_weights(counts: Tensor) -> Tensor:
    """Compute for each class the weight of its images, so that all classes present contribute equally.

    Args:
        counts: ``(c,)`` images of each class, of a batch over all processes or of the whole set.

    Returns:
        ``(c,)`` float32: images over (classes present times images of the class); 1 for a class that is absent.

    Source:
        The released code's ``E_k^2`` (per batch); over the whole set ours.
    """
    counts = counts.float()
    share = counts.sum() / (counts > 0).sum().clamp(min=1)
    return torch.where(counts > 0, share / counts.clamp(min=1), torch.ones_like(counts))
