"""IoU against brute force, and region and boundary scores of masks with known answers."""

import numpy as np
import pytest
from labelkit.metrics.segmentation import SegmentationCounts, boundary_accuracy, iou_matrix, region_similarity


def square(top: int, left: int, side: int, size: int = 20) -> np.ndarray:
    mask = np.zeros((size, size), dtype=bool)
    mask[top : top + side, left : left + side] = True
    return mask


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
