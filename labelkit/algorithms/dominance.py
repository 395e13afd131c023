"""Sums over the earlier or later blocks of a sequence, of what has a smaller rank: two-dimensional dominance sums.

A sequence of ranks is cut into blocks. Level by level its halves, the quarters of these and so on are told apart: what
stands in a left half is given to what stands in the right half of the same node, or the other way around, up to its
rank. Items of a node are held in the order of their ranks, so that one cumulative sum answers for all of them, and
nothing is searched for. This is merge sort backwards, with sums where an inversion count has ones.

Blocks are short: pairs within one are left to a double sum, which takes less time for so few than the last levels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

# items of a block at most
_MOST_IN_BLOCK = 24
# numbers of all levels together that are kept from one payload to the next: 5 MB
_KEPT_NUMBERS = 1 << 19


@dataclass(frozen=True, slots=True)
class Blocks:
    """How a sequence is cut: ``2**levels`` blocks of ``size`` items, the last ones filled up."""

    levels: int
    size: int

    @property
    def length(self) -> int:
        """Of the sequence with what fills it up."""
        return self.size << self.levels


def cut(n: int) -> Blocks:
    """Blocks for n items, of equal size and as few as may be."""
    levels = 0
    while n > _MOST_IN_BLOCK << levels:
        levels += 1
    return Blocks(levels, -(-n // (1 << levels)))


def dominance_sums(
    blocks: Blocks, ranks: Tensor, thresholds: Tensor, payload: Tensor, *, earlier: bool
) -> tuple[Tensor, Tensor]:
    r"""For each item, add up what stands in earlier blocks (or later ones) and has a smaller rank, in two senses.

    .. math::
        s_{bi} = \sum_{r_j < r_i,\; B(j) < B(i)} x_{bj}, \qquad
        t_{bi} = \sum_{r_j < \theta(r_i),\; B(j) < B(i)} x_{bj}

    where r are the ranks and B the blocks of positions. Time O(n log n) and memory O(n) per row, whatever the data.

    Args:
        blocks: how the sequence is cut; its length is n.
        ranks: (b, n) int64, of each position: rows are permutations of 0 .. n - 1.
        thresholds: (b, n) int64 by rank, :math:`\theta` in 0 .. n, not decreasing along a row.
        payload: (c, b, n) float, x, c numbers of each item; use float64 where sums cancel.
        earlier: False: blocks with B(j) > B(i).

    Returns:
        s and t, (c, b, n) like ``payload``.
    """
    return merged(blocks, ranks, thresholds).sums(payload, earlier=earlier)


def merged(blocks: Blocks, ranks: Tensor, thresholds: Tensor) -> Merged:
    """Bring items and thresholds into one order, for sums of several payloads; see :func:`dominance_sums`."""
    batch, n = ranks.shape
    device, total = ranks.device, 2 * batch * n
    rows = 2 * n * torch.arange(batch, device=device)[:, None]
    # an item is below all thresholds that are larger than its rank
    items = (ranks + thresholds_up_to_rank(thresholds).gather(1, ranks) + rows).view(-1)
    queries = (ranks + thresholds.gather(1, ranks) + rows).view(-1)
    # the block of each, and in the lower bits its first place
    index = torch.arange(total, device=device)
    block = (index[: batch * n] % n // blocks.size) << total.bit_length()
    tags = index.scatter_add(0, items, block).scatter_add_(0, queries, block)
    found = Merged(blocks, batch, items, queries, tags)
    if blocks.levels * total <= _KEPT_NUMBERS:
        found.kept = list(found.halvings())
    return found


@dataclass(slots=True)
class _Halving:
    """One level: what stands in right halves, where each comes from afterwards, and at last where each first was."""

    is_right: Tensor
    source: Tensor | None
    now: Tensor | None


@dataclass(slots=True)
class Merged:
    """Items and thresholds of a sequence in one order, and how level by level its halves are told apart.

    Attributes:
        blocks: how the sequence is cut.
        batch: rows.
        items: (b n,) int64, the place of each item.
        queries: (b n,) int64, the place of the threshold of each item.
        tags: (2 b n,) int64, the block of each place, and in the lower bits the place.
        kept: the levels, where they take little memory; otherwise they are found again for each payload.
    """

    blocks: Blocks
    batch: int
    items: Tensor
    queries: Tensor
    tags: Tensor
    kept: list[_Halving] | None = None

    def inverse(self) -> Merged:
        """The same for thresholds of :func:`thresholds_up_to_rank`: they and items change places, blocks stay."""
        return Merged(self.blocks, self.batch, self.queries, self.items, self.tags, self.kept)

    def sums(self, payload: Tensor, *, earlier: bool) -> tuple[Tensor, Tensor]:
        """Sums of a payload, (c, b, n); see :func:`dominance_sums`."""
        width, total = len(payload), len(self.tags)
        # what each gives, then what it has taken
        held = payload.new_zeros(2 * width, total)
        held[:width].scatter_(1, self.items.expand(width, -1), payload.reshape(width, -1))
        now = None
        for level, halving in enumerate(self.halvings() if self.kept is None else self.kept):
            takes = halving.is_right.to(payload.dtype)
            gives = 1 - takes
            if not earlier:
                takes, gives = gives, takes
            given = torch.cumsum((held[:width] * gives).view(width, self.batch << level, -1), 2)
            held[width:].addcmul_(given.view(width, total), takes)
            if halving.source is not None:
                held = held.gather(1, halving.source.expand(2 * width, -1))
            now = halving.now
        if now is None:
            none = torch.zeros_like(payload)
            return none, none
        of_items, of_queries = (
            held[width:].gather(1, now.gather(0, first).expand(width, -1)) for first in (self.items, self.queries)
        )
        return of_items.view(payload.shape), of_queries.view(payload.shape)

    def halvings(self) -> Iterator[_Halving]:
        """Find the levels, one after the other."""
        total, levels, tags = len(self.tags), self.blocks.levels, self.tags
        bits = total.bit_length()
        index = torch.arange(total, device=tags.device)
        for level in range(levels):
            nodes, size = self.batch << level, total // self.batch >> level
            is_right = tags.bitwise_and(1 << (bits + levels - 1 - level)) != 0
            if level == levels - 1:
                yield _Halving(is_right, None, torch.empty_like(index).scatter_(0, tags & ((1 << bits) - 1), index))
                return
            # nodes are full, so that half of each is left
            among_right = torch.cumsum(is_right.view(nodes, size), 1)
            begin = (size * index[:nodes])[:, None] + (size // 2 - 1)
            place = torch.where(is_right, (among_right + begin).view(-1), index - among_right.view(-1))
            source = torch.empty_like(place).scatter_(0, place, index)
            yield _Halving(is_right, source, None)
            tags = tags.gather(0, source)


def thresholds_up_to_rank(thresholds: Tensor) -> Tensor:
    """(b, n) int64: how many of n thresholds in 0 .. n are not larger than 0, 1, .., n - 1.

    Of thresholds that do not decrease, twice this gives the thresholds again.
    """
    counts = thresholds.new_zeros(len(thresholds), thresholds.shape[1] + 1)
    return counts.scatter_add_(1, thresholds, torch.ones_like(thresholds)).cumsum(1)[:, :-1]
