"""Groups of classes by their training images, and intervals of shares."""

import numpy as np
import pytest
from labelkit.data.splits import long_tail_counts
from labelkit.metrics.classification import share_interval, shot_groups


def sizes(groups: dict[str, np.ndarray]) -> dict[str, int]:
    return {name: len(classes) for name, classes in groups.items()}


def test_long_tailed_cifar_is_cut_as_published() -> None:
    ten = shot_groups(long_tail_counts(5000, 10, 0.01))
    assert {name: classes.tolist() for name, classes in ten.items()} == {
        "many": [0, 1, 2], "medium": [3, 4, 5, 6], "few": [7, 8, 9]
    }  # fmt: skip
    assert sizes(shot_groups(long_tail_counts(500, 100, 0.01))) == {"many": 36, "medium": 35, "few": 29}


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
    low, high = share_interval(150, 200, num_resamples=4000, generator=rng)
    assert (low, high) == pytest.approx((brute[100], brute[3900]), abs=0.01)
    assert share_interval(5, 5, num_resamples=10, generator=rng) == (1.0, 1.0)
