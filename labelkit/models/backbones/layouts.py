"""Names of weights in layouts that timm does not know."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

# layers of a block with and without expansion, as efficientnet-pytorch and as timm call them
_EXPANDING = {
    "_expand_conv": "conv_pw",
    "_bn0": "bn1",
    "_depthwise_conv": "conv_dw",
    "_bn1": "bn2",
    "_project_conv": "conv_pwl",
    "_bn2": "bn3",
}
_SEPARABLE = {"_depthwise_conv": "conv_dw", "_bn1": "bn1", "_project_conv": "conv_pw", "_bn2": "bn2"}
_EXCITATION = {"_se_reduce": "se.conv_reduce", "_se_expand": "se.conv_expand"}
_STEM_AND_HEAD = {
    "_conv_stem": "conv_stem",
    "_bn0": "bn1",
    "_conv_head": "conv_head",
    "_bn1": "bn2",
    "_fc": "classifier",
}


def from_efficientnet_pytorch(state: Mapping[str, Tensor], net: nn.Module) -> dict[str, Tensor]:
    """Rename the weights of ``efficientnet-pytorch`` checkpoints to timm's names.

    They count all blocks through, timm counts those of each stage.

    Args:
        state: tensors by name, such as ``_blocks.3._expand_conv.weight``.
        net: timm's network of the same size.

    Raises:
        KeyError: a name of another layout, or more blocks than the network has.
    """
    stages: Any = net.get_submodule("blocks")
    places = [f"blocks.{i}.{j}" for i, stage in enumerate(stages) for j in range(len(stage))]
    renamed: dict[str, Tensor] = {}
    for name, value in state.items():
        layer, _, kind = name.rpartition(".")
        if layer.startswith("_blocks."):
            _, number, layer = layer.split(".")
            if int(number) >= len(places):
                raise KeyError(f"{name}: the network has {len(places)} blocks")
            expanding = f"_blocks.{number}._expand_conv.weight" in state
            names = (_EXPANDING if expanding else _SEPARABLE) | _EXCITATION
            renamed[f"{places[int(number)]}.{names[layer]}.{kind}"] = value
        else:
            renamed[f"{_STEM_AND_HEAD[layer]}.{kind}"] = value
    return renamed


def is_torchvision_mobilenet(state: Mapping[str, Tensor]) -> bool:
    """Return whether a state dict has the names of torchvision's MobileNetV2."""
    return "features.0.0.weight" in state and "features.1.conv.0.0.weight" in state


def from_torchvision_mobilenet(state: Mapping[str, Tensor], net: nn.Module) -> dict[str, Tensor]:
    """Rename the weights of torchvision's MobileNetV2 to timm's names.

    torchvision counts stem, blocks and head through, timm counts the blocks of each stage. A block of torchvision is a
    list of convolutions, each with its normalization inside (``conv.0.0``, ``conv.0.1``) but for the last.

    Args:
        state: tensors by name, such as ``features.2.conv.1.0.weight``.
        net: timm's network of the same width.

    Raises:
        KeyError: a name of another layout, or more blocks than the network has.
    """
    stages: Any = net.get_submodule("blocks")
    places = [f"blocks.{i}.{j}" for i, stage in enumerate(stages) for j in range(len(stage))]
    head = len(places) + 1
    names = {"features.0.0": "conv_stem", "features.0.1": "bn1", "classifier.1": "classifier"}
    names |= {f"features.{head}.0": "conv_head", f"features.{head}.1": "bn2"}
    for number, place in enumerate(places, 1):
        parts = ["conv.0.0", "conv.0.1", "conv.1.0", "conv.1.1", "conv.2", "conv.3"]
        layers = ["conv_pw", "bn1", "conv_dw", "bn2", "conv_pwl", "bn3"]
        if f"features.{number}.conv.3.weight" not in state:  # the first block does not expand
            parts, layers = ["conv.0.0", "conv.0.1", "conv.1", "conv.2"], ["conv_dw", "bn1", "conv_pw", "bn2"]
        names |= {f"features.{number}.{a}": f"{place}.{b}" for a, b in zip(parts, layers, strict=True)}
    renamed = {}
    for name, value in state.items():
        layer, _, kind = name.rpartition(".")
        renamed[f"{names[layer]}.{kind}"] = value
    return renamed
