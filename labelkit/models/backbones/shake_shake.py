"""ResNet-26 with shake-shake regularization: two branches per block, blended by other shares forward than backward.

Sources: X. Gastaldi, "Shake-Shake regularization" (2017); ``CuriousAI/mean-teacher:pytorch/mean_teacher``.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labelkit.models.backbones.resnet import fan_out_init
from labelkit.models.backbones.staged_network import StagedNetwork


class ShakeShake(torch.autograd.Function):
    """``g a + (1 - g) b`` forward; the gradient is divided by ``h`` and ``1 - h`` instead.

    Shape:
        - a, b: ``(n, c, h, w)`` float, the branches.
        - forward_gates, backward_gates: ``(n, 1, 1, 1)`` float in [0, 1], g and h; no gradient.
        - returns: as a.
    """

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, forward_gates: Tensor, backward_gates: Tensor) -> Tensor:
        """Blend by the forward gates."""
        ctx.save_for_backward(backward_gates)
        return forward_gates * a + (1 - forward_gates) * b

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        """Share the gradient by the backward gates."""
        (gates,) = ctx.saved_tensors
        (gradient,) = gradients
        return gates * gradient, (1 - gates) * gradient, None, None


def shake(a: Tensor, b: Tensor, training: bool) -> Tensor:
    """Blend two branches: in training by a random share per image, and by another one for the gradient; else by halves.

    Random numbers come from torch's generator of the device, as those of dropout.
    """
    if not training:
        return 0.5 * (a + b)
    gates = torch.rand(2, len(a), 1, 1, 1, device=a.device, dtype=a.dtype)
    blended: Tensor = ShakeShake.apply(a, b, gates[0], gates[1])
    return blended


class ShiftedShortcut(nn.Module):
    """Halve a map: even and odd pixels as two groups of channels, ReLU, a grouped 1x1 convolution, normalization."""

    def __init__(self, in_channels: int, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2 * in_channels, channels, 1, groups=2)
        self.bn = nn.BatchNorm2d(channels)

    def forward(self, maps: Tensor) -> Tensor:
        """(b, c, h, w) to (b, channels, h / 2, w / 2); h and w even."""
        halves = torch.cat([maps[:, :, 0::2, 0::2], maps[:, :, 1::2, 1::2]], dim=1)
        out: Tensor = self.bn(self.conv(F.relu(halves)))
        return out


class _Branch(nn.Module):
    """ReLU, 3x3 convolution (strided), normalization; the same again without stride."""

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)

    def forward(self, maps: Tensor) -> Tensor:
        """(b, c, h, w) to (b, channels, h / stride, w / stride)."""
        out: Tensor = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(F.relu(maps))))))
        return out


class ShakeBlock(nn.Module):
    """Shortcut plus two shaken branches; nothing after the sum."""

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        self.branch1 = _Branch(in_channels, channels, stride)
        self.branch2 = _Branch(in_channels, channels, stride)
        self.shortcut: nn.Module = nn.Identity()
        if stride == 2:
            self.shortcut = ShiftedShortcut(in_channels, channels)
        elif in_channels != channels:
            conv = nn.Conv2d(in_channels, channels, 1, bias=False)
            self.shortcut = nn.Sequential(conv, nn.BatchNorm2d(channels))

    def forward(self, maps: Tensor) -> Tensor:
        """(b, c, h, w) to (b, channels, h / stride, w / stride)."""
        summed: Tensor = self.shortcut(maps) + shake(self.branch1(maps), self.branch2(maps), self.training)
        return summed


def shake_resnet26(width: int = 96, *, in_channels: int = 3) -> StagedNetwork:
    """Build ResNet-26 2x``width``d: a 3x3 stem of 16 channels, three stages of four blocks, average.

    Args:
        width: channels of the first stage; doubled twice, so features have four times as many.
        in_channels: of the images, whose sides must be multiples of 4.

    Raises:
        ValueError: a width that is not positive and even.
    """
    if width < 2 or width % 2:
        raise ValueError(f"width is {width}, must be even and positive")
    stages: dict[str, nn.Module] = {"stem": nn.Conv2d(in_channels, 16, 3, 1, 1, bias=False)}
    channels = 16
    for stage in range(3):
        blocks = []
        for block in range(4):
            blocks.append(ShakeBlock(channels, width << stage, 2 if stage > 0 and block == 0 else 1))
            channels = width << stage
        stages[f"stage{stage + 1}"] = nn.Sequential(*blocks)
    net = StagedNetwork(stages, channels)
    fan_out_init(net)
    return net
