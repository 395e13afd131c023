"""BN-Inception (Inception v2) without its classifier, and a converter for weights ported from Caffe.

Source: S. Ioffe and C. Szegedy, "Batch Normalization" (ICML 2015), Fig. 5; details missing from the figure (biases
before normalization, pooling that rounds up) are as in the Caffe model used in metric learning.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labelkit.models.backbones.staged_network import InputRescaling, PooledNetwork

_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
#: Mean of blue, green and red, the channel order of Caffe's images, on a scale of 255.
_CAFFE_MEAN = (104.0, 117.0, 128.0)


@dataclass(frozen=True, slots=True)
class _Block:
    """Channels of an inception block."""

    single: int  # of the 1x1 branch; 0: no such branch, and the block halves the side of the maps
    triple: tuple[int, int]  # of the branch with one 3x3 convolution, before and after it
    double: tuple[int, int]  # of the branch with two, before and after the first; the second does not change them
    pooled: int  # after pooling; 0 if the pooled maps are passed on unchanged
    largest: bool = False  # whether to use max pooling instead of average pooling


_BLOCKS = {
    "inception3a": _Block(64, (64, 64), (64, 96), 32),
    "inception3b": _Block(64, (64, 96), (64, 96), 64),
    "inception3c": _Block(0, (128, 160), (64, 96), 0, largest=True),
    "inception4a": _Block(224, (64, 96), (96, 128), 128),
    "inception4b": _Block(192, (96, 128), (96, 128), 128),
    "inception4c": _Block(160, (128, 160), (128, 160), 128),
    "inception4d": _Block(96, (128, 192), (160, 192), 128),
    "inception4e": _Block(0, (128, 192), (192, 256), 0, largest=True),
    "inception5a": _Block(352, (192, 320), (160, 224), 128),
    "inception5b": _Block(352, (192, 320), (192, 224), 128, largest=True),
}


class _Conv(nn.Sequential):
    """Convolution with bias, batch normalization and ReLU."""

    def __init__(self, channels: int, filters: int, kernel: int = 1, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, filters, kernel, stride, kernel // 2)
        self.bn = nn.BatchNorm2d(filters)
        self.relu = nn.ReLU()


class _HalvingPool(nn.Module):
    """3x3 max pooling with stride 2, rounding output sizes up.

    Odd sides, which do not occur with images of 224 pixels, are handled as by 3x3 convolutions with stride 2.
    """

    def forward(self, maps: Tensor) -> Tensor:
        """Pool maps (b, c, h, w) to (b, c, ceil(h / 2), ceil(w / 2))."""
        padded = F.pad(maps, (maps.shape[3] % 2, 0, maps.shape[2] % 2, 0), value=-torch.inf)
        return F.max_pool2d(padded, 3, 2, ceil_mode=True)


class _Inception(nn.Module):
    """Inception block: parallel branches of 1x1, 3x3 and double 3x3 convolutions and pooling, concatenated."""

    def __init__(self, channels: int, block: _Block) -> None:
        super().__init__()
        stride = 1 if block.single else 2
        self.one = _Conv(channels, block.single) if block.single else None
        (reduced, triple), (narrow, double) = block.triple, block.double
        self.three = nn.Sequential(_Conv(channels, reduced), _Conv(reduced, triple, 3, stride))
        self.twice = nn.Sequential(_Conv(channels, narrow), _Conv(narrow, double, 3), _Conv(double, double, 3, stride))
        pool: nn.Module = nn.AvgPool2d(3, 1, 1)
        if block.largest:
            pool = nn.MaxPool2d(3, 1, 1) if block.pooled else _HalvingPool()
        self.pool = nn.Sequential(pool, _Conv(channels, block.pooled)) if block.pooled else nn.Sequential(pool)
        self.num_features = block.single + triple + double + (block.pooled or channels)

    def forward(self, maps: Tensor) -> Tensor:
        """Concatenate the branch outputs for maps (b, c, h, w) into (b, num_features, h', w')."""
        branches = (self.one, self.three, self.twice, self.pool)
        return torch.cat([branch(maps) for branch in branches if branch is not None], 1)


class BNInceptionBody(PooledNetwork):
    """BN-Inception up to the global average pooling, without its classifier.

    Stages by name: conv1, maxpool1, conv2, conv3, maxpool2, inception3a to inception3c, inception4a to inception4e,
    inception5a, inception5b.

    Args:
        in_channels: 3, or 1 (repeated to 3).

    Shape:
        - images: ``(b, c, h, w)`` float, normalized as for ImageNet; converted here to the scale of published weights.
        - returns: ``(b, 1024, h / 32, w / 32)`` maps of `forward_features`, sides rounded up after each step.
    """

    def __init__(self, in_channels: int = 3) -> None:
        super().__init__()
        scales = [(i, 255 * _STD[i], 255 * _MEAN[i] - _CAFFE_MEAN[2 - i]) for i in (2, 1, 0)]
        self.caffe_input = InputRescaling(scales)
        self.conv1 = _Conv(3, 64, 7, 2)
        self.maxpool1 = nn.MaxPool2d(3, 2, ceil_mode=True)
        self.conv2 = _Conv(64, 64)
        self.conv3 = _Conv(64, 192, 3)
        self.maxpool2 = nn.MaxPool2d(3, 2, ceil_mode=True)
        channels = 192
        for name, block in _BLOCKS.items():
            stage = _Inception(channels, block)
            self.add_module(name, stage)
            channels = stage.num_features
        self.num_features = channels


_LAYERS = {"1x1": "one", "3x3_reduce": "three.0", "3x3": "three.1", "pool_proj": "pool.1"}
_LAYERS |= {f"double_3x3_{part}": f"twice.{number}" for number, part in enumerate(("reduce", "1", "2"))}
_STEM = {"conv1_7x7_s2": "conv1", "conv2_3x3_reduce": "conv2", "conv2_3x3": "conv3"}
_CAFFE_NAME = re.compile(
    r"(?:.*\.)?(?:(?P<stem>conv\d_\w+?)|inception_(?P<block>\d\w)_(?P<layer>\w+?))(?P<bn>_bn)?\.(?P<kind>\w+)"
)


def checkpoint_filter_fn(state: Mapping[str, Tensor], net: nn.Module) -> dict[str, torch.Tensor]:
    """Map the Caffe names of converted BN-Inception weights to the names used by this network.

    Caffe's names look like ``inception_3a_1x1_bn.weight``. Its normalization tensors may have a leading axis of
    length 1; classifiers are dropped.
    """
    renamed: dict[str, Tensor] = {}
    for name, value in state.items():
        found = _CAFFE_NAME.fullmatch(name)
        if found is None:
            continue
        if found["stem"]:
            place = _STEM[found["stem"]]
        else:
            place = f"inception{found['block']}.{_LAYERS[found['layer']]}"
        flat = value[0] if found["bn"] and value.ndim == 2 and len(value) == 1 else value
        renamed[f"{place}.{'bn' if found['bn'] else 'conv'}.{found['kind']}"] = flat
    return renamed
