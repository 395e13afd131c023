from itertools import permutations

import numpy as np
import pytest
from labelkit.commands.evaluate.predictions import match_groups_to_classes


def test_known_group_keeps_its_class_even_if_another_fits_better() -> None:
    # group 0 is named 0 but holds class 1 only; group 1 is new and may have class 2, not class 1 that is taken
    found = match_groups_to_classes([1, 1, 1, 2, 0], [0, 0, 0, 2, 2], [0, 1, -1])
    np.testing.assert_array_equal(found, [0, 1, 2])


def test_new_groups_are_matched_as_the_best_permutation_does(rng: np.random.Generator) -> None:
    labels, groups = rng.integers(0, 6, 60), rng.integers(0, 6, 60)
    named = np.array([2, -1, 0, -1, -1, -1])
    found = match_groups_to_classes(labels, groups, named)
    free = (1, 3, 4, 5)
    best = max(
        sum(((groups == group) & (labels == label)).sum() for group, label in zip(free, order, strict=True))
        for order in permutations(free)
    )
    new = named[groups] < 0
    assert (found[groups] == labels)[new].sum() == best
    np.testing.assert_array_equal(found[[0, 2]], [2, 0])


def test_surplus_new_groups_have_no_class_and_a_group_that_is_not_there_is_refused() -> None:
    assert match_groups_to_classes([0, 1, 1, 1], [0, 1, 1, 2], [0, -1, -1]).tolist() == [0, 1, -1]
    assert match_groups_to_classes([0, 0], [0, 1], [0, -1]).tolist() == [0, -1]
    with pytest.raises(ValueError, match="below num_clusters=1"):
        match_groups_to_classes([0, 1], [0, 1], [0])
