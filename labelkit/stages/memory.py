"""What ``--max-memory`` leaves room for: the one place that turns it into sizes of blocks and arrays.

An estimate is what the process holds at that moment, libraries included, and what the work adds at its widest point.
The sizes per row were measured at the peak of processes that ran at several sizes, and rounded up.
"""

from __future__ import annotations

import math
import os
import resource
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from labelkit.algorithms.row_blocks import BLOCK_NUMBERS, StoredRows
from labelkit.config.memory import MemoryConfig
from labelkit.config.stages import SinkhornConfig
from labelkit.errors import ConfigError
from labelkit.store.embeddings import EmbeddingStore

# What the allocator keeps, and modules that load on first use.
_SPARE_BYTES = 40 << 20
# Float64 blocks alive together in a pass over rows.
_BLOCK_BYTES = 6 * 8 * BLOCK_NUMBERS
# Ids, names and digests that are held and written per row.
_ROW_BYTES = 100
# Distances held while starts are drawn, see ``labelkit.algorithms.clustering``.
_SEED_BYTES = 4 << 24
KERNEL_BYTES = 1 << 30
"""Most that balanced assignment keeps of its scores, when there is room for it."""
# Segments of rows that are read ahead, as they come and as tensors.
_SEGMENTS_BYTES = 4 << 25


def resident_bytes() -> int:
    """Memory that this process holds now; where the system does not tell, the most that it ever held."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


@dataclass(frozen=True)
class Memory:
    """A bound on the memory of this process.

    Attributes:
        limit: bytes; None: no bound.
        text: as the user wrote it.
    """

    limit: int | None
    text: str

    @classmethod
    def of(cls, config: MemoryConfig) -> Memory:
        """The bound of a command."""
        return cls(config.max_memory_bytes, config.max_memory or "")

    def left(self, beside: int = 0) -> int | None:
        """Bytes that arrays may still take when ``beside`` are taken too; None: no bound."""
        return None if self.limit is None else self.limit - resident_bytes() - _SPARE_BYTES - beside

    def require(self, needed: int, what: str, remedy: str = "") -> None:
        """Refuse work that would take more.

        Args:
            needed: bytes beside what is held now.
            what: the work, as the subject of a sentence.
            remedy: what to do but to allow more, such as ``choose a smaller --split``.

        Raises:
            ConfigError: it does not fit; says how much would.
        """
        left = self.left()
        if left is None or needed <= left:
            return
        total = resident_bytes() + _SPARE_BYTES + needed
        raise ConfigError(
            "--max-memory",
            f"{self.text} is too little: {what} takes {size_text(total)}",
            f"Allow {size_text(total)}" + (f", or {remedy}." if remedy else "."),
        )

    def rows(
        self,
        store: EmbeddingStore,
        rows: NDArray[np.int64],
        *,
        beside: int,
        what: str,
        unit: bool = False,
        remedy: str = "choose a smaller --split",
    ) -> StoredRows:
        """Rows of a store for an algorithm: copied where there is room for one copy, else read in blocks.

        Args:
            store: whose.
            rows: (n,) of it.
            beside: bytes that the algorithm takes beside the rows.
            what: the work, for the message.
            unit: scale to length 1.
            remedy: as for :meth:`require`.

        Raises:
            ConfigError: it does not fit even in blocks.
            StoreError: the rows are not as they were written.
        """
        num_rows = len(rows)
        whole = num_rows == store.n
        beside += _BLOCK_BYTES + _ROW_BYTES * num_rows + (0 if whole else 8 * num_rows)
        left = self.left()
        in_blocks = left is not None and beside + 4 * num_rows * store.dim > left
        if in_blocks:
            self.require(beside, f"{what} of {num_rows:,} rows of {store.dim} numbers", remedy)
        return StoredRows(store.embeddings, None if whole else rows, unit=unit, in_blocks=in_blocks)


def size_text(size: int) -> str:
    """A size as ``--max-memory`` takes it, rounded up: ``312MiB``, ``3.2GiB``."""
    mebibytes = math.ceil(size / (1 << 20))
    return f"{mebibytes}MiB" if mebibytes < 1024 else f"{math.ceil(10 * size / (1 << 30)) / 10:g}GiB"


def kmeans_bytes(num_rows: int, dim: int, num_clusters: int, num_inits: int) -> int:
    """What k-means takes beside rows and blocks: numbers per row, centroids, distances while starts are drawn."""
    candidates = 2 + int(math.log(num_clusters))
    together = max(1, min(num_inits, _SEED_BYTES // (4 * num_rows * candidates)))
    seeding = together * (candidates + 3) * 4 * num_rows + 16 * num_rows
    return seeding + 40 * num_rows + 6 * 8 * num_clusters * dim + 8 * num_inits * num_clusters * candidates


def sinkhorn_bytes(config: SinkhornConfig, num_rows: int, dim: int) -> int:
    """What balanced assignment takes beside rows and blocks, or the k-means that it starts from; without a kernel."""
    starting = kmeans_bytes(num_rows, dim, config.num_clusters, config.num_inits)
    exact = 40 * num_rows * config.num_clusters if config.exact_balance else 0
    return max(starting, 100 * num_rows + _SEGMENTS_BYTES + 8 * config.num_clusters**2 + exact)
