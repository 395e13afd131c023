"""Average precision of VOC 2007 against hand values, and plain loops over thresholds."""

import numpy as np
import pytest
from labelkit.metrics.classification import eleven_point_average_precision


def eleven_by_loops(scores: list[float], present: list[bool]) -> float:
    """The development kit's VOCevaldet rule, threshold by threshold."""
    points = []
    for threshold in sorted(set(scores)):
        chosen = [has for value, has in zip(scores, present, strict=True) if value >= threshold]
        points.append((sum(chosen) / sum(present), sum(chosen) / len(chosen)))
    total = 0.0
    for tenth in range(11):
        total += max([precision for recall, precision in points if recall > tenth / 10 - 1e-9], default=0.0)
    return total / 11


def test_hand_values() -> None:
    # ranked: with, without, with, without, with: precision 1, 2/3 and 3/5 where recall rises by a third
    scores, present = [5, 4, 3, 2, 1], [True, False, True, False, True]
    # recall 0 to 0.3: 1; 0.4 to 0.6: 2/3; 0.7 to 1: 3/5
    assert eleven_point_average_precision(scores, present) == pytest.approx((4 * 1 + 3 * 2 / 3 + 4 * 3 / 5) / 11)


def test_it_is_one_if_all_images_with_the_class_are_ahead() -> None:
    assert eleven_point_average_precision([3, 2, 1, 0], [True, True, False, False]) == 1


def test_it_is_the_share_of_images_with_the_class_if_all_scores_are_equal() -> None:
    assert eleven_point_average_precision([7, 7, 7, 7], [False, True, False, False]) == pytest.approx(0.25)


def test_a_class_that_is_in_no_image_has_none() -> None:
    assert np.isnan(eleven_point_average_precision([1, 2], [False, False]))


def test_recall_of_three_tenths_is_reached_by_three_of_ten() -> None:
    # ten images with the class: 3 first, then a hundred others, then 7; in floats 3 / 10 is less than 0.1 * 3
    present = [True] * 3 + [False] * 100 + [True] * 7
    expected = (4 * 1 + 7 * 10 / 110) / 11
    assert eleven_point_average_precision(list(range(110, 0, -1)), present) == pytest.approx(expected)


@pytest.mark.parametrize("values", [4, 50, 10_000])
def test_they_agree_with_others_with_and_without_ties(values: int) -> None:
    generator = np.random.default_rng(values)
    for _ in range(20):
        scores = generator.integers(0, values, 60).astype(float)
        present = generator.random(60) < 0.3
        assert eleven_point_average_precision(scores, present) == pytest.approx(
            eleven_by_loops(scores.tolist(), present.tolist())
        )
