"""How well features keep apart from the second-nearest cluster (LMCS).

Source: the dissertation "Deep Learning with Very Few and No Labels", Eq. 3.6, whose sign is wrong: see below.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from labelkit.algorithms.precision import promote, without_autocast

Discrimination = Literal["ratio", "margin", "literal"]


class DiscriminationLoss(nn.Module):
    r"""Compare the distances :math:`d_0 \le d_1` of each feature to its nearest and second-nearest centroid.

    - ``ratio``: :math:`\overline{d_0^2 / (d_1^2 + 10^{-12})}`, in [0, 1]: 0 at a centroid, 1 half-way between two;
      does not change with the scale of the features.
    - ``margin``: :math:`\overline{\max(0, \mu - (d_1 - d_0))}`.
    - ``literal``: :math:`\overline{(d_0 - d_1)^2}`, the printed Eq. 3.6. It is 0 half-way between two centroids, so
      that descending it moves features there, the opposite of what its text asks for.

    Args:
        kind: which one.

    Shape:
        - features: ``(b, d)`` float; gets gradients.
        - centroids: ``(k, d)`` float, distinct; no gradient.
        - margin: :math:`\mu`, for ``margin``.
        - returns: ``()`` float32 (float64 stays); 0, still differentiable, without rows.

    Raises:
        ValueError: unknown kind, fewer than two centroids, or shapes that do not fit.
    """

    def __init__(self, kind: Discrimination) -> None:
        super().__init__()
        if kind not in ("ratio", "margin", "literal"):
            raise ValueError(f"unknown kind {kind!r}")
        self.kind = kind

    def forward(self, features: Tensor, centroids: Tensor, margin: float = 0.0) -> Tensor:
        """Return the mean over the batch."""
        with without_autocast(features):
            near, far = nearest_two(promote(features), centroids)
            if self.kind == "ratio":
                terms = near / (far + 1e-12)
            else:
                # a feature that lies on its centroid has no direction away from it
                gap = _root(far) - _root(near)
                terms = (margin - gap).clamp(min=0) if self.kind == "margin" else gap.square()
            return terms.sum() / max(len(terms), 1)


def nearest_two(features: Tensor, centroids: Tensor) -> tuple[Tensor, Tensor]:
    """Squared distances to the nearest and the second-nearest centroid, each (b,).

    Raises:
        ValueError: fewer than two centroids, or another width.
    """
    if centroids.ndim != 2 or len(centroids) < 2 or features.ndim != 2 or features.shape[1] != centroids.shape[1]:
        raise ValueError(
            f"need (b, d) features and at least two (k, d) centroids, got {tuple(features.shape)} and "
            f"{tuple(centroids.shape)}"
        )
    squares = (features[:, None, :] - centroids.detach().to(features.dtype)[None]).square().sum(-1)
    two = squares.topk(2, dim=1, largest=False).values
    return two[:, 0], two[:, 1]


def _root(squares: Tensor) -> Tensor:
    """Square root with gradient 0 at 0."""
    positive = squares > 0
    return torch.where(positive, torch.where(positive, squares, 1.0).sqrt(), 0.0)
