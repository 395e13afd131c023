"""Which images look new: worked ranks, ties, and what the two views add to each other."""

import numpy as np
from labelkit.algorithms.novelty import fractional_ranks, score_arrival_novelty, score_class_novelty
from scipy.stats import rankdata


def test_score_is_the_mean_of_both_ranks() -> None:
    # ranks by share 0, 1/3, 2/3, 1; by distance 2/3, 0, 1, 1/3
    found = score_class_novelty(np.array([0.1, 0.2, 0.3, 0.4]), np.array([0.2, 0.9, 0.1, 0.8]))
    np.testing.assert_allclose(found, [1 / 3, 1 / 6, 5 / 6, 2 / 3])


def test_equal_values_share_their_mean_rank(rng: np.random.Generator) -> None:
    values = rng.integers(0, 6, 40).astype(np.float64)
    np.testing.assert_allclose(fractional_ranks(values), (rankdata(values) - 1) / 39)


def test_one_image_has_a_score() -> None:
    assert score_class_novelty(np.array([0.5]), np.array([0.5])).tolist() == [0.0]


def test_a_later_image_is_new_if_other_later_ones_are_nearer() -> None:
    # distances to earlier ones .4 and .1, to later ones .1 and .4
    found = score_arrival_novelty(np.array([[0.7, 0.5], [0.9, 0.9]]), np.array([[0.9], [0.6]]))
    np.testing.assert_allclose(found, [0.8, 0.2])


def test_a_copy_of_an_earlier_image_is_not_new() -> None:
    assert score_arrival_novelty(np.array([[1.0, 0.2, 0.1]]), np.ones((1, 5))).tolist() == [0.0]
