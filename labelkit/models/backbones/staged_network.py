"""Convolutional networks as sequences of modules with average pooling, or of named stages that can be split."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn


class PooledNetwork(nn.Module):
    """A sequence of modules followed by global average pooling, without a classifier.

    Shape:
        - images: ``(b, c, h, w)`` float.
        - returns: ``(b, f)`` float.

    Attributes:
        num_features: channels of the last maps, f.
    """

    num_features: int

    def forward_features(self, images: Tensor) -> Tensor:
        """Return the feature maps (b, f, h', w') of images after all modules."""
        maps = images
        for stage in self.children():
            maps = stage(maps)
        return maps

    def forward_head(self, maps: Tensor, pre_logits: bool = True) -> Tensor:
        """Average feature maps to features (b, f), regardless of ``pre_logits``."""
        return maps.mean(dim=(2, 3))

    def forward(self, images: Tensor) -> Tensor:
        """Return the pooled features (b, f) of images (b, c, h, w)."""
        return self.forward_head(self.forward_features(images))


class InputRescaling(nn.Module):
    """Layer that converts ImageNet-normalized color or grayscale images to the scale that published weights expect.

    Args:
        channels: for each output channel, the index of its source color, a factor and an offset.
    """

    def __init__(self, channels: Sequence[tuple[int, float, float]]) -> None:
        super().__init__()
        self._channels = channels

    def forward(self, images: Tensor) -> Tensor:
        """Convert images (b, 1 or 3, h, w) to (b, 3, h, w) on the scale of the published weights."""
        colors = images.expand(-1, 3, -1, -1).unbind(1)
        return torch.cat([colors[i][:, None] * factor + offset for i, factor, offset in self._channels], 1)


class StagedNetwork(PooledNetwork):
    """A sequence of named stages followed by global average pooling, which can be split before the last stage.

    Args:
        stages: modules by name, in order; the last one follows the composition layer.
        num_features: channels of the last stage, f.

    Attributes:
        stages: the stages.
    """

    def __init__(self, stages: Mapping[str, nn.Module], num_features: int) -> None:
        super().__init__()
        self.stages = nn.Sequential(OrderedDict(stages))
        self.num_features = num_features

    def run_early_stages(self, images: Tensor) -> Tensor:
        """Run all stages but the last, and return the last stage's input maps (b, c', h', w')."""
        return self.stages[:-1](images)

    def run_last_stage(self, maps: Tensor) -> Tensor:
        """Compute the features from the output of ``run_early_stages``; both together equal ``forward``."""
        return self.forward_head(self.stages[-1](maps))
