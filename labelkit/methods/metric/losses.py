"""Metric learning losses on unit embeddings; those with class vectors are from pytorch-metric-learning.

Similarity is the cosine; references are the batch itself, or a memory of embeddings from earlier steps. Pairs of an
image and its own copy in the memory are excluded before mining; the library excludes them only afterwards. Pairs are
masks, since the library's lists of pairs would require a synchronization with a GPU.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labelkit.algorithms.precision import promote, without_autocast


def pair_masks(labels: Tensor, reference_labels: Tensor, self_indices: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return masks (b, r) of each anchor's positive and negative references; unlabeled ones are neither.

    Args:
        labels: (b,) int64, -1 = unlabeled.
        reference_labels: (r,) int64, likewise.
        self_indices: (b,) int64, index of the reference that is the anchor itself, -1 = none; ``None``: all -1.
    """
    known = (labels >= 0)[:, None] & (reference_labels >= 0)
    same = labels[:, None] == reference_labels
    if self_indices is not None:
        known = known & (torch.arange(len(reference_labels), device=self_indices.device) != self_indices[:, None])
    return known & same, known & ~same


def hard_pair_masks(similarities: Tensor, positive: Tensor, negative: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """Select hard positives and negatives by multi-similarity mining with margin ``epsilon``.

    These are positives less similar than some negative, and negatives more similar than some positive, up to the
    margin. Similarities and masks are (b, r); an anchor without positives or without negatives has no hard pairs.

    Source:
        "Multi-Similarity Loss" (CVPR 2019), Eq. 8 and 9, with both comparisons strict.
    """
    hardest = similarities.masked_fill(~negative, -torch.inf).amax(1, keepdim=True)
    easiest = similarities.masked_fill(~positive, torch.inf).amin(1, keepdim=True)
    return positive & (similarities - epsilon < hardest), negative & (similarities + epsilon > easiest)


class _PairLoss(nn.Module):
    """Base class for losses on pairs within a batch or with references; shapes as in `MultiSimilarityLoss`."""

    #: Margin of the mining; ``None``: all pairs.
    epsilon: float | None = None

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor,
        reference: Tensor | None = None,
        reference_labels: Tensor | None = None,
        self_indices: Tensor | None = None,
    ) -> Tensor:
        """Compute the loss of embeddings relative to references, or relative to each other without references."""
        with without_autocast(embeddings):
            anchors = F.normalize(promote(embeddings), dim=1)
            if reference is None:
                reference, reference_labels = anchors, labels
                self_indices = torch.arange(len(labels), device=labels.device)
            else:
                reference = F.normalize(promote(reference), dim=1)
            if reference_labels is None:
                raise ValueError("reference requires reference_labels")
            positive, negative = pair_masks(labels, reference_labels, self_indices)
            similarities = anchors @ reference.T
            if self.epsilon is not None:
                with torch.no_grad():
                    positive, negative = hard_pair_masks(similarities, positive, negative, self.epsilon)
            return self.loss_from_similarities(similarities, positive, negative)

    def loss_from_similarities(self, similarities: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        """Compute the loss from cosines (b, r) and masks (b, r) of positive and negative pairs."""
        raise NotImplementedError


class MultiSimilarityLoss(_PairLoss):
    r"""Multi-similarity loss with the pair mining from its paper.

    .. math:: L = \frac{1}{b} \sum_i \frac{1}{\alpha} \log[1 + \sum_{p \in P_i} e^{-\alpha (S_{ip} - \lambda)}]
        + \frac{1}{\beta} \log[1 + \sum_{n \in N_i} e^{\beta (S_{in} - \lambda)}]

    with cosines S, hard positives P and hard negatives N (`hard_pair_masks`). In nats, >= 0; an anchor without hard
    pairs contributes 0 and counts in b.

    Args:
        alpha: sharpness for positives, > 0.
        beta: sharpness for negatives, > 0.
        base: :math:`\lambda`, similarity around which both terms switch.
        epsilon: margin of the mining; ``None``: all pairs.

    Shape:
        - embeddings: ``(b, d)`` float of any norm; normalized here, gradients flow.
        - labels: ``(b,)`` int64; images with -1 are excluded from all pairs.
        - reference: ``(r, d)``, by default the embeddings, each compared with the others; gradients flow if required.
        - reference_labels: ``(r,)``; required with a reference.
        - own: ``(b,)`` int64, index of the reference that is the image itself, -1 = none; by default, none.
        - returns: ``()`` float32 (float64 is preserved); 0, still differentiable, if there is no hard pair.

    Source:
        X. Wang et al., "Multi-Similarity Loss" (CVPR 2019); the same as in pytorch-metric-learning, up to rounding.
    """

    def __init__(self, alpha: float = 2.0, beta: float = 50.0, base: float = 0.5, epsilon: float | None = 0.1) -> None:
        super().__init__()
        self.alpha, self.beta, self.base, self.epsilon = alpha, beta, base, epsilon

    def loss_from_similarities(self, similarities: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        """Compute the loss from cosines (b, r) and masks (b, r) of positive and negative pairs."""
        alpha, beta, base = self.alpha, self.beta, self.base
        sums = [
            F.pad(values.masked_fill(~mask, -torch.inf), (1, 0)).logsumexp(dim=1) / sharpness
            for values, mask, sharpness in (
                (alpha * (base - similarities), positive, alpha),
                (beta * (similarities - base), negative, beta),
            )
        ]
        return (sums[0] + sums[1]).mean()


class MemoryContrastiveLoss(_PairLoss):
    r"""Contrastive loss that pulls the cosines of positive pairs toward 1 and pushes those of negatives below a margin.

    .. math:: L = \text{mean}^+_{ip} (1 - S_{ip}) + \text{mean}^+_{in} (S_{in} - m)_+

    where mean\ :sup:`+` is over the pairs that are not 0. In [0, 2 + 1 - m].

    Args:
        margin: m, similarity up to which negatives have no loss.

    Shape:
        As `MultiSimilarityLoss`.

    Source:
        pytorch-metric-learning's ``ContrastiveLoss(1, m, distance=CosineSimilarity())``, which XBM's code uses.
    """

    def __init__(self, margin: float = 0.5) -> None:
        super().__init__()
        self.margin = margin

    def loss_from_similarities(self, similarities: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        """Compute the loss from cosines (b, r) and masks (b, r) of positive and negative pairs."""
        attracted = (1 - similarities).relu() * positive
        repelled = (similarities - self.margin).relu() * negative
        means = [values.sum() / (values > 0).sum().clamp(min=1) for values in (attracted, repelled)]
        return means[0] + means[1]


class ContrastiveBayesianLoss(_PairLoss):
    r"""Contrastive Bayesian loss with a penalty on the variance of negative similarities.

    .. math:: L = \frac{1}{b} \sum_i \log[1 + \sum_{p \in P_i} e^{-(S_{ip} - 0.5) / 0.5}]
        + \log[1 + \sum_{n \in N_i} e^{(S_{in} - 1) / 0.01}]
        + w \, \text{mean}_n (S_{in} - \mu_i)^2,
        \quad \mu_i = 0.2 \, \text{mean}_p S_{ip} + 0.8 \, \text{mean}_n S_{in}

    with cosines S, hard positives P and hard negatives N (`hard_pair_masks`); the means are over all positives and all
    negatives. In nats, >= 0; an anchor without hard pairs contributes 0 and counts in b. If all cosines are 0.5, with
    one positive and any negatives, L is log 2 (within 1e-21 for each negative).

    Shape:
        As `MultiSimilarityLoss`.

    Source:
        S. Kan et al., "Contrastive Bayesian Analysis for Deep Metric Learning" (2020), its form with logarithms and the
        numbers of its code for GoogLeNet. The code treats any pair of similarity 1 as an image with itself.
    """

    #: w. The released code sums over negatives where we take their mean: 75 matches its weight of 1 with the 75
    #: negatives of a batch of 16 classes with 5 images. A sum over a memory would dominate all other losses.
    variance_weight = 75.0
    #: Similarities at which a positive and a negative have weight 1, and temperatures of the differences from them.
    points, scales = (0.5, 1.0), (0.5, 0.01)
    #: Weight of the positives in the mean that negatives are drawn to.
    positive_share = 0.2
    #: Margin of the mining.
    margin = 0.1

    def loss_from_similarities(self, similarities: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        """Compute the loss from cosines (b, r) and masks (b, r) of positive and negative pairs."""
        with torch.no_grad():
            hard = hard_pair_masks(similarities, positive, negative, self.margin)
        signs = (-1.0, 1.0)
        sums = [
            F.pad((sign * (similarities - point) / scale).masked_fill(~mask, -torch.inf), (1, 0)).logsumexp(1)
            for sign, point, scale, mask in zip(signs, self.points, self.scales, hard, strict=True)
        ]
        attracted, repelled = (_row_mean(similarities, mask) for mask in (positive, negative))
        middle = self.positive_share * attracted + (1 - self.positive_share) * repelled
        variance = _row_mean((similarities - middle[:, None]) ** 2, negative)
        counts = hard[0].any(1) & hard[1].any(1)
        each = sums[0] + sums[1] + self.variance_weight * variance
        return torch.where(counts, each, 0.0).mean()


class _ClassVectorLoss(nn.Module):
    """Base class for losses with a learned vector per class; shapes as in `ProxyAnchorLoss`."""

    #: The library's loss.
    loss: Any

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of embeddings (b, d) with labels (b,)."""
        with without_autocast(embeddings):
            known = labels >= 0
            return self.loss(promote(embeddings)[known], labels[known])


class ProxyAnchorLoss(_ClassVectorLoss):
    r"""Proxy-Anchor loss: each class has a learned proxy that attracts its images and repels others.

    Hard images have the largest weights.

    .. math:: L = \frac{1}{|C^+|} \sum_{c \in C^+} \log[1 + \sum_{i: y_i = c} e^{-\alpha (S_{ic} - m)}]
        + \frac{1}{c} \sum_c \log[1 + \sum_{i: y_i \ne c} e^{\alpha (S_{ic} + m)}]

    with C+ the classes of the batch, margin m = 0.1 and sharpness alpha = 32. In nats, >= 0.

    Args:
        num_classes: c.
        embed_dim: d.

    Shape:
        - embeddings: ``(b, d)`` float of any norm; normalized here, gradients flow, also to the proxies.
        - labels: ``(b,)`` int64 in ``[-1, c)``; images with -1 are ignored.
        - returns: ``()`` float32 (float64 is preserved).

    Attributes:
        loss: the library's, whose ``proxies`` are a ``(c, d)`` parameter; only their directions matter.

    Source:
        S. Kim et al., "Proxy Anchor Loss" (CVPR 2020), Eq. 4; pytorch-metric-learning.
    """

    def __init__(self, num_classes: int, embed_dim: int) -> None:
        from pytorch_metric_learning.losses import ProxyAnchorLoss as Library

        super().__init__()
        self.loss = Library(num_classes, embed_dim, margin=0.1, alpha=32.0)


class NormalizedSoftmaxLoss(_ClassVectorLoss):
    r"""Cross-entropy over temperature-scaled cosines between embeddings and learned class weight vectors.

    In nats, >= 0; log c if all cosines are equal. The temperature is 0.05.

    Args:
        num_classes: c.
        embed_dim: d.

    Shape:
        As `ProxyAnchorLoss`.

    Source:
        A. Zhai and H. Wu, "Classification is a Strong Baseline for Deep Metric Learning" (BMVC 2019);
        pytorch-metric-learning.
    """

    def __init__(self, num_classes: int, embed_dim: int) -> None:
        from pytorch_metric_learning.losses import NormalizedSoftmaxLoss as Library

        super().__init__()
        self.loss = Library(num_classes, embed_dim, temperature=0.05)


def _row_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Return the masked mean of each row, (b,); 0 for rows whose mask is empty."""
    return (values * mask).sum(1) / mask.sum(1).clamp(min=1)
