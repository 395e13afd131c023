"""Sums over a prefix of a sequence restricted to small ranks: two-dimensional dominance sums by a wavelet tree.

Source: Grossi, Gupta, Vitter, "High-order entropy-compressed text indexes" (SODA 2003) for the tree; as ranks are a
permutation here, every node but the last is full, and all node borders are known without looking them up.
"""

from __future__ import annotations

import torch
from torch import Tensor


class RankTree:
    """Sequences of ranks, prepared for many sums; time and memory O(b n log n).

    Args:
        ranks: (b, n) int64, each row a permutation of 0 .. n - 1.
    """

    def __init__(self, ranks: Tensor) -> None:
        self.batch, self.n = ranks.shape
        device, n = ranks.device, self.n
        # rows of all sequences stand one below the other; prefixes have one row more
        self._base = torch.arange(self.batch, device=device)[:, None]
        self._levels: list[tuple[int, Tensor, Tensor]] = []
        index = torch.arange(n, device=device)
        rows = n * self._base
        # by halves of the ranks: first the highest bit; a threshold of n needs one more bit than a rank may
        for shift in reversed(range(n.bit_length())):
            is_low = 1 - ((ranks >> shift) & 1)
            lows = torch.zeros(self.batch, n + 1, dtype=torch.int64, device=device)
            torch.cumsum(is_low, 1, out=lows[:, 1:])
            # nodes hold ranks that agree in all higher bits; before a node there are only full ones
            node = (ranks >> (shift + 1)) << (shift + 1)
            low = lows[:, :-1] - (node >> 1)
            place = (torch.where(is_low.bool(), node + low, index + (1 << shift) - low) + rows).view(-1)
            ranks = torch.empty_like(ranks).view(-1).index_copy_(0, place, ranks.reshape(-1)).view(self.batch, n)
            self._levels.append((shift, lows.view(-1), place))

    def prefix_sums(self, payload: Tensor, ends: Tensor, thresholds: Tensor) -> tuple[Tensor, Tensor]:
        r"""For each query, count and add up what stands before a position and has a rank below a threshold.

        .. math::
            c_{bk} = \#\{j < e_{bk} : r_{bj} < t_{bk}\}, \qquad
            s_{bk} = \sum_{j < e_{bk},\; r_{bj} < t_{bk}} x_{bj}

        r are the ranks, x the payload. Time O((n + m) log n), memory O(n log n + m c), whatever the data; no n x m
        object is made.

        Args:
            payload: (b, n, c) float, what is added; use float64 where sums cancel.
            ends: (b, m) int64 in 0 .. n: positions before this one count.
            thresholds: (b, m) int64 in 0 .. n: ranks below this one count.

        Returns:
            counts (b, m) int64 and sums (b, m, c) like ``payload``.
        """
        n, width = self.n, payload.shape[2]
        counts = torch.zeros_like(ends)
        sums = payload.new_zeros(*ends.shape, width)
        if n == 0 or ends.numel() == 0:
            return counts, sums
        prefix = payload.new_zeros(self.batch, n + 1, width)
        payload = payload.reshape(self.batch * n, width)
        begin = (n + 1) * self._base
        for shift, lows, place in self._levels:
            payload = torch.empty_like(payload).index_copy_(0, place, payload)
            torch.cumsum(payload.view(self.batch, n, width), 1, out=prefix[:, 1:])
            asked = (thresholds >> (shift + 1)) << (shift + 1)
            low = lows.index_select(0, (ends + begin).view(-1)).view_as(ends).sub_(asked >> 1)
            takes_low = ((thresholds >> shift) & 1).bool()
            # in the nodes of thresholds with this bit, all low ranks count
            found = torch.where(takes_low, low, 0)
            start = (asked + begin).view(-1)
            rows = prefix.view(-1, width)
            low_rows = rows.index_select(0, start + found.view(-1)).sub_(rows.index_select(0, start))
            sums += low_rows.view_as(sums)
            counts += found
            ends = torch.where(takes_low, ends + (1 << shift) - low, asked + low)
        return counts, sums
