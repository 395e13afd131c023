"""Residual networks that timm lacks.

Sources: K. He et al., "Deep Residual Learning" (CVPR 2016), Sec. 4.2 for small images; "Identity Mappings" (ECCV 2016)
for pre-activation, in the form of ``yukimasano/self-label:models/resnetv2.py``.

ResNet-26 with shake-shake regularization: two branches per block, blended with different weights forward and backward.

Sources: X. Gastaldi, "Shake-Shake regularization" (2017); ``CuriousAI/mean-teacher:pytorch/mean_teacher``.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labelkit.models.backbones.staged_network import PooledNetwork, StagedNetwork

Shortcut = Literal["pad", "conv1", "conv3"]


def conv(in_channels: int, out_channels: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    """Build a convolution without bias whose padding preserves height and width at stride 1."""
    return nn.Conv2d(in_channels, out_channels, kernel, stride, kernel // 2, bias=False)


class PadShortcut(nn.Module):
    """Shortcut that keeps every ``stride``-th pixel and adds zero channels, half before and half after (option A)."""

    def __init__(self, new_channels: int, stride: int) -> None:
        super().__init__()
        self.before, self.after = new_channels // 2, new_channels - new_channels // 2
        self.stride = stride

    def forward(self, maps: Tensor) -> Tensor:
        """Subsample and pad maps (b, c, h, w) to (b, c + new, h / stride, w / stride)."""
        return F.pad(maps[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.before, self.after))


class BasicBlock(nn.Module):
    """Residual block of two 3x3 convolutions with batch norm and ReLU."""

    def __init__(self, in_channels: int, channels: int, stride: int, shortcut: Shortcut) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv(in_channels, channels, 3, stride), nn.BatchNorm2d(channels)
        self.conv2, self.bn2 = conv(channels, channels, 3), nn.BatchNorm2d(channels)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or in_channels != channels:
            if shortcut == "pad":
                self.shortcut = PadShortcut(channels - in_channels, stride)
            else:
                kernel = 1 if shortcut == "conv1" else 3
                self.shortcut = nn.Sequential(conv(in_channels, channels, kernel, stride), nn.BatchNorm2d(channels))

    def forward(self, maps: Tensor) -> Tensor:
        """Apply the block to maps (b, c, h, w), giving (b, channels, h / stride, w / stride)."""
        inner = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(maps)))))
        return F.relu(inner + self.shortcut(maps))


class Bottleneck(nn.Module):
    """Residual bottleneck with 1x1, strided 3x3 and 1x1 convolutions, batch norm and ReLU, and 4-fold output width."""

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv(in_channels, channels, 1), nn.BatchNorm2d(channels)
        self.conv2, self.bn2 = conv(channels, channels, 3, stride), nn.BatchNorm2d(channels)
        self.conv3, self.bn3 = conv(channels, 4 * channels, 1), nn.BatchNorm2d(4 * channels)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or in_channels != 4 * channels:
            self.shortcut = nn.Sequential(conv(in_channels, 4 * channels, 1, stride), nn.BatchNorm2d(4 * channels))

    def forward(self, maps: Tensor) -> Tensor:
        """Apply the block to maps (b, c, h, w), giving (b, 4 channels, h / stride, w / stride)."""
        inner = F.relu(self.bn1(self.conv1(maps)))
        inner = F.relu(self.bn2(self.conv2(inner)))
        return F.relu(self.bn3(self.conv3(inner)) + self.shortcut(maps))


class PreActivationBottleneck(nn.Module):
    """Bottleneck with batch norm and ReLU before convolutions; a strided shortcut starts after the first ReLU."""

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(in_channels), conv(in_channels, channels, 1)
        self.bn2, self.conv2 = nn.BatchNorm2d(channels), conv(channels, channels, 3, stride)
        self.bn3, self.conv3 = nn.BatchNorm2d(channels), conv(channels, 4 * channels, 1)
        changes = stride != 1 or in_channels != 4 * channels
        self.shortcut = conv(in_channels, 4 * channels, 1, stride) if changes else None

    def forward(self, maps: Tensor) -> Tensor:
        """Apply the block to maps (b, c, h, w), giving (b, 4 channels, h / stride, w / stride)."""
        active = F.relu(self.bn1(maps))
        inner = self.conv2(F.relu(self.bn2(self.conv1(active))))
        inner = self.conv3(F.relu(self.bn3(inner)))
        kept: Tensor = maps if self.shortcut is None else self.shortcut(active)
        return inner + kept


class ResidualNetwork(PooledNetwork):
    """Residual network with a stem, stages and global average pooling, without a classifier.

    Args:
        stem: first layers.
        stages: the rest of the body.
        num_features: channels of the last stage, f.
    """

    def __init__(self, stem: nn.Module, stages: nn.Module, num_features: int) -> None:
        super().__init__()
        self.stem = stem
        self.stages = stages
        self.num_features = num_features


def build_stages(
    block: Callable[[int, int, int], nn.Module],
    channels: int,
    widths: Sequence[int],
    counts: Sequence[int],
    expansion: int = 1,
) -> list[list[nn.Module]]:
    """Build the blocks of each stage; every stage but the first begins with a block of stride 2.

    ``block`` maps channels, width and stride to a block whose output has ``expansion`` times its width.
    ``channels`` are the channels before the first block; ``widths`` and ``counts`` describe the blocks of each stage.
    """
    stages: list[list[nn.Module]] = []
    for number, (width, count) in enumerate(zip(widths, counts, strict=True)):
        stages.append([])
        for place in range(count):
            stages[-1].append(block(channels, width, 2 if number > 0 and place == 0 else 1))
            channels = expansion * width
    return stages


def init_fan_out(net: nn.Module) -> None:
    """Initialize convolutions from N(0, 2 / (k * k * out)), normalization weights to 1 and biases to 0."""
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            k, j = module.kernel_size
            nn.init.normal_(module.weight, std=math.sqrt(2 / (k * j * module.out_channels)))
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.BatchNorm2d):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)


def cifar_resnet(depth: int, *, width: int = 16, shortcut: Shortcut = "pad", in_channels: int = 3) -> ResidualNetwork:
    """Build the ResNet of He et al. for 32x32 images, with a 3x3 stem and three stages of (depth - 2) / 6 blocks.

    Args:
        depth: 6 m + 2: 20, 32, 44, 56, 110, ...
        width: channels of the first stage; doubled twice.
        shortcut: shortcut type where sizes change: ``pad`` (option A, no parameters), or a 1x1 or 3x3 convolution.
        in_channels: channels of the images.
    """
    stem = nn.Sequential(conv(in_channels, width, 3), nn.BatchNorm2d(width), nn.ReLU())
    widths = (width, 2 * width, 4 * width)
    stages = build_stages(partial(BasicBlock, shortcut=shortcut), width, widths, [(depth - 2) // 6] * 3)
    net = ResidualNetwork(stem, nn.Sequential(*chain(*stages)), 4 * width)
    init_fan_out(net)
    return net


def resnet18(in_channels: int = 3) -> ResidualNetwork:
    """Build a ResNet-18 (f = 512) for 32x32 images, with a 3x3 stem of stride 1 and no pooling before the stages."""
    stages = build_stages(partial(BasicBlock, shortcut="conv1"), 64, (64, 128, 256, 512), (2, 2, 2, 2))
    stem = nn.Sequential(conv(in_channels, 64, 3), nn.BatchNorm2d(64), nn.ReLU())
    net = ResidualNetwork(stem, nn.Sequential(*chain(*stages)), 512)
    init_fan_out(net)
    return net


def resnet50(
    version: Literal[1, 2], *, widths: tuple[int, int, int, int] = (64, 128, 256, 512), in_channels: int = 3
) -> ResidualNetwork:
    """Build a ResNet-50 with a 7x7 stem: version 1 is post-activation, version 2 is pre-activation.

    f is 4 times the last width. Version 2 is that of SeLa's code: no layers between stem and pooling or between the
    last block and average pooling, and PyTorch's default initialization.
    """
    block: type[Bottleneck] | type[PreActivationBottleneck] = Bottleneck if version == 1 else PreActivationBottleneck
    layers: list[nn.Module] = [nn.Conv2d(in_channels, 64, 7, 2, 3, bias=False)]
    if version == 1:
        layers += [nn.BatchNorm2d(64), nn.ReLU()]
    stem = nn.Sequential(*layers, nn.MaxPool2d(3, 2, 1))
    stages = build_stages(block, 64, widths, (3, 4, 6, 3), expansion=4)
    net = ResidualNetwork(stem, nn.Sequential(*chain(*stages)), 4 * widths[-1])
    if version == 1:
        init_fan_out(net)
    return net


class ShakeShake(torch.autograd.Function):
    """Blends two branches with different random weights in the forward and backward passes.

    The forward pass is ``g a + (1 - g) b``; the gradient is divided with weights ``h`` and ``1 - h`` instead.

    Shape:
        - a, b: ``(n, c, h, w)`` float, the branches.
        - forward_gates, backward_gates: ``(n, 1, 1, 1)`` float in [0, 1], g and h; no gradient.
        - returns: ``(n, c, h, w)``, like a.
    """

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, forward_gates: Tensor, backward_gates: Tensor) -> Tensor:
        """Return the sum of both branches weighted by the forward gates."""
        ctx.save_for_backward(backward_gates)
        return forward_gates * a + (1 - forward_gates) * b

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        """Split the gradient between the branches by the backward gates."""
        (gates,) = ctx.saved_tensors
        (gradient,) = gradients
        return gates * gradient, (1 - gates) * gradient, None, None


def shake_shake(a: Tensor, b: Tensor, training: bool) -> Tensor:
    """Blend two branches by shake-shake, with random weights per image in training and equal weights otherwise.

    In training, the gradient is split with different random weights. Random numbers come from torch's generator for
    the device, as in dropout.
    """
    if not training:
        return 0.5 * (a + b)
    gates = torch.rand(2, len(a), 1, 1, 1, device=a.device, dtype=a.dtype)
    return ShakeShake.apply(a, b, gates[0], gates[1])


class ShiftedShortcut(nn.Module):
    """Shortcut that halves a map: stacks even and odd pixels, then applies ReLU, a grouped 1x1 convolution and norm."""

    def __init__(self, in_channels: int, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2 * in_channels, channels, 1, groups=2)
        self.bn = nn.BatchNorm2d(channels)

    def forward(self, maps: Tensor) -> Tensor:
        """Halve maps (b, c, h, w) with even sides to (b, channels, h / 2, w / 2)."""
        halves = torch.cat([maps[:, :, 0::2, 0::2], maps[:, :, 1::2, 1::2]], dim=1)
        return self.bn(self.conv(F.relu(halves)))


class _Branch(nn.Module):
    """Shake-shake branch: ReLU, 3x3 convolution and batch norm, twice; the first convolution may be strided."""

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv(in_channels, channels, 3, stride), nn.BatchNorm2d(channels)
        self.conv2, self.bn2 = conv(channels, channels, 3), nn.BatchNorm2d(channels)

    def forward(self, maps: Tensor) -> Tensor:
        """Apply the branch to maps (b, c, h, w), giving (b, channels, h / stride, w / stride)."""
        return self.bn2(self.conv2(F.relu(self.bn1(self.conv1(F.relu(maps))))))


class ShakeBlock(nn.Module):
    """Residual block whose two branches are blended by shake-shake, without ReLU after the sum."""

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        self.branch1 = _Branch(in_channels, channels, stride)
        self.branch2 = _Branch(in_channels, channels, stride)
        self.shortcut: nn.Module = nn.Identity()
        if stride == 2:
            self.shortcut = ShiftedShortcut(in_channels, channels)
        elif in_channels != channels:
            self.shortcut = nn.Sequential(conv(in_channels, channels, 1), nn.BatchNorm2d(channels))

    def forward(self, maps: Tensor) -> Tensor:
        """Apply the block to maps (b, c, h, w), giving (b, channels, h / stride, w / stride)."""
        return self.shortcut(maps) + shake_shake(self.branch1(maps), self.branch2(maps), self.training)


def shake_resnet26(width: int = 96, *, in_channels: int = 3) -> StagedNetwork:
    """Build the shake-shake ResNet-26 2x``width``d, without a classifier.

    It has a 3x3 stem of 16 channels, three stages of four blocks, and global average pooling.

    The first stage has ``width`` channels, which are doubled twice, so that there are 4 ``width`` features. The sides
    of the images must be multiples of 4.
    """
    stages: dict[str, nn.Module] = {"stem": conv(in_channels, 16, 3)}
    blocks = build_stages(ShakeBlock, 16, (width, 2 * width, 4 * width), (4, 4, 4))
    stages |= {f"stage{number}": nn.Sequential(*stage) for number, stage in enumerate(blocks, start=1)}
    net = StagedNetwork(stages, 4 * width)
    init_fan_out(net)
    return net
