"""IoU against brute force, and region and boundary scores of masks with known answers."""

import numpy as np
import pytest
from labelkit.metrics.segmentation import (
    SegmentationCounts,
    boundary_accuracy,
    iou_matrix,
    mask_boundary,
    region_similarity,
)


def square(top: int, left: int, side: int, size: int = 20) -> np.ndarray:
    mask = np.zeros((size, size), dtype=bool)
    mask[top : top + side, left : left + side] = True
    return mask


@pytest.mark.parametrize(
    ("predictions", "labels", "mean_iou", "pixel_accuracy"),
    [
        ([0, 0, 1, 1], [0, 0, 1, 1], 1, 1),
        ([0, 2], [0, 0], 0.5 / 2, 0.5),
        ([0] * 100, [0] * 74 + [1] * 26, 0.74 / 2, 0.74),
    ],
    ids=["absent classes do not count", "a class that is only predicted counts as zero", "all background"],
)
def test_the_mean_is_over_the_classes_there_are(
    predictions: list[int], labels: list[int], mean_iou: float, pixel_accuracy: float
) -> None:
    counts = SegmentationCounts(4)
    counts.add(predictions, labels)
    assert counts.scores().mean_iou == pytest.approx(mean_iou)
    assert counts.scores().pixel_accuracy == pytest.approx(pixel_accuracy)


def test_nothing_counted_has_no_score() -> None:
    counts = SegmentationCounts(3)
    counts.add([0, 1], [255, 255])
    with pytest.raises(ValueError, match="no pixel"):
        counts.scores()
    with pytest.raises(ValueError, match="num_classes"):
        SegmentationCounts(256)


def test_iou_matrix_of_every_pair() -> None:
    # clusters of 3 and 1 pixels, classes of 2 and 2
    result = iou_matrix(np.array([[2, 1, 0], [0, 1, 0], [0, 0, 0]]))
    assert result[:2, :2].tolist() == [[2 / 3, 1 / 4], [0, 1 / 2]]
    assert np.isnan(result[2, 2])


def test_region_similarity_is_intersection_over_union() -> None:
    assert region_similarity(square(2, 2, 8), square(2, 2, 8)) == 1
    # two squares of 64 that share half
    assert region_similarity(square(2, 2, 8), square(2, 6, 8)) == 32 / 96
    assert region_similarity(square(0, 0, 0), square(0, 0, 0)) == 1
    assert region_similarity(square(2, 2, 8), square(0, 0, 0)) == 0


def test_boundary_is_where_a_neighbor_differs() -> None:
    mask = np.zeros((4, 4), dtype=bool)
    mask[1, 1] = True
    expected = np.zeros((4, 4), dtype=bool)
    # the pixel itself, and those whose right, lower or diagonal neighbor it is
    expected[:2, :2] = True
    assert np.array_equal(mask_boundary(mask), expected)
    assert not mask_boundary(np.ones((3, 3), dtype=bool)).any()


@pytest.mark.parametrize(("shift", "tolerance", "expected"), [(0, 0, 1), (1, 1, 1), (3, 3, 1), (10, 1, 0)])
def test_boundaries_match_within_reach(shift: int, tolerance: float, expected: float) -> None:
    first, second = square(2, 2, 5, size=30), square(2, 2 + shift, 5, size=30)
    assert boundary_accuracy(first, second, tolerance) == pytest.approx(expected)


def test_boundary_of_empty_masks() -> None:
    empty, full = square(0, 0, 0), square(4, 4, 5)
    assert boundary_accuracy(empty, empty) == 1
    assert boundary_accuracy(full, empty) == 0
    assert boundary_accuracy(empty, full) == 0


def test_masks_of_other_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="must both have shape"):
        region_similarity(square(0, 0, 2), square(0, 0, 2, size=9))
    with pytest.raises(ValueError, match="negative"):
        boundary_accuracy(square(0, 0, 2), square(0, 0, 2), -1)
