"""ConvNet-13: the thirteen-layer network of the semi-supervised literature.

Sources: ``CuriousAI/mean-teacher:tensorflow`` (mean-only batch normalization), ``benathi/fastswa-semi-sup`` (weight
normalization and ordinary batch normalization).
Departure: batch normalization alone by default; with it the gain of weight normalization is redundant.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm as normalize_weight

from labelkit.models.backbones.staged_network import StagedNetwork

LEAK = 0.1
MIN_SIDE = 12


class _Unit(nn.Module):
    """Convolution, batch normalization, leaky ReLU."""

    def __init__(self, in_channels: int, channels: int, kernel: int, padding: int, weight_norm: bool) -> None:
        super().__init__()
        conv = nn.Conv2d(in_channels, channels, kernel, padding=padding)
        self.conv: nn.Module = normalize_weight(conv) if weight_norm else conv
        self.bn = nn.BatchNorm2d(channels)
        self.act = nn.LeakyReLU(LEAK)

    def forward(self, maps: Tensor) -> Tensor:
        """Apply convolution, batch norm and leaky ReLU: (b, c, h, w) to (b, channels, h', w')."""
        out: Tensor = self.act(self.bn(self.conv(maps)))
        return out


def convnet13(width: int = 128, *, weight_norm: bool = False, in_channels: int = 3) -> StagedNetwork:
    """Build ConvNet-13, the 13-layer network of the semi-supervised literature.

    It has 3,122,560 parameters without classifier at width 128. Three convolutions of ``width`` filters, pool, dropout;
    three of ``2 width``, pool, dropout; then 3x3 without padding of ``4 width``, 1x1 of ``2 width``, 1x1 of ``width``;
    average over positions. Half is dropped, as under Mean Teacher; MixMatch, which brings its own noise, drops nothing
    (``set_dropout``).

    Args:
        width: f; 128 in the literature, 16 or 32 on a CPU.
        weight_norm: weight normalization of every convolution, beside batch normalization.
        in_channels: of the images, which need 12 pixels at least.
    """

    def units(*layers: tuple[int, int, int, int]) -> list[nn.Module]:
        return [_Unit(before, after, kernel, padding, weight_norm) for before, after, kernel, padding in layers]

    same = [(width, width, 3, 1)] * 2
    double = [(2 * width, 2 * width, 3, 1)] * 2
    stages = {
        "stage1": nn.Sequential(*units((in_channels, width, 3, 1), *same), nn.MaxPool2d(2), nn.Dropout(0.5)),
        "stage2": nn.Sequential(*units((width, 2 * width, 3, 1), *double), nn.MaxPool2d(2), nn.Dropout(0.5)),
        "stage3": nn.Sequential(
            *units((2 * width, 4 * width, 3, 0), (4 * width, 2 * width, 1, 0), (2 * width, width, 1, 0))
        ),
    }
    return StagedNetwork(stages, width)


def set_dropout(module: nn.Module, share: float) -> int:
    """Set the rate of every dropout layer inside a module and return the number of such layers."""
    layers = [layer for layer in module.modules() if isinstance(layer, nn.Dropout)]
    for layer in layers:
        layer.p = share
    return len(layers)
