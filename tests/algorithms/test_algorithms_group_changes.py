"""Group changes on tables made by hand, and the matching against every permutation."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from labelkit.algorithms.group_changes import compare_groups, match_groups


def test_groups_match_so_that_the_most_images_stay() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        counts = rng.integers(1, 20, size=(5, 5))
        best = max(sum(counts[row, column] for column, row in enumerate(order)) for order in permutations(range(5)))

        earlier = match_groups(counts, min_overlap=1e-9)

        assert sorted(earlier.tolist()) == list(range(5))
        assert sum(counts[row, column] for column, row in enumerate(earlier)) == best


@pytest.mark.parametrize(("overlap", "earlier"), [(0.2, [0]), (0.25, [0]), (0.26, [-1])])
def test_a_pair_matches_if_enough_of_its_union_is_in_both(overlap: float, earlier: list[int]) -> None:
    # 5 in both, 10 in the first earlier group, 15 in the later one: 5 of 20
    counts = np.array([[5, 5], [10, 0]])

    found = match_groups(counts, min_overlap=overlap, fixed=[(1, 1)])

    assert found[:1].tolist() == earlier


def test_fixed_pairs_match_whatever_their_images() -> None:
    assert match_groups([[9, 1], [1, 9]], min_overlap=0.1, fixed=[(0, 1)]).tolist() == [-1, 0]
    assert match_groups([[9, 3], [3, 9]], min_overlap=0.1, fixed=[(0, 1)]).tolist() == [1, 0]


@pytest.mark.parametrize(
    ("counts", "kept", "splits", "merges", "new", "vanished"),
    [
        pytest.param([[10, 0], [0, 7]], [(0, 0), (1, 1)], [], [], [], [], id="same"),
        pytest.param([[6, 4]], [], [(0, [0, 1])], [], [], [], id="split in two"),
        pytest.param([[4, 6]], [], [(0, [1, 0])], [], [], [], id="the largest part first"),
        pytest.param([[9, 1]], [(0, 0)], [], [], [1], [], id="a small part is no split"),
        pytest.param([[8, 2]], [], [(0, [0, 1])], [], [], [], id="a fifth is a part"),
        pytest.param([[6], [4]], [], [], [(0, [0, 1])], [], [], id="merged"),
        pytest.param([[9], [1]], [(0, 0)], [], [], [], [1], id="a small part is no merge"),
        pytest.param([[10, 0]], [(0, 0)], [], [], [1], [], id="of new images only"),
        pytest.param([[10], [0]], [(0, 0)], [], [], [], [1], id="images are gone"),
        pytest.param([[5, 5], [5, 5]], [], [], [], [0, 1], [0, 1], id="scattered"),
        pytest.param([[6, 4], [4, 0]], [], [(0, [0, 1])], [(0, [0, 1])], [], [], id="split and merged at once"),
        pytest.param([[10, 0], [5, 5]], [(0, 0)], [], [], [1], [1], id="half is not mostly"),
    ],
)
def test_changes_are_as_defined(
    counts: list[list[int]],
    kept: list[tuple[int, int]],
    splits: list[tuple[int, list[int]]],
    merges: list[tuple[int, list[int]]],
    new: list[int],
    vanished: list[int],
) -> None:
    found = compare_groups(counts)

    assert (found.kept, found.splits, found.merges) == (kept, splits, merges)
    assert (found.new, found.vanished) == (new, vanished)


def test_images_of_related_groups_have_not_moved() -> None:
    related = compare_groups([[9, 1, 0], [0, 10, 0], [0, 0, 10]]).related

    assert related.tolist() == [[True, False, False], [False, True, False], [False, False, True]]


def test_a_group_that_is_the_same_by_name_is_neither_new_nor_vanished() -> None:
    found = compare_groups([[5, 5, 0], [5, 5, 0], [0, 0, 9]], same=[(0, 1), (2, 2)])

    assert (found.changed, found.kept, found.new, found.vanished) == ([(0, 1)], [(2, 2)], [0], [1])
    assert found.related.tolist() == [[False, True, False], [False, False, False], [False, False, True]]


def test_a_group_that_was_split_is_not_changed_too() -> None:
    found = compare_groups([[6, 4, 0]], same=[(0, 2)])

    assert (found.splits, found.changed, found.new) == ([(0, [0, 1])], [], [2])
