"""What a spatial assembly is to be: one-to-one, and nearly the same for neighbors that look alike.

Source: chapter 5 of "Deep Learning with Very Few and No Labels", Eq. 5.5-5.8. An assembly that moves nothing is the
minimum of all three at once: only the loss of the embeddings pushes away from it.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

NEIGHBORS = tuple((i, j) for i in (-1, 0, 1) for j in (-1, 0, 1) if (i, j) != (0, 0))


def assembly_entropy(log_weights: Tensor) -> Tensor:
    r"""Entropy of rows and of columns, each scaled to sum to 1 (Eq. 5.5), in bits.

    .. math:: E = -\sum_{uv} \hat w^c_{uv} \log_2 \hat w^c_{uv} - \sum_{uv} \hat w^r_{uv} \log_2 \hat w^r_{uv}

    In [0, 2 n log2 n]; 0 for a permutation, the maximum for even weights.

    Args:
        log_weights: ``(..., n, n)`` float, logarithms of weights at [input, output]; -inf = 0. Gradients flow.

    Returns:
        ``(...)``.
    """
    total = log_weights.new_zeros(())
    for axis in (-2, -1):
        logs = log_weights - log_weights.logsumexp(axis, keepdim=True)
        logs = logs.masked_fill(logs == -torch.inf, 0.0)
        shares = torch.where(log_weights == -torch.inf, 0.0, logs.exp())
        total = total - (shares * logs).sum((-2, -1)) / math.log(2)
    return total


def assembly_correlation(weights: Tensor) -> Tensor:
    r"""Overlap of different rows and of different columns (Eq. 5.6).

    .. math:: C = \sum_{u_1 \ne u_2} \sum_v w_{u_1 v} w_{u_2 v} + \sum_{v_1 \ne v_2} \sum_u w_{u v_1} w_{u v_2}
        = \sum_v c_v^2 + \sum_u r_u^2 - 2 \|w\|^2

    with sums c of columns and r of rows. In [0, 2 (n - 1)] where these are 1; 0 for a permutation.

    Args:
        weights: ``(..., n, n)`` float >= 0. Gradients flow.

    Returns:
        ``(...)``.
    """
    columns, rows = weights.sum(-2), weights.sum(-1)
    return (columns**2).sum(-1) + (rows**2).sum(-1) - 2 * (weights**2).sum((-2, -1))


def neighbor_pairs(height: int, width: int) -> int:
    """Return the number of ordered pairs of neighbors of a grid, diagonal ones too."""
    return 2 * (height * (width - 1) + width * (height - 1) + 2 * (height - 1) * (width - 1))


def assembly_coherence(weights: Tensor, maps: Tensor) -> Tensor:
    r"""How differently neighbors with like features move (Eq. 5.7, 5.8).

    .. math:: L = \frac{1}{\#} \sum_p \sum_{q \in \Omega_p} \alpha_{pq} \|W_p - S_{q - p} W_q\|

    with W_p what position p gives to each output position, S a shift by the way from q to p that brings in zeros,
    alpha the cosine of the features of p and q, no less than 0, and # the ordered pairs of neighbors. 0 where nothing
    moves, and for no other permutation if all features are alike.

    Args:
        weights: ``(b, n, n)`` float at [input, output], n = h w. Gradients flow.
        maps: ``(b, c, h, w)`` float, the features before the assembly; no gradient, or the loss would make neighbors
            different.

    Returns:
        ``(b,)``; 0 for a single position.

    Source:
        Eq. 5.8 lacks the sum over p; the cut at 0, the mean and the norm's 1e-12 are ours.
    """
    b, _, h, w = maps.shape
    if h * w == 1:
        return weights.sum((-2, -1)) * 0
    table = weights.reshape(b, h, w, h, w)
    padded = F.pad(table, (1, 1, 1, 1))
    unit = F.normalize(maps.detach().to(weights.dtype), dim=1, eps=1e-8)
    total, pairs = weights.new_zeros(b), 0
    for di, dj in NEIGHBORS:
        here, there = _neighbors(h, w, di, dj)
        gap = table[:, *here] - padded[:, *there][..., 1 + di : 1 + di + h, 1 + dj : 1 + dj + w]
        distance = ((gap**2).sum((-2, -1)) + 1e-12).sqrt() - 1e-6
        alpha = (unit[:, :, *here] * unit[:, :, *there]).sum(1).clamp_min(0)
        total = total + (alpha * distance).flatten(1).sum(1)
        pairs += alpha[0].numel()
    return total / max(pairs, 1)


def _neighbors(height: int, width: int, di: int, dj: int) -> tuple[tuple[slice, slice], tuple[slice, slice]]:
    """Return all positions of a grid with a neighbor di rows below and dj columns to the right, and these neighbors."""
    here = (slice(max(0, -di), height - max(0, di)), slice(max(0, -dj), width - max(0, dj)))
    there = (slice(max(0, di), height - max(0, -di)), slice(max(0, dj), width - max(0, -dj)))
    return here, there


def normalized_terms(weights: Tensor, log_weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return entropy and correlation over their largest values for n positions, (b,) each; 0 for one position."""
    n = weights.shape[-1]
    if n == 1:
        zero = weights.sum((-2, -1)) * 0
        return zero, zero
    return (
        assembly_entropy(log_weights) / (2 * n * math.log2(n)),
        assembly_correlation(weights) / (2 * (n - 1)),
    )
