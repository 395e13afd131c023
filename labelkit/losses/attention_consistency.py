"""Ask for the attention that moves with the image (TAC)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from labelkit.algorithms.homographies import look_up
from labelkit.algorithms.precision import promote, without_autocast


class TransformedAttentionLoss(nn.Module):
    r"""Squared difference of the attention at each place of a view and at the same place of another view.

    .. math:: L = \frac{1}{|V|} \sum_{p \in V} (M(p) - M'(H p))^2

    with attention maps M and M' of the two views, H the map from the first to the second, and V the cells of M whose
    places the second view shows. Without unit, in [0, 1] for maps in [0, 1]; 0 when M' is M moved by H, and also when
    both are constant: a constant map satisfies every H.

    Args:
        reduction: ``mean`` over V, or ``sum``.
        both: average with the same for the maps exchanged and H inverted.

    Shape:
        - first, second: ``(b, h, w)`` float; both get gradients.
        - homographies: ``(b, 3, 3)`` float in normalized coordinates; no gradient.
        - returns: ``()`` float32 (float64 stays), mean over the pairs with at least one cell in V; 0, still
          differentiable, where no pair has one.

    Raises:
        ValueError: unknown reduction.

    Source:
        TAC-CCL, Eqs. 4.1 and 4.2. The sum there does not say what becomes of places that leave the second view; here
        they do not count. With maps that were multiplied by ``keypoint_masks`` it is Eq. 4.6, which in the printed
        form compares equal places of two different images; pass identities for that.
    """

    def __init__(self, reduction: Literal["mean", "sum"] = "mean", *, both: bool = False) -> None:
        super().__init__()
        if reduction not in ("mean", "sum"):
            raise ValueError(f"unknown reduction {reduction!r}")
        self.reduction = reduction
        self.both = both

    def forward(self, first: Tensor, second: Tensor, homographies: Tensor) -> Tensor:
        """Return the mean over pairs."""
        with without_autocast(first):
            first, second, maps = promote(first), promote(second), promote(homographies)
            loss = self._one_way(first, second, maps)
            return 0.5 * (loss + self._one_way(second, first, torch.linalg.inv_ex(maps).inverse)) if self.both else loss

    def _one_way(self, first: Tensor, second: Tensor, homographies: Tensor) -> Tensor:
        moved, visible = look_up(second[:, None], homographies, first.shape[-2:])
        weights = visible.to(first.dtype)
        terms = ((first - moved[:, 0]).square() * weights).sum(dim=(1, 2))
        number = weights.sum(dim=(1, 2))
        if self.reduction == "mean":
            terms = terms / number.clamp(min=1)
        return terms.sum() / (number > 0).sum().clamp(min=1)


class FeatureSimilarityLoss(nn.Module):
    r"""Mean distance of the embeddings of two views.

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
        """Return the mean distance."""
        with without_autocast(first):
            return ((promote(first) - promote(second)).square().sum(dim=1) + 1e-12).sqrt().mean()
