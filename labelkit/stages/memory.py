"""What ``--max-memory`` leaves room for: the one place that turns it into sizes of blocks and arrays.

An estimate is what the process holds at that moment, libraries included, and what the work adds at its widest point.
The sizes per row were measured at the peak of processes that ran at several sizes, and rounded up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from labelkit.algorithms.group_space import MOST_DIRECTIONS, MOST_SAMPLED
from labelkit.algorithms.group_tree import MOST_LEAVES
from labelkit.algorithms.indexes import HNSWRecipe, IVFPQRecipe, default_num_lists, default_pq_bytes, num_trained
from labelkit.algorithms.row_blocks import BLOCK_NUMBERS, StoredRows
from labelkit.algorithms.shared_rows import largest_part, part_of
from labelkit.config.cluster import SinkhornConfig
from labelkit.config.memory import MemoryConfig
from labelkit.engine.host_memory import resident_bytes
from labelkit.errors import ConfigError
from labelkit.stages.several import current_processes
from labelkit.store.embeddings import EmbeddingStore

# What the allocator keeps, and modules that load on first use.
_SPARE_BYTES = 40 << 20
# Float64 blocks alive together in a pass over rows.
_BLOCK_BYTES = 6 * 8 * BLOCK_NUMBERS
# Ids, names and digests that are held and written per row.
_ROW_BYTES = 110
# faiss and scikit-learn.
_KMEANS_LIBRARIES = 64 << 20
# A block of scores and what is made of it.
_SCORES_BYTES = 1 << 25


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

    def left(self) -> int | None:
        """Bytes that arrays may still take; None: no bound."""
        return None if self.limit is None else self.limit - resident_bytes() - _SPARE_BYTES

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
            # what a process holds varies by some pages from run to run
            f"Allow {size_text(total + total // 50)}" + (f", or {remedy}." if remedy else "."),
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
        held: int | None = None,
    ) -> StoredRows:
        """Rows of a store for an algorithm: copied where there is room for one copy, else read in blocks.

        Args:
            store: whose.
            rows: (n,) of it.
            beside: bytes that the algorithm takes beside the rows.
            what: the work, for the message.
            unit: scale to length 1.
            remedy: as for :meth:`require`.
            held: rows that a copy would be of, where processes share them; default: all.

        Raises:
            ConfigError: it does not fit even in blocks.
            StoreError: the rows are not as they were written.
        """
        in_blocks = self.in_blocks(len(rows), store.dim, beside=beside, what=what, remedy=remedy, held=held)
        return stored_rows(store, rows, unit=unit, in_blocks=in_blocks)

    def in_blocks(
        self,
        num_rows: int,
        dim: int,
        *,
        beside: int,
        what: str,
        remedy: str = "choose a smaller --split",
        held: int | None = None,
    ) -> bool:
        """Whether the rows have to be read in blocks, since there is no room for a copy; as :meth:`rows`.

        Raises:
            ConfigError: it does not fit even in blocks.
        """
        beside += _BLOCK_BYTES + _ROW_BYTES * num_rows
        left = self.left()
        if left is None or beside + 4 * (num_rows if held is None else held) * dim <= left:
            return False
        self.require(beside, what if "rows" in what else f"{what} of {num_rows:,} rows of {dim} numbers", remedy)
        return True

    def has_room(self, num_rows: int, *, beside: int) -> bool:
        """Whether work fits that reads rows in blocks.

        Args:
            num_rows: that are read.
            beside: bytes that the algorithm takes beside the rows.
        """
        left = self.left()
        return left is None or beside + _BLOCK_BYTES + _ROW_BYTES * num_rows <= left


def stored_rows(store: EmbeddingStore, rows: NDArray[np.int64], *, unit: bool = False, in_blocks: bool) -> StoredRows:
    """Some rows of a store, compared with their digests now; processes share what it takes to scale them.

    Raises:
        StoreError: the rows are not as they were written.
    """
    found = StoredRows(store.embeddings, None if len(rows) == store.n else rows, in_blocks=in_blocks)
    if not unit:
        return found
    processes = current_processes()
    return found.divided(processes.join(found.part(part_of(len(found), processes)).lengths()))


def size_text(size: int) -> str:
    """A size as ``--max-memory`` takes it, rounded up: ``312MiB``, ``3.2GiB``."""
    mebibytes = math.ceil(size / (1 << 20))
    return f"{mebibytes}MiB" if mebibytes < 1024 else f"{math.ceil(10 * size / (1 << 30)) / 10:g}GiB"


def kmeans_bytes(num_rows: int, dim: int, num_clusters: int, num_inits: int) -> int:
    """What k-means takes beside rows and blocks: libraries, a sample, what starts are drawn by, ids, centroids."""
    sampled = min(num_rows, max(8192, 256 * num_clusters))
    drawing = 24 * sampled * max(num_inits, 2 + int(math.log(num_clusters)))
    return _KMEANS_LIBRARIES + 2 * 4 * sampled * dim + drawing + 60 * num_rows + 8 * 8 * num_clusters * dim


def kmeans_held(num_rows: int) -> int:
    """Rows that k-means copies where there is room: as they are, of length 1, and as they are compared."""
    return 3 * num_rows


def sinkhorn_bytes(config: SinkhornConfig, num_rows: int, dim: int) -> int:
    """What balanced assignment takes beside rows and blocks, or the k-means that it starts from; without a kernel."""
    starting = kmeans_bytes(num_rows, dim, config.num_clusters, config.num_inits)
    exact = 40 * num_rows * config.num_clusters if config.exact_balance else 0
    own_rows = largest_part(num_rows, current_processes())
    return max(starting, 80 * own_rows + 20 * num_rows + _SCORES_BYTES + 8 * config.num_clusters**2 + exact)


def patch_sample_bytes(num_patches: int, dim: int, num_clusters: int, num_inits: int) -> int:
    """What k-means of a sample of patches takes: the sample as drawn, joined, scaled and as it is worked on."""
    return 6 * 4 * num_patches * dim + _BLOCK_BYTES + kmeans_bytes(num_patches, dim, num_clusters, num_inits)


def search_bytes(num_queries: int, dim: int, k: int) -> int:
    """What exact search takes beside the gallery: queries, candidates, and the hits as they are listed."""
    return num_queries * (12 * dim + 60 * (k + 16) + 1000 * k)


def index_bytes(num_rows: int, dim: int, recipe: HNSWRecipe | IVFPQRecipe, built_rows: int) -> int:
    """What building an index takes, one file after the other, and then what is mapped of all files, beside the rows.

    Args:
        num_rows: of the gallery.
        dim: of a row.
        recipe: of the index.
        built_rows: of the largest file that is built or extended; 0: all are there.
    """
    training = 0
    if isinstance(recipe, HNSWRecipe):
        per_row = 4 * dim + 10 * recipe.num_links + 100
    else:
        per_row = (recipe.num_bytes or default_pq_bytes(dim)) + 40
        training = (
            0
            if not built_rows
            else 4 * 4 * dim * num_trained(num_rows, recipe.num_lists or default_num_lists(num_rows))
        )
    # while an array grows, what it was is still there
    return max(3 * per_row * built_rows + training, per_row * num_rows)


def votes_bytes(num_queries: int, num_classes: int, dim: int) -> int:
    """What a vote of neighbors takes: shares of votes, ranked, and rows that are looked up in blocks."""
    return 4 * 8 * num_queries * num_classes + _BLOCK_BYTES + 24 * num_queries


def linear_probe_bytes(num_rows: int, num_queries: int, dim: int, num_classes: int) -> int:
    """What training a linear classifier takes, torch included: rows of this process as given, centered, and scaled."""
    own = largest_part(num_rows, current_processes()) + largest_part(num_queries, current_processes())
    return (400 << 20) + 4 * 4 * own * dim + 8 * num_queries * num_classes


def logistic_regression_bytes(num_rows: int, num_queries: int, dim: int, num_classes: int) -> int:
    """What solving a logistic regression takes: rows of this process in float64, outputs, and the steps of L-BFGS."""
    own = largest_part(num_rows, current_processes()) + largest_part(num_queries, current_processes())
    # ten pairs of them, as scipy keeps, what it works with, and copies of place and gradient
    steps = 8 * num_classes * dim * (2 * 10 + 60)
    return (200 << 20) + 28 * own * dim + 5 * 8 * own * num_classes + steps + 3 * 8 * num_queries * num_classes


def suggest_bytes(num_rows: int, dim: int, num_labels: int) -> int:
    """What choosing images to label takes: rows of this process, around their mean, and as they are compared.

    Args:
        num_rows: to choose from, of all processes.
        dim: of a row.
        num_labels: rows that have a label.
    """
    own = largest_part(num_rows, current_processes())
    return 3 * 4 * own * dim + 150 * num_rows + 3 * 8 * num_labels * dim + _BLOCK_BYTES


def nmi_bytes(num_rows: int, dim: int, num_clusters: int, *, in_blocks: bool) -> int:
    """What k-means for NMI takes: rows read in blocks, or joined, scaled and as they are worked on."""
    least = _BLOCK_BYTES // 2 + kmeans_bytes(num_rows, dim, num_clusters, 1)
    return least if in_blocks else least + 4 * 4 * num_rows * dim


def grouping_scores_bytes(num_rows: int, num_classes: int) -> int:
    """What scoring groupings takes: ids and classes of one at a time, counts, and resampled counts in blocks."""
    return 120 * num_rows + 8 * 8 * num_classes**2 + (64 << 20)


def tree_bytes(num_rows: int, dim: int, num_classes: int) -> int:
    """What a tree of groups takes: a sample for its directions, rows along these, and all pairs of its leaves."""
    leaves = min(num_rows, MOST_LEAVES) + num_classes
    sampled = min(num_rows, MOST_SAMPLED)
    sample = sampled * dim * (4 + 8 + 8) + 3 * 8 * dim**2 + 4 * 4 * sampled * min(dim, MOST_DIRECTIONS)
    return max(sample, 5 * 8 * leaves**2) + 60 * num_rows + _BLOCK_BYTES


def answer_bytes(num_rows: int, dim: int, num_groups: int) -> int:
    """What answers take: rows scaled, parted and as they are worked on, their graph and tree, five tables of shares."""
    graph_and_shares = num_rows * (20 * 12 * 4 + 5 * 8 * num_groups)
    return 6 * 4 * num_rows * dim + 60 * num_rows + graph_and_shares + tree_bytes(num_rows, dim, num_groups)


def few_labels_bytes(num_rows: int, dim: int, num_classes: int, num_stores: int) -> int:
    """What growing a few labels takes: features in float64 beside their copies, distances to the classes."""
    return num_stores * 24 * num_rows * dim + 40 * num_rows * num_classes + 300 * num_rows
