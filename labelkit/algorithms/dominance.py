"""Sums over a prefix of a sequence restricted to small ranks: two-dimensional dominance sums by a wavelet tree.

Source: Grossi, Gupta, Vitter, "High-order entropy-compressed text indexes" (SODA 2003) for the tree; as ranks are a
permutation here, every node but the last is full, and all node borders are known without looking them up.
"""

from __future__ import annotations

import torch
from torch import Tensor


def prefix_rank_sums(ranks: Tensor, payload: Tensor, ends: Tensor, thresholds: Tensor) -> tuple[Tensor, Tensor]:
    r"""For each query, count and add up what stands before a position and has a rank below a threshold.

    .. math:: c_{bk} = \#\{j < e_{bk} : r_{bj} < t_{bk}\}, \qquad s_{bk} = \sum_{j < e_{bk},\; r_{bj} < t_{bk}} x_{bj}

    Time O((n + m) log n), memory O((n + m) c), whatever the data; no n x m object is made.

    Args:
        ranks: (b, n) int64, each row a permutation of 0 .. n - 1.
        payload: (b, n, c) float, what is added; use float64 where sums cancel.
        ends: (b, m) int64 in 0 .. n: positions before this one count.
        thresholds: (b, m) int64 in 0 .. n: ranks below this one count.

    Returns:
        counts (b, m) int64 and sums (b, m, c) like ``payload``.
    """
    batch, n = ranks.shape
    width = payload.shape[2]
    counts = torch.zeros_like(ends)
    sums = payload.new_zeros(*ends.shape, width)
    if n == 0 or ends.numel() == 0:
        return counts, sums
    device = ranks.device
    # rows of all sequences stand one below the other; prefixes have one row more
    base = torch.arange(batch, device=device)[:, None]
    index = torch.arange(n, device=device)
    zeros = torch.zeros(batch, n + 1, dtype=torch.int64, device=device)
    prefix = payload.new_zeros(batch, n + 1, width)
    payload = payload.reshape(batch * n, width)
    # by halves of the ranks: first the highest bit; a threshold of n needs one more bit than a rank may
    for shift in reversed(range(n.bit_length())):
        half = 1 << shift
        is_low = 1 - ((ranks >> shift) & 1)
        torch.cumsum(is_low, 1, out=zeros[:, 1:])
        # nodes hold ranks that agree in all higher bits; before a node there are only full ones
        node = (ranks >> (shift + 1)) << (shift + 1)
        low = zeros[:, :-1] - (node >> 1)
        place = torch.where(is_low.bool(), node + low, index + half - low) + n * base
        ranks = torch.empty_like(ranks).view(-1).index_copy_(0, place.view(-1), ranks.reshape(-1)).view(batch, n)
        payload = torch.empty_like(payload).index_copy_(0, place.view(-1), payload)
        torch.cumsum(payload.view(batch, n, width), 1, out=prefix[:, 1:])

        asked = (thresholds >> (shift + 1)) << (shift + 1)
        low = zeros.view(-1).index_select(0, (ends + (n + 1) * base).view(-1)).view_as(ends) - (asked >> 1)
        takes_low = ((thresholds >> shift) & 1).bool()
        # in the nodes of thresholds with this bit, all low ranks count
        chosen = takes_low.view(-1).nonzero().squeeze(1)
        start = (asked + (n + 1) * base).view(-1).index_select(0, chosen)
        stop = start + low.view(-1).index_select(0, chosen)
        rows = prefix.view(-1, width)
        sums.view(-1, width).index_add_(0, chosen, rows.index_select(0, stop).sub_(rows.index_select(0, start)))
        counts += torch.where(takes_low, low, 0)
        ends = torch.where(takes_low, ends + half - low, asked + low)
    return counts, sums
