"""Multi-level feature maps of a network, and segmentation heads that combine all levels.

Sources: T.-Y. Lin et al., "Feature Pyramid Networks" (CVPR 2017), with the head of A. Kirillov et al., "Panoptic
Feature Pyramid Networks" (CVPR 2019), Sec. 3.1; T. Xiao et al., "Unified Perceptual Parsing" (ECCV 2018), Sec. 3.1
(UperNet). The maps of a plain ViT have one size and are resized to four sizes as in ``bytedance/ibot``.
Departures: group normalization instead of batch normalization, which works poorly with small batches.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.ops import FeaturePyramidNetwork

from labelkit.models.backbones.vit import allow_any_image_size, find_patch_embedding
from labelkit.models.patch_maps import make_no_feature_map_error

LEVELS = 4
_POOLS = (1, 2, 3, 6)


def extract_level_maps(net: nn.Module, images: Tensor, name: str) -> list[Tensor]:
    """Extract maps (b, f, rows, cols) at four depths: after each quarter of a plain ViT, or the last four CNN stages.

    Args:
        net: a network with timm's ``forward_intermediates``.
        images: ``(b, c, h, w)`` float; for a ViT, h and w must be multiples of the patch size.
        name: name of the network, for messages.

    Raises:
        UnsupportedBackboneError: the network has no such maps.
    """
    given: Any = net
    forward = getattr(given, "forward_intermediates", None)
    if forward is None:
        raise make_no_feature_map_error(name, "has no feature maps from several depths")
    if find_patch_embedding(net) is None:
        return list(forward(images, intermediates_only=True))[-LEVELS:]
    depth = len(given.blocks)
    quarters = [max(0, depth * (level + 1) // LEVELS - 1) for level in range(LEVELS)]
    with allow_any_image_size(net):
        taken = forward(images, sorted(set(quarters)), intermediates_only=True)
    found = dict(zip(sorted(set(quarters)), taken, strict=True))
    return [found[quarter] for quarter in quarters]


class LevelRescaler(nn.Module):
    """Module that rescales four maps of equal size by factors of 4, 2, 1 and 1/2.

    Args:
        width: width of each map, f.

    Shape:
        - maps: four tensors ``(b, f, rows, cols)``.
        - returns: ``(b, f, 4 rows, 4 cols)``, ``2 rows``, ``rows``, and ``rows / 2`` rounded up.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.finest = nn.Sequential(
            nn.ConvTranspose2d(width, width, 2, 2),
            nn.GroupNorm(1, width),
            nn.GELU(),
            nn.ConvTranspose2d(width, width, 2, 2),
        )
        self.finer = nn.ConvTranspose2d(width, width, 2, 2)

    def forward(self, maps: Sequence[Tensor]) -> list[Tensor]:
        """Rescale the four maps by factors of 4, 2, 1 and 1/2."""
        return [self.finest(maps[0]), self.finer(maps[1]), maps[2], F.max_pool2d(maps[3], 2, ceil_mode=True)]


class FPNHead(nn.Module):
    """Semantic FPN head that refines and sums the levels of a feature pyramid and classifies each position.

    Args:
        widths: widths of the maps, finest first.
        num_classes: number of classes c.
        pyramid: width of the pyramid.
        hidden: width of the refined levels that are summed.

    Shape:
        - maps: one tensor ``(b, f_i, rows_i, cols_i)`` per width.
        - returns: ``(b, c, rows_0, cols_0)``.
    """

    def __init__(self, widths: Sequence[int], num_classes: int, *, pyramid: int = 256, hidden: int = 128) -> None:
        super().__init__()
        self.pyramid = FeaturePyramidNetwork(list(widths), pyramid)
        self.refine = nn.ModuleList(
            nn.ModuleList(_conv(hidden if step else pyramid, hidden, 3) for step in range(max(1, level)))
            for level in range(len(widths))
        )
        self.map = nn.Conv2d(hidden, num_classes, 1)

    def forward(self, maps: Sequence[Tensor]) -> Tensor:
        """Return the logits (b, c, rows, cols) at the resolution of the finest map."""
        levels = self.pyramid({str(number): level for number, level in enumerate(maps)})
        total = torch.zeros(())
        for number, (level, steps) in enumerate(zip(levels.values(), self.refine, strict=True)):
            refined = level
            for step, conv in enumerate(steps.children()):
                refined = conv(refined)
                # doubled after each step, to the size of the next finer map
                refined = _resize_like(refined, maps[max(0, number - step - 1)])
            total = refined if not number else total + refined
        return self.map(total)


class UperNetHead(nn.Module):
    """UperNet head: pyramid pooling of the coarsest map, a feature pyramid, and a classifier on all levels.

    Args:
        widths: widths of the maps, finest first.
        num_classes: number of classes c.
        hidden: width of every layer.

    Shape: as in `FPNHead`.
    """

    def __init__(self, widths: Sequence[int], num_classes: int, *, hidden: int = 256) -> None:
        super().__init__()
        self.pools = nn.ModuleList(_conv(widths[-1], hidden, 1) for _ in _POOLS)
        self.top = _conv(widths[-1] + len(_POOLS) * hidden, hidden, 3)
        self.lateral = nn.ModuleList(_conv(width, hidden, 1) for width in widths[:-1])
        self.smooth = nn.ModuleList(_conv(hidden, hidden, 3) for _ in widths[:-1])
        self.fuse = _conv(len(widths) * hidden, hidden, 3)
        self.map = nn.Conv2d(hidden, num_classes, 1)

    def forward(self, maps: Sequence[Tensor]) -> Tensor:
        """Return the logits (b, c, rows, cols) at the resolution of the finest map."""
        coarsest = maps[-1]
        parts = [
            _resize_like(pool(F.adaptive_avg_pool2d(coarsest, side)), coarsest)
            for side, pool in zip(_POOLS, self.pools, strict=True)
        ]
        above = self.top(torch.cat([coarsest, *parts], dim=1))
        levels = [above]
        for level in range(len(maps) - 2, -1, -1):
            above = self.lateral[level](maps[level]) + _resize_like(above, maps[level])
            levels.append(self.smooth[level](above))
        joined = torch.cat([_resize_like(level, maps[0]) for level in reversed(levels)], dim=1)
        return self.map(self.fuse(joined))


def _conv(given: int, width: int, kernel: int) -> nn.Sequential:
    norm = nn.GroupNorm(min(32, width), width)
    return nn.Sequential(nn.Conv2d(given, width, kernel, padding=kernel // 2, bias=False), norm, nn.ReLU())


def _resize_like(maps: Tensor, like: Tensor) -> Tensor:
    return F.interpolate(maps, like.shape[-2:], mode="bilinear", align_corners=False)
