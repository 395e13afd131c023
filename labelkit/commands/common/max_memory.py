"""How ``--max-memory`` sizes the blocks that work goes through, on the commands that hold more than rows.

Half of it is for rows, a quarter for what is made of a block of them; the rest is for Python, libraries and results.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from labelkit.algorithms.row_blocks import StoredRows
from labelkit.options.memory import MemoryConfig
from labelkit.store.embeddings import EmbeddingStore


def has_room(config: MemoryConfig, num_bytes: int) -> bool:
    """Return whether embeddings or an index of ``num_bytes`` fit in half of ``--max-memory``."""
    return config.max_memory_bytes is None or num_bytes <= config.max_memory_bytes // 2


def block_bytes(config: MemoryConfig, most: int) -> int:
    """Return the size in bytes of a block of scores under ``--max-memory``; ``most`` without a limit."""
    return most if config.max_memory_bytes is None else max(1, min(most, config.max_memory_bytes // 4))


def bounded_rows(
    config: MemoryConfig, store: EmbeddingStore, rows: NDArray[np.int64], *, unit: bool = False
) -> StoredRows:
    """Return rows of a store, held in memory if ``--max-memory`` allows, else read in blocks.

    Args:
        config: the bound.
        store: whose.
        rows: (n,) of it.
        unit: scale to length 1.

    Raises:
        StoreError: the rows are not as they were written.
    """
    return stored_rows(store, rows, unit=unit, in_blocks=not has_room(config, 4 * len(rows) * store.dim))


def stored_rows(
    store: EmbeddingStore,
    rows: NDArray[np.int64],
    *,
    unit: bool = False,
    roots: bool = False,
    in_blocks: bool = False,
) -> StoredRows:
    """Return the embeddings of some rows of a store, or their square roots, verified by their digests.

    Raises:
        StoreError: the rows are not as they were written.
    """
    chosen = None if len(rows) == store.n else rows
    return StoredRows(store.embeddings, chosen, unit=unit, roots=roots, in_blocks=in_blocks)
