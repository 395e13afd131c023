"""Compute homographies between two views of a plane, and apply them to points and feature maps.

Coordinates are normalized: x right, y down, the edges of an image at -1 and +1, as in
``grid_sample(align_corners=False)``. Homographies are therefore independent of the resolution and apply to images and
attention maps alike. They map a point of the first view to the corresponding point of the second view.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from labelkit.algorithms.precision import promote, without_autocast

Padding = Literal["zeros", "border", "reflection"]
Matrices = NDArray[np.float64]

# Smaller depths are behind the camera, or too close to its plane to be useful.
_MIN_DEPTH = 1e-6
# Tolerance for rounding errors of points on the edge.
_EDGE = 1 + 1e-6


# --- building ------------------------------------------------------------------------------------


def crop_homographies(boxes: ArrayLike) -> Matrices:
    """Return the (b, 3, 3) homographies that map views to their crops.

    Args:
        boxes: (b, 4) left, top, right, bottom in normalized coordinates.
    """
    left, top, right, bottom = np.asarray(boxes, dtype=np.float64).T
    made = _identities(len(left))
    made[:, 0, 0], made[:, 1, 1] = 2 / (right - left), 2 / (bottom - top)
    made[:, 0, 2], made[:, 1, 2] = -(left + right) / (right - left), -(top + bottom) / (bottom - top)
    return made


def rotation_homographies(angles: ArrayLike) -> Matrices:
    """Return (b, 3, 3) rotations of square views about the center by angles (b,), counter-clockwise, in radians."""
    turn = np.asarray(angles, dtype=np.float64)
    made = _identities(len(turn))
    made[:, 0, 0] = made[:, 1, 1] = np.cos(turn)
    made[:, 0, 1], made[:, 1, 0] = np.sin(turn), -np.sin(turn)
    return made


def zoom_homographies(factors: ArrayLike) -> Matrices:
    """Return the (b, 3, 3) homographies that zoom about the center; factors (b,) above 1 enlarge."""
    zoom = np.asarray(factors, dtype=np.float64)
    made = _identities(len(zoom))
    made[:, 0, 0] = made[:, 1, 1] = zoom
    return made


def perspective_homographies(corners: ArrayLike) -> Matrices:
    """Return the (b, 3, 3) homographies that move the four corners of a view to given points.

    Args:
        corners: (b, 4, 2) targets of the top left, top right, bottom right and bottom left corners; no three collinear.
    """
    target = np.asarray(corners, dtype=np.float64)
    x, y = np.array([-1.0, 1, 1, -1]), np.array([-1.0, -1, 1, 1])
    system = np.zeros((len(target), 8, 8))
    for row, values in ((0, target[:, :, 0]), (1, target[:, :, 1])):
        system[:, row::2, 3 * row], system[:, row::2, 3 * row + 1], system[:, row::2, 3 * row + 2] = x, y, 1
        system[:, row::2, 6], system[:, row::2, 7] = -values * x, -values * y
    solved = np.linalg.solve(system, target.reshape(len(target), 8, 1))[:, :, 0]
    return np.concatenate((solved, np.ones((len(target), 1))), axis=1).reshape(-1, 3, 3)


def flip_homographies(homographies: Matrices) -> Matrices:
    """Compose homographies with a horizontal flip of the second view."""
    return np.array([-1.0, 1, 1])[:, None] * homographies


def normalize_homography(pixels: ArrayLike, first: tuple[int, int], second: tuple[int, int]) -> Matrices:
    """Convert a homography of pixel coordinates, such as OpenCV's, to normalized coordinates.

    Args:
        pixels: (3, 3) homography of pixel coordinates, in which integers are pixel centers.
        first: height and width of the first image.
        second: height and width of the second image.
    """
    return np.asarray(_from_pixels(second) @ np.asarray(pixels, dtype=np.float64) @ np.linalg.inv(_from_pixels(first)))


def normalize_points(pixels: ArrayLike, size: tuple[int, int]) -> NDArray[np.float64]:
    """Convert pixel coordinates of points to normalized (x, y) coordinates (k, 2).

    Args:
        pixels: (k, 2) pixel coordinates, in which integers are pixel centers.
        size: height and width of the image.
    """
    points = np.asarray(pixels, dtype=np.float64).reshape(-1, 2)
    return np.asarray((2 * points + 1) / np.array([size[1], size[0]]) - 1)


def _from_pixels(size: tuple[int, int]) -> Matrices:
    height, width = size
    return np.array([[2 / width, 0, 1 / width - 1], [0, 2 / height, 1 / height - 1], [0, 0, 1]])


def _identities(count: int) -> Matrices:
    return np.tile(np.eye(3), (count, 1, 1))


def to_3x3_matrices(matrices: Tensor) -> Tensor:
    """Convert affine ``(b, 2, 3)`` or square ``(b, 3, 3)`` matrices to ``(b, 3, 3)``."""
    if matrices.shape[-2] == 3:
        return matrices
    last = matrices.new_zeros((*matrices.shape[:-2], 1, 3))
    last[..., 2] = 1
    return torch.cat((matrices, last), dim=-2)


def compute_view_homographies(first: Tensor, second: Tensor) -> Tensor:
    """Compute the homographies from first to second views of the same original images.

    Args:
        first: ``(b, 2, 3)`` or ``(b, 3, 3)``, from views to originals, as in ``ViewGeometry``.
        second: like ``first``.

    Returns:
        ``(b, 3, 3)``.
    """
    # view matrices are always invertible; checking this would synchronize with the GPU
    return torch.linalg.solve_ex(to_3x3_matrices(second), to_3x3_matrices(first)).result


# --- applying ------------------------------------------------------------------------------------


def apply_homographies(points: Tensor, homographies: Tensor) -> tuple[Tensor, Tensor]:
    """Apply homographies to points, and return the mapped points and whether each lies inside the view.

    Args:
        points: ``(b, k, 2)`` x and y.
        homographies: ``(b, 3, 3)``.

    Returns:
        ``(b, k, 2)`` mapped points, meaningless behind the camera; ``(b, k)`` bool, whether they are in the view.
    """
    with without_autocast(points):  # at the edges, half precision has a resolution of .004
        known, maps = promote(points), promote(homographies)
        moved = torch.cat((known, torch.ones_like(known[..., :1])), dim=-1) @ maps.transpose(1, 2)
    depth = moved[..., 2:]
    arrived = moved[..., :2] / torch.where(depth > _MIN_DEPTH, depth, 1.0)
    return arrived, (depth[..., 0] > _MIN_DEPTH) & (arrived.abs() <= _EDGE).all(dim=-1)


def cell_centers(height: int, width: int, reference: Tensor) -> Tensor:
    """Return the (x, y) centers (h w, 2) of a map's cells, row by row, with the dtype and device of ``reference``."""
    y = (torch.arange(height, dtype=reference.dtype, device=reference.device) + 0.5) * (2 / height) - 1
    x = (torch.arange(width, dtype=reference.dtype, device=reference.device) + 0.5) * (2 / width) - 1
    return torch.stack(torch.meshgrid(x, y, indexing="xy"), dim=-1).reshape(-1, 2)


def sample_second_views(
    maps: Tensor, homographies: Tensor, size: Sequence[int], *, padding: Padding = "border"
) -> tuple[Tensor, Tensor]:
    """Sample feature maps of second views at the cell centers of first views, using the homographies between them.

    Args:
        maps: ``(b, c, h, w)`` float, of the second views; receives gradients.
        homographies: ``(b, 3, 3)`` float, from first to second views.
        size: height and width of the output maps of the first views.
        padding: how to fill in values outside the maps.

    Returns:
        ``(b, c, height, width)``, and ``(b, height, width)`` bool, whether the point is visible in the second view.
    """
    height, width = size
    centers = cell_centers(height, width, homographies).expand(len(maps), -1, -1)
    places, inside = apply_homographies(centers, homographies)
    grid = places.reshape(-1, height, width, 2).to(maps.dtype)
    if padding == "border" and maps.device.type != "cpu" and torch.are_deterministic_algorithms_enabled():
        return sample_by_gather(maps, grid), inside.reshape(-1, height, width)
    found = F.grid_sample(maps, grid, mode="bilinear", padding_mode=padding, align_corners=False)
    return found, inside.reshape(-1, height, width)


def sample_by_gather(maps: Tensor, grid: Tensor) -> Tensor:
    """Compute ``grid_sample(maps, grid)`` by indexing, with bilinear interpolation and border padding.

    Its gradient on a GPU is deterministic if deterministic algorithms are enabled, unlike that of ``grid_sample``.

    Args:
        maps: ``(b, c, h, w)``.
        grid: ``(b, height, width, 2)``.

    Returns:
        ``(b, c, height, width)``.
    """
    b, c, h, w = maps.shape
    sides = grid.new_zeros(2)
    sides[0], sides[1] = w, h
    places = (((grid + 1) * sides - 1) / 2).clamp(min=0).minimum(sides - 1)
    low = places.floor()
    share = (places - low)[:, None]
    first = low.long()
    flat = maps.flatten(2)
    found = maps.new_zeros((b, c, *grid.shape[1:3]))
    for right in (0, 1):
        for down in (0, 1):
            x, y = (first[..., 0] + right).clamp(max=w - 1), (first[..., 1] + down).clamp(max=h - 1)
            part = share[..., 0] if right else 1 - share[..., 0]
            weight = part * (share[..., 1] if down else 1 - share[..., 1])
            looked = flat.gather(2, (y * w + x).reshape(b, 1, -1).expand(b, c, -1))
            found = found + weight * looked.reshape(b, c, *grid.shape[1:3])
    return found
