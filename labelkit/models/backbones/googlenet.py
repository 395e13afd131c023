"""GoogLeNet without classifiers, on torchvision's layers and parameter names, so that its published weights fit.

Source: C. Szegedy et al., "Going Deeper with Convolutions" (CVPR 2015), as torchvision builds it (with normalization).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torchvision.models import GoogLeNet

_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class _PublishedInput(nn.Module):
    """Images normalized as ImageNet's, or gray ones, to what the published weights expect: values in [-1, 1]."""

    def forward(self, images: Tensor) -> Tensor:
        """Turn (b, 1 or 3, h, w) into (b, 3, h, w)."""
        channels = images.expand(-1, 3, -1, -1).unbind(1)
        scaled = [
            channel[:, None] * (std / 0.5) + (mean - 0.5) / 0.5
            for channel, mean, std in zip(channels, _MEAN, _STD, strict=True)
        ]
        return torch.cat(scaled, 1)


class GoogLeNetBody(GoogLeNet):  # type: ignore[misc] # torchvision is not typed
    """All of the network up to the average pool.

    Stages by name: conv1, maxpool1, conv2, conv3, maxpool2, inception3a, inception3b, maxpool3, inception4a to
    inception4e, maxpool4, inception5a, inception5b.

    Args:
        in_channels: 3, or 1, which is repeated.

    Shape:
        - images: ``(b, c, h, w)`` float, normalized as ImageNet's; what the published weights expect is made of it.
        - returns: ``(b, 1024, h / 32, w / 32)`` maps of `forward_features`, sides rounded up after each step.
    """

    def __init__(self, in_channels: int = 3) -> None:
        super().__init__(aux_logits=False, transform_input=True, init_weights=True)
        self.published_input = _PublishedInput()
        self.num_features = 1024
        self.avgpool, self.dropout, self.fc = nn.Identity(), nn.Identity(), nn.Identity()

    def forward_features(self, images: Tensor) -> Tensor:
        """Feature maps (b, 1024, h', w')."""
        x = self.published_input(images)
        for name, stage in self.named_children():
            if name not in ("avgpool", "dropout", "fc", "aux1", "aux2", "published_input"):
                x = stage(x)
        maps: Tensor = x
        return maps

    def forward_head(self, maps: Tensor, pre_logits: bool = True) -> Tensor:
        """Feature maps to features (b, 1024)."""
        return maps.mean(dim=(2, 3))

    def forward(self, images: Tensor) -> Tensor:
        """Images to features."""
        return self.forward_head(self.forward_features(images))


def checkpoint_filter_fn(state: Mapping[str, Tensor], net: nn.Module) -> dict[str, torch.Tensor]:
    """Leave out classifiers, as timm's networks do when weights are loaded."""
    return {name: value for name, value in state.items() if not name.startswith(("fc.", "aux1.", "aux2."))}
