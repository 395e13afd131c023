"""The tree of groups: Ward's unions as scipy finds them, labels that never mix, cuts by number and by size."""

import numpy as np
import pytest
from labelkit.algorithms import hierarchy as module
from labelkit.algorithms.hierarchy import Hierarchy, build_hierarchy
from numpy.typing import NDArray
from scipy.cluster.hierarchy import fcluster, linkage


def blobs(sizes: list[int], rng: np.random.Generator, *, spread: float = 0.1) -> tuple[NDArray[np.float64], list[int]]:
    """Rows around the axes, and the axis of each."""
    truth = [axis for axis, size in enumerate(sizes) for _ in range(size)]
    return np.eye(len(sizes))[truth] * 5 + rng.normal(0, spread, (len(truth), len(sizes))), truth


def same(one: NDArray[np.int64], other: NDArray[np.int64]) -> bool:
    """Whether two partitions are the same up to names."""
    return len(set(zip(one.tolist(), other.tolist(), strict=True))) == len(set(one)) == len(set(other))


def grow(x: NDArray[np.float64], labels: object = None) -> Hierarchy:
    return build_hierarchy(x, labels, generator=np.random.default_rng(0))  # type: ignore[arg-type] # a list is fine


def ward_unions(x: NDArray[np.float64], weights: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Unions of rows as they are, without a class."""
    pairs, costs = module._merge_leaves(x, weights.astype(np.float64), 0)
    return module._number_merges(pairs, np.ones(len(x), dtype=np.int64))[0], costs


def test_unions_and_costs_are_those_of_scipy(rng: np.random.Generator) -> None:
    x = rng.normal(size=(40, 5))
    expected = linkage(x, method="ward")

    unions, costs = ward_unions(x, np.ones(40))

    # scipy's height is the square root of twice the growth of the sum of squares
    np.testing.assert_allclose(costs, expected[:, 2] ** 2 / 2, rtol=1e-9)
    assert {frozenset(pair) for pair in unions.tolist()} == {
        frozenset(pair) for pair in expected[:, :2].astype(int).tolist()
    }


def test_a_weight_of_three_is_three_equal_rows(rng: np.random.Generator) -> None:
    x = rng.normal(size=(12, 3))
    weights = np.array([3, 1, 1] * 4)

    _, costs = ward_unions(x, weights)

    repeated = linkage(np.repeat(x, weights, axis=0), method="ward")[:, 2] ** 2 / 2
    np.testing.assert_allclose(costs, repeated[-11:], rtol=1e-9)


def plain_tree(x: NDArray[np.float64]) -> Hierarchy:
    """Of rows as they are."""
    unions, costs = ward_unions(x, np.ones(len(x)))
    sizes = np.ones(len(x) + len(unions), dtype=np.int64)
    for place, pair in enumerate(unions):
        sizes[len(x) + place] = sizes[pair].sum()
    return Hierarchy(np.arange(len(x)), x, sizes, unions, costs, np.zeros(0, dtype=np.int64))


@pytest.mark.parametrize("number", [2, 5, 9])
def test_a_cut_is_that_of_scipy(number: int, rng: np.random.Generator) -> None:
    x = rng.normal(size=(40, 5))

    groups, count = plain_tree(x).cut(number)

    assert count == number
    assert same(groups, fcluster(linkage(x, method="ward"), number, "maxclust").astype(np.int64))


def test_blobs_of_unequal_sizes_are_found_and_the_largest_comes_first(rng: np.random.Generator) -> None:
    x, truth = blobs([4, 60, 11], rng)

    groups, count = grow(x).cut(3)

    assert count == 3
    assert same(groups, np.array(truth))
    assert np.bincount(groups).tolist() == [60, 11, 4]


def test_rows_with_a_label_are_in_the_group_of_their_class_whatever_they_look_like(rng: np.random.Generator) -> None:
    x, _truth = blobs([20, 20, 20], rng)
    labels = np.full(60, -1)
    labels[[0, 1, 40]] = 7  # the third lies in another blob
    labels[[20, 21]] = 3

    tree = grow(x, labels)
    groups, count = tree.cut(3)

    assert tree.labels.tolist() == [3, 7]
    assert count == 3
    assert set(groups[labels == 3]) == {0}
    assert set(groups[labels == 7]) == {1}
    assert tree.min_groups == 2


def test_labels_say_which_directions_count() -> None:
    rng = np.random.default_rng(1)
    # along two more axes rows vary most, inside of every class
    truth = np.repeat(np.arange(4), 40)
    x = np.hstack([np.eye(4)[truth] + rng.normal(0, 0.2, (160, 4)), rng.normal(0, 0.8, (160, 2))])
    labels = np.where(truth < 2, truth, -1)
    labels[20:40] = labels[60:80] = -1

    without, _ = grow(x).cut(4)
    groups, _ = grow(x, labels).cut(4)

    def pure(found: NDArray[np.int64]) -> float:
        return sum(np.bincount(truth[found == group]).max() for group in set(found)) / len(truth)

    assert pure(groups) > 0.9 > pure(without)


def test_find_small_groups_are_dissolved_and_others_take_their_place(rng: np.random.Generator) -> None:
    x, _ = blobs([20, 20, 1, 20], rng)

    plain, _ = plain_tree(x).cut(4)
    groups, count = plain_tree(x).cut(3, min_size=5)

    assert sorted(np.bincount(plain).tolist()) == [1, 20, 20, 20]
    assert count == 3
    assert min(np.bincount(groups)) >= 20


def test_fewer_groups_than_asked_come_out_if_there_are_not_so_many_of_that_size(rng: np.random.Generator) -> None:
    x, _ = blobs([20, 20], rng)

    groups, count = plain_tree(x).cut(5, min_size=15)

    assert count == 2
    assert np.bincount(groups).tolist() == [20, 20]


def test_a_class_with_labels_is_never_dissolved(rng: np.random.Generator) -> None:
    x, _ = blobs([20, 20, 2], rng)
    labels = np.full(42, -1)
    labels[40] = 5

    groups, count = grow(x, labels).cut(3, min_size=10)

    assert count == 3
    assert groups[40] == 0


def test_of_many_rows_find_small_groups_take_the_place(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_LEAVES", 50)
    monkeypatch.setattr(module, "_SMALL_GROUPS", 40)
    x, truth = blobs([100, 300, 50], rng)
    labels = np.full(450, -1)
    labels[[0, 1, 2]] = 4

    tree = grow(x, labels)
    groups, _ = tree.cut(3)

    assert tree.max_groups <= 41
    assert same(groups, np.array(truth))
    assert set(groups[:3]) == {0}


def test_leaves_of_find_small_groups_are_the_means_of_their_rows(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, truth = blobs([30, 20, 10], rng)
    labels = np.where((np.array(truth) == 0) & (np.arange(60) < 6), 7, -1)
    monkeypatch.setattr(module, "MAX_LEAVES", 20)
    monkeypatch.setattr(module, "_SMALL_GROUPS", 8)
    monkeypatch.setattr(module, "move_toward_neighbors", lambda places: places)
    placed: list[NDArray[np.float32]] = []
    grouped = module._find_small_groups

    def watched(*words: object) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        small, places = grouped(*words)  # type: ignore[arg-type] # as they come
        placed.append(places[small])
        return small, places

    monkeypatch.setattr(module, "_find_small_groups", watched)
    tree = grow(x, labels)
    expected = [placed[0][tree.leaves == leaf].astype(np.float64).mean(axis=0) for leaf in range(tree.max_groups)]
    np.testing.assert_allclose(tree.places, expected, rtol=1e-6, atol=1e-9)
    np.testing.assert_array_equal(tree.sizes[: tree.max_groups], np.bincount(tree.leaves))


@pytest.mark.parametrize("rows", [np.ones((5, 3)), np.array([[0.0, 1], [0, 1], [2, 0], [2, 0]])])
def test_equal_rows_are_together(rows: NDArray[np.float64]) -> None:
    groups, _ = grow(rows).cut(min(2, len(np.unique(rows, axis=0))))

    assert same(groups, np.unique(rows, axis=0, return_inverse=True)[1])


def test_one_row_is_one_group_and_rows_that_all_have_labels_are_their_classes() -> None:
    assert grow(np.ones((1, 3))).cut(1)[0].tolist() == [0]
    groups, count = grow(np.eye(4), [2, 2, 9, 9]).cut(2)
    assert (groups.tolist(), count) == ([0, 0, 1, 1], 2)


def test_bad_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="NaN"):
        grow(np.array([[np.nan, 1], [1, 1]]))
    with pytest.raises(ValueError, match="same number of rows"):
        grow(np.eye(3), [1, 2])
    with pytest.raises(ValueError, match="into 4 groups"):
        grow(np.eye(3)).cut(4)
