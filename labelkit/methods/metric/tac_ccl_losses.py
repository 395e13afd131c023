"""Losses of TAC-CCL.

Pull embeddings to the nearest center and away from the second nearest (CCL).

Make attention move with the image (TAC).

Compute the pair loss of embeddings that are all alike.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from labelkit.algorithms.homographies import sample_second_views
from labelkit.algorithms.precision import promote, without_autocast

_MIN_DISTANCE = 1e-6


class ContrastiveClusteringLoss(nn.Module):
    r"""Mean ratio of each embedding's distances to its nearest and second-nearest center.

    .. math:: L = \frac{1}{b} \sum_n \frac{\|F_n - C^+_n\|}{\|F_n - C^-_n\|}

    Dimensionless, in [0, 1]: 0 on a center, 1 midway between two of them.

    Shape:
        - embeddings: ``(b, d)`` float; gets gradients.
        - centroids: ``(k, d)`` float, k >= 2; no gradient.
        - returns: ``()`` float32 (float64 stays).

    Raises:
        ValueError: there are fewer than 2 centroids.

    Source:
        TAC-CCL, Eq. 4.3. The text below it prefers small values of the inverse ratio, that is, ambiguous images;
        we follow the equation.
    """

    def forward(self, embeddings: Tensor, centroids: Tensor) -> Tensor:
        """Return the mean ratio over the batch."""
        if len(centroids) < 2:
            raise ValueError(f"need at least 2 centroids, got {len(centroids)}")
        with without_autocast(embeddings):
            rows = promote(embeddings)
            centers = centroids.detach().to(rows.dtype)
            # selected by the product, measured by the difference, since the product cancels on a center
            scores = (centers.square().sum(dim=1) - 2 * rows.detach() @ centers.T).detach()
            near, far = scores.topk(2, dim=1, largest=False).indices.unbind(1)
            to_near, to_far = (((rows - centers[i]).square().sum(dim=1) + 1e-12).sqrt() for i in (near, far))
            return (to_near / to_far.clamp(min=_MIN_DISTANCE)).mean()


class TransformedAttentionLoss(nn.Module):
    r"""Mean squared difference in attention between corresponding places of two views.

    .. math:: L = \frac{1}{|V|} \sum_{p \in V} (M(p) - M'(H p))^2

    with attention maps M and M' of the two views, H the map from the first to the second, and V the cells of M whose
    places the second view shows. Dimensionless, in [0, 1] for maps in [0, 1]; 0 when M' is M moved by H, and also when
    both are constant: a constant map satisfies every H.

    Shape:
        - first, second: ``(b, h, w)`` float; both get gradients.
        - homographies: ``(b, 3, 3)`` float in normalized coordinates; no gradient.
        - returns: ``()`` float32 (float64 stays), mean over the pairs with at least one cell in V; 0, still
          differentiable, where no pair has one.

    Source:
        TAC-CCL, Eqs. 4.1 and 4.2; the mean over V is ours.
        The sum there does not specify what happens to places that leave the second view; here
        they are ignored. With maps that were multiplied by ``keypoint_masks`` it is Eq. 4.6, which in the printed
        form compares equal places of two different images; pass identities for that.
    """

    def forward(self, first: Tensor, second: Tensor, homographies: Tensor) -> Tensor:
        """Return the mean loss over pairs of views."""
        with without_autocast(first):
            first, second = promote(first), promote(second)
            moved, visible = sample_second_views(second[:, None], promote(homographies), first.shape[-2:])
            weights = visible.to(first.dtype)
            number = weights.sum(dim=(1, 2))
            terms = ((first - moved[:, 0]).square() * weights).sum(dim=(1, 2)) / number.clamp(min=1)
            return terms.sum() / (number > 0).sum().clamp(min=1)


class FeatureSimilarityLoss(nn.Module):
    r"""Mean distance between the embeddings of two views.

    .. math:: L = \frac{1}{b} \sum_n \sqrt{\|F_n - F'_n\|^2 + 10^{-12}}

    In the unit of the embeddings; 0 to 2 between unit rows, where it is :math:`\sqrt{2 - 2 \cos}`. The addend gives a
    gradient to equal rows.

    Shape:
        - first, second: ``(b, d)`` float; both get gradients.
        - returns: ``()`` float32 (float64 stays).

    Source:
        TAC-CCL, Sec. 4.3.1.
    """

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        """Return the mean distance over pairs of views."""
        with without_autocast(first):
            return ((promote(first) - promote(second)).square().sum(dim=1) + 1e-12).sqrt().mean()


def collapsed_multi_similarity(positives: int, negatives: int) -> float:
    """Return the minimum multi-similarity loss that is possible if all embeddings are equally similar.

    A network that cannot distinguish images can do no better, so a run that stays at this value has learned nothing.

    Args:
        positives: number of references of an anchor's class.
        negatives: number of references of other classes.
    """
    alpha, beta, base = 2.0, 50.0, 0.5  # as in `MultiSimilarityLoss`
    offsets = torch.linspace(-1 - base, 1 + base, 20_001, dtype=torch.float64)
    attract = torch.logaddexp(torch.zeros(()).double(), math.log(max(positives, 1e-300)) - alpha * offsets) / alpha
    repel = torch.logaddexp(torch.zeros(()).double(), math.log(max(negatives, 1e-300)) + beta * offsets) / beta
    return float((attract + repel).min())
