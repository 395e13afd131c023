"""Losses of metric learning, from pytorch-metric-learning (imported when one is built), on unit embeddings.

Similarity is the cosine; references are the batch itself, or a memory of embeddings from earlier steps. The pairs of an
image with its own copy in the memory are left out before mining; the library leaves them out only afterwards.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labelkit.algorithms.precision import promote, without_autocast


def reference_pairs(labels: Tensor, reference_labels: Tensor, own: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return masks (b, r) of the references in each anchor's class and of those in other classes, without unlabeled.

    Args:
        labels: (b,) int64, -1 = unlabeled.
        reference_labels: (r,) int64, likewise.
        own: (b,) int64, the reference that is the anchor itself, -1 = none; ``None``: no anchor is.
    """
    known = (labels >= 0)[:, None] & (reference_labels >= 0)
    same = labels[:, None] == reference_labels
    if own is not None:
        known = known & (torch.arange(len(reference_labels), device=own.device) != own[:, None])
    return known & same, known & ~same


def hard_pairs(similarities: Tensor, positive: Tensor, negative: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """Select hard positives and negatives by multi-similarity mining with margin ``epsilon``.

    These are positives less similar than some negative, negatives more similar than some positive, up to the margin.
    Similarities and masks are (b, r); an anchor without positives or without negatives keeps nothing.

    Source:
        "Multi-Similarity Loss" (CVPR 2019), Eq. 8 and 9, with both comparisons strict.
    """
    hardest = similarities.masked_fill(~negative, -torch.inf).amax(1, keepdim=True)
    easiest = similarities.masked_fill(~positive, torch.inf).amin(1, keepdim=True)
    return positive & (similarities - epsilon < hardest), negative & (similarities + epsilon > easiest)


class _PairLoss(nn.Module):
    """Base of losses on pairs of a batch, or of a batch and references, with shapes of `MultiSimilarityLoss`."""

    #: Margin of the mining; ``None``: all pairs.
    epsilon: float | None = None
    #: Loss of the library, used on a CPU; on a GPU, the CPU would have to wait for the lengths of its lists of pairs.
    loss: Any

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor,
        reference: Tensor | None = None,
        reference_labels: Tensor | None = None,
        own: Tensor | None = None,
    ) -> Tensor:
        """Return the loss of the embeddings against the references, or against each other if none are given."""
        with without_autocast(embeddings):
            anchors = F.normalize(promote(embeddings), dim=1)
            if reference is None:
                reference, reference_labels = anchors, labels
                own = torch.arange(len(labels), device=labels.device)
            else:
                reference = F.normalize(promote(reference), dim=1)
            if reference_labels is None:
                raise ValueError("reference requires reference_labels")
            positive, negative = reference_pairs(labels, reference_labels, own)
            if self.epsilon is not None:
                with torch.no_grad():
                    positive, negative = hard_pairs(anchors @ reference.T, positive, negative, self.epsilon)
            if self.loss is None or anchors.device.type != "cpu":
                return self.of_similarities(anchors @ reference.T, positive, negative)
            found = (*torch.where(positive), *torch.where(negative))
            if not any(len(part) for part in found):
                return anchors.sum() * 0
            # the library treats a single pair as none; the same pair twice changes neither a sum over a mask nor a mean
            found = tuple(part.repeat(2) if len(part) == 1 else part for part in found)
            return self.loss(anchors, labels, found, reference, reference_labels)

    def of_similarities(self, similarities: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        """Compute the loss from cosines (b, r) and masks (b, r) of pairs; any library loss agrees up to rounding."""
        raise NotImplementedError


class MultiSimilarityLoss(_PairLoss):
    r"""Multi-similarity loss with the pair mining from its paper.

    .. math:: L = \frac{1}{b} \sum_i \frac{1}{\alpha} \log[1 + \sum_{p \in P_i} e^{-\alpha (S_{ip} - \lambda)}]
        + \frac{1}{\beta} \log[1 + \sum_{n \in N_i} e^{\beta (S_{in} - \lambda)}]

    with cosines S, hard positives P and hard negatives N (`hard_pairs`). In nats, >= 0; an anchor without hard pairs
    adds 0 and counts in b.

    Args:
        alpha: sharpness for positives, > 0.
        beta: sharpness for negatives, > 0.
        base: :math:`\lambda`, similarity at which both are indifferent.
        epsilon: margin of the mining; ``None``: all pairs.

    Shape:
        - embeddings: ``(b, d)`` float of any length; normalized here, gradients flow.
        - labels: ``(b,)`` int64; -1 leaves the image out of all pairs.
        - reference: ``(r, d)``, by default the embeddings, each without itself; gradients flow if it has any.
        - reference_labels: ``(r,)``; needed with a reference.
        - own: ``(b,)`` int64, the reference that is the image itself, -1 for none; by default none.
        - returns: ``()`` float32 (float64 stays); 0, still differentiable, if there is no hard pair.

    Source:
        X. Wang et al., "Multi-Similarity Loss" (CVPR 2019); pytorch-metric-learning, whose loss this calls.
    """

    def __init__(self, alpha: float = 2.0, beta: float = 50.0, base: float = 0.5, epsilon: float | None = 0.1) -> None:
        from pytorch_metric_learning.losses import MultiSimilarityLoss as Library

        super().__init__()
        self.loss = Library(alpha=alpha, beta=beta, base=base)
        self.epsilon = epsilon

    def of_similarities(self, similarities: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        """Compute the loss from cosines (b, r) and masks (b, r) of pairs, equal to the library's up to rounding."""
        alpha, beta, base = self.loss.alpha, self.loss.beta, self.loss.base
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
        margin: m, similarity up to which negatives cost nothing.

    Shape:
        As `MultiSimilarityLoss`.

    Source:
        pytorch-metric-learning's ``ContrastiveLoss(1, m, distance=CosineSimilarity())``, which XBM's code uses.
    """

    def __init__(self, margin: float = 0.5) -> None:
        from pytorch_metric_learning.distances import CosineSimilarity
        from pytorch_metric_learning.losses import ContrastiveLoss

        super().__init__()
        self.loss = ContrastiveLoss(pos_margin=1, neg_margin=margin, distance=CosineSimilarity())

    def of_similarities(self, similarities: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        """Compute the loss from cosines (b, r) and masks (b, r) of pairs, equal to the library's up to rounding."""
        attracted = (self.loss.pos_margin - similarities).relu() * positive
        repelled = (similarities - self.loss.neg_margin).relu() * negative
        means = [values.sum() / (values > 0).sum().clamp(min=1) for values in (attracted, repelled)]
        return means[0] + means[1]


class ContrastiveBayesianLoss(_PairLoss):
    r"""Contrastive Bayesian loss with a penalty on the variance of negative similarities.

    .. math:: L = \frac{1}{b} \sum_i \log[1 + \sum_{p \in P_i} e^{-(S_{ip} - 0.5) / 0.5}]
        + \log[1 + \sum_{n \in N_i} e^{(S_{in} - 1) / 0.01}]
        + w \, \text{mean}_n (S_{in} - \mu_i)^2,
        \quad \mu_i = 0.2 \, \text{mean}_p S_{ip} + 0.8 \, \text{mean}_n S_{in}

    with cosines S, hard positives P and hard negatives N (`hard_pairs`); the means are over all positives and all
    negatives. In nats, >= 0; an anchor without hard pairs adds 0 and counts in b. If all cosines are 0.5, with one
    positive and any negatives, L is log 2 (to 1e-21 for each negative).

    Shape:
        As `MultiSimilarityLoss`.

    Source:
        S. Kan et al., "Contrastive Bayesian Analysis for Deep Metric Learning" (2020), its form with logarithms and the
        numbers of its code for GoogLeNet. The code treats any pair of similarity 1 as an image with itself.
    """

    loss = None  # not in the library
    #: w. The released code sums over the negatives where we take their mean: 75 equals its weight 1 with the 75
    #: negatives of a batch of 16 classes of 5. A sum over a memory would dominate all other losses.
    variance_weight = 75.0
    #: Similarities at which a positive and a negative have weight 1, and scales of the distances from these points.
    points, scales = (0.5, 1.0), (0.5, 0.01)
    #: Share of the positives in the mean that negatives are drawn to.
    positive_share = 0.2
    #: Margin of the mining.
    margin = 0.1

    def of_similarities(self, similarities: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        """Compute the loss from cosines (b, r) and masks (b, r) of positive and negative pairs."""
        with torch.no_grad():
            hard = hard_pairs(similarities, positive, negative, self.margin)
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
    """Base of losses that learn a vector of each class, with shapes of `ProxyAnchorLoss`."""

    #: Loss of the library.
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
        - embeddings: ``(b, d)`` float of any length; normalized here, gradients flow, also to the proxies.
        - labels: ``(b,)`` int64 in ``[-1, c)``; -1 leaves the image out.
        - returns: ``()`` float32 (float64 stays).

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
    """Return the mean of each row where the mask is set, (b,); 0 if it is set nowhere."""
    return (values * mask).sum(1) / mask.sum(1).clamp(min=1)
