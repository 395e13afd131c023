"""CoTAP's ranking loss, exact and in O(n log n): similarities are trained to follow the order of target similarities.

Source: "Semantic Concentration for Self-Supervised Dense Representations Learning", Eq. 11 and 12. Every sum over pairs
is a sum over positions in target order with a bound on the rank of the scores. Between blocks of that order,
:func:`joint_sort_order` handles all items at once; since the surrogate is quadratic, three moments suffice. Within a
block, pairs are summed directly.

The sums over items of smaller rank in earlier or later blocks of a sequence are two-dimensional dominance sums.
A sequence of ranks is divided into blocks. Level by level, it is split into halves, their halves, and so on: the items
in the left half of a node contribute to those in its right half, or vice versa, up to their rank. The items of a
node are stored in the order of their ranks, so that one cumulative sum serves all of them and no search is needed.
This is merge sort in reverse, with sums in place of inversion counts.
Blocks are short: for the few pairs within a block, a double sum is faster than the last levels would be.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from labelkit.algorithms.precision import without_autocast
from labelkit.algorithms.temperature import require_positive

Implementation = Literal["auto", "fast", "pairs"]
#: Targets below the floor have no weight (tau_1); a gap of the margin in scores is enough (tau_2).
FLOOR, MARGIN = -0.2, 0.5
# up to this number of pairs, summed over all rows, the double sum is faster
_FEW_PAIRS = 2**15
# rows are processed in groups that need about this many bytes
_MAX_BYTES = 2**30


def cotap_loss(
    scores: Tensor,
    targets: Tensor,
    *,
    floor: float = FLOOR,
    margin: float = MARGIN,
    implementation: Implementation = "auto",
    is_finite: bool = False,
) -> Tensor:
    r"""Compute CoTAP's ranking loss, which penalizes scores in a different order than targets, especially near the top.

    .. math:: \frac1n \sum_i \gamma_i \frac{x_i}{1 + x_i}, \qquad
        x_i = \frac{\sum_{j:\, q_j < q_i} \ell(p_i - p_j)}{\#\{j : q_j \ge q_i, p_j \ge p_i\}}

    with :math:`\gamma_i = \max(q_i - \text{floor}, 0)` and :math:`\ell(d) = 1 - 2d/\tau` for d < 0,
    :math:`(1 - d/\tau)^2` for d up to the margin :math:`\tau`, then 0. At least 0, less than the largest
    :math:`\gamma`; 0 if all targets are equal, or if the scores have the same order with gaps above the margin.

    Args:
        scores: (b, n) float of any precision, p, receives gradients; only differences matter. b may be 0.
        targets: (b, n) float, q, no gradient.
        floor: :math:`\tau_1`; targets below it have no weight.
        margin: :math:`\tau_2 > 0`, the sufficient gap in scores.
        implementation: ``fast``: O(n log n) time, O(n) memory; ``pairs``: the double sum; ``auto``: the double sum for
            few items. All agree up to rounding, ties included.
        is_finite: whether the caller knows that all numbers are finite; a check would synchronize with the GPU.

    Returns:
        (b,) float32 (float64 for float64 scores), one loss per row.

    Raises:
        ValueError: shapes differ, there are no items, values are NaN or infinite, or the margin is not positive.

    Source:
        "Semantic Concentration for Self-Supervised Dense Representations Learning", Eq. 11 and 12; the gradient treats
        counts and weights as constants.
    """
    if scores.ndim != 2 or scores.shape[1] == 0:
        raise ValueError(f"scores must have shape (b, n) with n >= 1, got {tuple(scores.shape)}")
    if targets.shape != scores.shape:
        raise ValueError(f"scores have shape {tuple(scores.shape)}, but targets have {tuple(targets.shape)}")
    if not is_finite and not (torch.isfinite(scores).all() and torch.isfinite(targets).all()):
        raise ValueError("scores and targets must be finite")
    require_positive(margin, "margin")
    with without_autocast(scores):
        gamma = (targets.detach() - floor).clamp_min(0)
        return _Ranking.apply(scores, targets.detach(), gamma, margin, implementation)


class _Ranking(Function):
    @staticmethod
    def forward(
        ctx: Any, scores: Tensor, targets: Tensor, weights: Tensor, margin: float, implementation: Implementation
    ) -> Tensor:
        wants_gradient = bool(ctx.needs_input_grad[0])
        losses, gradients = [], []
        batch, n = scores.shape
        by_pairs = implementation == "pairs" or (implementation == "auto" and batch * n * n <= _FEW_PAIRS)
        compute = ranking_loss_and_gradient_by_pairs if by_pairs else ranking_loss_and_gradient
        rows = max(1, _MAX_BYTES // (48 * n * n if by_pairs else _BYTES_PER_ITEM * n))
        for start in range(0, max(batch, 1), rows):
            part = slice(start, start + rows)
            loss, gradient, _ = compute(scores[part], targets[part], weights[part], margin, gradient=wants_gradient)
            losses.append(loss)
            if gradient is not None:
                gradients.append(gradient.to(scores.dtype))
        if wants_gradient:
            ctx.save_for_backward(torch.cat(gradients))
        return torch.cat(losses).to(torch.float64 if scores.dtype == torch.float64 else torch.float32)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        return upstream.to(gradient.dtype)[:, None] * gradient, None, None, None, None


# maximum number of items in a block
_MAX_IN_BLOCK = 24


@dataclass(frozen=True, slots=True)
class Partition:
    """Partition of a sequence into ``2**levels`` blocks of ``size`` items, padded at the end."""

    levels: int
    size: int

    @property
    def padded_length(self) -> int:
        """Return the length of the padded sequence."""
        return self.size << self.levels


def partition_into_blocks(n: int) -> Partition:
    """Divide n items into the smallest possible number of blocks of equal size."""
    levels = 0
    while n > _MAX_IN_BLOCK << levels:
        levels += 1
    return Partition(levels, -(-n // (1 << levels)))


def joint_sort_order(blocks: Partition, ranks: Tensor, thresholds: Tensor) -> MergedOrder:
    """Sort items and thresholds together, in an order that allows cumulative sums of several payloads.

    See :meth:`MergedOrder.sum_lower_ranked`.

    Args:
        blocks: partition of the sequence, of length n.
        ranks: (b, n) int64, of each position: rows are permutations of 0 .. n - 1.
        thresholds: (b, n) int64 by rank, in 0 .. n, not decreasing along a row.
    """
    batch, n = ranks.shape
    device, total = ranks.device, 2 * batch * n
    rows = 2 * n * torch.arange(batch, device=device)[:, None]
    # an item precedes all thresholds that are larger than its rank
    items = (ranks + count_thresholds_up_to_rank(thresholds).gather(1, ranks) + rows).view(-1)
    queries = (ranks + thresholds.gather(1, ranks) + rows).view(-1)
    # the block of each place, with the initial place in the lower bits
    index = torch.arange(total, device=device)
    block = (index[: batch * n] % n // blocks.size) << total.bit_length()
    tags = index.scatter_add(0, items, block).scatter_add_(0, queries, block)
    return MergedOrder(blocks, batch, items, queries, tags)


@dataclass(frozen=True, slots=True)
class MergedOrder:
    """Joint sort order of a sequence's items and thresholds, arranged for blockwise sums."""

    blocks: Partition  # partition of the sequence
    batch: int  # number of rows
    items: Tensor  # (b n,) int64, the place of each item
    queries: Tensor  # (b n,) int64, the place of the threshold of each item
    tags: Tensor  # (2 b n,) int64, the block of each place, with the place in the lower bits

    def inverse(self) -> MergedOrder:
        """Swap items and thresholds, which gives the order for :func:`count_thresholds_up_to_rank`'s result."""
        return MergedOrder(self.blocks, self.batch, self.queries, self.items, self.tags)

    def sum_lower_ranked(self, payload: Tensor, *, earlier: bool) -> tuple[Tensor, Tensor]:
        r"""For each item, sum the payloads of lower-ranked items in earlier (or later) blocks.

        .. math::
            s_{bi} = \sum_{r_j < r_i,\; B(j) < B(i)} x_{bj}, \qquad
            t_{bi} = \sum_{r_j < \theta(r_i),\; B(j) < B(i)} x_{bj}

        where r are the ranks, :math:`\theta` the thresholds and B the blocks of positions. Time O(n log n) and memory
        O(n) per row for any data.

        Args:
            payload: (c, b, n) float, x, c values per item; use float64 if sums cancel.
            earlier: False: sum over blocks with B(j) > B(i) instead.

        Returns:
            s and t, (c, b, n) like ``payload``.
        """
        width, total = len(payload), 2 * len(self.items)
        # the numbers that each place contributes, then the sums that it has received
        held = payload.new_zeros(2 * width, total)
        held[:width].scatter_(1, self.items.expand(width, -1), payload.reshape(width, -1))
        now: Tensor | None = None
        for level, (is_right, source, there) in enumerate(_iter_levels(self.blocks, self.batch, self.tags)):
            takes = is_right.to(payload.dtype)
            gives = 1 - takes
            if not earlier:
                takes, gives = gives, takes
            given = torch.cumsum((held[:width] * gives).view(width, self.batch << level, -1), 2)
            held[width:].addcmul_(given.view(width, total), takes)
            if source is not None:
                held = held.gather(1, source.expand(2 * width, -1))
            now = there
        if now is None:
            none = torch.zeros_like(payload)
            return none, none
        of_items, of_queries = (
            held[width:].gather(1, now.gather(0, first).expand(width, -1)) for first in (self.items, self.queries)
        )
        return of_items.view(payload.shape), of_queries.view(payload.shape)


def _iter_levels(blocks: Partition, batch: int, tags: Tensor) -> Iterator[tuple[Tensor, Tensor | None, Tensor | None]]:
    """Yield, for each level, which items are in right halves and their sources for the next; last, all positions.

    Levels are yielded one by one: all at once would take more memory than the sums.
    """
    total, levels = len(tags), blocks.levels
    bits = total.bit_length()
    index = torch.arange(total, device=tags.device)
    for level in range(levels):
        nodes, size = batch << level, total // batch >> level
        is_right = tags.bitwise_and(1 << (bits + levels - 1 - level)) != 0
        if level == levels - 1:
            yield is_right, None, torch.empty_like(index).scatter_(0, tags & ((1 << bits) - 1), index)
            return
        # nodes are full, so exactly half of each goes left
        among_right = torch.cumsum(is_right.view(nodes, size), 1)
        begin = (size * index[:nodes])[:, None] + (size // 2 - 1)
        place = torch.where(is_right, (among_right + begin).view(-1), index - among_right.view(-1))
        source = torch.empty_like(place).scatter_(0, place, index)
        yield is_right, source, None
        tags = tags.gather(0, source)


def count_thresholds_up_to_rank(thresholds: Tensor) -> Tensor:
    """Count the thresholds, n per row in 0 .. n, that do not exceed each rank; return (b, n) int64.

    Applied twice to thresholds that do not decrease, this returns the thresholds.
    """
    counts = thresholds.new_zeros(len(thresholds), thresholds.shape[1] + 1)
    return counts.scatter_add_(1, thresholds, torch.ones_like(thresholds)).cumsum(1)[:, :-1]


# peak memory per item of a row in bytes
_BYTES_PER_ITEM = 1000
# number of pairs within blocks that are processed at once: fits into a CPU's cache, or fills a GPU
_PAIRS_AT_ONCE, _PAIRS_AT_ONCE_GPU = 1 << 15, 1 << 24


Terms = tuple[Tensor, Tensor | None, Tensor]
"""Loss (b,), its gradient with respect to scores (b, n) (``None`` if not requested), and x of Eq. 12 (b, n): how far an
item is behind, 0 if no item with a lower target comes near. All are float64."""


def ranking_loss_and_gradient(
    scores: Tensor, targets: Tensor, weights: Tensor, margin: float, *, gradient: bool = True
) -> Terms:
    r"""Compute the loss of :func:`cotap_loss` and its gradient, including ties, in O(n log n) time and O(n) memory.

    Everything is in float64, since differences of large moments would lose all digits of float32.

    Args:
        scores: (b, n) float, p; any range.
        targets: (b, n) float, q; only their order matters.
        weights: (b, n) float, :math:`\gamma \ge 0`.
        margin: :math:`\tau > 0`.
        gradient: also compute the gradient; takes less than twice the time.
    """
    batch, n = scores.shape
    if n == 0 or batch == 0:
        empty = scores.new_zeros(batch, n, dtype=torch.float64)
        return empty.sum(1), empty if gradient else None, empty
    items = _sort_items(scores, targets, weights, margin)
    ratio, strength, slope, pulls = _within_blocks(items, _between_blocks(items, margin), margin, n)
    loss = (items.gamma * ratio / (1 + ratio)).sum(1) / n

    def restored(value: Tensor) -> Tensor:
        return torch.empty_like(value[:, :n]).scatter_(1, items.order, value[:, :n])

    if not gradient:
        return loss, None, restored(ratio)
    others = pulls + _pulls_between_blocks(items, strength, margin)
    return loss, restored((-2 / margin) * (strength * slope - others)), restored(ratio)


@dataclass(frozen=True, slots=True)
class _Items:
    """Items sorted by their targets, and by decreasing scores among equal targets.

    Tensors (b, N) are padded to whole blocks with items that are larger than all others and have no weight.
    """

    blocks: Partition  # partition of the positions
    order: Tensor  # (b, n) int64, the item at each position
    scores: Tensor  # (b, N) float64
    p: Tensor  # (b, N) float64, centered scores, since only differences count and small numbers have small moments
    gamma: Tensor  # (b, N) float64, weights
    below: Tensor  # (b, N) int64, number of smaller targets
    up_to: Tensor  # (b, N) int64, number of targets that are not larger
    worse: Tensor  # (b, N) int64, number of smaller scores
    # ranks in the order of scores, where the first of equal scores has the last rank; and by rank, the number of
    # scores that are smaller by at least the margin
    merged: MergedOrder


def _sort_items(scores: Tensor, targets: Tensor, weights: Tensor, margin: float) -> _Items:
    n = scores.shape[1]
    blocks = partition_into_blocks(n)
    more = blocks.padded_length - n
    # by targets, then scores, then targets again: equal targets fall by score, equal scores rise by target
    sorted_targets, by_target = targets.sort(dim=1, stable=True)
    below = _run_starts(sorted_targets)
    falling, by_score = scores.gather(1, by_target).sort(dim=1, descending=True, stable=True)
    places = below.gather(1, by_score).sort(dim=1, stable=True).indices
    order = by_target.gather(1, by_score).gather(1, places)
    ranks = n - 1 - places
    rising = falling.flip(1).double()
    worse = _run_starts(rising)
    # where the margin is below the spacing of floats, p - margin is p
    far_worse = torch.minimum(torch.searchsorted(rising, rising - margin, right=True), worse)
    p = rising.gather(1, ranks)
    sizes = torch.zeros_like(below).scatter_add_(1, below, torch.ones_like(below))
    fill = torch.arange(n, blocks.padded_length, device=scores.device).expand(len(scores), -1)
    return _Items(
        blocks=blocks,
        order=order,
        scores=pad(p, (0, more)),
        p=pad(p - p.mean(1, keepdim=True), (0, more)),
        gamma=pad(weights.gather(1, order).double(), (0, more)),
        below=pad(below, (0, more), value=blocks.padded_length),
        up_to=pad(below + sizes.gather(1, below), (0, more), value=blocks.padded_length),
        worse=pad(worse.gather(1, ranks), (0, more)),
        merged=joint_sort_order(
            blocks, torch.cat([ranks, fill], dim=1), pad(far_worse, (0, more), value=blocks.padded_length)
        ),
    )


def _run_starts(values: Tensor) -> Tensor:
    """Return, for each of the sorted values (b, n), the index where its run of equal values starts, (b, n) int64."""
    index = torch.arange(values.shape[1], device=values.device).expand(values.shape)
    is_first = pad(values[:, 1:] != values[:, :-1], (1, 0))
    return (index * is_first).cummax(1).values


def _between_blocks(items: _Items, margin: float) -> tuple[Tensor, Tensor, Tensor]:
    """Sum over earlier blocks at each position, (b, N) float64: surrogates, slopes, and number of items ahead."""
    p, size = items.p, items.blocks.size
    moments = torch.stack([torch.ones_like(p), p, p * p])
    worse, far_worse = items.merged.sum_lower_ranked(moments, earlier=True)
    near = worse - far_worse
    begin = torch.arange(items.blocks.padded_length, device=p.device) // size * size
    ahead = _sums_before(moments, torch.minimum(items.below, begin)) - worse
    ahead_count, ahead_sum, _ = ahead.unbind()
    near_count, near_sum, near_squares = near.unbind()
    offset = 1 - p / margin
    total = ahead_count + (2 / margin) * (ahead_sum - p * ahead_count)
    total = total + offset.square() * near_count + (2 / margin) * offset * near_sum + near_squares / margin**2
    return total, ahead_count + offset * near_count + near_sum / margin, ahead_count


def _within_blocks(items: _Items, between: tuple[Tensor, Tensor, Tensor], margin: float, n: int) -> tuple[Tensor, ...]:
    """Add the earlier items of the same block to the sums over earlier blocks; all (b, N) float64.

    Returns:
        x; derivative of the loss with respect to the sum of surrogates; sum of surrogate slopes in units of
        ``-2 / margin``; and the pull of later items of the block, in the same units.
    """
    size = items.blocks.size
    flat = [value.reshape(-1, size) for value in (items.scores, items.below, items.gamma, items.worse, *between)]
    at_once = _PAIRS_AT_ONCE if items.p.device.type == "cpu" else _PAIRS_AT_ONCE_GPU
    step = max(1, at_once // size**2)
    parts = [
        _within_some([value[start : start + step] for value in flat], margin, n)
        for start in range(0, len(flat[0]), step)
    ]
    return tuple(torch.cat(value).view(items.p.shape) for value in zip(*parts, strict=True))


def _within_some(given: list[Tensor], margin: float, n: int) -> tuple[Tensor, ...]:
    p, below, gamma, worse, total, slope, ahead_count = given
    # most sums are over the first of two positions (lower target): adding rows is faster than summing along them
    difference = p[:, None, :] - p[:, :, None]
    counts = (below[:, :, None] < below[:, None, :]).to(p.dtype)
    scaled = difference / margin
    near, behind = (1 - scaled).clamp_min_(0), scaled.clamp_max(0)
    # slope -2 / margin times steep; the surrogate is (1 - s)^2, less s^2 where s < 0
    steep = (near + behind).mul_(counts)
    total = (total + near.sub_(behind).mul_(steep).sum(1)).clamp_min(0)
    ahead_count = ahead_count + counts.mul_(difference <= 0).sum(1)
    # at least 1, also for the padding of the last blocks, since blocks are shorter than n
    at_least = n - worse - ahead_count
    ratio = total / at_least
    strength = gamma / at_least / (n * (1 + ratio).square())
    return ratio, strength, slope + steep.sum(1), steep.mul_(strength[:, None, :]).sum(2)


def _pulls_between_blocks(items: _Items, strength: Tensor, margin: float) -> Tensor:
    """Sum over the items of later blocks with a larger target: strength times slope, in units of ``-2 / margin``."""
    p, size = items.p, items.blocks.size
    payload = torch.stack([strength, strength * p])
    # nearness is mutual: an item is near a better item if the latter is near it
    lower, up_to_near = items.merged.inverse().sum_lower_ranked(payload, earlier=False)
    middle_count, middle_sum = (up_to_near - lower).unbind()
    # items of later blocks with the same target have smaller ranks, and do not count
    end = (torch.arange(items.blocks.padded_length, device=p.device) // size + 1) * size
    ends = torch.cat([torch.maximum(items.up_to, end), end.expand_as(items.up_to)], dim=1)
    with_alike, own = _sums_before(strength[None], ends)[0].chunk(2, dim=1)
    return lower[0] - (with_alike - own) + (1 + p / margin) * middle_count - middle_sum / margin


def _sums_before(values: Tensor, ends: Tensor) -> Tensor:
    """Return the sums (c, b, m) of the values (c, b, n) before each end (b, m)."""
    sums: Tensor = pad(torch.cumsum(values, 2), (1, 0))
    return sums.gather(2, ends.expand(len(values), -1, -1))


def ranking_loss_and_gradient_by_pairs(
    scores: Tensor, targets: Tensor, weights: Tensor, margin: float, *, gradient: bool = True
) -> Terms:
    """Compute :func:`ranking_loss_and_gradient` as an O(n^2) double sum, which is faster for few items."""
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
        return loss, None, ratio
    strength = gamma / at_least / (max(n, 1) * (1 + ratio).square())
    slopes = torch.where(scaled < 0, -2 / margin, (-2 / margin) * (1 - scaled).clamp_min(0))
    pulls = torch.where(has_lower_target, slopes, 0) * strength[:, :, None]
    return loss, pulls.sum(2) - pulls.sum(1), ratio
