"""Resizing and center cropping, the preprocessing used without augmentation; does not need torch."""

from typing import Final, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image

Interpolation = Literal["bicubic", "bilinear"]

RESAMPLING: Final = {"bicubic": Image.Resampling.BICUBIC, "bilinear": Image.Resampling.BILINEAR}


def compute_resized_side(size: int, resize_ratio: float) -> int:
    """Return the size in pixels to which the shorter side of an image is resized before the center crop."""
    # The small term keeps rounding errors from lowering results such as 32 * (36 / 32) below 36.
    return int(size * resize_ratio + 1e-6)


def compute_center_boxes(size: int, side: int, heights: ArrayLike, widths: ArrayLike) -> NDArray[np.float64]:
    """Compute the box in each original image that remains visible after resizing and center cropping.

    The shorter side is resized to ``side`` pixels, and a square of ``size`` is cropped. Heights and widths are (b,), in
    pixels of the originals, as are the boxes, (b, 4) float64 left, top, right, bottom.
    """
    h, w = np.asarray(heights, dtype=np.float64), np.asarray(widths, dtype=np.float64)
    rows, columns = compute_resized_shapes(side, h, w)
    return compute_source_boxes(size, np.rint((rows - size) / 2), np.rint((columns - size) / 2), h / rows, w / columns)


def compute_resized_shapes(
    side: int, heights: NDArray[np.float64], widths: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Compute heights and widths after resizing the shorter side to ``side``, rounded down as in torchvision."""
    shorter = np.minimum(heights, widths)
    return np.floor(side * heights / shorter + 1e-9), np.floor(side * widths / shorter + 1e-9)


def compute_source_boxes(
    size: int,
    top: NDArray[np.float64],
    left: NDArray[np.float64],
    step_y: NDArray[np.float64],
    step_x: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Convert square crops of resized images to boxes (b, 4) in the original images.

    A square of ``size`` pixels begins at a row ``top`` (b,) and a column ``left`` (b,); ``step_y`` and ``step_x`` (b,)
    are pixels of the original per pixel of the resized image.
    """
    return np.stack((left * step_x, top * step_y, (left + size) * step_x, (top + size) * step_y), axis=1)


def crop_and_resize_pixels(
    image: NDArray[np.uint8], box: ArrayLike, size: int, interpolation: Interpolation
) -> NDArray[np.uint8]:
    """Crop a box from an (h, w, c) uint8 image and resize it to (size, size, c) uint8, with antialiasing."""
    height, width, channels = image.shape
    left, top, right, bottom = (float(edge) for edge in np.asarray(box))
    # Sums of steps may exceed the edge by a rounding error, which Pillow does not accept.
    edges = (max(left, 0.0), max(top, 0.0), min(right, float(width)), min(bottom, float(height)))
    if edges == (0.0, 0.0, float(size), float(size)) and (width, height) == (size, size):
        return image
    single = channels == 1
    picture = Image.fromarray(image[:, :, 0] if single else image)
    resized = np.array(picture.resize((size, size), RESAMPLING[interpolation], box=edges), dtype=np.uint8)
    return resized[:, :, None] if single else resized
