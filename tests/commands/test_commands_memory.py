"""``--max-memory`` sizes blocks by one rule, and results do not depend on it."""

import numpy as np
import pytest
from labelkit.commands.cluster.options import SinkhornConfig
from labelkit.commands.common.embeddings import fits_in_memory, load_rows_within_memory_limit, max_block_bytes
from tests.running import MakeStore


def bounded(size: str | None) -> SinkhornConfig:
    return SinkhornConfig(index="s.h5", num_clusters=2, max_memory=size)


def test_half_is_for_rows_and_a_quarter_for_a_block() -> None:
    config = bounded("100MiB")
    assert fits_in_memory(config, 50 << 20)
    assert not fits_in_memory(config, (50 << 20) + 1)
    assert max_block_bytes(config, 1 << 30) == 25 << 20
    assert max_block_bytes(config, 1 << 20) == 1 << 20
    assert max_block_bytes(bounded("1B"), 1 << 20) == 1
    assert fits_in_memory(bounded(None), 1 << 60)
    assert max_block_bytes(bounded(None), 1 << 30) == 1 << 30


@pytest.mark.parametrize(("size", "in_blocks"), [(None, False), ("96B", False), ("95B", True)])
def test_rows_that_do_not_fit_are_read_in_blocks(make_store: MakeStore, size: str | None, in_blocks: bool) -> None:
    store = make_store([[3, 4], [0, 5], [5, 12], [8, 6], [6, 8], [1, 0]])

    rows = load_rows_within_memory_limit(bounded(size), store, np.arange(6), normalize=True)

    assert rows.in_blocks == in_blocks
    np.testing.assert_allclose(np.linalg.norm(rows.to_array(), axis=1), 1, rtol=1e-6)
