"""Wide residual networks in the form of the MixMatch family: leaky ReLU, pre-activation.

Sources: S. Zagoruyko, N. Komodakis, "Wide Residual Networks" (BMVC 2016); ``google-research/mixmatch``.
Departures: convolutions have no biases (the TensorFlow code keeps them). The first block of groups 2 and 3 normalizes
its input too; in ``microsoft/Semi-supervised-learning`` these two normalizations have weights that are never used.
"""

from __future__ import annotations

from torch import Tensor, nn

from labelkit.models.staged_network import StagedNetwork

LEAK = 0.1


def _conv(in_channels: int, out_channels: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(in_channels, out_channels, kernel, stride, kernel // 2, bias=False)


class WideBlock(nn.Module):
    """Normalization, leaky ReLU, 3x3 convolution (strided); the same again.

    Args:
        in_channels: of the input.
        channels: of the output.
        stride: of the first convolution and of the shortcut.
        activate_shortcut: whether the 1x1 shortcut starts after the first leaky ReLU instead of before it.
        momentum: of the running statistics, share of the new batch.
    """

    def __init__(
        self, in_channels: int, channels: int, stride: int, *, activate_shortcut: bool, momentum: float
    ) -> None:
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(in_channels, momentum=momentum), _conv(in_channels, channels, 3, stride)
        self.bn2, self.conv2 = nn.BatchNorm2d(channels, momentum=momentum), _conv(channels, channels, 3)
        self.act = nn.LeakyReLU(LEAK)
        changes = stride != 1 or in_channels != channels
        self.shortcut = _conv(in_channels, channels, 1, stride) if changes else None
        self.activate_shortcut = activate_shortcut

    def forward(self, maps: Tensor) -> Tensor:
        """(b, c, h, w) to (b, channels, h / stride, w / stride)."""
        active = self.act(self.bn1(maps))
        inner = self.conv2(self.act(self.bn2(self.conv1(active))))
        kept: Tensor = maps
        if self.shortcut is not None:
            kept = self.shortcut(active if self.activate_shortcut else maps)
        summed: Tensor = inner + kept
        return summed


def wide_resnet(
    depth: int, widen: int, *, stem: int = 16, momentum: float = 1e-3, in_channels: int = 3
) -> StagedNetwork:
    """Build WRN-``depth``-``widen``: a 3x3 stem, three groups of (depth - 4) / 6 blocks, normalization, average.

    Args:
        depth: 6 m + 4: 10, 16, 22, 28, ...
        widen: the groups have ``stem * widen`` channels, doubled twice.
        stem: channels of the stem; 16 in the literature, 8 for small demonstrations.
        momentum: of all running statistics.
        in_channels: of the images.

    Raises:
        ValueError: no such depth, or a width below 1.
    """
    if depth < 10 or (depth - 4) % 6:
        raise ValueError(f"depth is {depth}, must be 6 m + 4, at least 10")
    if widen < 1 or stem < 1:
        raise ValueError(f"widen {widen} and stem {stem} must be positive")
    stages: dict[str, nn.Module] = {"stem": _conv(in_channels, stem, 3)}
    channels = stem
    for group in range(3):
        width, layers = stem * widen << group, []
        for block in range((depth - 4) // 6):
            first = block == 0
            layers.append(
                WideBlock(
                    channels,
                    width,
                    2 if first and group > 0 else 1,
                    activate_shortcut=first and group == 0,
                    momentum=momentum,
                )
            )
            channels = width
        end = [nn.BatchNorm2d(channels, momentum=momentum), nn.LeakyReLU(LEAK)] if group == 2 else []
        stages[f"group{group + 1}"] = nn.Sequential(*layers, *end)
    return StagedNetwork(stages, channels)
