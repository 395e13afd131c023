"""CoTAP's loss, and how it is computed on dense features.

Make similarities follow the order of target similarities (CoTAP), exactly and in O(n log n).

Let the similarities of the patches of two images follow those that a teacher sees: by order, or by value.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from labelkit.algorithms.precision import promote, without_autocast
from labelkit.methods.dense.pair_ranking import BYTES_PER_ITEM, ranking_terms, ranking_terms_by_pairs

Implementation = Literal["auto", "fast", "pairs"]
# up to this number of pairs, of all rows together, the double sum takes less time
FEW_PAIRS = 2**15


def cotap_loss(
    scores: Tensor,
    targets: Tensor,
    weights: Tensor | None = None,
    *,
    floor: float = -0.2,
    margin: float = 0.5,
    implementation: Implementation = "auto",
    max_bytes: int = 2**30,
    is_finite: bool = False,
) -> Tensor:
    r"""Penalize scores that rank items differently than the targets do, above all near the top.

    .. math:: \frac1n \sum_i \gamma_i \frac{x_i}{1 + x_i}, \qquad
        x_i = \frac{\sum_{j:\, q_j < q_i} \ell(p_i - p_j)}{\#\{j : q_j \ge q_i, p_j \ge p_i\}}

    with :math:`\gamma_i = \max(q_i - \text{floor}, 0)` and :math:`\ell(d) = 1 - 2d/\tau` for d < 0,
    :math:`(1 - d/\tau)^2` for d up to the margin :math:`\tau`, then 0. At least 0, less than the largest
    :math:`\gamma`; 0 where all targets are equal, or scores order them all with gaps above the margin.

    Args:
        scores: (b, n) float of any precision, p, gets gradients; only differences matter. b may be 0.
        targets: (b, n) float, q, no gradient.
        weights: (b, n) float, instead of :math:`\gamma`.
        floor: :math:`\tau_1`, targets below it have no weight.
        margin: :math:`\tau_2 > 0`, the gap in scores that is enough.
        implementation: ``fast``: O(n log n) time, O(n) memory; ``pairs``: the double sum; ``auto``: the double sum for
            few items. All agree to rounding, ties included.
        max_bytes: rows are worked on in groups that need about so much at most; changes nothing else.
        is_finite: the caller knows that all numbers are; to look waits for a GPU.

    Returns:
        (b,) float32 (float64 for float64 scores), one loss per row.

    Raises:
        ValueError: shapes that differ, no items, not-a-number or infinite values, a margin that is not positive.

    Source:
        "Semantic Concentration for Self-Supervised Dense Representations Learning", Eq. 11 and 12; counts and weights
        are constants for the gradient.
    """
    _check(scores, targets, weights, margin, implementation)
    if not is_finite and not (torch.isfinite(scores).all() and torch.isfinite(targets).all()):
        raise ValueError("scores or targets are not finite")
    with without_autocast(scores):
        gamma = (targets.detach() - floor).clamp_min(0) if weights is None else weights.detach()
        loss: Tensor = _Ranking.apply(scores, targets.detach(), gamma, margin, implementation, max_bytes)
        return loss


def _check(scores: Tensor, targets: Tensor, weights: Tensor | None, margin: float, implementation: str) -> None:
    if scores.ndim != 2 or scores.shape[1] == 0:
        raise ValueError(f"scores must be (b, n) with n >= 1, got {tuple(scores.shape)}")
    for name, tensor in (("targets", targets), ("weights", weights)):
        if tensor is not None and tensor.shape != scores.shape:
            raise ValueError(f"scores are {tuple(scores.shape)}, {name} {tuple(tensor.shape)}")
    if not margin > 0:
        raise ValueError(f"margin must be above 0, got {margin}")
    if implementation not in ("auto", "fast", "pairs"):
        raise ValueError(f"unknown implementation {implementation!r}")


class _Ranking(Function):
    @staticmethod
    def forward(
        ctx: Any,
        scores: Tensor,
        targets: Tensor,
        weights: Tensor,
        margin: float,
        implementation: Implementation,
        max_bytes: int,
    ) -> Tensor:
        wants_gradient = bool(ctx.needs_input_grad[0])
        losses, gradients = [], []
        by_pairs = _uses_pairs(scores.shape, implementation)
        compute = ranking_terms_by_pairs if by_pairs else ranking_terms
        for part in _parts(scores.shape, by_pairs, max_bytes):
            terms = compute(scores[part], targets[part], weights[part], margin, gradient=wants_gradient)
            losses.append(terms.loss)
            if terms.gradient is not None:
                gradients.append(terms.gradient.to(scores.dtype))
        if wants_gradient:
            ctx.save_for_backward(torch.cat(gradients))
        return torch.cat(losses).to(torch.float64 if scores.dtype == torch.float64 else torch.float32)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        return upstream.to(gradient.dtype)[:, None] * gradient, None, None, None, None, None


def _uses_pairs(shape: torch.Size, implementation: Implementation) -> bool:
    batch, n = shape
    return implementation == "pairs" or (implementation == "auto" and batch * n * n <= FEW_PAIRS)


def _parts(shape: torch.Size, by_pairs: bool, max_bytes: int) -> list[slice]:
    batch, n = shape
    each = 48 * n * n if by_pairs else BYTES_PER_ITEM * n
    rows = max(1, max_bytes // each)
    return [slice(start, start + rows) for start in range(0, max(batch, 1), rows)]


class CoTAPLoss(nn.Module):
    """Mean of :func:`cotap_loss` over rows.

    Args:
        floor: see there.
        margin: see there.
        implementation: see there.

    Shape:
        - scores: ``(b, n)`` float, gets gradients.
        - targets: ``(b, n)`` float.
        - returns: ``()`` float32 (float64 stays); 0 for b = 0.
    """

    def __init__(self, floor: float = -0.2, margin: float = 0.5, implementation: Implementation = "auto") -> None:
        super().__init__()
        self.floor = floor
        self.margin = margin
        self.implementation = implementation

    def forward(self, scores: Tensor, targets: Tensor) -> Tensor:
        """Return the mean."""
        losses = cotap_loss(scores, targets, floor=self.floor, margin=self.margin, implementation=self.implementation)
        return losses.sum() / max(len(losses), 1)


RankingKind = Literal["cotap", "bce"]
_EDGE = 1e-6


def patch_similarity(first: Tensor, second: Tensor) -> Tensor:
    """Similarities of all patches of one image to all of another, half the cosine plus a half (Eq. 2).

    Args:
        first: (b, n, d) float unit vectors.
        second: (b, m, d) float unit vectors.

    Returns:
        (b, n, m) in [0, 1], in at least float32: with three digits, most pairs near 1 would tie.
    """
    with without_autocast(first):
        return 0.5 * (promote(first) @ promote(second).transpose(1, 2)) + 0.5


class DenseRankingLoss(nn.Module):
    r"""Mean over image pairs of a loss of similarities p against target similarities q.

    - ``cotap``: the ranking loss of :func:`labelkit.methods.dense.ranking_loss.cotap_loss` (Eq. 12);
    - ``bce``: :math:`-q \log p - (1 - q) \log(1 - p)`, mean over entries, p within 1e-6 of 0 and 1 at most (Eq. 8).

    ``cotap`` is 0 where all targets are equal and less than 1.2 for targets up to 1 and the default floor; ``bce`` is
    log 2 for p = 1/2.

    Args:
        kind: which loss.
        floor, margin, implementation, max_bytes, is_finite: see ``cotap_loss``.

    Shape:
        - scores: ``(b, n)`` float, gets gradients.
        - targets: ``(b, n)`` float, no gradient.
        - returns: ``()`` float32 (float64 stays); 0, still differentiable, for b = 0.

    Raises:
        ValueError: shapes that differ, or an unknown kind.

    Source:
        "Semantic Concentration for Self-Supervised Dense Representations Learning", Eq. 8 to 12.
    """

    def __init__(
        self,
        kind: RankingKind = "cotap",
        *,
        floor: float = -0.2,
        margin: float = 0.5,
        implementation: Implementation = "auto",
        max_bytes: int = 2**30,
        is_finite: bool = False,
    ) -> None:
        super().__init__()
        if kind not in ("cotap", "bce"):
            raise ValueError(f"unknown kind {kind!r}")
        self.kind = kind
        self.floor = floor
        self.margin = margin
        self.implementation: Implementation = implementation
        self.max_bytes = max_bytes
        self.is_finite = is_finite

    def forward(self, scores: Tensor, targets: Tensor) -> Tensor:
        """Return the mean."""
        if scores.shape != targets.shape:
            raise ValueError(f"scores are {tuple(scores.shape)}, targets {tuple(targets.shape)}")
        return self.rows(scores, targets.detach()).sum() / max(len(scores), 1)

    def rows(self, scores: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of each image pair, (b,)."""
        if self.kind == "bce":
            with without_autocast(scores):
                p = promote(scores).clamp(_EDGE, 1 - _EDGE)
                q = targets.to(p.dtype)
                return -(q * p.log() + (1 - q) * (1 - p).log()).mean(dim=1)
        return cotap_loss(
            scores,
            targets,
            floor=self.floor,
            margin=self.margin,
            implementation=self.implementation,
            max_bytes=self.max_bytes,
            is_finite=self.is_finite,
        )
