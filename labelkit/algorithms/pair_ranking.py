r"""The CoTAP ranking loss and its gradient for vectors of scores, without a double sum.

Source: "Semantic Concentration for Self-Supervised Dense Representations Learning", Eq. 11 and 12. Every sum over pairs
is a sum over positions in the order of the targets with a bound on the rank of the scores, which
:class:`labelkit.algorithms.dominance.RankTree` answers for all items at once; the surrogate is quadratic, so
three moments suffice.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from labelkit.algorithms.dominance import RankTree

# bytes that one item of one row needs at the peak
BYTES_PER_ITEM = 1400


@dataclass(frozen=True, slots=True)
class RankingTerms:
    """The loss of each row, its gradient, and what it is made of.

    Attributes:
        loss: (b,) float64.
        gradient: (b, n) float64, of the loss by the scores; ``None`` if not asked for.
        ratios: (b, n) float64, x of Eq. 12: how far an item is behind, 0 where nothing with a lower target comes near.
        ranks: (b, n) float64, R: items with at least the item's target and at least its score, itself included.
    """

    loss: Tensor
    gradient: Tensor | None
    ratios: Tensor
    ranks: Tensor


def ranking_terms(
    scores: Tensor, targets: Tensor, weights: Tensor, margin: float, *, gradient: bool = True
) -> RankingTerms:
    r"""Compute the loss in O(n log n) time and O(n) memory, ties included.

    .. math:: \frac1n \sum_i \gamma_i \frac{x_i}{1 + x_i}, \qquad
        x_i = \frac{\sum_{j:\, q_j < q_i} \ell(p_i - p_j)}{\#\{j : q_j \ge q_i, p_j \ge p_i\}}

    with :math:`\ell(d) = 1 - 2d/\tau` for d < 0, :math:`(1 - d/\tau)^2` up to :math:`\tau`, then 0. Counts and weights
    are constants for the gradient.

    Args:
        scores: (b, n) float, p; any range.
        targets: (b, n) float, q; only their order matters.
        weights: (b, n) float, :math:`\gamma \ge 0`.
        margin: :math:`\tau > 0`.
        gradient: compute it as well; twice the time.

    Returns:
        Everything in float64: differences of large moments lose all digits of float32.
    """
    batch, n = scores.shape
    if n == 0 or batch == 0:
        empty = scores.new_zeros(batch, n, dtype=torch.float64)
        return RankingTerms(empty.sum(1), empty if gradient else None, empty, empty)
    # from here on, position k is the item with the k-th smallest target
    in_order, order = targets.sort(dim=1)
    below = torch.searchsorted(in_order, in_order)
    p = scores.double().gather(1, order)
    gamma = weights.double().gather(1, order)

    ascending, by_score = p.sort(dim=1)
    index = torch.arange(n, device=p.device).expand(batch, n).contiguous()
    ranks = torch.empty_like(index).scatter_(1, by_score, index)
    worse = torch.searchsorted(ascending, p)
    # where the margin is below the spacing of floats, p - margin is p
    far_worse = torch.minimum(torch.searchsorted(ascending, p - margin, right=True), worse)

    # only differences count, and small numbers have small moments
    p = p - p.mean(1, keepdim=True)
    moments = torch.stack([p, p * p], dim=2)
    tree = RankTree(ranks)
    counts, sums = tree.prefix_sums(moments, torch.cat([below, below], dim=1), torch.cat([worse, far_worse], dim=1))
    all_sums = _before(moments, below)
    ahead_count = (below - counts[:, :n]).double()
    ahead_sum = all_sums[:, :, 0] - sums[:, :n, 0]
    near_count = (counts[:, :n] - counts[:, n:]).double()
    near = sums[:, :n] - sums[:, n:]

    slope = 2 / margin
    offset = 1 - p / margin
    total = ahead_count + slope * (ahead_sum - p * ahead_count)
    total = total + offset.square() * near_count + slope * offset * near[:, :, 0] + near[:, :, 1] / margin**2
    total = total.clamp_min(0)
    at_least = (n - worse).double() - ahead_count
    ratio = total / at_least
    loss = (gamma * ratio / (1 + ratio)).sum(1) / n

    by_scores = None
    if gradient:
        strength = gamma / at_least / (n * (1 + ratio).square())
        own = -slope * (ahead_count + offset * near_count + near[:, :, 0] / margin)
        others = _pull_of_others(ascending, tree, ranks, p, strength, in_order, worse, margin)
        by_scores = torch.empty_like(p).scatter_(1, order, strength * own - others)
    restored = [torch.empty_like(p).scatter_(1, order, value) for value in (ratio, at_least)]
    return RankingTerms(loss, by_scores, *restored)


def _pull_of_others(
    ascending: Tensor,
    tree: RankTree,
    ranks: Tensor,
    p: Tensor,
    strength: Tensor,
    in_order: Tensor,
    worse: Tensor,
    margin: float,
) -> Tensor:
    """Sum over the items with a larger target of their strength times the slope of the surrogate."""
    n = p.shape[1]
    up_to = torch.searchsorted(in_order, in_order, right=True)
    raw = ascending.gather(1, ranks)
    near_better = torch.maximum(torch.searchsorted(ascending, raw + margin), worse)
    payload = torch.stack([strength, strength * p], dim=2)
    bounds = torch.cat([worse, near_better], dim=1)
    _, before = tree.prefix_sums(payload, torch.cat([up_to, up_to], dim=1), bounds)
    by_rank = torch.empty_like(payload).scatter_(1, ranks[:, :, None].expand_as(payload), payload)
    # what stands behind: all with such a rank, without what stands before
    behind = _before(by_rank, bounds) - before
    lower, between = behind[:, :n], behind[:, n:] - behind[:, :n]
    return (-2 / margin) * (lower[:, :, 0] + (1 + p / margin) * between[:, :, 0] - between[:, :, 1] / margin)


def _before(values: Tensor, ends: Tensor) -> Tensor:
    """Sums (b, m, c) of the values (b, n, c) before each end (b, m)."""
    batch, n, width = values.shape
    prefix = values.new_zeros(batch, n + 1, width)
    torch.cumsum(values, 1, out=prefix[:, 1:])
    rows = (ends + (n + 1) * torch.arange(batch, device=ends.device)[:, None]).view(-1)
    return prefix.view(-1, width).index_select(0, rows).view(batch, -1, width)


def ranking_terms_by_pairs(
    scores: Tensor, targets: Tensor, weights: Tensor, margin: float, *, gradient: bool = True
) -> RankingTerms:
    """Compute what :func:`ranking_terms` does by the double sum: O(n^2) time and memory, faster for few items."""
    n = scores.shape[1]
    p, gamma = scores.double(), weights.double()
    difference = p[:, :, None] - p[:, None, :]
    has_lower_target = targets[:, None, :] < targets[:, :, None]
    scaled = difference / margin
    surrogate = torch.where(scaled < 0, 1 - 2 * scaled, (1 - scaled).clamp_min(0).square())
    total = torch.where(has_lower_target, surrogate, 0).sum(2)
    at_least = ((targets[:, None, :] >= targets[:, :, None]) & (difference <= 0)).sum(2).double()
    ratio = total / at_least
    loss = (gamma * ratio / (1 + ratio)).sum(1) / max(n, 1)
    if not gradient:
        return RankingTerms(loss, None, ratio, at_least)
    strength = gamma / at_least / (max(n, 1) * (1 + ratio).square())
    slopes = torch.where(scaled < 0, -2 / margin, (-2 / margin) * (1 - scaled).clamp_min(0))
    pulls = torch.where(has_lower_target, slopes, 0) * strength[:, :, None]
    return RankingTerms(loss, pulls.sum(2) - pulls.sum(1), ratio, at_least)
