"""Rows of a store as stages take them."""

import numpy as np
import pytest
from labelkit.commands.common.embeddings import load_finite_embeddings, normalize_embeddings
from tests.running import MakeStore


@pytest.mark.parametrize("length", [1e-38, 1e-30, 1e-10, 1.0, 1e30])
def test_rows_of_any_length_keep_their_direction(length: float) -> None:
    rows = np.random.default_rng(0).normal(size=(4, 3))
    expected = rows / np.sqrt((rows**2).sum(axis=1, keepdims=True))
    assert not normalize_embeddings(np.zeros((2, 3), dtype=np.float32)).any()
    np.testing.assert_allclose(normalize_embeddings((rows * length).astype(np.float32)), expected, atol=1e-6)


def test_all_rows_are_mapped_and_any_order_is_kept(make_store: MakeStore) -> None:
    values = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    store = make_store(values)
    assert np.shares_memory(load_finite_embeddings(store, np.arange(3)), store.embeddings)
    np.testing.assert_array_equal(load_finite_embeddings(store, np.array([2, 0, 1])), values[[2, 0, 1]])
