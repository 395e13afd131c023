"""Samplers: what an epoch draws, how often, and that it is a function of seed and epoch."""

import numpy as np
import pytest
from labelkit.data.samplers import (
    BalancedSampler,
    ClassBalancedSampler,
    ImageStream,
    Sampler,
    StreamSampler,
    UniformSampler,
)

LABELED = np.arange(1797) < 450


def test_uniform_epochs_are_permutations() -> None:
    sampler = UniformSampler([3, 5, 8, 9], seed=0)
    epochs = [tuple(sampler.indices(epoch)) for epoch in range(6)]
    assert all(sorted(epoch) == [3, 5, 8, 9] for epoch in epochs)
    assert len(set(epochs)) > 1


@pytest.mark.parametrize(
    "sampler",
    [
        UniformSampler(np.arange(1797), seed=4),
        BalancedSampler(LABELED, seed=4),
        ClassBalancedSampler(np.arange(1797) % 10, 4, batch_size=16, seed=4),
    ],
)
def test_an_epoch_depends_on_its_number_alone(sampler: Sampler) -> None:
    third = sampler.indices(3)
    sampler.indices(0)
    assert np.array_equal(third, sampler.indices(3))
    assert not np.array_equal(third, sampler.indices(4))
    assert third.dtype == np.int64
    assert len(third) == len(sampler)


def test_labeled_and_unlabeled_images_weigh_the_same_in_sum() -> None:
    sampler = BalancedSampler(LABELED, seed=0)
    drawn = np.concatenate([sampler.indices(epoch) for epoch in range(20)])
    assert len(sampler) == 1797
    # 35,940 fair coins: standard deviation of the share 0.0026.
    assert abs(LABELED[drawn].mean() - 0.5) < 0.011
    counts = np.bincount(drawn, minlength=1797)
    # Expected draws per image: 39.9 for labeled, 13.3 for unlabeled ones.
    assert abs(counts[LABELED].mean() - 17970 / 450) < 1
    assert abs(counts[LABELED].std() - np.sqrt(17970 / 450)) < 1
    assert abs(counts[~LABELED].std() - np.sqrt(17970 / 1347)) < 0.5


def test_rows_that_cannot_be_read_are_never_drawn() -> None:
    rows = np.setdiff1d(np.arange(1797), [0, 7, 500])
    balanced = BalancedSampler(LABELED, seed=0, rows=rows)
    assert len(balanced) == 1794
    assert set(np.concatenate([balanced.indices(epoch) for epoch in range(5)])) <= set(rows)
    grouped = ClassBalancedSampler(np.arange(1797) % 10, 4, batch_size=16, seed=0, rows=rows)
    assert set(grouped.indices(0)) <= set(rows)


@pytest.mark.parametrize("labeled", [np.zeros(8, dtype=bool), np.ones(8, dtype=bool)])
def test_one_side_alone_is_drawn_uniformly(labeled: np.ndarray) -> None:
    drawn = np.concatenate([BalancedSampler(labeled, seed=0).indices(epoch) for epoch in range(500)])
    # 4,000 draws of 8 rows: standard deviation of a count 21.
    assert np.abs(np.bincount(drawn, minlength=8) - 500).max() < 100


def test_class_batches_hold_different_classes_and_different_images() -> None:
    labels = np.array([*range(5)] * 12 + [-1] * 10)
    sampler = ClassBalancedSampler(labels, 3, batch_size=12, seed=0)
    assert len(sampler) == 60
    for batch in sampler.indices(0).reshape(-1, 12):
        classes = labels[batch].reshape(4, 3)
        assert (classes == classes[:, :1]).all()
        assert len(set(classes[:, 0])) == 4
        assert len(set(batch)) == 12
        assert (classes >= 0).all()


def test_a_class_smaller_than_its_share_repeats_images() -> None:
    sampler = ClassBalancedSampler([0, 1, 1, 1], 2, batch_size=4, seed=0)
    assert sampler.indices(0).tolist().count(0) == 2


@pytest.mark.parametrize(("size", "groups"), [(1, 1), (4, 1), (5, 1), (6, 2), (12, 3)])
def test_a_class_makes_as_many_groups_as_it_has_fives_begun(size: int, groups: int) -> None:
    """T18 of the TAC-CCL specification: a batch is one class, so an epoch of all groups is one cut."""
    sampler = ClassBalancedSampler(np.zeros(size), 5, batch_size=5, seed=0)
    drawn = sampler.indices(0).reshape(-1, 5)
    assert len(drawn) == groups
    assert set(drawn.reshape(-1)) == set(range(size))


def test_other_labels_are_drawn_by_without_changing_the_length_of_an_epoch() -> None:
    sampler = ClassBalancedSampler(None, 2, batch_size=4, seed=0, rows=np.arange(10))
    with pytest.raises(ValueError, match="no labels"):
        sampler.indices(0)
    for labels in (np.arange(10) // 5, np.arange(10) % 5):
        sampler.relabel(labels)
        drawn = labels[sampler.indices(1)].reshape(-1, 2)
        assert (drawn[:, 0] == drawn[:, 1]).all()
        assert len(sampler) == 12


def streams(steps: int = 5, labeled: int = 3, phase: int = 0) -> StreamSampler:
    rows = np.arange(100)
    return StreamSampler(
        [ImageStream("labeled", rows[:labeled], 4), ImageStream("unlabeled", rows[10:], 6)],
        steps=steps,
        seed=2,
        phase=phase,
    )


def test_each_batch_has_its_share_of_each_stream() -> None:
    sampler = streams()
    assert (sampler.batch_size, len(sampler)) == (10, 50)
    batches = sampler.indices(3).reshape(5, 10)
    assert (batches[:, :4] < 3).all()
    assert (batches[:, 4:] >= 10).all()


def test_a_stream_draws_each_row_once_before_any_again_also_across_epochs() -> None:
    sampler = streams()
    drawn = np.concatenate([sampler.indices(epoch).reshape(5, 10) for epoch in range(9)])
    labeled, unlabeled = drawn[:, :4].reshape(-1), drawn[:, 4:].reshape(-1)
    assert all(sorted(turn) == [0, 1, 2] for turn in labeled.reshape(-1, 3))
    assert all(sorted(turn) == list(range(10, 100)) for turn in unlabeled[:270].reshape(-1, 90))
    assert len({tuple(turn) for turn in labeled.reshape(-1, 3)}) > 1


def test_the_length_of_an_epoch_changes_nothing_that_is_drawn() -> None:
    short = np.concatenate([streams(steps=2).indices(epoch) for epoch in range(6)])
    assert (short == np.concatenate([streams(steps=4).indices(epoch) for epoch in range(3)])).all()
