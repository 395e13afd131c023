"""Numbers of attention maps: how spread out one is, and how much two of different views agree."""

from __future__ import annotations

import torch
from torch import Tensor

from labelkit.algorithms.homographies import between_views, cell_centers, look_up

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
        source: ``(b, 2, 3)`` or ``(b, 3, 3)`` float, from normalized coordinates of the source views to those of
            their originals, as in ``ViewGeometry``.
        target: likewise of the target views.

    Returns:
        ``(b, h, w)`` values at the patch centers of the target views, bilinear; and ``(b, h, w)`` bool, whether the
        source view shows the place at all.
    """
    values, visible = look_up(maps[:, None], between_views(target, source), maps.shape[-2:])
    return values[:, 0], visible


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


def keypoint_masks(keypoints: Tensor, present: Tensor, size: tuple[int, int]) -> Tensor:
    r"""Mark where keypoints are, each by a Gaussian hill of height 1.

    .. math:: \Gamma(u, v) = \min\left(1, \sum_i \exp\left(-\frac{(u - u_i)^2 + (v - v_i)^2}{2}\right)\right)

    with u and v counted in cells, so that a keypoint in normalized coordinates lies at
    :math:`u_i = ((x_i + 1) w - 1) / 2`.

    Args:
        keypoints: ``(b, k, 2)`` x and y in normalized coordinates.
        present: ``(b, k)`` bool; the others are padding.
        size: height and width of the masks.

    Returns:
        ``(b, h, w)`` float in [0, 1].

    Source:
        TAC-CCL, Eqs. 4.4 and 4.5; the hills' width of one cell and the limit of 1 are ours: keypoints that lie
        close together would weigh without bound.
    """
    height, width = size
    scale = keypoints.new_tensor([width, height]) / 2
    cells = cell_centers(height, width, keypoints) * scale  # (h w, 2)
    squares = (cells[None, :, None] - (keypoints * scale)[:, None]).square().sum(dim=-1)  # (b, h w, k)
    hills = torch.exp(-squares / 2) * present[:, None].to(squares.dtype)
    return hills.sum(dim=-1).reshape(-1, height, width).clamp(max=1)
