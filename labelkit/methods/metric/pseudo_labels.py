"""Cluster-based pseudo-labels, recomputed between epochs, and a memory bank of embeddings from earlier steps.

Both are buffers, so that checkpoints include them. All processes hold the same entries and compute the same results.
The memory stores no labels; they are looked up when used, so that a new clustering relabels all entries at once.
Source of the memory: "Cross-Batch Memory for Embedding Learning" (CVPR 2020), where entries keep their labels.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from labelkit.algorithms.clustering import kmeans
from labelkit.data.keyed_random import keyed_generator
from labelkit.errors import DatasetError, DivergenceError
from labelkit.training.method import TrainState

MAX_ITERATIONS = 50


class PseudoLabels(nn.Module):
    """Pseudo-labels from clustering: the cluster ids of all n images, and the centroids of the k clusters.

    Attributes:
        cluster_ids: (n,) int64, -1 = not clustered.
        centroids: (k, d) float32, mean embedding of each cluster, not normalized.
        epoch: () int64, epoch at whose start the clusters were computed; -1 = never.
    """

    def __init__(self, num_samples: int, num_clusters: int, embed_dim: int, *, refresh_epochs: int, seed: int) -> None:
        super().__init__()
        self.num_clusters = num_clusters
        self.refresh_epochs = refresh_epochs
        self.seed = seed
        #: (m,) int64, rows that can be read; set by the method's ``phases``
        self.rows: NDArray[np.int64] = np.arange(num_samples)
        self.cluster_ids: Tensor = nn.Buffer(torch.full((num_samples,), -1, dtype=torch.int64))
        self.centroids: Tensor = nn.Buffer(torch.zeros(num_clusters, embed_dim))
        self.epoch: Tensor = nn.Buffer(torch.tensor(-1))

    def is_due(self, epoch: int) -> bool:
        """Return whether the images must still be clustered at the start of an epoch."""
        return epoch % self.refresh_epochs == 0 and int(self.epoch) != epoch

    @property
    def is_empty(self) -> bool:
        """Return whether no clustering has been computed yet."""
        return int(self.epoch) < 0

    def recluster(self, points: Tensor, embeddings: Tensor, state: TrainState) -> dict[str, float]:
        """Cluster the images on the main process at the start of an epoch, and share the result with all processes.

        Args:
            points: (m, p) float, the features of ``rows`` to cluster.
            embeddings: (m, d) float, averaged to centroids; may be the same as ``points``.
            state: training state.

        Returns:
            Share of the clusters with a single image, and share of the images that moved to another cluster.

        Raises:
            DatasetError: clusters stay empty because too many images are identical.
            DivergenceError: the same after the first clustering, since then the features have collapsed.
        """
        k, rows, epoch = self.num_clusters, self.rows, state.epoch
        ids = torch.zeros(len(rows), dtype=torch.int64)
        if state.is_main:  # on all processes, identical runs would compete for the same CPU
            generator = keyed_generator(self.seed, "pseudo-labels", epoch)
            num_inits = 3 if k <= 1000 else 1
            found = kmeans(points.numpy(), k, generator=generator, num_inits=num_inits, max_iter=MAX_ITERATIONS)
            ids = torch.from_numpy(found.cluster_ids)
        ids = state.combine(ids, "sum")
        counts = np.bincount(ids.numpy(), minlength=k)
        empty = int((counts == 0).sum())
        if empty and not self.is_empty:
            raise DivergenceError(
                f"epoch {epoch}",
                f"{empty} of {k} clusters are still empty: training has collapsed, since too many images have "
                "identical features",
                "Lower --lr or the weights of the additional losses. The last checkpoint is kept.",
            )
        if empty:
            problem = f"{empty} of {k} clusters are empty, since too many of the {len(rows)} images are identical"
            raise DatasetError("pseudo-labels", problem, "Lower --num-clusters, or remove duplicates.")
        before = self.cluster_ids.cpu()[torch.from_numpy(rows)]
        moved = 0.0 if self.is_empty else _moved_fraction(before.numpy(), ids.numpy())
        sums = torch.zeros(k, embeddings.shape[1], dtype=torch.float64).index_add_(0, ids, embeddings.double())
        self.centroids.copy_((sums / torch.from_numpy(counts)[:, None]).float())
        self.cluster_ids.fill_(-1)
        self.cluster_ids[torch.from_numpy(rows)] = ids.to(self.cluster_ids.device)
        self.epoch.fill_(epoch)
        return {"singles": float((counts == 1).mean()), "moved": moved}


def _moved_fraction(before: NDArray[np.int64], after: NDArray[np.int64]) -> float:
    """Return the share of images that left the majority of their old cluster (-1 = none), for any numbering."""
    known = before >= 0
    if not known.any():
        return 0.0
    # a table of all pairs would not fit into memory for tens of thousands of clusters
    pairs, counts = np.unique(np.stack([before[known], after[known]], axis=1), axis=0, return_counts=True)
    starts = np.flatnonzero(np.diff(pairs[:, 0], prepend=-1))
    return 1.0 - float(np.maximum.reduceat(counts, starts).sum()) / int(known.sum())


class MemoryBank(nn.Module):
    """First-in, first-out memory of embeddings from earlier steps.

    Args:
        size: number of entries, q.
        embed_dim: d.

    Attributes:
        embeddings: (q, d) float32.
        rows: (q,) int64, dataset row of each entry; -1 = empty.
        position: () int64, index of the next entry.
    """

    def __init__(self, size: int, embed_dim: int) -> None:
        super().__init__()
        self.embeddings: Tensor = nn.Buffer(torch.zeros(size, embed_dim))
        self.rows: Tensor = nn.Buffer(torch.full((size,), -1, dtype=torch.int64))
        self.position: Tensor = nn.Buffer(torch.zeros((), dtype=torch.int64))
        # number of filled entries, which come first; kept here to avoid a GPU sync at every step; None: unknown
        self._filled: int | None = 0

    def _load_from_state_dict(self, *args: Any) -> None:
        super()._load_from_state_dict(*args)
        self._filled = None

    def __len__(self) -> int:
        """Return the memory size q."""
        return len(self.rows)

    @torch.no_grad()
    def enqueue(self, embeddings: Tensor, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Replace the oldest entries with a batch (b, d) over all processes, b <= q, and return all entries.

        Returns:
            embeddings (r, d), without gradient; (r,) int64 dataset rows; and (b,) int64 entries of this batch.

        Raises:
            ValueError: the batch is larger than the memory.
        """
        if len(rows) > len(self):
            raise ValueError(f"a batch must not exceed the memory size ({len(self)}), got {len(rows)} rows")
        own = (self.position + torch.arange(len(rows), device=rows.device)) % len(self)
        self.embeddings[own] = embeddings.detach().to(self.embeddings.dtype)
        self.rows[own] = rows
        self.position.copy_((self.position + len(rows)) % len(self))
        if self._filled is None:  # this batch included
            self._filled = int((self.rows >= 0).sum())
        else:
            self._filled = min(self._filled + len(rows), len(self))
        # copies, since the next batch overwrites entries that this batch's backward pass still needs
        return self.embeddings[: self._filled].clone(), self.rows[: self._filled].clone(), own

    @torch.no_grad()
    def refill(self, embeddings: Tensor, rows: Tensor) -> None:
        """Clear the memory and fill it with the last of the given embeddings (m, d) and rows (m,)."""
        embeddings, rows = embeddings[-len(self) :], rows[-len(self) :]
        self.rows.fill_(-1)
        self.embeddings[: len(rows)] = embeddings.to(self.embeddings)
        self.rows[: len(rows)] = rows.to(self.rows.device)
        self.position.fill_(len(rows) % len(self))
        self._filled = len(rows)
