"""Operations that a GPU adds up in another order each time, done by products of matrices, whose order is fixed.

``--deterministic`` would refuse what trains by them: position embeddings of a ViT that are resized for views of several
sizes, and running sums of a loss.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from labelkit.algorithms.precision import promote, without_autocast

_BLOCK: Final = 256


class FixedOrder(TorchFunctionMode):
    """While this lasts, bicubic resizing with a gradient and running sums of numbers that are not whole are products.

    Results differ from torch's own by rounding, under autocast too: it is off inside. What runs in a backward pass
    alone is not reached.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        named = kwargs or {}
        if func is F.interpolate and named.get("mode") == "bicubic" and named.get("antialias"):
            images = args[0] if args else named["input"]
            size = named.get("size", args[1] if len(args) > 1 else None)
            has_gradient = torch.is_grad_enabled() and images.requires_grad
            if size is not None and not named.get("align_corners") and has_gradient:
                height, width = (size, size) if isinstance(size, int) else size
                return resized(images, height, width)
        if func in (torch.cumsum, Tensor.cumsum) and args and args[0].is_floating_point():
            values = args[0] if named.get("dtype") is None else args[0].to(named["dtype"])
            return running_sums(values, named["dim"] if "dim" in named else args[1])
        return func(*args, **named)


def resized(images: Tensor, height: int, width: int) -> Tensor:
    """Resize images as ``interpolate(mode="bicubic", antialias=True)`` does.

    Args:
        images: (b, c, h, w) float32 or float64.
        height: rows of the result.
        width: its columns.

    Returns:
        (b, c, height, width) of the same dtype.
    """
    rows, columns = (
        _weights(old, new, images.device, images.dtype)
        for old, new in zip(images.shape[-2:], (height, width), strict=True)
    )
    with without_autocast(images):
        return rows @ images @ columns.T


@lru_cache(maxsize=64)
def _weights(old: int, new: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """What each of ``old`` places gives to each of ``new``, (new, old); a copy to a GPU in each step would wait."""
    identity = torch.eye(old)[None, None]
    return F.interpolate(identity, size=(new, old), mode="bicubic", antialias=True)[0, 0].to(device, dtype)


def running_sums(values: Tensor, dim: int) -> Tensor:
    """Return the sums of all values up to each place of a dimension, as ``torch.cumsum`` does.

    Args:
        values: float, of any shape; half precision is added up in float32 under autocast, as torch does.
        dim: the dimension.

    Returns:
        The same shape.
    """
    if torch.is_autocast_enabled(values.device.type):
        with without_autocast(values):
            return running_sums(promote(values), dim)
    moved = values.movedim(dim, -1)
    length = moved.shape[-1]
    if length <= _BLOCK:
        return (moved @ _triangle(length, values)).movedim(-1, dim)
    padded = F.pad(moved, (0, -length % _BLOCK))
    inside = padded.reshape(*padded.shape[:-1], -1, _BLOCK) @ _triangle(_BLOCK, values)
    totals = running_sums(inside[..., -1], -1)
    before = F.pad(totals[..., :-1], (1, 0))
    sums: Tensor = (inside + before[..., None]).flatten(-2)[..., :length].movedim(-1, dim)
    return sums


def _triangle(length: int, like: Tensor) -> Tensor:
    return torch.ones(length, length, dtype=like.dtype, device=like.device).triu()
