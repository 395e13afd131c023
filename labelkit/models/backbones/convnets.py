"""Convolutional networks of labelkit by name: AlexNet, ResNet, ConvNet-13, Wide ResNet, GoogLeNet and small networks.

Source of the AlexNets: ``yukimasano/self-label:models/alexnet.py`` (after DeepCluster's).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm as normalize_weight
from torchvision.models import GoogLeNet

from labelkit.errors import ConfigError
from labelkit.models.backbones.bn_inception import BNInceptionBody
from labelkit.models.backbones.resnet import (
    ResidualNetwork,
    Shortcut,
    build_stages,
    cifar_resnet,
    conv,
    init_fan_out,
    resnet18,
    resnet50,
    shake_resnet26,
)
from labelkit.models.backbones.staged_network import InputRescaling, PooledNetwork, StagedNetwork

# Sources: S. Zagoruyko, N. Komodakis, "Wide Residual Networks" (BMVC 2016); ``google-research/mixmatch``.
# Departures: convolutions have no biases (the TensorFlow code has them). The first block of groups 2 and 3 normalizes
# its input too; in ``microsoft/Semi-supervised-learning`` the weights of these two normalizations are never used.

LEAK = 0.1


class WideBlock(nn.Module):
    """Pre-activation residual block of Wide ResNet: batch norm, leaky ReLU and a 3x3 convolution, applied twice.

    The first convolution may be strided.

    Args:
        in_channels: channels of the input.
        channels: channels of the output.
        stride: stride of the first convolution and of the shortcut.
        activate_shortcut: whether the 1x1 shortcut starts after the first leaky ReLU instead of before it.
        momentum: weight of the new batch in the running statistics.
    """

    def __init__(
        self, in_channels: int, channels: int, stride: int, *, activate_shortcut: bool, momentum: float
    ) -> None:
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(in_channels, momentum=momentum), conv(in_channels, channels, 3, stride)
        self.bn2, self.conv2 = nn.BatchNorm2d(channels, momentum=momentum), conv(channels, channels, 3)
        self.act = nn.LeakyReLU(LEAK)
        changes = stride != 1 or in_channels != channels
        self.shortcut = conv(in_channels, channels, 1, stride) if changes else None
        self.activate_shortcut = activate_shortcut

    def forward(self, maps: Tensor) -> Tensor:
        """Apply the block to maps (b, c, h, w), giving (b, channels, h / stride, w / stride)."""
        active = self.act(self.bn1(maps))
        inner = self.conv2(self.act(self.bn2(self.conv1(active))))
        kept: Tensor = maps
        if self.shortcut is not None:
            kept = self.shortcut(active if self.activate_shortcut else maps)
        return inner + kept


def wide_resnet(
    depth: int, widen: int, *, stem: int = 16, momentum: float = 1e-3, in_channels: int = 3
) -> StagedNetwork:
    """Build the Wide ResNet WRN-``depth``-``widen`` for small images, without a classifier.

    It has a 3x3 stem of ``stem`` channels (16 in the literature, 8 for small demonstrations), three groups of
    (depth - 4) / 6 blocks with ``stem * widen`` channels, doubled twice, normalization and global average pooling.
    ``momentum`` is the weight of the new batch in all running statistics.
    """
    widths = [stem * widen << group for group in range(3)]
    first = conv(in_channels, stem, 3)
    block = partial(WideBlock, activate_shortcut=False, momentum=momentum)
    groups = build_stages(block, stem, widths, [(depth - 4) // 6] * 3)
    groups[0][0].activate_shortcut = True  # type: ignore[assignment] # a flag, not a module
    groups[2] += [nn.BatchNorm2d(widths[2], momentum=momentum), nn.LeakyReLU(LEAK)]
    stages = {f"group{number}": nn.Sequential(*group) for number, group in enumerate(groups, start=1)}
    return StagedNetwork({"stem": first, **stages}, widths[2])


# Sources: ``CuriousAI/mean-teacher:tensorflow`` (mean-only batch normalization), ``benathi/fastswa-semi-sup`` (weight
# normalization and ordinary batch normalization).
# Departure: only batch normalization by default, since it makes weight normalization redundant.

_MIN_SIDE = 12


class _Unit(nn.Sequential):
    """Convolution, batch normalization and leaky ReLU."""

    def __init__(self, in_channels: int, channels: int, kernel: int, padding: int, weight_norm: bool) -> None:
        super().__init__()
        conv = nn.Conv2d(in_channels, channels, kernel, padding=padding)
        self.conv: nn.Module = normalize_weight(conv) if weight_norm else conv
        self.bn = nn.BatchNorm2d(channels)
        self.act = nn.LeakyReLU(LEAK)


def convnet13(width: int = 128, *, weight_norm: bool = False, in_channels: int = 3) -> StagedNetwork:
    """Build ConvNet-13, the 13-layer network of the semi-supervised literature.

    At width 128, it has 3,122,560 parameters without classifier. Layers: three convolutions of ``width`` filters,
    pooling, dropout; three of ``2 width``, pooling, dropout; 3x3 without padding of ``4 width``, 1x1 of ``2 width``,
    1x1 of ``width``; average pooling. The dropout rate is 0.5, as in Mean Teacher; MixMatch, which adds its own noise,
    uses no dropout (``set_dropout``).

    Args:
        width: f; 128 in the literature, 16 or 32 on a CPU.
        weight_norm: whether to apply weight normalization to every convolution, in addition to batch normalization.
        in_channels: channels of the images, whose sides must be at least 12 pixels.
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


def set_dropout(module: nn.Module, rate: float) -> int:
    """Set the rate of every dropout layer in a module, and return the number of these layers."""
    layers = [layer for layer in module.modules() if isinstance(layer, nn.Dropout)]
    for layer in layers:
        layer.p = rate
    return len(layers)


_IMAGENET_MEAN, _IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
# Filters, kernel, stride and padding of each layer; None is a 3x3 pool of stride 2.
_ALEXNET = ((96, 11, 4, 2), None, (256, 5, 1, 2), None, (384, 3, 1, 1), (384, 3, 1, 1), (256, 3, 1, 1), None)
_ALEXNET_SMALL = ((64, 11, 4, 2), None, (192, 5, 1, 2), None, (384, 3, 1, 1), (256, 3, 1, 1), (256, 3, 1, 1), None)
_HIDDEN = 4096


class AlexNet(PooledNetwork):
    """AlexNet with batch normalization and without a classifier.

    It has five convolutions and two wide layers with dropout; the features are the output of the last ReLU.

    Args:
        layers: filters, kernel, stride and padding of each convolution; ``None`` is a pool.
        image_size: side of the images, which determines the input width of the first wide layer.
        in_channels: channels of the images.

    Shape:
        - images: ``(b, c, image_size, image_size)`` float.
        - returns: ``(b, 4096)`` float, not negative.
    """

    def __init__(self, layers: tuple[tuple[int, int, int, int] | None, ...], image_size: int, in_channels: int) -> None:
        super().__init__()
        parts: list[nn.Module] = []
        channels, side = in_channels, image_size
        for layer in layers:
            if layer is None:
                parts.append(nn.MaxPool2d(3, 2))
                side = (side - 3) // 2 + 1
                continue
            filters, kernel, stride, padding = layer
            parts += [nn.Conv2d(channels, filters, kernel, stride, padding), nn.BatchNorm2d(filters), nn.ReLU()]
            channels, side = filters, (side + 2 * padding - kernel) // stride + 1
        if side < 1:
            problem = f"{image_size} pixels are too few for an AlexNet"
            raise ConfigError("image_size", problem, "Use at least 63 pixels.")
        self.num_features = _HIDDEN
        self.head_std = 0.01  # initial standard deviation for linear heads, as for the layers here
        self.features = nn.Sequential(*parts)
        self.hidden = nn.Sequential(
            nn.Dropout(0.5),
            nn.Linear(channels * side * side, _HIDDEN),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Linear(_HIDDEN, _HIDDEN),
            nn.ReLU(),
        )
        init_fan_out(self.features)
        for module in self.hidden.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.01)
                nn.init.zeros_(module.bias)

    def forward_features(self, images: Tensor) -> Tensor:
        """Return the feature maps (b, 256, h', w') of the convolutional layers."""
        return self.features(images)

    def forward_head(self, maps: Tensor, pre_logits: bool = True) -> Tensor:
        """Map feature maps to features (b, 4096), regardless of ``pre_logits``."""
        return self.hidden(maps.flatten(1))


def _demo(in_channels: int) -> PooledNetwork:
    layers: list[nn.Module] = []
    channels = in_channels
    for filters, stride in ((16, 2), (32, 2), (64, 2), (128, 1)):
        layers += [nn.Conv2d(channels, filters, 3, stride, 1), nn.BatchNorm2d(filters), nn.ReLU()]
        channels = filters
    return ResidualNetwork(nn.Sequential(*layers[:3]), nn.Sequential(*layers[3:]), channels)


class SmallCNN(PooledNetwork):
    """Small network of five 3x3 convolutions with batch norm and ReLU, for demonstrations on a CPU.

    A 2x2 pool follows each of the first two convolutions, so that images of 32 pixels yield 8x8 maps.

    Args:
        widths: channels of each convolution.
        in_channels: channels of the images.
        late_pool: whether to pool after the fourth convolution as well, to 4x4 maps.

    Shape:
        - images: ``(b, c, h, w)`` float.
        - returns: ``(b, f)`` float, not negative, the mean of ``(b, f, h / 4, w / 4)`` maps (8, not 4: ``late_pool``).

    Source:
        The CPU demonstrations of our specifications of TAC-CCL (2.3) and, with the late pool, SAN (2.1).
    """

    def __init__(self, widths: tuple[int, int, int, int, int], in_channels: int, *, late_pool: bool = False) -> None:
        super().__init__()
        self.num_features = widths[-1]
        channels = in_channels
        for number, width in enumerate(widths, start=1):
            block = nn.Sequential(nn.Conv2d(channels, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
            self.add_module(f"block{number}", block)
            if number <= 2 or (number == 4 and late_pool):
                self.add_module(f"pool{number}", nn.MaxPool2d(2))
            channels = width


@dataclass(frozen=True, slots=True)
class ConvNetSpec:
    """Registry entry of a convolutional network: its builder, default input and pooling."""

    build: Callable[[int, int], PooledNetwork]  # function from image size and channels to the network
    image_size: int = 32  # default side in pixels
    mean: tuple[float, float, float] = (0.5, 0.5, 0.5)  # normalization per color, for images in [0, 1]
    std: tuple[float, float, float] = (0.5, 0.5, 0.5)
    pooling: str = "avg"  # pooling of positions to one vector
    crop_pct: float = 1.0  # fraction of the resized image that the center crop keeps
    url: str = ""  # download URL of published weights, if any


def _photo(build: Callable[[int, int], PooledNetwork], pooling: str = "avg") -> ConvNetSpec:
    return ConvNetSpec(build, 224, _IMAGENET_MEAN, _IMAGENET_STD, pooling, 0.875)


def _metric(build: Callable[[int, int], PooledNetwork], url: str) -> ConvNetSpec:
    # 227 pixels of a shorter side of 256, as in the tables of metric learning
    return ConvNetSpec(build, 227, _IMAGENET_MEAN, _IMAGENET_STD, crop_pct=227 / 256, url=url)


def _small(widths: tuple[int, int, int, int, int], *, late_pool: bool = False) -> ConvNetSpec:
    return ConvNetSpec(lambda size, channels: SmallCNN(widths, channels, late_pool=late_pool))


def _cifar(depth: int, width: int = 16, shortcut: Shortcut = "pad") -> ConvNetSpec:
    return ConvNetSpec(lambda size, channels: cifar_resnet(depth, width=width, shortcut=shortcut, in_channels=channels))


def _convnet13(width: int, weight_norm: bool = False) -> ConvNetSpec:
    def build(size: int, channels: int) -> PooledNetwork:
        if size < _MIN_SIDE:
            remedy = f"Use at least {_MIN_SIDE} pixels."
            raise ConfigError("image_size", f"{size} pixels is too small for a ConvNet-13", remedy)
        return convnet13(width, weight_norm=weight_norm, in_channels=channels)

    return ConvNetSpec(build)


def _shake(width: int) -> ConvNetSpec:
    def build(size: int, channels: int) -> PooledNetwork:
        if size % 4:
            remedy = f"Try {max(4, size // 4 * 4)} pixels."
            problem = f"{size} is not a multiple of 4, which the skip connections require"
            raise ConfigError("image_size", problem, remedy)
        return shake_resnet26(width, in_channels=channels)

    return ConvNetSpec(build)


def _wide(depth: int, widen: int, stem: int = 16, momentum: float = 1e-3) -> ConvNetSpec:
    return ConvNetSpec(
        lambda _, channels: wide_resnet(depth, widen, stem=stem, momentum=momentum, in_channels=channels)
    )


CONVNETS: dict[str, ConvNetSpec] = {
    # for metric learning on small machines
    "smallcnn": _small((16, 32, 64, 64, 128)),
    "smallcnn_pool": _small((16, 32, 64, 64, 128), late_pool=True),
    "smallcnn_wide": _small((32, 64, 128, 128, 256)),
    "smallcnn_wide_pool": _small((32, 64, 128, 128, 256), late_pool=True),
    "googlenet": _metric(
        lambda _, channels: GoogLeNetBody(channels), "https://download.pytorch.org/models/googlenet-1378be20.pth"
    ),
    "bn_inception": _metric(
        lambda _, channels: BNInceptionBody(channels),
        "http://data.lip6.fr/cadene/pretrainedmodels/bn_inception-52deb4733.pth",
    ),
    "convnet_demo": ConvNetSpec(lambda _, channels: _demo(channels)),
    **{f"resnet{depth}_cifar": _cifar(depth) for depth in (20, 32, 44, 56, 110)},
    # from hyperspherical prototype networks, used in DL2PA's balanced experiments: shortcuts are 3x3 convolutions
    **{f"resnet{depth}_hpn": _cifar(depth, shortcut="conv3") for depth in (20, 32)},
    "resnet32_wide_cifar": _cifar(32, width=32),
    # for self-supervised learning on small images
    "resnet18_3x3": ConvNetSpec(lambda _, channels: resnet18(channels)),
    "alexnet_sela": _photo(lambda size, channels: AlexNet(_ALEXNET, size, channels), "flatten"),
    "alexnet_small_sela": _photo(lambda size, channels: AlexNet(_ALEXNET_SMALL, size, channels), "flatten"),
    "resnet50_sela": _photo(lambda _, channels: resnet50(1, in_channels=channels)),
    # DL2PA's network for long-tailed ImageNet, with a last stage of twice the width
    "resnet50_wide_end": _photo(lambda _, channels: resnet50(1, widths=(64, 128, 256, 1024), in_channels=channels)),
    "resnet50v2_sela": _photo(lambda _, channels: resnet50(2, in_channels=channels)),
    # for semi-supervised learning; the small ones are for CPUs
    "convnet13": _convnet13(128),
    "convnet13_w32": _convnet13(32),
    "convnet13_w16": _convnet13(16),
    "convnet13_wn": _convnet13(128, weight_norm=True),
    "resnet26_shake": _shake(96),
    "resnet26_shake_w32": _shake(32),
    "wrn28_2": _wide(28, 2),
    "wrn28_8": _wide(28, 8),
    "wrn16_2": _wide(16, 2),
    # half the usual stem; short runs need running statistics that adapt quickly
    "wrn10_1": _wide(10, 1, stem=8, momentum=0.1),
}


class GoogLeNetBody(PooledNetwork, GoogLeNet):  # type: ignore[misc] # torchvision is not typed
    """GoogLeNet up to the global average pooling, without its classifiers.

    Stages by name: conv1, maxpool1, conv2, conv3, maxpool2, inception3a, inception3b, maxpool3, inception4a to
    inception4e, maxpool4, inception5a, inception5b.

    Args:
        in_channels: 3, or 1 (repeated to 3).

    Shape:
        - images: ``(b, c, h, w)`` float, normalized as for ImageNet; converted here to the scale of published weights.
        - returns: ``(b, 1024, h / 32, w / 32)`` maps of `forward_features`, sides rounded up after each step.
    """

    def __init__(self, in_channels: int = 3) -> None:
        super().__init__(aux_logits=False, transform_input=True, init_weights=True)
        moments = enumerate(zip(_IMAGENET_MEAN, _IMAGENET_STD, strict=True))
        self.published_input = InputRescaling([(i, std / 0.5, (mean - 0.5) / 0.5) for i, (mean, std) in moments])
        self.num_features = 1024
        self.avgpool, self.dropout, self.fc = nn.Identity(), nn.Identity(), nn.Identity()

    def forward_features(self, images: Tensor) -> Tensor:
        """Return the feature maps (b, 1024, h', w') before the average pooling."""
        x = self.published_input(images)
        for name, stage in self.named_children():
            if name not in ("avgpool", "dropout", "fc", "aux1", "aux2", "published_input"):
                x = stage(x)
        return x


def checkpoint_filter_fn(state: Mapping[str, Tensor], net: nn.Module) -> dict[str, torch.Tensor]:
    """Drop the classifiers from a GoogLeNet state dict; timm expects this function name for such filters."""
    return {name: value for name, value in state.items() if not name.startswith(("fc.", "aux1.", "aux2."))}
