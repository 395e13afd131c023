"""Levels of groups: numbers where unions become dear, and coarse groups that hold whole fine ones."""

from __future__ import annotations

import numpy as np
import pytest
from labelkit.algorithms.group_levels import groups_at, join_groups, level_numbers


def test_pairs_of_pairs_give_the_two_levels_they_were_made_with(rng: np.random.Generator) -> None:
    # 27 means: 3 far places, 3 nearer ones around each, 3 near ones around each of these
    far, near, nearest = (rng.normal(size=(3**level, 12)) * size for level, size in ((1, 100.0), (2, 10.0), (3, 1.0)))
    means = np.repeat(far, 9, axis=0) + np.repeat(near, 3, axis=0) + nearest

    found = join_groups(means, np.ones(27), num_levels=2)

    assert found.numbers == (9, 3)
    np.testing.assert_array_equal(found.parents[0], np.repeat(np.arange(9), 3))
    np.testing.assert_array_equal(found.parents[1], np.repeat(np.arange(3), 9))


def test_a_coarse_group_holds_whole_groups_of_the_level_below(rng: np.random.Generator) -> None:
    found = join_groups(rng.normal(size=(40, 6)), rng.integers(1, 30, 40), num_levels=3)

    assert list(found.numbers) == sorted(found.numbers, reverse=True)
    for fine, coarse in zip(found.parents, found.parents[1:], strict=False):
        assert all(len(set(coarse[fine == group])) == 1 for group in set(fine))
    assert [len(set(parents)) for parents in found.parents] == list(found.numbers)


def test_a_number_stands_before_the_dearest_union() -> None:
    # ten groups: the seventh union, from four to three, costs five times as much as the one before it
    assert level_numbers([1, 1.1, 1.2, 1.3, 1.4, 1.5, 7.5, 8, 9], 1) == (4,)


def test_a_large_group_is_joined_last(rng: np.random.Generator) -> None:
    means = np.array([[0.0], [1.0], [2.1]])

    found = join_groups(means, [50, 50, 1], num_levels=1)

    assert groups_at(found.unions, 3, 2).tolist() == [0, 1, 1]


@pytest.mark.parametrize(("count", "numbers"), [(1, ()), (2, ()), (3, (2,))])
def test_few_groups_have_few_levels(count: int, numbers: tuple[int, ...]) -> None:
    assert join_groups(np.eye(count), np.ones(count), num_levels=1).numbers == numbers


def test_bad_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="do not fit"):
        join_groups(np.eye(3), [1, 0, 1], num_levels=1)
