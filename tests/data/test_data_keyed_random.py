"""Keyed random numbers: independent of company, dependent on every part of the key, uniform."""

from typing import Any

import numpy as np
import pytest
from labelkit.data.keyed_random import KeyedRNG, keyed_generator

MASK = (1 << 64) - 1


def splitmix64(state: int) -> int:
    """The reference in plain integers, from the paper's listing."""
    z = (state + 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def test_the_mixer_gives_the_published_sequence() -> None:
    from labelkit.data.keyed_random import _splitmix64

    states = (np.arange(3, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)).astype(np.uint64)
    # First outputs of SplitMix64 seeded with 0.
    assert [hex(int(value)) for value in _splitmix64(states)] == [
        "0xe220a8397b1dcdaf",
        "0x6e789e6aa1b965f4",
        "0x6c45d188009454f",
    ]
    assert [int(value) for value in _splitmix64(states)] == [splitmix64(int(state)) for state in states]


def test_numbers_do_not_depend_on_the_rest_of_the_batch() -> None:
    rows = np.array([5, 900_000, 5, 0])
    together = KeyedRNG(1, 2, rows).uniform(0, "crop", 3)
    for i, row in enumerate(rows):
        assert np.array_equal(together[i], KeyedRNG(1, 2, np.array([row])).uniform(0, "crop", 3)[0])
    assert np.array_equal(together[0], together[2])


@pytest.mark.parametrize("other", [(1, 0, 0, "a"), (0, 1, 0, "a"), (0, 0, 1, "a"), (0, 0, 0, "b")])
def test_every_part_of_the_key_changes_the_numbers(other: tuple[int, int, int, str]) -> None:
    rows = np.arange(2000)
    base = KeyedRNG(0, 0, rows).uniform(0, "a", 1)[:, 0]
    seed, epoch, view, purpose = other
    changed = KeyedRNG(seed, epoch, rows).uniform(view, purpose, 1)[:, 0]
    # 2,000 independent pairs: standard deviation of their correlation 0.022.
    assert abs(np.corrcoef(base, changed)[0, 1]) < 0.09


def test_numbers_are_uniform_and_uncorrelated() -> None:
    values = KeyedRNG(0, 0, np.arange(20_000)).uniform(0, "a", 4)
    assert values.dtype == np.float32
    assert values.min() >= 0
    assert values.max() < 1
    counts = np.stack([np.histogram(values[:, i], bins=20, range=(0, 1))[0] for i in range(4)])
    # Chi-square with 19 degrees of freedom: mean 19, above 50 with probability 1e-4.
    assert (((counts - 1000) ** 2 / 1000).sum(axis=1) < 50).all()
    correlation = np.corrcoef(np.concatenate((values[:-1], values[1:]), axis=1).T) - np.eye(8)
    assert np.abs(correlation).max() < 0.03


def test_generators_repeat_for_a_key_and_differ_between_keys() -> None:
    def draw(*key: Any) -> list[float]:
        return keyed_generator(*key).random(4).tolist()

    keys = [(0, "a"), (1, "a"), (0, "b"), (0, "a", 1), (0, "a", 0, 1)]
    assert draw(0, "a") == draw(0, "a", 0, 0)
    assert len({tuple(draw(*key)) for key in keys}) == len(keys)
