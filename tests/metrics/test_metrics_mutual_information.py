"""Adjusted mutual information against all ways to deal the samples."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from labelkit.metrics.clustering import adjusted_mutual_information


def mutual_by_loops(first: list[int], second: list[int]) -> float:
    n, total = len(first), 0.0
    for a in set(first):
        for b in set(second):
            both = sum(x == a and y == b for x, y in zip(first, second, strict=True)) / n
            if both:
                total += both * math.log(both / (first.count(a) / n * (second.count(b) / n)))
    return total


@pytest.mark.parametrize(
    ("first", "second"),
    [([0, 0, 1, 1, 1, 2], [0, 0, 0, 0, 1, 1]), ([0, 0, 0, 1, 1], [0, 1, 1, 2, 2]), ([0, 1, 2, 3], [0, 0, 1, 1])],
)
def test_what_chance_gives_is_the_mean_over_all_orders(first: list[int], second: list[int]) -> None:
    means = [mutual_by_loops(first, list(order)) for order in itertools.permutations(second)]
    chance = sum(means) / len(means)
    most = (mutual_by_loops(first, first) + mutual_by_loops(second, second)) / 2
    expected = (mutual_by_loops(first, second) - chance) / (most - chance)
    assert adjusted_mutual_information(first, second) == pytest.approx(expected, abs=1e-9)


def test_chance_is_zero_and_sameness_one() -> None:
    generator = np.random.default_rng(0)
    found = [adjusted_mutual_information(generator.integers(0, 4, 300), np.arange(300) % 90) for _ in range(40)]
    assert np.mean(found) == pytest.approx(0, abs=0.01)
    assert adjusted_mutual_information([5, 5, 0, 9], [1, 1, 7, 0]) == pytest.approx(1)


@pytest.mark.parametrize(
    ("labels", "ids", "expected"),
    [
        ([0, 0, 0], [3, 3, 3], 1),
        ([0, 1, 2], [2, 0, 1], 1),
        ([0, 0, 1, 1], [0, 0, 0, 0], 0),
        ([0, 0, 1, 1], [0, 1, 2, 3], 0),
    ],
)
def test_partitions_that_leave_nothing_to_chance(labels: list[int], ids: list[int], expected: float) -> None:
    assert adjusted_mutual_information(labels, ids) == pytest.approx(expected, abs=1e-9)
