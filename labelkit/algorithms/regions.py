"""Find the overlap of two crops of an image, and sample their feature maps there.

Source: "Semantic Concentration for Self-Supervised Dense Representations Learning", Sec. 3; RoI align as in
``MkuuWaUjinga/leopart``. Flips are drawn once per image, so boxes refer to the image after the flip.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from labelkit.algorithms.precision import promote, without_autocast


def crop_boxes_in_original(matrices: Tensor) -> Tensor:
    """Compute the box in the original image that each crop covers.

    Args:
        matrices: (b, 2, 3), from normalized coordinates of the crop to those of the image; no rotation. A flipped crop
            counts as a crop of the flipped image.

    Returns:
        (b, 4) left, top, right, bottom in normalized coordinates, from -1 to 1 across the image.
    """
    half_x, half_y = matrices[:, 0, 0].abs(), matrices[:, 1, 1].abs()
    center_x = matrices[:, 0, 2] * torch.where(matrices[:, 0, 0] < 0, -1.0, 1.0)
    center_y = matrices[:, 1, 2]
    return torch.stack((center_x - half_x, center_y - half_y, center_x + half_x, center_y + half_y), dim=1)


def overlap_boxes(first: Tensor, second: Tensor, size: int) -> Tensor:
    """Compute the box where two crops overlap, in pixels of the first crop.

    Args:
        first: (b, 4) box of the first crop in its image, any unit.
        second: (b, 4) box of the second crop, same unit.
        size: side of the first crop in pixels.

    Returns:
        (b, 4) left, top, right, bottom in pixels of the first crop; right <= left or bottom <= top without an overlap.
    """
    low = torch.maximum(first[:, :2], second[:, :2])
    high = torch.minimum(first[:, 2:], second[:, 2:])
    scale = size / (first[:, 2:] - first[:, :2])
    return torch.cat(((low - first[:, :2]) * scale, (high - first[:, :2]) * scale), dim=1)


def spans_min_tokens(boxes: Tensor, patch_size: int, min_tokens: float) -> Tensor:
    """Return a bool mask (b,) of the boxes (b, 4) in pixels that span at least ``min_tokens`` tokens on both sides."""
    sides = boxes[:, 2:] - boxes[:, :2]
    # the tolerance allows for rounding errors in overlaps of exactly the minimum size
    return (sides >= min_tokens * patch_size * (1 - 1e-5)).all(dim=1) & (sides > 0).all(dim=1)


def align_regions(maps: Tensor, boxes: Tensor, grid: int, patch_size: int) -> Tensor:
    """Sample a grid of vectors from one box per map by differentiable RoI align, with several samples per cell.

    Args:
        maps: (b, h, w, d) float, one vector per token.
        boxes: (b, 4) left, top, right, bottom in pixels of the crop.
        grid: cells along each side, g.
        patch_size: side of a token in pixels.

    Returns:
        (b, g, g, d) in at least float32. If each of two crops is sampled over its overlap with the other, cell (i, j)
        shows the same place in both, except at the border, where samples stop at the center of the last token.
    """
    from torchvision.ops import roi_align  # torchvision takes a second to import

    with without_autocast(maps):
        channels_first = promote(maps).permute(0, 3, 1, 2).contiguous()
        numbers = torch.arange(len(maps), device=maps.device, dtype=channels_first.dtype)[:, None]
        regions = torch.cat((numbers, boxes.to(channels_first)), dim=1)
        cells: Tensor = roi_align(channels_first, regions, grid, spatial_scale=1 / patch_size, aligned=True)
        return cells.permute(0, 2, 3, 1)


def to_unit(values: Tensor) -> Tensor:
    """Normalize vectors along the last dimension, in float32 or better; norms are at least 1e-6."""
    with without_autocast(values):
        return F.normalize(promote(values), dim=-1, eps=1e-6)
