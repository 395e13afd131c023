"""Images together with their masks, cropped and resized alike."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from labelkit.data.datasets import ImageDataset
from labelkit.data.keyed_random import keyed_uniform
from labelkit.data.mask_files import read_pair
from labelkit.data.views.boxes import crop_boxes
from labelkit.data.views.resizing import resize_box
from labelkit.data.views.spec import ViewSpec


def resize_mask(
    mask: NDArray[np.uint8], rows: int, columns: int, box: Sequence[float] | None = None
) -> NDArray[np.uint8]:
    """Return a mask, or a box (left, top, right, bottom) of it, with other rows and columns; the nearest value."""
    picture = Image.fromarray(mask)
    whole = (0.0, 0.0, float(mask.shape[1]), float(mask.shape[0]))
    edges = whole if box is None else (
        max(box[0], 0.0), max(box[1], 0.0), min(box[2], whole[2]), min(box[3], whole[3]),
    )  # fmt: skip
    return np.array(picture.resize((columns, rows), Image.Resampling.NEAREST, box=edges), dtype=np.uint8)


def masked_crops(
    dataset: ImageDataset, rows: NDArray[np.int64], keys: NDArray[np.int64], view: ViewSpec, *, seed: int
) -> tuple[Tensor, Tensor]:
    """Return random crops of images and the same crops of their masks.

    Args:
        dataset: has masks.
        rows: (b,) images.
        keys: (b,) keys of the random numbers, one per drawn image.
        view: size, area and mirror images; nothing else of it is used.
        seed: of the random numbers.

    Returns:
        images (b, c, size, size) float32 in [0, 1], masks (b, size, size) int64.

    Raises:
        DatasetError: see ``read_pair``.
    """
    pairs = [read_pair(dataset, int(row)) for row in rows]
    heights, widths = ([mask.shape[axis] for _, mask in pairs] for axis in (0, 1))
    boxes = crop_boxes(view, heights, widths, keys, seed=seed, epoch=0, view=0)
    mirrored = keyed_uniform(seed, 0, keys, 0, "mirrored mask", 1)[:, 0] < view.hflip
    images, masks = [], []
    for (pixels, mask), box, mirror in zip(pairs, boxes, mirrored, strict=True):
        step = -1 if mirror else 1
        images.append(resize_box(pixels, box, view)[:, ::step])
        masks.append(resize_mask(mask, view.size, view.size, box.tolist())[:, ::step])
    return _as_images(images), torch.from_numpy(np.stack(masks).astype(np.int64))


def whole_images(
    dataset: ImageDataset, rows: NDArray[np.int64], size: int
) -> tuple[Tensor, list[NDArray[np.uint8]], list[NDArray[np.uint8]]]:
    """Return images stretched to a square, and images and masks as they are.

    Returns:
        images (b, c, size, size) float32 in [0, 1], pixels (h, w, c) and masks (h, w) of each.

    Raises:
        DatasetError: see ``read_pair``.
    """
    pairs = [read_pair(dataset, int(row)) for row in rows]
    view = ViewSpec(size, interpolation="bilinear")
    resized = [resize_box(pixels, (0, 0, pixels.shape[1], pixels.shape[0]), view) for pixels, _ in pairs]
    return _as_images(resized), [pixels for pixels, _ in pairs], [mask for _, mask in pairs]


def _as_images(pixels: Sequence[NDArray[np.uint8]]) -> Tensor:
    return torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2).float().div_(255)
