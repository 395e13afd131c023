"""Dominance sums against the definition."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from labelkit.algorithms.dominance import RankTree


def test_the_worked_example_is_solved() -> None:
    ranks = torch.tensor([[2, 0, 3, 1]])
    payload = torch.tensor([[1.0, 10.0, 100.0, 1000.0]])[:, :, None]
    counts, sums = RankTree(ranks).prefix_sums(payload, torch.tensor([[4, 1, 4, 3]]), torch.tensor([[3, 3, 4, 1]]))
    assert counts.tolist() == [[3, 1, 4, 1]]
    assert sums[0, :, 0].tolist() == [1011.0, 1.0, 1111.0, 10.0]


@given(n=st.integers(1, 70), batch=st.integers(1, 3), queries=st.integers(1, 40), seed=st.integers(0, 2**31))
@settings(deadline=None, max_examples=60)
def test_counts_and_sums_are_those_of_the_definition(n: int, batch: int, queries: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    ranks = torch.stack([torch.randperm(n, generator=generator) for _ in range(batch)])
    payload = torch.randint(-50, 50, (batch, n, 2), generator=generator).double()
    ends, bounds = (torch.randint(0, n + 1, (batch, queries), generator=generator) for _ in range(2))
    counts, sums = RankTree(ranks).prefix_sums(payload, ends, bounds)
    inside = (torch.arange(n) < ends[:, :, None]) & (ranks[:, None] < bounds[:, :, None])
    assert torch.equal(counts, inside.sum(2))
    assert torch.equal(sums, inside.double() @ payload)


@pytest.mark.parametrize("shape", [(0, 5), (2, 0)])
def test_nothing_asked_is_nothing_found(shape: tuple[int, int]) -> None:
    batch, n = shape
    ranks = torch.arange(n).expand(batch, n).contiguous()
    queries = torch.zeros(batch, 3, dtype=torch.int64)
    counts, sums = RankTree(ranks).prefix_sums(torch.zeros(batch, n, 1), queries, queries)
    assert counts.shape == (batch, 3)
    assert sums.shape == (batch, 3, 1)
    assert not counts.any()
    assert not sums.any()
