"""Pull embeddings to the nearest center and away from the second nearest (CCL)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from labelkit.algorithms.precision import promote, without_autocast

_LEAST_DISTANCE = 1e-6


class ContrastiveClusteringLoss(nn.Module):
    r"""Distance to the nearest center over distance to the second nearest.

    .. math:: L = \frac{1}{b} \sum_n \frac{\|F_n - C^+_n\|}{\|F_n - C^-_n\|}

    Without unit, in [0, 1]: 0 on a center, 1 midway between two of them.

    Args:
        positive: :math:`C^+` is the ``nearest`` center (the paper's), or that of the ``assigned`` cluster and
            :math:`C^-` the nearest other one; the ratio can pass 1 then.

    Shape:
        - embeddings: ``(b, d)`` float; gets gradients.
        - centroids: ``(k, d)`` float, k >= 2; no gradient.
        - cluster_ids: ``(b,)`` int64 in ``[0, k)``; only for ``assigned``.
        - returns: ``()`` float32 (float64 stays).

    Raises:
        ValueError: unknown positive, fewer than 2 centroids, or no cluster ids where they are needed.

    Source:
        TAC-CCL, Eq. 4.3. The text below it praises small values of the inverse ratio, which would be ambiguous images;
        the equation is followed.
    """

    def __init__(self, positive: Literal["nearest", "assigned"] = "nearest") -> None:
        super().__init__()
        if positive not in ("nearest", "assigned"):
            raise ValueError(f"unknown positive {positive!r}")
        self.positive = positive

    def forward(self, embeddings: Tensor, centroids: Tensor, cluster_ids: Tensor | None = None) -> Tensor:
        """Return the mean ratio."""
        if len(centroids) < 2:
            raise ValueError(f"need at least 2 centroids, got {len(centroids)}")
        if self.positive == "assigned" and cluster_ids is None:
            raise ValueError("positive 'assigned' needs cluster_ids")
        with without_autocast(embeddings):
            rows = promote(embeddings)
            centers = centroids.detach().to(rows.dtype)
            # chosen by the product, measured by the difference: the product cancels on a center
            scores = (centers.square().sum(dim=1) - 2 * rows.detach() @ centers.T).detach()
            if self.positive == "nearest":
                near, far = scores.topk(2, dim=1, largest=False).indices.unbind(1)
            else:
                assert cluster_ids is not None
                near = cluster_ids
                far = scores.scatter(1, near[:, None], torch.inf).argmin(dim=1)
            to_near, to_far = (((rows - centers[i]).square().sum(dim=1) + 1e-12).sqrt() for i in (near, far))
            return (to_near / to_far.clamp(min=_LEAST_DISTANCE)).mean()
