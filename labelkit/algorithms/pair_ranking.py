r"""The CoTAP ranking loss and its gradient for vectors of scores, without a double sum.

Source: "Semantic Concentration for Self-Supervised Dense Representations Learning", Eq. 11 and 12. Every sum over pairs
is a sum over positions in the order of the targets with a bound on the rank of the scores. Between blocks of that
order, :func:`labelkit.algorithms.dominance.merged` answers for all items at once; the surrogate is quadratic,
so three moments suffice. Within a block the sum is taken over pairs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from labelkit.algorithms.dominance import Blocks, Merged, cut, merged

# bytes that one item of one row needs at the peak
BYTES_PER_ITEM = 1000
# pairs within blocks that are worked on at once: in the cache of a processor, or enough for a GPU
_PAIRS_AT_ONCE, _PAIRS_AT_ONCE_GPU = 1 << 15, 1 << 24


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
        gradient: compute it as well; less than twice the time.

    Returns:
        Everything in float64: differences of large moments lose all digits of float32.
    """
    batch, n = scores.shape
    if n == 0 or batch == 0:
        empty = scores.new_zeros(batch, n, dtype=torch.float64)
        return RankingTerms(empty.sum(1), empty if gradient else None, empty, empty)
    items = _in_order(scores, targets, weights, margin)
    between = _between_blocks(items, margin)
    within = _within_blocks(items, between, margin, n)
    ratio, at_least = within.ratio, within.at_least
    loss = (items.gamma * ratio / (1 + ratio)).sum(1) / n
    by_scores = None
    if gradient:
        others = within.pulls + _pulls_between_blocks(items, within.strength, margin)
        by_scores = (-2 / margin) * (within.strength * within.slope - others)
    restored = [
        None if value is None else torch.empty_like(value[:, :n]).scatter_(1, items.order, value[:, :n])
        for value in (by_scores, ratio, at_least)
    ]
    return RankingTerms(loss, *restored)  # type: ignore[arg-type] # ratio and at_least are tensors


@dataclass(frozen=True, slots=True)
class _Items:
    """Items in the order of their targets, those with equal ones from the largest score to the smallest.

    What is (b, N) is filled up to whole blocks with items that are larger than all and weigh nothing.

    Attributes:
        blocks: of positions.
        order: (b, n) int64, the item at each position.
        scores: (b, N) float64.
        p: (b, N) float64, scores around 0: only differences count, and small numbers have small moments.
        gamma: (b, N) float64, weights.
        below: (b, N) int64, how many targets are smaller.
        up_to: (b, N) int64, how many are not larger.
        worse: (b, N) int64, how many scores are smaller.
        merged: their ranks in the order of scores, where of equal ones the first position has the last rank; and by
            rank, how many scores are smaller by the margin or more.
    """

    blocks: Blocks
    order: Tensor
    scores: Tensor
    p: Tensor
    gamma: Tensor
    below: Tensor
    up_to: Tensor
    worse: Tensor
    merged: Merged


def _in_order(scores: Tensor, targets: Tensor, weights: Tensor, margin: float) -> _Items:
    n = scores.shape[1]
    blocks = cut(n)
    more = blocks.length - n
    # by targets, then scores, then targets again: equal targets fall by score, equal scores rise by target
    sorted_targets, by_target = targets.sort(dim=1, stable=True)
    below = _first_equal(sorted_targets)
    falling, by_score = scores.gather(1, by_target).sort(dim=1, descending=True, stable=True)
    places = below.gather(1, by_score).sort(dim=1, stable=True).indices
    order = by_target.gather(1, by_score).gather(1, places)
    ranks = n - 1 - places
    rising = falling.flip(1).double()
    worse = _first_equal(rising)
    # where the margin is below the spacing of floats, p - margin is p
    far_worse = torch.minimum(torch.searchsorted(rising, rising - margin, right=True), worse)
    p = rising.gather(1, ranks)
    sizes = torch.zeros_like(below).scatter_add_(1, below, torch.ones_like(below))
    fill = torch.arange(n, blocks.length, device=scores.device).expand(len(scores), -1)
    return _Items(
        blocks=blocks,
        order=order,
        scores=pad(p, (0, more)),
        p=pad(p - p.mean(1, keepdim=True), (0, more)),
        gamma=pad(weights.gather(1, order).double(), (0, more)),
        below=pad(below, (0, more), value=blocks.length),
        up_to=pad(below + sizes.gather(1, below), (0, more), value=blocks.length),
        worse=pad(worse.gather(1, ranks), (0, more)),
        merged=merged(blocks, torch.cat([ranks, fill], dim=1), pad(far_worse, (0, more), value=blocks.length)),
    )


def _first_equal(values: Tensor) -> Tensor:
    """(b, n) int64: where the run of equal numbers begins in which each of the sorted (b, n) values is."""
    index = torch.arange(values.shape[1], device=values.device).expand(values.shape)
    is_first = pad(values[:, 1:] != values[:, :-1], (1, 0))
    return (index * is_first).cummax(1).values


@dataclass(frozen=True, slots=True)
class _Between:
    """What earlier blocks give to the item at each position, all (b, N) float64."""

    total: Tensor
    slope: Tensor
    ahead_count: Tensor


def _between_blocks(items: _Items, margin: float) -> _Between:
    p, size = items.p, items.blocks.size
    moments = torch.stack([torch.ones_like(p), p, p * p])
    worse, far_worse = items.merged.sums(moments, earlier=True)
    near = worse - far_worse
    begin = torch.arange(items.blocks.length, device=p.device) // size * size
    ahead = _before(moments, torch.minimum(items.below, begin)) - worse
    ahead_count, ahead_sum, _ = ahead.unbind()
    near_count, near_sum, near_squares = near.unbind()
    offset = 1 - p / margin
    total = ahead_count + (2 / margin) * (ahead_sum - p * ahead_count)
    total = total + offset.square() * near_count + (2 / margin) * offset * near_sum + near_squares / margin**2
    return _Between(total, ahead_count + offset * near_count + near_sum / margin, ahead_count)


@dataclass(frozen=True, slots=True)
class _Within:
    """What is known of the item at each position when earlier items of its block are added, all (b, N) float64.

    Attributes:
        ratio: x.
        at_least: R.
        strength: derivative of the loss by the sum of surrogates.
        slope: sum of slopes of the surrogate, in units of ``-2 / margin``.
        pulls: what later items of the block pull, in these units.
    """

    ratio: Tensor
    at_least: Tensor
    strength: Tensor
    slope: Tensor
    pulls: Tensor


def _within_blocks(items: _Items, between: _Between, margin: float, n: int) -> _Within:
    size = items.blocks.size
    given = [items.scores, items.below, items.gamma, items.worse, between.total, between.slope, between.ahead_count]
    flat = [value.reshape(-1, size) for value in given]
    at_once = _PAIRS_AT_ONCE if items.p.device.type == "cpu" else _PAIRS_AT_ONCE_GPU
    step = max(1, at_once // size**2)
    parts = [
        _within_some([value[start : start + step] for value in flat], margin, n)
        for start in range(0, len(flat[0]), step)
    ]
    return _Within(*(torch.cat(value).view(items.p.shape) for value in zip(*parts, strict=True)))


def _within_some(given: list[Tensor], margin: float, n: int) -> tuple[Tensor, ...]:
    p, below, gamma, worse, total, slope, ahead_count = given
    # most sums are over the first of two positions, that of the lower target: to add rows is faster than along them
    difference = p[:, None, :] - p[:, :, None]
    counts = (below[:, :, None] < below[:, None, :]).to(p.dtype)
    scaled = difference / margin
    near, behind = (1 - scaled).clamp_min_(0), scaled.clamp_max(0)
    # slope -2 / margin times steep; the surrogate is (1 - s)^2, less s^2 where s < 0
    steep = (near + behind).mul_(counts)
    total = (total + near.sub_(behind).mul_(steep).sum(1)).clamp_min(0)
    ahead_count = ahead_count + counts.mul_(difference <= 0).sum(1)
    # at least 1, also for what fills up the last blocks: these are shorter than n
    at_least = n - worse - ahead_count
    ratio = total / at_least
    strength = gamma / at_least / (n * (1 + ratio).square())
    return ratio, at_least, strength, slope + steep.sum(1), steep.mul_(strength[:, None, :]).sum(2)


def _pulls_between_blocks(items: _Items, strength: Tensor, margin: float) -> Tensor:
    """Sum over the items of later blocks with a larger target: strength times slope, in units of ``-2 / margin``."""
    p, size = items.p, items.blocks.size
    payload = torch.stack([strength, strength * p])
    # an item is near a better one where that one is near it
    lower, up_to_near = items.merged.inverse().sums(payload, earlier=False)
    middle_count, middle_sum = (up_to_near - lower).unbind()
    # items of later blocks with the same target have smaller ranks, and do not count
    end = (torch.arange(items.blocks.length, device=p.device) // size + 1) * size
    ends = torch.cat([torch.maximum(items.up_to, end), end.expand_as(items.up_to)], dim=1)
    with_alike, own = _before(strength[None], ends)[0].chunk(2, dim=1)
    return lower[0] - (with_alike - own) + (1 + p / margin) * middle_count - middle_sum / margin


def _before(values: Tensor, ends: Tensor) -> Tensor:
    """Sums (c, b, m) of the values (c, b, n) before each end (b, m)."""
    sums: Tensor = pad(torch.cumsum(values, 2), (1, 0))
    return sums.gather(2, ends.expand(len(values), -1, -1))


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
