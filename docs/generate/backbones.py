"""What networks cost, counted by torch without weights: for the page of backbones."""

import re
from dataclasses import dataclass

import torch
from labelkit.models.backbones.convnets import CONVNETS
from labelkit.models.backbones.registry import BackboneInfo, build_backbone, list_backbones
from labelkit.models.backbones.vit import SMALL_VITS
from labelkit.models.weights.published import PREFERRED_BACKBONES, embedding_image_size
from labelkit.options.presets import find_bundled_presets
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

_NAMED = re.compile(r"backbone:? +\"?([A-Za-z0-9_.]+)")


@dataclass(frozen=True, slots=True)
class NetworkCounts:
    """Number of parameters and multiply-adds of a network for one image.

    Attributes:
        parameters: numbers that training can change; no running statistics.
        multiply_adds: of convolutions and matrix products, those of attention included. Biases, normalization,
            activations and pooling are left out, as in most publications.
    """

    parameters: int
    multiply_adds: int


def used_backbones() -> list[str]:
    """Return labelkit's own backbones and the timm ones named by a preset or ``--backbone auto``."""
    own = [*SMALL_VITS, *CONVNETS]
    tagged = set(list_backbones())
    known = tagged | {name.split(".", 1)[0] for name in tagged}
    folder = find_bundled_presets()
    files = [] if folder is None else sorted(folder.glob("*/*.yaml"))
    words = {word.rstrip(".") for path in files for word in _NAMED.findall(path.read_text())}
    named = (words | set(PREFERRED_BACKBONES)) & known - set(own)
    # a name with the tag of its weights beside the bare name would say the same again
    return own + sorted(name for name in named if "." not in name or name.split(".", 1)[0] not in named)


def count_backbone(name: str) -> tuple[BackboneInfo, NetworkCounts]:
    """Count a backbone for one color image of the size that `labelkit embed` makes."""
    with torch.device("meta"):  # neither memory nor time for weights
        backbone = build_backbone(name, image_size=embedding_image_size(name))
    info = backbone.info
    return info, count_network(backbone, (info.in_channels, info.image_size, info.image_size))


def count_network(network: nn.Module, shape: tuple[int, int, int]) -> NetworkCounts:
    """Count a network, which is left frozen and in evaluation mode, for an image (channels, height, width)."""
    device = next(network.parameters()).device
    # torch's counter looks for the graph of gradients behind parameters that are inputs of a layer
    network.eval().requires_grad_(False)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        network(torch.zeros(1, *shape, device=device))
    # torch counts the multiplication and the addition
    return NetworkCounts(sum(one.numel() for one in network.parameters()), counter.get_total_flops() // 2)
