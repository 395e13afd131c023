"""Feature maps of networks: a grid of vectors instead of one vector for the whole image.

In transformers, these are the patch tokens after the last norm; in convolutional networks, the last feature maps.
"""

from torch import Tensor, nn

from labelkit.errors import ConfigError
from labelkit.models.backbones.vit import UnsupportedBackboneError, allow_any_image_size, find_patch_embedding

# Parts of torch's messages about images that are too small for convolutions and pools.
_TOO_SMALL = ("output size is too small", "greater than actual input size")


def compute_feature_map(net: nn.Module, images: Tensor, name: str) -> Tensor:
    """Compute the last feature map (b, rows, cols, f) of a network that has timm's ``forward_features``.

    A plain ViT accepts any size in whole patches; its position embeddings are resampled, as with timm's
    ``dynamic_img_size``. Cell (i, j) is at row i from the top, column j from the left.

    Raises:
        UnsupportedBackboneError: its features have no rows and columns.
        ConfigError: the network does not accept images of this size.
    """
    _checked_grid(net, images, name)
    if not callable(getattr(net, "forward_features", None)):
        raise make_no_feature_map_error(name, "outputs one vector per image")
    with allow_any_image_size(net):
        try:
            features = net.forward_features(images)  # type: ignore[operator] # a method, as was just checked
        except AssertionError as error:  # raised by timm for a wrong size
            raise make_size_error(name, images, f"are not supported ({error})") from error
        except RuntimeError as error:
            if not any(sign in str(error).lower() for sign in _TOO_SMALL):
                raise
            raise make_size_error(name, images, "are too few") from error
    return reshape_to_feature_map(net, features, images, name)


def reshape_to_feature_map(net: nn.Module, features: object, images: Tensor, name: str) -> Tensor:
    """Reshape the output of ``forward_features`` for images (b, c, h, w) to a feature map (b, rows, cols, f).

    See `compute_feature_map` for errors, whose messages name the network.
    """
    grid = _checked_grid(net, images, name)
    if isinstance(features, Tensor) and features.ndim == 4:
        # channels are the axis of the network's width; if both axes have it, timm's format decides
        first, last = (features.shape[axis] == getattr(net, "num_features", None) for axis in (1, 3))
        if first == last:
            last = str(getattr(net, "output_fmt", "NCHW")) in ("NHWC", "Format.NHWC")
        return features if last else features.permute(0, 2, 3, 1)
    if not isinstance(features, Tensor) or features.ndim != 3 or grid is None:
        shape = tuple(features.shape[1:]) if isinstance(features, Tensor) else type(features).__name__
        raise make_no_feature_map_error(name, f"its features have no rows and columns ({shape} for each image)")
    prefix = features.shape[1] - grid[0] * grid[1]
    if prefix != getattr(net, "num_prefix_tokens", max(prefix, 0)):
        raise make_no_feature_map_error(
            name, f"its {features.shape[1]} tokens do not match its {grid[0]} x {grid[1]} patches"
        )
    return features[:, prefix:].reshape(len(features), *grid, features.shape[2])


def make_no_feature_map_error(name: str, problem: str) -> UnsupportedBackboneError:
    """Return the error to raise for a network without a feature map."""
    remedy = "Choose a vision transformer or a convolutional network, e.g. vit_small_patch16_224.dino or resnet18."
    return UnsupportedBackboneError(name, f"has no feature map: {problem}", remedy)


def _checked_grid(net: nn.Module, images: Tensor, name: str) -> tuple[int, int] | None:
    """Return the numbers of patch rows and columns; ``None`` for networks that do not cut images into patches."""
    patches = find_patch_embedding(net)
    if patches is None:
        return None
    size, (height, width) = images.shape[-2:], patches.patch_size
    if size[0] < height or size[1] < width:
        raise make_size_error(name, images, f"are smaller than a patch of {height} x {width}")
    if size[0] % height or size[1] % width:
        raise make_size_error(name, images, f"cannot be divided into patches of {height} x {width}")
    rows, columns = patches.dynamic_feat_size(tuple(size))
    return int(rows), int(columns)


def make_size_error(name: str, images: Tensor, problem: str) -> ConfigError:
    """Return the error to raise for images (b, c, h, w) whose size a network cannot process."""
    height, width = images.shape[-2:]
    return ConfigError("--image-size", f"{height} x {width} pixels {problem} for {name}", "Choose another size.")
