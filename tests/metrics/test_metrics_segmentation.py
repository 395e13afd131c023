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


def test_absent_classes_count_as_zero_only_when_asked() -> None:
    counts = SegmentationCounts(4)
    counts.add([0, 0, 1, 1], [0, 0, 1, 1])
    assert counts.scores().mean_iou == 1


def test_a_class_that_is_only_predicted_counts_as_zero() -> None:
    counts = SegmentationCounts(3)
    counts.add([0, 2], [0, 0])
    assert counts.scores().iou.tolist()[:1] == [0.5]
    assert counts.scores().mean_iou == 0.25


def test_all_background_is_right_as_often_as_there_is_background() -> None:
    labels = np.array([0] * 74 + [1] * 26)
    counts = SegmentationCounts(2)
    counts.add(np.zeros(100, dtype=int), labels)
    assert counts.scores().mean_iou == pytest.approx(0.37)
    assert counts.scores().pixel_accuracy == pytest.approx(0.74)


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
