"""Dominance sums between blocks against the definition."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from labelkit.methods.dense.ranking_loss import (
    Partition,
    count_thresholds_up_to_rank,
    joint_sort_order,
    partition_into_blocks,
)


@given(
    levels=st.integers(0, 4),
    size=st.integers(1, 5),
    batch=st.integers(1, 3),
    earlier=st.booleans(),
    seed=st.integers(0, 2**31),
)
@settings(deadline=None, max_examples=60)
def test_sums_are_those_of_the_definition(levels: int, size: int, batch: int, earlier: bool, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    blocks = Partition(levels, size)
    n = blocks.padded_length
    ranks = torch.stack([torch.randperm(n, generator=generator) for _ in range(batch)])
    thresholds = torch.randint(0, n + 1, (batch, n), generator=generator).sort(dim=1).values
    payload = torch.randint(-50, 50, (2, batch, n), generator=generator).double()

    below, below_threshold = joint_sort_order(blocks, ranks, thresholds).sum_lower_ranked(payload, earlier=earlier)

    block = torch.arange(n) // size
    stands = block[None, :] < block[:, None] if earlier else block[None, :] > block[:, None]
    own = thresholds.gather(1, ranks)
    for found, most in ((below, ranks), (below_threshold, own)):
        inside = stands & (ranks[:, None, :] < most[:, :, None])
        assert torch.equal(found, torch.einsum("bij,cbj->cbi", inside.double(), payload))


def test_one_order_serves_several_payloads_and_the_thresholds_turned_around() -> None:
    generator = torch.Generator().manual_seed(0)
    blocks, n = Partition(3, 5), 40
    ranks = torch.stack([torch.randperm(n, generator=generator) for _ in range(2)])
    thresholds = torch.randint(0, n + 1, (2, n), generator=generator).sort(dim=1).values
    payload = torch.randint(-50, 50, (2, 2, n), generator=generator).double()
    # how many thresholds are not larger, counted
    turned = (thresholds[:, None, :] <= torch.arange(n)[:, None]).sum(2)

    order = joint_sort_order(blocks, ranks, thresholds)
    block = torch.arange(n) // 5
    for one, own, earlier in ((order, thresholds, True), (order.inverse(), turned, False), (order, thresholds, False)):
        found = one.sum_lower_ranked(payload, earlier=earlier)
        stands = block[None, :] < block[:, None] if earlier else block[None, :] > block[:, None]
        for sums, most in zip(found, (ranks, own.gather(1, ranks)), strict=True):
            inside = stands & (ranks[:, None, :] < most[:, :, None])
            assert torch.equal(sums, torch.einsum("bij,cbj->cbi", inside.double(), payload))


@pytest.mark.parametrize("n", [1, 2, 24, 25, 48, 49, 777, 2401])
def test_blocks_are_short_and_hold_all(n: int) -> None:
    blocks = partition_into_blocks(n)

    assert n <= blocks.padded_length < n + 2**blocks.levels
    assert blocks.size <= 24
    assert blocks.levels == 0 or blocks.size > 12


def test_thresholds_are_counted_and_found_again() -> None:
    thresholds = torch.tensor([[0, 0, 2, 4], [1, 1, 1, 3]])

    counts = count_thresholds_up_to_rank(thresholds)

    assert counts.tolist() == [[2, 2, 3, 3], [0, 3, 3, 4]]
    assert torch.equal(count_thresholds_up_to_rank(counts), thresholds)
