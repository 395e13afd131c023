"""Overlaps of crops, and maps looked up there."""

import pytest
import torch
from labelkit.algorithms.regions import align_regions, crop_boxes_in_original, overlap_boxes, spans_min_tokens

FIRST = torch.tensor([[10.0, 20, 150, 180]])
SECOND = torch.tensor([[60.0, 50, 220, 170]])


def coordinates(box: torch.Tensor, size: int, patch: int) -> torch.Tensor:
    """Source x and y of each token's center, (1, t, t, 2)."""
    centers = (torch.arange(size // patch) + 0.5) * patch / size
    x = box[0, 0] + centers * (box[0, 2] - box[0, 0])
    y = box[0, 1] + centers * (box[0, 3] - box[0, 1])
    return torch.stack(torch.meshgrid(x, y, indexing="xy"), dim=-1)[None]


def test_overlap_is_that_of_the_specification_in_pixels_of_each_crop() -> None:
    assert overlap_boxes(FIRST, SECOND, 224).tolist() == [pytest.approx([80, 42, 224, 210])]
    assert overlap_boxes(SECOND, FIRST, 96).tolist() == [pytest.approx([0, 0, 54, 96], abs=1e-4)]


def test_cells_of_two_crops_show_the_same_place() -> None:
    found = []
    for box, other, size in ((FIRST, SECOND, 224), (SECOND, FIRST, 96)):
        found.append(align_regions(coordinates(box, size, 16), overlap_boxes(box, other, size), 7, 16)[0])
    assert torch.allclose(found[0][1:-1, 1:-1], found[1][1:-1, 1:-1], atol=1e-3)
    # the second of seven cells of an overlap from 60 to 150
    assert found[0][3, 1, 0] == pytest.approx(79.2857, abs=1e-3)


def test_a_mirrored_crop_is_a_crop_of_the_mirrored_image() -> None:
    plain = torch.tensor([[[0.5, 0, 0.25], [0, 0.4, -0.1]]])
    mirrored = torch.tensor([[[-0.5, 0, 0.25], [0, 0.4, -0.1]]])
    assert crop_boxes_in_original(plain).tolist() == [pytest.approx([-0.25, -0.5, 0.75, 0.3])]
    assert crop_boxes_in_original(mirrored).tolist() == [pytest.approx([-0.75, -0.5, 0.25, 0.3])]


def test_boxes_below_a_token_and_crops_without_overlap_are_told_apart() -> None:
    boxes = torch.tensor([[0.0, 0, 16, 16], [0, 0, 15, 40], [8, 8, 4, 30], [0, 0, 90, 90]])
    assert spans_min_tokens(boxes, 16, 1.0).tolist() == [True, False, False, True]
    apart = overlap_boxes(torch.tensor([[0.0, 0, 1, 1]]), torch.tensor([[2.0, 0, 3, 1]]), 32)
    assert spans_min_tokens(apart, 8, 1.0).tolist() == [False]


def test_gradients_reach_the_map() -> None:
    maps = torch.ones(1, 4, 4, 3, requires_grad=True)
    cells = align_regions(maps, torch.tensor([[4.0, 4, 28, 28]]), 2, 8)
    cells.sum().backward()
    assert torch.allclose(cells, torch.ones_like(cells))
    assert float(maps.grad.sum()) == pytest.approx(2 * 2 * 3, rel=1e-5)
