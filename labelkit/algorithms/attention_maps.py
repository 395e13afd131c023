"""Numbers of attention maps: how spread out one is, and how much two of different views agree."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

_FLAT = 1e-6
_LEAST_PATCHES = 3  # two points always lie on a line


def map_entropy(maps: Tensor) -> Tensor:
    """Return how evenly attention is spread over the patches.

    Args:
        maps: ``(..., h, w)`` float, >= 0, with a positive sum over (h, w); scaled to sum 1 here.

    Returns:
        ``(...)`` in [0, 1], entropy over log(h w): 1 when all patches get the same, 0 when one gets everything; NaN
        where there is a single patch.
    """
    shares = maps.flatten(-2)
    shares = shares / shares.sum(dim=-1, keepdim=True)
    num_patches = shares.shape[-1]
    if num_patches == 1:
        return shares.new_full(shares.shape[:-1], torch.nan)
    entropy: Tensor = torch.special.entr(shares).sum(dim=-1) / torch.log(shares.new_tensor(num_patches))
    return entropy


def carry_map(maps: Tensor, source: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Look up a map of one view at the places that the patches of another view show.

    Args:
        maps: ``(b, h, w)`` float, of the source views.
        source: ``(b, 2, 3)`` float, from normalized coordinates of the source views to those of their originals, as
            in ``ViewGeometry``.
        target: ``(b, 2, 3)`` float, likewise of the target views.

    Returns:
        ``(b, h, w)`` values at the patch centers of the target views, bilinear; and ``(b, h, w)`` bool, whether the
        source view shows the place at all.
    """
    height, width = maps.shape[-2:]
    y = (torch.arange(height, dtype=source.dtype, device=source.device) + 0.5) * (2 / height) - 1
    x = (torch.arange(width, dtype=source.dtype, device=source.device) + 0.5) * (2 / width) - 1
    centers = torch.stack(torch.meshgrid(x, y, indexing="xy"), dim=-1).reshape(1, -1, 2)
    places = centers @ target[:, :, :2].transpose(1, 2) + target[:, None, :, 2]
    back = torch.linalg.inv(source[:, :, :2])
    seen = ((places - source[:, None, :, 2]) @ back.transpose(1, 2)).unflatten(1, (height, width))  # (b, h, w, 2)
    values = F.grid_sample(maps[:, None], seen.to(maps.dtype), padding_mode="border", align_corners=False)[:, 0]
    return values, (seen.abs() <= 1).all(dim=-1)


def map_correlation(first: Tensor, second: Tensor, counted: Tensor) -> Tensor:
    """Return Pearson's correlation of two maps.

    Args:
        first: ``(b, h, w)`` float.
        second: ``(b, h, w)`` float.
        counted: ``(b, h, w)`` bool, patches that count.

    Returns:
        ``(b,)`` in [-1, 1]; NaN where fewer than three patches count or a map is constant on them.
    """
    weights = counted.flatten(1).to(first.dtype)
    number = weights.sum(dim=1)
    a, b = (maps.flatten(1) * weights for maps in (first, second))
    lengths = a.norm(dim=1), b.norm(dim=1)
    a, b = ((v - v.sum(dim=1, keepdim=True) / number.clamp(min=1)[:, None]) * weights for v in (a, b))
    # what rounding leaves of a constant map is no pattern
    flat = (a.norm(dim=1) <= _FLAT * lengths[0]) | (b.norm(dim=1) <= _FLAT * lengths[1])
    correlation: Tensor = ((a * b).sum(dim=1) / (a.norm(dim=1) * b.norm(dim=1))).clamp(-1, 1)
    return correlation.masked_fill((number < _LEAST_PATCHES) | flat, torch.nan)
