"""Channel and spatial gates on feature maps (CBAM); the spatial gate is the attention map of TAC-CCL.

Source: S. Woo et al., "CBAM: Convolutional Block Attention Module" (ECCV 2018) and ``Jongchan/attention-module``.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class CBAM(nn.Module):
    """Scale channels, then positions, each by a gate in (0, 1).

    Args:
        channels: c of the maps.
        reduction: the channel gate's hidden layer has ``c / reduction`` units.
        kernel: width of the convolution of the spatial gate, odd.

    Shape:
        - maps: ``(b, c, h, w)`` float.
        - returns: maps ``(b, c, h, w)`` and the spatial gate ``(b, h, w)``.

    Raises:
        ValueError: the hidden layer would have no unit, or an even kernel.
    """

    def __init__(self, channels: int, reduction: int = 16, kernel: int = 7) -> None:
        super().__init__()
        hidden = channels // reduction
        if hidden < 1 or kernel % 2 == 0:
            raise ValueError(f"{channels} channels, reduction {reduction} and kernel {kernel} make no gate")
        self.channel_gate = nn.Sequential(nn.Linear(channels, hidden), nn.ReLU(), nn.Linear(hidden, channels))
        self.conv = nn.Conv2d(2, 1, kernel, padding=kernel // 2, bias=False)
        self.normalization = nn.BatchNorm2d(1, momentum=0.01)

    def forward(self, maps: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gated maps and the spatial gate."""
        summary = self.channel_gate(maps.mean(dim=(2, 3))) + self.channel_gate(maps.amax(dim=(2, 3)))
        maps = maps * torch.sigmoid(summary)[:, :, None, None]
        both = torch.stack([maps.amax(dim=1), maps.mean(dim=1)], dim=1)
        gate = torch.sigmoid(self.normalization(self.conv(both)))
        return maps * gate, gate[:, 0]
