"""Heads that name the class of every pixel from patch features that stay as they are.

Source: our CoTAP specification, section 6; order and width of the convolutional head are ours.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

_BLOCKS = 3


class LinearSegmentationHead(nn.Module):
    """One linear map for every patch.

    Args:
        width: of the features, f.
        num_classes: c.

    Shape:
        - features: ``(b, f, rows, cols)`` float.
        - returns: ``(b, c, rows, cols)``.
    """

    def __init__(self, width: int, num_classes: int) -> None:
        super().__init__()
        self.map = nn.Conv2d(width, num_classes, 1)

    def forward(self, features: Tensor) -> Tensor:
        """Logits of each patch."""
        logits: Tensor = self.map(features)
        return logits


class FCNHead(nn.Module):
    """Three blocks of 1x1, 3x3 and 1x1 convolutions with ReLU, each doubling rows and columns, and a linear map.

    Args:
        width: of the features, f.
        num_classes: c.
        hidden: width of the blocks.

    Shape:
        - features: ``(b, f, rows, cols)`` float.
        - returns: ``(b, c, 8 rows, 8 cols)``.
    """

    def __init__(self, width: int, num_classes: int, hidden: int = 256) -> None:
        super().__init__()
        blocks: list[nn.Module] = []
        for number in range(_BLOCKS):
            blocks += [
                nn.Conv2d(hidden if number else width, hidden, 1),
                nn.ReLU(),
                nn.Conv2d(hidden, hidden, 3, padding=1),
                nn.ReLU(),
                nn.Conv2d(hidden, hidden, 1),
                nn.ReLU(),
                nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False),
            ]
        self.blocks = nn.Sequential(*blocks)
        self.map = nn.Conv2d(hidden, num_classes, 1)

    def forward(self, features: Tensor) -> Tensor:
        """Logits of each place."""
        logits: Tensor = self.map(self.blocks(features))
        return logits


def build_segmentation_head(kind: str, width: int, num_classes: int, seed: int) -> nn.Module:
    """Build a head with weights that depend on the seed only.

    Args:
        kind: ``linear`` or ``fcn``.
        width: of the features.
        num_classes: c.
        seed: of the weights.

    Raises:
        ValueError: no such kind.
    """
    if kind not in ("linear", "fcn"):
        raise ValueError(f"no segmentation head {kind!r}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LinearSegmentationHead(width, num_classes) if kind == "linear" else FCNHead(width, num_classes)
