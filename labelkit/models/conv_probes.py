"""A linear classifier on the maps after each convolution of a frozen network, or on its embedding.

Source: ``yukimasano/self-label:eval_linear_probes.py``, after R. Zhang et al., "Split-Brain Autoencoders" (CVPR 2017):
maps are pooled to about 9,000 numbers, normalized over the batch without learned scale, and classified.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor, nn

from labelkit.models.vit import UnsupportedBackboneError


def probed_layers(network: nn.Module) -> dict[str, nn.ReLU]:
    """Return the ReLU after each convolution, by its name in the network.

    Raises:
        UnsupportedBackboneError: there is no convolution, or one without a ReLU of its own, as in residual networks.
    """
    found: dict[str, nn.ReLU] = {}
    waiting = ""
    for name, module in network.named_modules():
        if isinstance(module, nn.Conv2d):
            if waiting:
                raise _not_plain(f"convolution {waiting} has no ReLU before the next one")
            waiting = name
        elif isinstance(module, nn.ReLU) and waiting:
            found[name], waiting = module, ""
    if waiting or not found:
        raise _not_plain(f"convolution {waiting} has no ReLU behind it" if waiting else "it has no convolution")
    return found


def _not_plain(problem: str) -> UnsupportedBackboneError:
    return UnsupportedBackboneError(
        "evaluate probes",
        f"the network is not a plain sequence of convolutions: {problem}",
        "Train alexnet_sela, alexnet_small_sela or smallcnn; or pass --at features.",
    )


@contextmanager
def collected(layers: Sequence[nn.Module]) -> Iterator[list[Tensor]]:
    """Give a list that each pass of the network fills with the maps of these layers, in the order of the pass."""
    maps: list[Tensor] = []
    hooks = [layer.register_forward_hook(lambda module, args, output: maps.append(output)) for layer in layers]
    try:
        yield maps
    finally:
        for hook in hooks:
            hook.remove()


def pool_of(channels: int, side: int, max_values: int) -> tuple[int, int, int]:
    """Return kernel (= stride), padding and pooled side: the smallest kernel, then the largest padding, that fit.

    For the AlexNet of 224 pixels and 9,600 numbers these are the published ones: 6 and 3, 4 and 0, 3 and 1, 2 and 0.

    Args:
        channels: of the maps.
        side: of the maps.
        max_values: most numbers that may be left; one of each channel always is.
    """
    for kernel in range(1, side + 1):
        for padding in range(kernel // 2, -1, -1):
            pooled = (side + 2 * padding - kernel) // kernel + 1
            if channels * pooled**2 <= max_values:
                return kernel, padding, pooled
    return side, 0, 1


class FeatureProbe(nn.Sequential):
    """A linear layer on embeddings as they are.

    Args:
        dim: d.
        num_classes: c.

    Shape:
        - features: ``(b, d, 1, 1)``, as maps of a single place.
        - returns: ``(b, c)``.
    """

    def __init__(self, dim: int, num_classes: int) -> None:
        super().__init__(nn.Flatten(), nn.Linear(dim, num_classes))
        self.num_values = dim


class ConvProbe(nn.Sequential):
    """Pool, normalization without learned scale, and a linear layer on all that is left.

    Args:
        channels: of the maps.
        side: of the maps.
        num_classes: c.
        max_values: most numbers that the linear layer may see.

    Shape:
        - maps: ``(b, channels, side, side)``.
        - returns: ``(b, c)``.
    """

    def __init__(self, channels: int, side: int, num_classes: int, *, max_values: int) -> None:
        kernel, padding, pooled = pool_of(channels, side, max_values)
        linear = nn.Conv2d(channels, num_classes, pooled)  # over the whole map
        super().__init__(
            nn.MaxPool2d(kernel, kernel, padding), nn.BatchNorm2d(channels, affine=False), linear, nn.Flatten()
        )
        self.num_values = channels * pooled**2
        nn.init.xavier_uniform_(linear.weight)
        assert linear.bias is not None
        nn.init.zeros_(linear.bias)
