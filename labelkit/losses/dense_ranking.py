"""Let the similarities of the patches of two images follow those that a teacher sees: by order, or by value."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from labelkit.algorithms.precision import promote, without_autocast
from labelkit.losses.cotap import Implementation, cotap_loss

RankingKind = Literal["cotap", "bce", "ap-t"]
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

    - ``cotap``: the ranking loss of :func:`labelkit.losses.cotap.cotap_loss` (Eq. 12);
    - ``bce``: :math:`-q \log p - (1 - q) \log(1 - p)`, mean over entries, p within 1e-6 of 0 and 1 at most (Eq. 8);
    - ``ap-t``: the same ranking loss for the targets 1 where :math:`q \ge t` and 0 elsewhere, mean over the former;
      0 where there are none.

    ``cotap`` is 0 where all targets are equal and less than 1.2 for targets up to 1 and the default floor; ``bce`` is
    log 2 for p = 1/2.

    Args:
        kind: which loss.
        threshold: t, for ``ap-t``.
        floor: of ``cotap``.
        margin: of both ranking losses.
        implementation: of both ranking losses.
        max_bytes: of both ranking losses.
        is_finite: see ``cotap_loss``.

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
        threshold: float = 0.8,
        floor: float = -0.2,
        margin: float = 0.5,
        implementation: Implementation = "auto",
        max_bytes: int = 2**30,
        is_finite: bool = False,
    ) -> None:
        super().__init__()
        if kind not in ("cotap", "bce", "ap-t"):
            raise ValueError(f"unknown kind {kind!r}")
        self.kind = kind
        self.threshold = threshold
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
        weights = None
        if self.kind == "ap-t":
            targets = (targets >= self.threshold).to(targets.dtype)
            weights = targets * (targets.shape[1] / targets.sum(dim=1, keepdim=True).clamp(min=1))
        return cotap_loss(
            scores,
            targets,
            weights,
            floor=self.floor,
            margin=self.margin,
            implementation=self.implementation,
            max_bytes=self.max_bytes,
            is_finite=self.is_finite,
        )
