"""Changes of the colors of image batches, one number per sample; meaning and numbers are torchvision's."""

from __future__ import annotations

import itertools
from typing import Final

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from labelkit.data.sending import send_all

GRAY_WEIGHTS: Final = (0.2989, 0.587, 0.114)

_JITTER_ORDERS: Final = np.array(list(itertools.permutations(range(4))))


def rgb_to_gray(images: Tensor) -> Tensor:
    """Return (b, 1, h, w) luma with torchvision's weights; one channel stays as it is."""
    if images.shape[1] == 1:
        return images
    red, green, blue = images.unbind(1)
    gray, part = GRAY_WEIGHTS[0] * red, GRAY_WEIGHTS[1] * green
    gray.add_(part)
    return gray.add_(torch.mul(blue, GRAY_WEIGHTS[2], out=part)).unsqueeze(1)


def adjust_brightness(images: Tensor, factors: Tensor) -> Tensor:
    """Multiply (b, c, h, w) in ``[0, 1]`` by (b,) factors and clip."""
    return (images * factors[:, None, None, None]).clamp_(0, 1)


def adjust_contrast(images: Tensor, factors: Tensor) -> Tensor:
    """Move values from their mean gray, factor 0 gives that gray."""
    mean = rgb_to_gray(images).mean(dim=(1, 2, 3), keepdim=True)
    return torch.lerp(mean.expand_as(images), images, factors[:, None, None, None]).clamp_(0, 1)


def adjust_saturation(images: Tensor, factors: Tensor) -> Tensor:
    """Move colors from gray, factor 0 gives gray; one channel stays as it is."""
    if images.shape[1] == 1:
        return images
    gray = rgb_to_gray(images).expand_as(images)
    return torch.lerp(gray, images, factors[:, None, None, None]).clamp_(0, 1)


def adjust_hue(images: Tensor, shifts: Tensor) -> Tensor:
    """Turn the hue by (b,) shares of the circle in ``[-0.5, 0.5]``; one channel stays as it is."""
    if images.shape[1] == 1:
        return images
    red, green, blue = images.unbind(1)
    value = torch.maximum(torch.maximum(red, green), blue)
    chroma = value - torch.minimum(torch.minimum(red, green), blue)
    safe = torch.where(chroma > 0, chroma, 1.0)
    sector = torch.where(
        value == red,
        (green - blue) / safe,
        torch.where(value == green, (blue - red) / safe + 2, (red - green) / safe + 4),
    )
    sector = sector + 6 * shifts[:, None, None]
    channels = []
    for n in (5, 3, 1):
        k = torch.remainder(sector + n, 6)
        channels.append(value - chroma * torch.minimum(k, 4 - k).clamp_(0, 1))
    return torch.stack(channels, dim=1)


def gaussian_blur(images: Tensor, sigmas: Tensor, kernel: int) -> Tensor:
    """Blur (b, c, h, w) with one Gaussian per sample, edges reflected.

    Args:
        images: float values.
        sigmas: (b,) standard deviations in pixels, positive.
        kernel: odd width in pixels, at most twice the shorter side.
    """
    half = kernel // 2
    if half == 0:
        return images
    offsets = torch.arange(-half, half + 1, device=images.device, dtype=images.dtype)
    weights = torch.softmax(-0.5 * (offsets / sigmas[:, None]) ** 2, dim=1)  # (b, kernel)
    b, c, h, w = images.shape
    taps = weights.repeat_interleave(c, dim=0)[:, None, None, :]  # (b * c, 1, 1, kernel)
    padded = F.pad(images, (half, half, half, half), mode="reflect").reshape(1, b * c, h + 2 * half, w + 2 * half)
    blurred = F.conv2d(F.conv2d(padded, taps, groups=b * c), taps.transpose(2, 3), groups=b * c)
    return blurred.reshape(b, c, h, w)


def solarize(images: Tensor, threshold: float) -> Tensor:
    """Invert values at or above the threshold."""
    return torch.where(images >= threshold, 1 - images, images)


def jitter_colors(
    images: Tensor, strengths: tuple[float, float, float, float], u: NDArray[np.float32], rows: NDArray[np.int64]
) -> Tensor:
    """Color jitter of some rows; each sample has its own factors and its own order."""
    orders = _JITTER_ORDERS[np.minimum((u[rows, 4] * 24).astype(np.int64), 23)]
    operations = (adjust_brightness, adjust_contrast, adjust_saturation, adjust_hue)
    planned, arrays = [], []
    for position in range(4):
        for number, (operation, strength) in enumerate(zip(operations, strengths, strict=True)):
            chosen = rows[orders[:, position] == number]
            if strength == 0 or not len(chosen):
                continue
            center, low = (0.0, -strength) if operation is adjust_hue else (1.0, max(0.0, 1 - strength))
            values = low + (center + strength - low) * u[chosen, number]
            planned.append(operation)
            arrays += [chosen, values.astype(np.float32)]
    sent = send_all(arrays, images.device)
    for operation, at, amounts in zip(planned, sent[::2], sent[1::2], strict=True):
        images[at] = operation(images[at], amounts)
    return images
