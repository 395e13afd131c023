"""Embeddings of earlier steps that losses compare the batch with; a queue in buffers, so that checkpoints carry it.

Each entry has the row of its image and no label: labels are looked up when they are used, so that a new clustering
relabels the whole memory at once.
Source: "Cross-Batch Memory for Embedding Learning" (CVPR 2020); there entries keep the labels of their step.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class MemoryView:
    """What is in the memory.

    Attributes:
        embeddings: (r, d), no gradient.
        rows: (r,) int64, rows of the data set.
        own: (b,) int64, entries that the last batch became.
    """

    embeddings: Tensor
    rows: Tensor
    own: Tensor


class MemoryBank(nn.Module):
    """The last embeddings, first in, first out.

    Args:
        size: entries, q.
        embed_dim: d.

    Attributes:
        embeddings: (q, d) float32.
        rows: (q,) int64; -1 = not filled.
        position: () int64, where the next entry goes.
    """

    #: What is equal on every process, since each writes the whole batch.
    buffer_names = ("embeddings", "rows", "position")

    def __init__(self, size: int, embed_dim: int) -> None:
        super().__init__()
        if size < 1:
            raise ValueError(f"size must be positive, got {size}")
        self.embeddings: Tensor = nn.Buffer(torch.zeros(size, embed_dim))
        self.rows: Tensor = nn.Buffer(torch.full((size,), -1, dtype=torch.int64))
        self.position: Tensor = nn.Buffer(torch.zeros((), dtype=torch.int64))
        # filled entries, which are the first ones, without waiting for a GPU at every step; None: to be read
        self._filled: int | None = 0
        self.register_load_state_dict_post_hook(_read_again)  # type: ignore[no-untyped-call] # torch does not say

    def __len__(self) -> int:
        """Return q."""
        return len(self.rows)

    @torch.no_grad()
    def remember(self, embeddings: Tensor, rows: Tensor) -> MemoryView:
        """Put a batch in, in the place of the oldest entries, and return what is there now.

        Args:
            embeddings: (b, d) of the whole batch, over all processes; b at most q.
            rows: (b,) int64.

        Raises:
            ValueError: the batch is larger than the memory.
        """
        if len(rows) > len(self):
            raise ValueError(f"{len(rows)} images for a memory of {len(self)}")
        own = (self.position + torch.arange(len(rows), device=rows.device)) % len(self)
        self.embeddings[own] = embeddings.detach().to(self.embeddings.dtype)
        self.rows[own] = rows
        self.position.copy_((self.position + len(rows)) % len(self))
        if self._filled is None:  # this batch included
            self._filled = int((self.rows >= 0).sum())
        else:
            self._filled = min(self._filled + len(rows), len(self))
        # copies: the next batch overwrites entries that this one's backward pass still needs
        return MemoryView(self.embeddings[: self._filled].clone(), self.rows[: self._filled].clone(), own)

    @torch.no_grad()
    def refill(self, embeddings: Tensor, rows: Tensor) -> None:
        """Forget everything and start from fresh embeddings, the last q of them.

        Args:
            embeddings: (m, d).
            rows: (m,) int64.
        """
        embeddings, rows = embeddings[-len(self) :], rows[-len(self) :]
        self.rows.fill_(-1)
        self.embeddings[: len(rows)] = embeddings.to(self.embeddings)
        self.rows[: len(rows)] = rows.to(self.rows.device)
        self.position.fill_(len(rows) % len(self))
        self._filled = len(rows)


def _read_again(bank: nn.Module, keys: object) -> None:
    """After a checkpoint was loaded: what was known of its buffers no longer holds."""
    del keys
    assert isinstance(bank, MemoryBank)
    bank._filled = None
