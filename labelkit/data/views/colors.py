"""Color augmentation of image batches with a separate strength per sample; RandAugment and Cutout.

Color changes are defined as in torchvision. Sources of RandAugment: E. Cubuk et al., "RandAugment" (2020), in the
variant of FixMatch (``google-research/fixmatch``): operations with replacement, each with its own strength, then a gray
square. Departure: an image's geometric operations are applied before the others, in one interpolation.
"""

import itertools
from typing import Final, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from labelkit.data.batch import array_to_device, move_arrays_to_device

GRAY_WEIGHTS: Final = (0.2989, 0.587, 0.114)

_JITTER_ORDERS: Final = np.array(list(itertools.permutations(range(4))))


def rgb_to_gray(images: Tensor) -> Tensor:
    """Convert images to grayscale (b, 1, h, w) with torchvision's weights; grayscale images stay unchanged."""
    if images.shape[1] == 1:
        return images
    red, green, blue = images.unbind(1)
    gray, part = GRAY_WEIGHTS[0] * red, GRAY_WEIGHTS[1] * green
    gray.add_(part)
    return gray.add_(torch.mul(blue, GRAY_WEIGHTS[2], out=part)).unsqueeze(1)


def adjust_brightness(images: Tensor, factors: Tensor) -> Tensor:
    """Multiply images (b, c, h, w) in ``[0, 1]`` by factors (b,) and clip."""
    return (images * factors[:, None, None, None]).clamp_(0, 1)


def adjust_contrast(images: Tensor, factors: Tensor) -> Tensor:
    """Blend images with their mean gray value; factor 0 yields that gray."""
    mean = rgb_to_gray(images).mean(dim=(1, 2, 3), keepdim=True)
    return torch.lerp(mean.expand_as(images), images, factors[:, None, None, None]).clamp_(0, 1)


def adjust_saturation(images: Tensor, factors: Tensor) -> Tensor:
    """Blend images with their grayscale version; factor 0 yields gray, and grayscale images stay unchanged."""
    if images.shape[1] == 1:
        return images
    gray = rgb_to_gray(images).expand_as(images)
    return torch.lerp(gray, images, factors[:, None, None, None]).clamp_(0, 1)


def adjust_hue(images: Tensor, shifts: Tensor) -> Tensor:
    """Shift the hue by fractions (b,) in ``[-0.5, 0.5]`` of the color circle; grayscale images stay unchanged."""
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
    """Blur images (b, c, h, w) with a different Gaussian kernel for each image and reflection at the edges.

    ``sigmas`` (b,) are standard deviations in pixels, > 0; ``kernel`` is an odd width, at most twice the shorter side.
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


def solarize(images: Tensor, thresholds: float | Tensor) -> Tensor:
    """Invert pixel values at or above a threshold."""
    return torch.where(images >= thresholds, 1 - images, images)


def jitter_colors(
    images: Tensor, strengths: tuple[float, float, float, float], uniform: NDArray[np.float32], rows: NDArray[np.int64]
) -> Tensor:
    """Apply color jitter to selected images, with independent factors and order of operations for each image."""
    orders = _JITTER_ORDERS[np.minimum((uniform[rows, 4] * 24).astype(np.int64), 23)]
    operations = (adjust_brightness, adjust_contrast, adjust_saturation, adjust_hue)
    planned, arrays = [], []
    for position in range(4):
        for number, (operation, strength) in enumerate(zip(operations, strengths, strict=True)):
            chosen = rows[orders[:, position] == number]
            if strength == 0 or not len(chosen):
                continue
            center, low = (0.0, -strength) if operation is adjust_hue else (1.0, max(0.0, 1 - strength))
            values = low + (center + strength - low) * uniform[chosen, number]
            planned.append(operation)
            arrays += [chosen, values.astype(np.float32)]
    sent = move_arrays_to_device(arrays, images.device)
    for operation, at, amounts in zip(planned, sent[::2], sent[1::2], strict=True):
        images[at] = operation(images[at], amounts)
    return images


Pool = Literal["photo", "plain"]

#: Limits in both directions: rotation in degrees, shear as a tangent, shift as a share of the side.
MAX_ROTATION, MAX_SHEAR, MAX_SHIFT = 30.0, 0.3, 0.3
_GEOMETRIC: Final = ("rotate", "shear-x", "shear-y", "shift-x", "shift-y")
#: Operations by pool; plain omits those that make no sense for drawings.
OPERATIONS: Final[dict[str, tuple[str, ...]]] = {
    "photo": (
        "identity", "autocontrast", "brightness", "color", "contrast", "equalize", "posterize", "sharpness", "solarize",
        *_GEOMETRIC,
    ),
    "plain": ("identity", "autocontrast", "brightness", "contrast", "sharpness", *_GEOMETRIC),
}  # fmt: skip


def sample_operations(
    uniform: NDArray[np.float32], pool: Pool
) -> tuple[NDArray[np.int64], NDArray[np.float64], tuple[str, ...]]:
    """Sample RandAugment operations and their strengths, using uniform random numbers (b, 2 n) in [0, 1).

    Returns:
        (b, n) numbers of operations, (b, n) strengths in [0, 1), and the names of the operations by number.
    """
    names = OPERATIONS[pool]
    n = uniform.shape[1] // 2
    chosen = np.minimum((uniform[:, :n] * len(names)).astype(np.int64), len(names) - 1)
    return chosen, uniform[:, n:].astype(np.float64), names


def compose_geometric_maps(
    chosen: NDArray[np.int64], strengths: NDArray[np.float64], names: tuple[str, ...]
) -> NDArray[np.float64]:
    """Compose the geometric operations of each image into one affine map (b, 2, 3) in normalized coordinates."""
    total = np.tile(np.eye(3), (len(chosen), 1, 1))
    for place in range(chosen.shape[1]):
        signed = 2 * strengths[:, place] - 1
        for number, name in enumerate(names):
            rows = np.flatnonzero(chosen[:, place] == number)
            if name not in _GEOMETRIC or not len(rows):
                continue
            step = np.tile(np.eye(3), (len(rows), 1, 1))
            if name == "rotate":
                angle = np.deg2rad(MAX_ROTATION) * signed[rows]
                step[:, 0, 0] = step[:, 1, 1] = np.cos(angle)
                step[:, 0, 1], step[:, 1, 0] = -np.sin(angle), np.sin(angle)
            elif name.startswith("shear"):
                row, column = (0, 1) if name == "shear-x" else (1, 0)
                step[:, row, column] = MAX_SHEAR * signed[rows]
            else:
                # normalized coordinates span two units
                step[:, 0 if name == "shift-x" else 1, 2] = 2 * MAX_SHIFT * signed[rows]
            total[rows] = total[rows] @ step
    return total[:, :2]


def apply_color_operations(
    images: Tensor, chosen: NDArray[np.int64], strengths: NDArray[np.float64], names: tuple[str, ...]
) -> Tensor:
    """Apply the nongeometric operations drawn by ``sample_operations``, in order.

    Images are (b, c, h, w) float32 in [0, 1], and are changed in place.
    """
    planned, arrays = [], []
    for place in range(chosen.shape[1]):
        for number, name in enumerate(names):
            rows = np.flatnonzero(chosen[:, place] == number)
            if name == "identity" or name in _GEOMETRIC or not len(rows):
                continue
            planned.append(name)
            arrays += [rows, strengths[rows, place].astype(np.float32)]
    sent = move_arrays_to_device(arrays, images.device)
    for name, at, amounts in zip(planned, sent[::2], sent[1::2], strict=True):
        images[at] = _apply_tone_operation(name, images[at], amounts[:, None, None, None]).clamp_(0, 1)
    return images


def cut_out(images: Tensor, uniform: NDArray[np.float32], max_side: float, fill: float) -> Tensor:
    """Paint a square of value ``fill`` at a random position over each image (Cutout), clipped at the border.

    Images are (b, c, h, w) float32, changed in place; ``uniform`` (b, 3) in [0, 1) determines side and center. Sides up
    to ``max_side``, a fraction of the image's side, are equally likely.
    """
    draws = array_to_device(uniform, images.device)
    height, width = images.shape[-2:]
    half = draws[:, 0, None] * max_side * width / 2

    def covered(length: int, center: Tensor) -> Tensor:
        middle = torch.arange(length, device=images.device) + 0.5
        return (middle - center[:, None] * length).abs() < half

    square = covered(height, draws[:, 1])[:, :, None] & covered(width, draws[:, 2])[:, None, :]
    return images.masked_fill_(square[:, None], fill)


def _apply_tone_operation(name: str, images: Tensor, amounts: Tensor) -> Tensor:
    """Apply an operation to images (b, c, h, w) with strengths (b, 1, 1, 1) in [0, 1)."""
    from torchvision.transforms.v2 import functional  # takes a second to import

    if name == "autocontrast":
        changed: Tensor = functional.autocontrast(images)
        return changed
    if name == "equalize":  # as in Pillow: 256 levels of each channel are spread evenly
        spread: Tensor = functional.equalize((images * 255).round().to(torch.uint8))
        return spread / 255
    if name == "posterize":  # to the 4 to 7 highest of 8 bits: 16, 8, 4 or 2 levels become one
        size = 2 ** (4 - torch.floor(4 * amounts))
        return torch.floor((images * 255).round() / size) * size / 255
    if name == "solarize":
        return solarize(images, amounts)
    # the other operations blend with another image, with a weight of the image from 0.05 to 0.95, FixMatch's range
    other = torch.zeros_like(images)
    if name in ("color", "contrast"):
        other = rgb_to_gray(images).expand_as(images)
    if name == "contrast":
        other = other.mean(dim=(1, 2, 3), keepdim=True).expand_as(images)
    if name == "sharpness":
        other = functional.adjust_sharpness(images, 0.0)
    return torch.lerp(other, images, 0.05 + 0.9 * amounts)
