"""Rows of a store as stages take them."""

import numpy as np
import pytest
from labelkit.commands.common.embeddings import normalize_embeddings


@pytest.mark.parametrize("length", [1e-38, 1e-30, 1e-10, 1.0, 1e30])
def test_rows_of_any_length_keep_their_direction(length: float) -> None:
    rows = np.random.default_rng(0).normal(size=(4, 3))
    expected = rows / np.sqrt((rows**2).sum(axis=1, keepdims=True))
    assert not normalize_embeddings(np.zeros((2, 3), dtype=np.float32)).any()
    np.testing.assert_allclose(normalize_embeddings((rows * length).astype(np.float32)), expected, atol=1e-6)
