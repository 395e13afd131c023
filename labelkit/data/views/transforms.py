"""Image views: geometric transforms (resizing, cropping, warping) and color changes.

A view is made in three stages, each with random numbers keyed by seed, epoch, sample and view:
    1. a box of the original is resized to ``size x size``     ``boxes``, ``crop_and_resize``
    2. zoom, shift, rotation, flip: one affine map             ``draw_view_maps``
       and, for a second view that follows a first, a homography  ``spec``
    3. jitter, grayscale, blur, solarize on tensors, per sample  ``augment_colors``
RandAugment adds to 2 and 3 (``colors``), Cutout comes last. Images in memory go through 1 and 2 in one
interpolation, in batches on the training device. Images from files go through 1 one by one, with an antialiased resize,
in the process that decodes them. ``recipes`` has the parameters of each method; operations and their parameters are
defined as in torchvision.
Departure: in memory, random crops are enlarged by ``grid_sample`` (bicubic with a = -0.75, where Pillow has -0.5).
Images without a random crop are resized by Pillow, because embeddings of an image must not depend on whether it came
from memory or from a file. Random boxes are resized by torch, which is several times faster and differs from Pillow
by one level in some pixels.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import ArrayLike, NDArray
from PIL import Image
from torch import Tensor

from labelkit.data.batch import ViewGeometry, array_to_device, move_arrays_to_device
from labelkit.data.center_crop import RESAMPLING, Interpolation, crop_and_resize_pixels
from labelkit.data.datasets import ImageDataset, read_image_and_mask
from labelkit.data.keyed_random import KeyedRNG
from labelkit.data.views.boxes import box_to_image_matrices, draw_crop_boxes, replace_paired_boxes, sample_crop_boxes
from labelkit.data.views.colors import (
    adjust_brightness,
    apply_color_operations,
    compose_geometric_maps,
    cut_out,
    gaussian_blur,
    jitter_colors,
    rgb_to_gray,
    sample_operations,
    solarize,
)
from labelkit.data.views.spec import Normalize, PairPlan, ViewSpec, draw_pair_homographies

_COLOR_DRAWS: Final = 11
_SOLARIZE_FROM: Final = 128 / 255
_AFFINE_DRAWS: Final = 5


def draw_affine_maps(spec: ViewSpec, draws: KeyedRNG, view: int) -> NDArray[np.float64]:
    """Draw random affine maps for a view: zoom, shift, rotation and horizontal flip.

    Returns:
        (b, 2, 3) float64, from normalized coordinates of the view to those of the resized box.
    """
    matrices = np.zeros((len(draws.keys), 2, 3))
    matrices[:, 0, 0] = matrices[:, 1, 1] = 1
    if not spec.has_warp and not spec.hflip:
        return matrices
    u = draws.uniform(view, "affine", _AFFINE_DRAWS).astype(np.float64)
    scale = 1 / (spec.zoom_range[0] + (spec.zoom_range[1] - spec.zoom_range[0]) * u[:, 0])
    angle = (2 * u[:, 1] - 1) * spec.rotation_rad
    coins = u
    if spec.mirror_as is not None:
        coins = draws.uniform(spec.mirror_as, "affine", _AFFINE_DRAWS).astype(np.float64)
    mirror = np.where(coins[:, 2] < spec.hflip, -1.0, 1.0)
    pixels = (2 * u[:, 3:5] - 1) * spec.shift_px
    if spec.whole_pixels:
        pixels = np.floor(u[:, 3:5] * (2 * int(spec.shift_px) + 1)) - int(spec.shift_px)
    shift = pixels * (2 / spec.size)
    linear = np.stack((np.cos(angle), -np.sin(angle), np.sin(angle), np.cos(angle)), axis=1).reshape(-1, 2, 2)
    linear *= scale[:, None, None]
    matrices[:, :, 2] = np.einsum("bij,bj->bi", linear, -shift)
    matrices[:, :, :2] = linear
    matrices[:, :, 0] *= mirror[:, None]
    if spec.random_operations:
        # these operations apply to the result of the weak part
        matrices = compose_maps(matrices, compose_geometric_maps(*draw_operations(spec, draws, view)))
    return matrices


def draw_view_maps(
    spec: ViewSpec, draws: KeyedRNG, view: int, whole: NDArray[np.bool_] | None = None
) -> NDArray[np.float64]:
    """Draw the maps that a view applies after its crop box; the identity for images with ``whole`` (b,).

    Returns:
        (b, 2, 3), or (b, 3, 3) for a view with ``follows``, float64, from normalized coordinates of the view to
        those of the resized box.
    """
    matrices = draw_affine_maps(spec, draws, spec.find_source_view(view))
    if spec.follows is not None:
        matrices = _to_3x3(matrices) @ np.linalg.inv(draw_pair_homographies(spec.follows, draws, view))
    if whole is not None:
        matrices[whole] = np.eye(3)[: matrices.shape[1]]
    return matrices


def _to_3x3(matrices: NDArray[np.float64]) -> NDArray[np.float64]:
    last = np.tile(np.array([[[0.0, 0.0, 1.0]]]), (len(matrices), 1, 1))
    return np.concatenate((matrices, last), axis=1)


def draw_operations(
    spec: ViewSpec, draws: KeyedRNG, view: int
) -> tuple[NDArray[np.int64], NDArray[np.float64], tuple[str, ...]]:
    """Draw the RandAugment operations of a view; the geometric and the color step get the same ones."""
    return sample_operations(draws.uniform(view, "operations", 2 * spec.random_operations), spec.operation_pool)


def compose_maps(outer: NDArray[np.float64], inner: NDArray[np.float64]) -> NDArray[np.float64]:
    """Compose maps: apply ``inner``, (b, 2, 3) or (b, 3, 3), first, and then ``outer``, (b, 2, 3)."""
    if inner.shape[1] == 3:
        return _to_3x3(outer) @ inner
    linear = outer[:, :, :2] @ inner[:, :, :2]
    offset = outer[:, :, :2] @ inner[:, :, 2:] + outer[:, :, 2:]
    return np.concatenate((linear, offset), axis=2)


def warp_images(images: Tensor, matrices: NDArray[np.float64] | Tensor, spec: ViewSpec) -> Tensor:
    """Warp images by affine maps or homographies to the size of the view.

    Images are (b, c, h, w) uint8, or float32 in ``[0, 1]``; matrices are (b, 2, 3) or (b, 3, 3), from the view to the
    image, a tensor float32 on their device. The result is (b, c, size, size) float32 in ``[0, 1]``.
    """
    values = images.float().div_(255) if images.dtype == torch.uint8 else images
    theta = matrices if isinstance(matrices, Tensor) else array_to_device(matrices.astype(np.float32), images.device)
    # Equivalent to affine_grid, but without its matrix product, which takes as long as the sampling.
    centers = (torch.arange(spec.size, device=images.device, dtype=torch.float32) + 0.5) * (2 / spec.size) - 1
    along_x = centers[None, None, :, None] * theta[:, None, None, :, 0]
    along_y = centers[None, :, None, None] * theta[:, None, None, :, 1] + theta[:, None, None, :, 2]
    grid = along_x + along_y  # (b, size, size, 2), or 3 for a homography
    if matrices.shape[1] == 3:
        # a pixel behind the camera shows no part of the image, so it is mapped to any position outside
        grid = grid[..., :2] / grid[..., 2:].clamp(min=1e-3)
    warped = F.grid_sample(values, grid, mode=spec.interpolation, padding_mode=spec.padding, align_corners=False)
    return warped.clamp_(0, 1)


def augment_colors(images: Tensor, spec: ViewSpec, draws: KeyedRNG, view: int) -> Tensor:
    """Apply color jitter, brightness, grayscale, blur and solarization independently to each sample.

    Images are (b, c, size, size) float32 in ``[0, 1]``, and may be changed in place.
    """
    has_jitter = spec.jitter_prob > 0 and max(spec.jitter) > 0
    has_brightness = spec.brightness_range != (1.0, 1.0)
    has_gray = spec.gray_prob > 0 and images.shape[1] == 3
    if not (has_jitter or has_brightness or has_gray or spec.blur_prob or spec.solarize_prob):
        return _apply_operations(images, spec, draws, view)
    u = draws.uniform(view, "color", _COLOR_DRAWS)

    def rows_where(column: int, probability: float) -> NDArray[np.int64]:
        return np.flatnonzero(u[:, column] < probability)

    def between(limits: tuple[float, float], drawn: NDArray[np.float32]) -> NDArray[np.float32]:
        return np.asarray(limits[0] + (limits[1] - limits[0]) * drawn, dtype=np.float32)

    blurred, solarized = rows_where(8, spec.blur_prob), rows_where(10, spec.solarize_prob)
    factors, gray_rows, blur_rows, sigmas, solarize_rows = move_arrays_to_device(
        (
            between(spec.brightness_range, u[:, 6]),
            rows_where(7, spec.gray_prob),
            blurred,
            between(spec.blur_sigma, u[blurred, 9]),
            solarized,
        ),
        images.device,
    )
    if has_jitter:
        images = jitter_colors(images, spec.jitter, u[:, 1:6], rows_where(0, spec.jitter_prob))
    if has_brightness:
        images = adjust_brightness(images, factors)
    if has_gray:
        images[gray_rows] = rgb_to_gray(images[gray_rows]).expand(-1, 3, -1, -1)
    if len(blurred):
        images[blur_rows] = gaussian_blur(images[blur_rows], sigmas, spec.blur_kernel)
    if len(solarized):
        images[solarize_rows] = solarize(images[solarize_rows], _SOLARIZE_FROM)
    return _apply_operations(images, spec, draws, view)


def _apply_operations(images: Tensor, spec: ViewSpec, draws: KeyedRNG, view: int) -> Tensor:
    if spec.random_operations:
        images = apply_color_operations(images, *draw_operations(spec, draws, view))
    if spec.cutout:
        images = cut_out(images, draws.uniform(view, "cutout", 3), spec.cutout, spec.cutout_fill)
    return images


def _apply_color_steps(images: Tensor, spec: ViewSpec, draws: KeyedRNG, view: int, normalize: Normalize) -> Tensor:
    """Change colors, normalize, and add noise, with separate random numbers for each sample."""
    images = normalize(augment_colors(images, spec, draws, view))
    if not spec.noise:
        return images
    drawn = draws.normal(view, "noise", images[0].numel() if len(images) else 0, images.device)
    return images + spec.noise * drawn.view_as(images)


def apply_views(
    images: Tensor,
    draws: KeyedRNG,
    views: Sequence[ViewSpec],
    *,
    normalize: Normalize,
    pairs: PairPlan | None = None,
    partners: Tensor | None = None,
) -> tuple[tuple[Tensor, ...], tuple[ViewGeometry, ...]]:
    """Make all views of a batch of images, given as a (b, c, h, w) uint8 tensor on the device of the views.

    ``pairs`` has the boxes of first and second views that show two matching images; ``partners``, also (b, c, h, w)
    uint8, are then the images in views that show a partner.

    Returns:
        One (b, c, size, size) float32 tensor and one geometry per view.
    """
    heights, widths = (np.full(len(draws.keys), side) for side in images.shape[-2:])
    made, geometries = [], []
    every = sample_crop_boxes(views, (heights, widths), (heights, widths), draws)
    for number, spec in enumerate(views):
        boxes = replace_paired_boxes(every[number], pairs, number, heights, widths)
        whole = None if pairs is None else pairs.links >= 0
        inner = draw_view_maps(spec, draws, number, whole)
        total = compose_maps(box_to_image_matrices(boxes, heights, widths), inner)
        shown = partners if spec.shows_partner and partners is not None else images
        matrices = total.astype(np.float32)
        theta = array_to_device(matrices, images.device)
        if spec.area_range is not None or spec.crop == "random" or spec.has_warp or pairs is not None:
            pixels = warp_images(shown, theta, spec)
        else:
            pixels = _mirror(resize_and_center_crop(shown, spec), inner)
        made.append(_apply_color_steps(pixels, spec, draws, number, normalize))
        geometries.append(ViewGeometry(theta, matrices))
    return tuple(made), tuple(geometries)


def finish_view(
    crops: Tensor,
    boxes: NDArray[np.float64],
    sizes: NDArray[np.int64],
    spec: ViewSpec,
    draws: KeyedRNG,
    view: int,
    *,
    normalize: Normalize,
    pairs: PairPlan | None = None,
) -> tuple[Tensor, ViewGeometry]:
    """Make a view from image crops (b, c, size, size) uint8 that have already been resized.

    ``boxes`` (b, 4) are the crops' edges in the originals, whose height and width are ``sizes`` (b, 2); ``pairs``
    states which samples show two matching images.
    """
    whole = None if pairs is None else pairs.links >= 0
    inner = draw_view_maps(spec, draws, view, whole)
    total = compose_maps(box_to_image_matrices(boxes, sizes[:, 0], sizes[:, 1]), inner).astype(np.float32)
    moves, theta = move_arrays_to_device((inner.astype(np.float32), total), crops.device)
    pixels = warp_images(crops, moves, spec) if spec.has_warp else _mirror(crops.float().div_(255), inner)
    return _apply_color_steps(pixels, spec, draws, view, normalize), ViewGeometry(theta, total)


def _mirror(images: Tensor, matrices: NDArray[np.float64]) -> Tensor:
    """Flip the images whose affine map is a horizontal flip, exactly and without interpolation."""
    rows = np.flatnonzero(matrices[:, 0, 0] < 0)
    if len(rows):
        at = array_to_device(rows, images.device)
        images[at] = images[at].flip(-1)
    return images


def resize_mask(
    mask: NDArray[np.uint8], rows: int, columns: int, box: Sequence[float] | None = None
) -> NDArray[np.uint8]:
    """Resize a mask, or a box (left, top, right, bottom) of it, with nearest-neighbor sampling."""
    picture = Image.fromarray(mask)
    whole = (0.0, 0.0, float(mask.shape[1]), float(mask.shape[0]))
    edges = whole if box is None else (
        max(box[0], 0.0), max(box[1], 0.0), min(box[2], whole[2]), min(box[3], whole[3]),
    )  # fmt: skip
    return np.array(picture.resize((columns, rows), Image.Resampling.NEAREST, box=edges), dtype=np.uint8)


def crop_images_and_masks(
    dataset: ImageDataset, rows: NDArray[np.int64], keys: NDArray[np.int64], view: ViewSpec, *, seed: int
) -> tuple[Tensor, Tensor]:
    """Return random crops of the images in the given rows (b,), and the same crops of their masks.

    ``keys`` (b,) and ``seed`` determine the random numbers; only size, area, aspect and flip of the view are used.

    Returns:
        Images (b, c, size, size) float32 in [0, 1], masks (b, size, size) int64.

    Raises:
        DatasetError: see ``read_image_and_mask``.
    """
    pairs = [read_image_and_mask(dataset, int(row)) for row in rows]
    heights, widths = ([mask.shape[axis] for _, mask in pairs] for axis in (0, 1))
    draws = KeyedRNG(seed, 0, keys)
    boxes = draw_crop_boxes(view, heights, widths, draws, 0)
    mirrored = draws.uniform(0, "mirrored mask", 1)[:, 0] < view.hflip
    images, masks = [], []
    for (pixels, mask), box, mirror in zip(pairs, boxes, mirrored, strict=True):
        step = -1 if mirror else 1
        images.append(resize_box(pixels, box, view)[:, ::step])
        masks.append(resize_mask(mask, view.size, view.size, box.tolist())[:, ::step])
    return _as_images(images), torch.from_numpy(np.stack(masks).astype(np.int64))


def read_whole_images(
    dataset: ImageDataset, rows: NDArray[np.int64], size: int
) -> tuple[Tensor, list[NDArray[np.uint8]], list[NDArray[np.uint8]]]:
    """Read whole images, stretched to squares; also return the original images and masks.

    Returns:
        Images (b, c, size, size) float32 in [0, 1], and the pixels (h, w, c) and mask (h, w) of each.

    Raises:
        DatasetError: see ``read_image_and_mask``.
    """
    pairs = [read_image_and_mask(dataset, int(row)) for row in rows]
    view = ViewSpec(size, interpolation="bilinear")
    resized = [resize_box(pixels, (0, 0, pixels.shape[1], pixels.shape[0]), view) for pixels, _ in pairs]
    return _as_images(resized), [pixels for pixels, _ in pairs], [mask for _, mask in pairs]


def _as_images(pixels: Sequence[NDArray[np.uint8]]) -> Tensor:
    return torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2).float().div_(255)


def resize_box(image: NDArray[np.uint8], box: ArrayLike, spec: ViewSpec) -> NDArray[np.uint8]:
    """Crop a box from an (h, w, c) uint8 image and resize it to (size, size, c) uint8, with antialiasing."""
    return crop_and_resize_pixels(image, box, spec.size, spec.interpolation)


def crop_and_resize(image: NDArray[np.uint8], box: ArrayLike, spec: ViewSpec) -> NDArray[np.uint8]:
    """Crop a box from an (h, w, c) uint8 image and resize it to (size, size, c) uint8, faster than `resize_box`.

    A random box of whole pixels is cropped first and then resized by torch, as torchvision does with tensors; any other
    box is resized by :func:`resize_box`. At least nine of ten bytes equal Pillow's, and the others differ by at most 2.
    This takes a fraction of Pillow's time.
    """
    edges = np.asarray(box, dtype=np.float64)
    left, top, right, bottom = (int(edge) for edge in edges.tolist())
    inside = 0 <= left < right <= image.shape[1] and 0 <= top < bottom <= image.shape[0]
    if spec.area_range is None or not inside or edges.tolist() != [left, top, right, bottom]:
        return resize_box(image, box, spec)
    # Copied by NumPy, to get a layout that is fast for torch without torch starting a thread pool for the copy.
    part = torch.from_numpy(np.ascontiguousarray(image[top:bottom, left:right])).permute(2, 0, 1)[None]
    size = (spec.size, spec.size)
    resized = F.interpolate(part, size, mode=spec.interpolation, antialias=True, align_corners=False)
    return np.asarray(resized[0].permute(1, 2, 0).numpy())


def resize_and_center_crop(images: Tensor, spec: ViewSpec) -> Tensor:
    """Resize images (b, c, h, w) uint8 and crop their centers, returning (b, c, size, size) float32 in ``[0, 1]``."""
    shorter = min(images.shape[-2:])
    rows, columns = (int(spec.resized_side * side / shorter + 1e-9) for side in images.shape[-2:])
    top, left = round((rows - spec.size) / 2), round((columns - spec.size) / 2)
    resized = resize_images(images, rows, columns, spec.interpolation)
    return resized[..., top : top + spec.size, left : left + spec.size].float().div_(255)


def resize_images(images: Tensor, height: int, width: int, interpolation: Interpolation) -> Tensor:
    """Resize uint8 images (b, c, h, w) to (b, c, height, width) with Pillow (antialiased), and keep their device."""
    b, c, *shape = images.shape
    if shape == [height, width]:
        return images
    pixels = images.permute(0, 2, 3, 1).cpu().contiguous().numpy()
    pixels = pixels[..., 0] if c == 1 else pixels
    resized = np.empty((b, height, width, *pixels.shape[3:]), dtype=np.uint8)
    for number, image in enumerate(pixels):
        resized[number] = np.asarray(Image.fromarray(image).resize((width, height), RESAMPLING[interpolation]))
    return array_to_device(resized.reshape(b, height, width, c).transpose(0, 3, 1, 2), images.device)
