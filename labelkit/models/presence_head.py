"""What names the classes in an image on top of a frozen network: one layer, or wide layers trained anew (AlexNet).

Source: ``facebookresearch/deepcluster:eval_voc_classif.py``, whose protocol SeLa follows.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from labelkit.models.convnets import AlexNet
from labelkit.models.inference import BackboneNetwork, InferenceNetwork
from labelkit.models.seeding import seeded_init
from labelkit.models.vit import UnsupportedBackboneError

Part: TypeAlias = Literal["linear", "fully-connected"]
_BIAS = 0.1


class PresenceHead(nn.Module):
    """A frozen part, and layers that are trained on what it makes of images.

    Args:
        network: stays as it is; ``fully-connected`` copies its wide layers and draws them anew, with a standard
            deviation of 0.01 and a bias of 0.1.
        part: what is trained: one layer on the embedding, or the wide layers of an AlexNet and one on top.
        num_classes: c.
        seed: of what is drawn.

    Shape:
        - images: ``(b, channels, h, w)``.
        - returns: ``(b, c)`` logits, one for each class by itself.

    Raises:
        UnsupportedBackboneError: ``fully-connected``, and the network is no AlexNet.
    """

    def __init__(self, network: InferenceNetwork, part: Part, num_classes: int, *, seed: int) -> None:
        super().__init__()
        wide: nn.Module = nn.Identity()
        frozen: Callable[[Tensor], Tensor] = network.embed
        if part == "fully-connected":
            net = network.backbone.net if isinstance(network, BackboneNetwork) else None
            if not isinstance(net, AlexNet) or not isinstance(network, BackboneNetwork):
                raise UnsupportedBackboneError(
                    "evaluate presence",
                    "the network has no wide layers behind its convolutions",
                    "Train alexnet_sela or alexnet_small_sela; or pass --train linear.",
                )
            wide = nn.Sequential(nn.Flatten(), copy.deepcopy(net.hidden))
            frozen = network.backbone.forward_features
        with seeded_init(seed):
            for layer in wide.modules():
                if isinstance(layer, nn.Linear):
                    nn.init.normal_(layer.weight, std=0.01)
                    nn.init.constant_(layer.bias, _BIAS)
            top = nn.Linear(network.embed_dim, num_classes)
            nn.init.constant_(top.bias, _BIAS)
        self.layers = nn.Sequential(wide, top)
        self._frozen = frozen

    def forward(self, images: Tensor) -> Tensor:
        """Images to logits; no gradient reaches the frozen part."""
        with torch.no_grad():
            inputs = self._frozen(images)
        logits: Tensor = self.layers(inputs.float())
        return logits
