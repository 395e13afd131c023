"""Losses of two views of each image that need no label: redundancy, prediction, and a queue of other images."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labelkit.algorithms.precision import promote, without_autocast
from labelkit.losses.temperature import TemperatureLoss

_TINY = 1e-5


class BarlowTwinsLoss(nn.Module):
    r"""Barlow Twins loss: distance between the cross-correlation matrix of two views and the identity matrix.

    .. math:: L = s \left(\sum_i (1 - C_{ii})^2 + \lambda \sum_{i \ne j} C_{ij}^2\right),
        \quad C = \hat A^\top \hat B / b

    with the projections of both views centered and divided by their standard deviation over the batch. >= 0; 0 for
    equal views with uncorrelated dimensions, s d for independent views (in expectation, for large b and a small
    weight).

    Args:
        redundancy_weight: :math:`\lambda \ge 0`.
        scale: :math:`s > 0`, factor of the loss, a sum over all pairs of dimensions that is too large for plain SGD.

    Shape:
        - first, second: ``(b, d)`` float; row i of both is image i. Gradients reach both.
        - returns: ``()`` float32 (float64 stays). A dimension that is constant in the batch correlates with nothing.

    Raises:
        ValueError: the weight is negative, the scale is not positive, or the shapes differ.

    Source:
        J. Zbontar et al., "Barlow Twins" (ICML 2021), Eq. 1 and 2; its released code has s = 0.024. Variances are over
        b, with 1e-5 added, as in the batch normalization of its code.
    """

    def __init__(self, redundancy_weight: float, scale: float = 1.0) -> None:
        super().__init__()
        if not redundancy_weight >= 0:
            raise ValueError(f"redundancy_weight must be >= 0, got {redundancy_weight}")
        if not scale > 0:
            raise ValueError(f"scale must be > 0, got {scale}")
        self.redundancy_weight = redundancy_weight
        self.scale = scale

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        """Return the scaled sum over all entries of the correlation matrix."""
        _check_pair(first, second)
        with without_autocast(first):
            correlations = _standardized(first).T @ _standardized(second) / max(len(first), 1)
            diagonal = correlations.diagonal()
            redundancy = correlations.square().sum() - diagonal.square().sum()
            return self.scale * ((1 - diagonal).square().sum() + self.redundancy_weight * redundancy)


class PredictedViewLoss(nn.Module):
    r"""SimSiam loss: negative cosine between the prediction from each view and the projection of the other.

    .. math:: L = -\frac{1}{2b} \sum_i \cos(p_i, \mathrm{sg}(z'_i)) + \cos(p'_i, \mathrm{sg}(z_i))

    with predictions p and projections z of two views. In [-1, 1]; -1 when all predictions are exact.

    Shape:
        - predictions: two of ``(b, d)`` float, of any length. Gradients reach them.
        - projections: two of ``(b, d)``, likewise; no gradient.
        - returns: ``()`` float32 (float64 stays).

    Raises:
        ValueError: the shapes differ.

    Source:
        X. Chen, K. He, "Exploring Simple Siamese Representation Learning" (CVPR 2021), Eq. 1 and 2.
    """

    def forward(self, predictions: tuple[Tensor, Tensor], projections: tuple[Tensor, Tensor]) -> Tensor:
        """Return the mean loss over both directions."""
        cosines = []
        for prediction, target in zip(predictions, reversed(projections), strict=True):
            _check_pair(prediction, target)
            with without_autocast(prediction):
                cosines.append(F.cosine_similarity(promote(prediction), promote(target.detach()), dim=1).mean())
        return -(cosines[0] + cosines[1]) / 2


class QueueContrastLoss(TemperatureLoss):
    r"""MoCo's contrastive loss, which compares a query view with its key and with a queue of earlier keys.

    .. math:: L = -\frac{1}{b} \sum_i \log \frac{\exp(q_i \cdot k_i / \tau)}
        {\exp(q_i \cdot k_i / \tau) + \sum_j \exp(q_i \cdot n_j / \tau)}

    with unit queries q, keys k and earlier keys n. In nats, > 0; equal to log(m + 1) when all similarities are equal.

    Args:
        temperature: :math:`\tau > 0`.

    Shape:
        - queries: ``(b, d)`` float of any length. Only they receive gradients.
        - keys: ``(b, d)``, likewise; row i is the other view of query i.
        - queue: ``(m, d)``, likewise.
        - returns: ``()`` float32 (float64 stays).

    Raises:
        ValueError: the temperature is not positive, or the shapes differ.

    Source:
        K. He et al., "Momentum Contrast" (CVPR 2020), Eq. 1.
    """

    def forward(self, queries: Tensor, keys: Tensor, queue: Tensor) -> Tensor:
        """Return the mean loss over the queries."""
        _check_pair(queries, keys)
        with without_autocast(queries):
            q, k, n = (F.normalize(promote(rows), dim=1) for rows in (queries, keys.detach(), queue.detach()))
            logits = torch.cat([(q * k).sum(1, keepdim=True), q @ n.T], dim=1) / self.temperature  # (b, 1 + m)
            return F.cross_entropy(logits, torch.zeros(len(q), dtype=torch.int64, device=q.device))


def _standardized(rows: Tensor) -> Tensor:
    moved = promote(rows) - promote(rows).mean(0)
    return moved / (moved.square().mean(0) + _TINY).sqrt()


def _check_pair(first: Tensor, second: Tensor) -> None:
    if first.ndim != 2 or first.shape != second.shape:
        raise ValueError(f"two views must be (b, d) alike, got {tuple(first.shape)} and {tuple(second.shape)}")
