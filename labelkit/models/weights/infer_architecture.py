"""Which network weights are of, by the names and shapes of their tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from labelkit.errors import CheckpointError, ConfigError
from labelkit.models.backbones.convnets import CONVNETS
from labelkit.models.backbones.vit import SMALL_VITS
from labelkit.models.inference import BackboneNetwork
from labelkit.models.weights.files import load_weights_file
from labelkit.models.weights.published import BEST_FIRST

CANDIDATES = (
    *(name for name in BEST_FIRST if "+" not in name),
    "vit_large_patch14_reg4_dinov2.lvd142m",
    "vit_large_patch14_dinov2.lvd142m",
    "vit_tiny_patch16_224",
    "vit_large_patch16_224",
    "deit_tiny_distilled_patch16_224",
    "deit_small_distilled_patch16_224",
    "resnet34",
    "resnet101",
    "resnet152",
    "wide_resnet50_2",
    "resnext50_32x4d",
    "mobilenetv2_100",
    "mobilenetv3_small_100",
    "mobilenetv3_large_100",
    "efficientnet_b0",
    "efficientnet_b1",
    "efficientnet_b2",
    "convnext_tiny",
    "convnext_small",
    "convnext_base",
    "densenet121",
    "vgg16",
    "swin_tiny_patch4_window7_224",
)
"""timm's networks that are compared, one for each architecture; ours besides."""

_HEADS = ("head.", "fc.", "classifier.", "head_dist.", "_fc.", "mask_token")


def guess_backbone(path: Path, candidates: Sequence[str] = (*CANDIDATES, *SMALL_VITS, *CONVNETS)) -> str:
    """Return the only network whose tensors fit the weights of a file best.

    A network fits if the file has all of its tensors; the fewer others the file has, the better.

    Args:
        path: as for ``labelkit.models.weights.files.load_weights_file``.
        candidates: networks that are compared.

    Raises:
        CheckpointError: the file cannot be read.
        ConfigError: no network that is known here fits, or several fit alike.
    """
    state = load_weights_file(path)
    found = sorted((fit, name) for name in candidates if (fit := _fit(state, name)))
    if not found:
        largest = max(state, key=lambda name: state[name].numel())
        problem = (
            f"no known network fits {path}: {len(state)} tensors, the largest {largest} {list(state[largest].shape)}"
        )
        raise ConfigError("--weights", problem, "Name the network: --backbone NAME (`labelkit list backbones`).")
    best = [name for fit, name in found if fit == found[0][0]]
    if len(best) > 1:
        problem = f"{path} fits several networks equally well: {', '.join(best)}"
        raise ConfigError("--weights", problem, "Choose one with --backbone NAME.")
    return best[0]


def _fit(state: Mapping[str, Tensor], name: str) -> tuple[int, int] | None:
    """How well weights fit: (tensors left over, 1 if names or shapes have to be translated); ``None``: not at all."""
    with torch.device("meta"):
        backbone = BackboneNetwork(name).backbone
    for translated in (0, 1):
        try:
            report = backbone.fit_weights(state, "weights", translate=bool(translated))
        except CheckpointError:
            continue
        left = [name for name in report.unexpected if not name.removeprefix(report.prefix).startswith(_HEADS)]
        return len(left), translated
    return None
