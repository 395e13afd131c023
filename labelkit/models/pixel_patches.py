"""The pixels of a patch as its features: the baseline under every learned feature map."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from labelkit.errors import ConfigError
from labelkit.models.inference import PixelNetwork


class PixelPatchNetwork(PixelNetwork):
    """The image itself, cut into patches.

    Args:
        size: height and width in pixels.
        channels: 1 or 3.
        patch_size: side of a patch.
    """

    def __init__(self, size: int, channels: int, patch_size: int) -> None:
        super().__init__(size, channels)
        self.patch_size = patch_size

    def patch_features(self, images: Tensor) -> Tensor:
        """Return the pixels of every patch, (b, rows, cols, c patch_size**2).

        Raises:
            ConfigError: the image is no whole number of patches.
        """
        height, width = images.shape[-2:]
        side = self.patch_size
        if height % side or width % side or min(height, width) < side:
            raise ConfigError(
                "--image-size", f"{height} x {width} pixels are no whole number of patches of {side}", "Choose another."
            )
        columns = functional.unfold(images, side, stride=side)  # (b, c side side, rows cols)
        return columns.transpose(1, 2).reshape(len(images), height // side, width // side, -1)
