"""Count what networks cost, and show how images are prepared for them; no weights are needed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from labelkit.commands.common.results import Cell, SimpleResult, Table
from labelkit.data.center_crop import resized_side
from labelkit.errors import ConfigError
from labelkit.files import read_bytes
from labelkit.models.backbones.convnets import CONVNETS
from labelkit.models.backbones.registry import BackboneInfo, build_backbone, list_backbones
from labelkit.models.backbones.vit import SMALL_VITS
from labelkit.models.weights.published import BEST_FIRST, describe_published, embedding_size
from labelkit.options.presets import shipped_presets
from labelkit.progress import current_progress

_MAX_BYTES = 1 << 18
_NAMED = re.compile(r"backbone:? +\"?([A-Za-z0-9_.]+)")
_COLUMNS = (
    "name", "parameters", "multiply-adds (M)", "image side (pixels)", "features", "resized to (pixels)",
    "interpolation", "mean", "std",
)  # fmt: skip


def used_backbones() -> list[str]:
    """Return labelkit's own backbones and the timm ones named by a preset or ``--backbone auto``."""
    own = [*SMALL_VITS, *CONVNETS]
    tagged = set(list_backbones())
    known = tagged | {name.split(".", 1)[0] for name in tagged}
    folder = shipped_presets()
    files = [] if folder is None else sorted(folder.glob("*/*.yaml"))
    words = {word.rstrip(".") for path in files for word in _NAMED.findall(read_bytes(path, _MAX_BYTES).decode())}
    named = (words | set(BEST_FIRST)) & known - set(own)
    # a name with the tag of its weights beside the bare name would say the same again
    return own + sorted(name for name in named if "." not in name or name.split(".", 1)[0] not in named)


def count_backbone(name: str) -> tuple[BackboneInfo, NetworkCounts]:
    """Count the parameters and multiply-adds of a backbone for one color image at its default input size.

    Returns:
        How images are prepared, as `labelkit embed` does, and the counts at this size.

    Raises:
        ConfigError: it cannot be built, or gives no features.
    """
    with torch.device("meta"):  # neither memory nor time for weights
        backbone = build_backbone(name, image_size=embedding_size(name))
    info = backbone.info
    try:
        return info, count_network(backbone, (info.in_channels, info.image_size, info.image_size))
    except NotImplementedError as error:
        raise ConfigError("--pattern", f"{name} has no image features: {error}", "Pass another pattern.") from error


def count_backbones(names: Sequence[str]) -> SimpleResult:
    """Count parameters and multiply-adds of backbones, and list how their images are prepared.

    Args:
        names: as `list_backbones` has them.

    Raises:
        ConfigError: one cannot be built, or gives no features.
    """
    found = []
    with current_progress().task("count", total=len(names)) as task:
        for name in names:
            found.append(count_backbone(name))
            task.advance()
    values: dict[str, object] = {"backbones": [_record(*one) for one in found]}
    return SimpleResult(values, shown=(Table("", _COLUMNS, [_row(*one) for one in found]),))


def _resize(info: BackboneInfo) -> int:
    """Pixels of the shorter side before the center crop."""
    return resized_side(info.image_size, 1 / info.crop_pct)


def _record(info: BackboneInfo, counts: NetworkCounts) -> dict[str, object]:
    weights, license_name = describe_published(info.name)
    return {
        "name": info.name,
        "weights": weights,
        "license": license_name,
        "parameters": counts.parameters,
        "multiply_adds": counts.multiply_adds,
        "image_size": info.image_size,
        "features": info.feature_dim,
        "pooling": info.pooling,
        "resize": _resize(info),
        "interpolation": info.interpolation,
        "mean": list(info.mean),
        "std": list(info.std),
    }


def _row(info: BackboneInfo, counts: NetworkCounts) -> tuple[Cell, ...]:
    work = f"{counts.multiply_adds / 1e6:,.1f}"
    return (
        info.name, f"{counts.parameters:,}", work, info.image_size, info.feature_dim, _resize(info),
        info.interpolation, _colors(info.mean), _colors(info.std),
    )  # fmt: skip


def _colors(values: Sequence[float]) -> str:
    """Return one number if the colors share it, else three."""
    return " ".join(f"{value:.4g}" for value in dict.fromkeys(values))


@dataclass(frozen=True, slots=True)
class NetworkCounts:
    """Number of parameters and multiply-adds of a network, and its output shape.

    Attributes:
        parameters: numbers that training can change, frozen ones included; no running statistics.
        multiply_adds: of one image: convolutions and matrix products, those of attention included. Biases,
            normalization, activations and pooling are left out, as in most publications.
        output: shape of what one image becomes.
    """

    parameters: int
    multiply_adds: int
    output: tuple[int, ...]


def count_network(network: nn.Module, shape: tuple[int, int, int]) -> NetworkCounts:
    """Count the parameters and multiply-adds of a network on one image of zeros.

    In evaluation mode; on the device ``meta`` nothing is computed.

    Args:
        network: whose parameters all lie on one device; its mode is left as it was.
        shape: channels, height and width of the image.
    """
    device = next(network.parameters()).device
    was_training = network.training
    # torch's counter looks for the graph of gradients behind parameters that are inputs of a layer
    trained = [one for one in network.parameters() if one.requires_grad]
    network.eval().requires_grad_(False)
    try:
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            output = network(torch.zeros(1, *shape, device=device))
    finally:
        network.train(was_training)
        for one in trained:
            one.requires_grad_(True)
    # torch counts the multiplication and the addition
    multiply_adds = counter.get_total_flops() // 2
    return NetworkCounts(sum(one.numel() for one in network.parameters()), multiply_adds, tuple(output.shape[1:]))
