"""Top-k accuracy, average precision of VOC 2007, groups of classes by their training images, intervals of shares."""

import numpy as np
import pytest
from labelkit.data.splits import compute_long_tail_counts
from labelkit.metrics.classification import (
    eleven_point_average_precision,
    proportion_interval,
    shot_groups,
    top_k_accuracy,
)


def test_tie_for_the_last_place_counts_by_half() -> None:
    assert top_k_accuracy([[3.0, 1, 1, 0]], [1], 2) == 0.5
    assert top_k_accuracy([[3.0, 1, 1, 0]], [1], 1) == 0
    assert top_k_accuracy([[3.0, 1, 1, 0]], [1], 3) == 1


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


def sizes(groups: dict[str, np.ndarray]) -> dict[str, int]:
    return {name: len(classes) for name, classes in groups.items()}


def test_long_tailed_cifar_is_cut_as_published() -> None:
    ten = shot_groups(compute_long_tail_counts(5000, 10, 0.01))
    assert {name: classes.tolist() for name, classes in ten.items()} == {
        "many": [0, 1, 2], "medium": [3, 4, 5, 6], "few": [7, 8, 9]
    }  # fmt: skip
    assert sizes(shot_groups(compute_long_tail_counts(500, 100, 0.01))) == {"many": 36, "medium": 35, "few": 29}


def test_other_sets_are_cut_at_a_hundred_and_twenty_images() -> None:
    groups = shot_groups([101, 100, 20, 19, 0])
    assert {name: classes.tolist() for name, classes in groups.items()} == {
        "many": [0],
        "medium": [1, 2],
        "few": [3, 4],
    }


def test_rank_follows_the_counts_and_not_the_numbers_of_the_classes() -> None:
    groups = shot_groups([1, 50, 2, 40, 3, 30, 4, 20, 5, 10])
    assert groups["many"].tolist() == [1, 3, 5]
    assert groups["few"].tolist() == [0, 2, 4]


def test_balanced_classes_have_no_groups() -> None:
    assert shot_groups([10] * 10) == {}


def test_an_interval_is_that_of_resampled_samples(rng: np.random.Generator) -> None:
    right = np.arange(200) < 150
    brute = np.sort([right[rng.integers(0, 200, 200)].mean() for _ in range(4000)])
    low, high = proportion_interval(150, 200, num_resamples=4000, generator=rng)
    assert (low, high) == pytest.approx((brute[100], brute[3900]), abs=0.01)
    assert proportion_interval(5, 5, num_resamples=10, generator=rng) == (1.0, 1.0)
