"""Maps between views: what moves where, in closed forms and against OpenCV and NumPy."""

import math

import numpy as np
import pytest
import torch
from labelkit.algorithms.attention import keypoint_heatmaps
from labelkit.algorithms.homographies import (
    apply_homographies,
    compute_view_homographies,
    crop_homographies,
    perspective_homographies,
    rotation_homographies,
    sample_by_gather,
    sample_second_views,
    zoom_homographies,
)

QUARTER = rotation_homographies([math.pi / 2])


def points(*pairs: tuple[float, float]) -> torch.Tensor:
    return torch.tensor([pairs], dtype=torch.float64)


def moved(pair: tuple[float, float], homographies: np.ndarray) -> list[float]:
    arrived, _ = apply_homographies(points(pair), torch.from_numpy(homographies))
    return arrived[0, 0].tolist()


def test_a_crop_takes_the_corners_of_its_box_to_the_corners() -> None:
    crop = crop_homographies([[-1, -0.5, 0, 0.75]])
    assert moved((-1, -0.5), crop) == pytest.approx([-1, -1])
    assert moved((0, 0.75), crop) == pytest.approx([1, 1])


def test_a_zoom_of_two_takes_the_middle_of_the_edge_outside() -> None:
    _, inside = apply_homographies(points((0.4, 0), (0.6, 0)), torch.from_numpy(zoom_homographies([2.0])))
    assert inside.tolist() == [[True, False]]


def test_a_perspective_takes_the_corners_where_they_are_told() -> None:
    corners = np.array([[[-0.8, -0.9], [0.7, -1.0], [0.9, 0.8], [-1.0, 0.75]]])
    found = perspective_homographies(corners)
    for start, target in zip([(-1, -1), (1, -1), (1, 1), (-1, 1)], corners[0], strict=True):
        assert moved(start, found) == pytest.approx(target.tolist())


def test_what_is_behind_the_camera_is_not_inside() -> None:
    behind = np.array([[[1.0, 0, 0], [0, 1, 0], [-2, 0, 1]]])
    _, inside = apply_homographies(points((0, 0), (0.6, 0)), torch.from_numpy(behind))
    assert inside.tolist() == [[True, False]]


def test_a_quarter_turn_of_an_image_is_rot90() -> None:
    image = torch.rand(1, 2, 6, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    turned, _ = sample_second_views(image, torch.linalg.inv(torch.from_numpy(QUARTER)), (6, 6))
    torch.testing.assert_close(turned, torch.rot90(image, 1, (2, 3)))


def test_between_two_views_goes_over_the_original() -> None:
    # the first view shows the right half, the second the mirror image of the whole
    first = torch.tensor([[[0.5, 0, 0.5], [0, 1, 0]]])
    second = torch.tensor([[[-1.0, 0, 0], [0, 1, 0]]])
    arrived, _ = apply_homographies(torch.tensor([[[-1.0, 0.3]]]), compute_view_homographies(first, second))
    torch.testing.assert_close(arrived, torch.tensor([[[0.0, 0.3]]]))


CROPS = [(crop_homographies([[-s, -s, s, s]]), count) for s, count in ((0.5, 9), (0.6, 25), (0.75, 25), (0.9, 49))]
TURNS = [(rotation_homographies([math.radians(d)]), count) for d, count in ((15, 45), (30, 41), (45, 37), (90, 49))]


@pytest.mark.parametrize(("homographies", "count"), CROPS + TURNS)
def test_cells_that_a_center_crop_or_a_rotation_leaves(homographies: np.ndarray, count: int) -> None:
    _, visible = sample_second_views(torch.zeros(1, 1, 7, 7), torch.from_numpy(homographies), (7, 7))
    assert int(visible.sum()) == count


def test_keypoint_masks_of_the_worked_examples() -> None:
    present = torch.ones(1, 3, dtype=torch.bool)
    center = keypoint_heatmaps(points((0, 0)), present[:, :1], (3, 3))[0]
    side, corner = math.exp(-0.5), math.exp(-1)
    expected = torch.tensor([[corner, side, corner], [side, 1, side], [corner, side, corner]], dtype=torch.float64)
    torch.testing.assert_close(center, expected)

    spots = points((-2 / 3, -2 / 3), (0, -2 / 3), (0.1, 0.2))
    summed = torch.tensor(
        [[1.828271, 2.031283, 1.041184], [1.467901, 1.919713, 1.116108], [0.621457, 0.991369, 0.645793]],
        dtype=torch.float64,
    )
    torch.testing.assert_close(keypoint_heatmaps(spots, present, (3, 3))[0], summed.clamp(max=1), atol=1e-6, rtol=0)


def test_lookups_with_a_fixed_order_of_additions_are_those_of_grid_sample() -> None:
    generator = torch.Generator().manual_seed(0)
    maps = torch.randn(3, 2, 5, 4, dtype=torch.float64, generator=generator, requires_grad=True)
    grid = 3 * torch.rand(3, 6, 7, 2, dtype=torch.float64, generator=generator) - 1.5  # beyond the border too
    expected = torch.nn.functional.grid_sample(maps, grid, padding_mode="border", align_corners=False)
    found = sample_by_gather(maps, grid)
    torch.testing.assert_close(found, expected)
    upstream = torch.randn(expected.shape, dtype=torch.float64, generator=generator)
    gradients = [torch.autograd.grad(value, maps, upstream)[0] for value in (found, expected)]
    torch.testing.assert_close(*gradients)
