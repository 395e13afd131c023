"""Segmentation heads, and a network that combines a backbone with one of them.

Source: our CoTAP specification, section 6; the layer order and width of the convolutional head are ours.
"""

import copy
from typing import Literal

import torch
from torch import Tensor, nn

from labelkit.errors import ConfigError
from labelkit.models.backbones.registry import Backbone
from labelkit.models.backbones.vit import find_patch_embedding
from labelkit.models.inference import InferenceNetwork
from labelkit.models.seeding import seeded_init
from labelkit.protocols.segmentation.pyramid_heads import FPNHead, LevelRescaler, UperNetHead, extract_level_maps

_BLOCKS, _HIDDEN = 3, 256


def build_segmentation_head(kind: str, width: int, num_classes: int, seed: int) -> nn.Module:
    """Build a segmentation head with weights that depend only on the seed.

    ``linear`` is one linear classifier shared by all patches. ``fcn`` precedes it with three blocks of 1x1, 3x3 and 1x1
    convolutions with ReLU, each of which doubles the resolution.

    Shape:
        - features: ``(b, f, rows, cols)`` float.
        - returns: logits ``(b, c, rows, cols)``; for ``fcn`` ``(b, c, 8 rows, 8 cols)``.
    """
    with seeded_init(seed):
        blocks: list[nn.Module] = []
        for number in range(_BLOCKS if kind == "fcn" else 0):
            for given, kernel in ((_HIDDEN if number else width, 1), (_HIDDEN, 3), (_HIDDEN, 1)):
                blocks += [nn.Conv2d(given, _HIDDEN, kernel, padding=kernel // 2), nn.ReLU()]
            blocks.append(nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False))
        return nn.Sequential(*blocks, nn.Conv2d(_HIDDEN if blocks else width, num_classes, 1))


HeadKind = Literal["linear", "fcn", "fpn", "upernet"]
_OF_LEVELS = {"fpn": FPNHead, "upernet": UperNetHead}


class Segmenter(nn.Module):
    """Segmentation network, a backbone with a head, whose patch features are the class logits.

    Args:
        inner: a network with a backbone, which is copied; its layers on top of the backbone are not used.
        kind: kind of the head; linear and fcn use the last feature map, fpn and upernet use maps from four depths.
        num_classes: number of classes c.
        size: side of the training images in pixels.
        seed: seed for initializing the head.

    Attributes:
        input_spec: input specification of the original network.

    Raises:
        ConfigError: the network has no backbone, or does not accept images of this size.
        UnsupportedBackboneError: the backbone does not provide the required feature maps.
    """

    def __init__(self, inner: InferenceNetwork, kind: HeadKind, num_classes: int, *, size: int, seed: int) -> None:
        super().__init__()
        backbone = getattr(inner, "backbone", None)
        if not isinstance(backbone, Backbone):
            raise ConfigError("--tune", f"{inner.identity['name']} has no backbone to train", "Remove --tune.")
        self.backbone = copy.deepcopy(backbone).requires_grad_(True)
        self.input_spec, self._kind = inner.input_spec, kind
        self.sizes: nn.Module | None = None
        device = next(self.backbone.parameters()).device
        with torch.no_grad():
            maps = self._maps(torch.zeros(1, self.input_spec.channels, size, size, device=device))
        widths = [one.shape[1] for one in maps]
        if kind not in _OF_LEVELS:
            self.head = build_segmentation_head(kind, widths[0], num_classes, seed)
        else:
            with seeded_init(seed):
                if find_patch_embedding(self.backbone.net) is not None:
                    self.sizes = LevelRescaler(widths[0])
                self.head = _OF_LEVELS[kind](widths, num_classes)
        self.to(device)

    def patch_features(self, images: Tensor) -> Tensor:
        """Compute the logits of images in the layout of patch features, (b, rows, cols, c)."""
        return self.logits(images).permute(0, 2, 3, 1)

    def logits(self, images: Tensor) -> Tensor:
        """Compute the logits (b, c, rows, cols) of images (b, channels, h, w)."""
        maps = self._maps(images)
        return self.head(maps if self._kind in _OF_LEVELS else maps[0])

    def _maps(self, images: Tensor) -> list[Tensor]:
        if self._kind not in _OF_LEVELS:
            return [self.backbone.patch_features(images).permute(0, 3, 1, 2)]
        maps = extract_level_maps(self.backbone.net, images, self.backbone.info.name)
        return maps if self.sizes is None else list(self.sizes(maps))
