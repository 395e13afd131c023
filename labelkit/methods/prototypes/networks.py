"""Fixed unit prototypes, which class owns which, and the directions of the classes so far (DL2PA)."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labelkit.algorithms.precision import promote, without_autocast

_SMALLEST_SUM = 1e-8


class PrototypeHead(nn.Module):
    """Untrained head whose scores are the cosines with fixed class prototypes.

    Args:
        num_classes: c.
        dim: d.
        num_prototypes: k >= c; c by default.

    Shape:
        - embeddings: ``(b, d)`` float of any length.
        - returns: ``(b, c)`` float32 (float64 stays) in [-1, 1].

    Attributes:
        prototypes: (k, d) unit rows; zeros until they are set.
        assignment: (c,) int64, prototype of each class, all different.
        prices: (k,), not read: in weights of 0.1.0 and their digests.
        class_means: (c, d) mean directions of the classes during training; unit rows, zeros before the first image.
        seen: (c,) int64, images that went into them.
    """

    def __init__(self, num_classes: int, dim: int, num_prototypes: int | None = None) -> None:
        super().__init__()
        k = num_classes if num_prototypes is None else num_prototypes
        self.num_classes = num_classes
        self.prototypes: Tensor = nn.Buffer(torch.zeros(k, dim))
        self.assignment: Tensor = nn.Buffer(torch.arange(num_classes))
        self.prices: Tensor = nn.Buffer(torch.zeros(k))
        self.class_means: Tensor = nn.Buffer(torch.zeros(num_classes, dim))
        self.seen: Tensor = nn.Buffer(torch.zeros(num_classes, dtype=torch.int64))

    def forward(self, embeddings: Tensor) -> Tensor:
        """Return the cosines (b, c) of embeddings (b, d) with the prototype of each class."""
        with without_autocast(embeddings):
            unit = F.normalize(promote(embeddings), dim=1, eps=_SMALLEST_SUM)
            return F.linear(unit, self.class_prototypes.to(unit.dtype))

    @property
    def class_prototypes(self) -> Tensor:
        """Return the prototypes (c, d) in class order."""
        return self.prototypes[self.assignment]

    @torch.no_grad()
    def update_means(
        self,
        embeddings: Tensor,
        labels: Tensor,
        shares: Tensor | None = None,
        *,
        decay: float = 0.9,
        combine: Callable[[Tensor], Tensor] = lambda value: value,
    ) -> None:
        """Move the mean direction of each class toward its mean in the batch.

        The order of the images does not matter. A class without image, or whose sum vanishes, stays as it is.

        Args:
            embeddings: (b, d) of any length.
            labels: (b,) int64 in [0, c); with Mixup each image is given twice.
            shares: (b,) part of each image that belongs to its label, > 0; ones by default.
            decay: weight of the past, alpha; the first batch of a class is taken as it is.
            combine: sum over processes.
        """
        unit = F.normalize(embeddings.detach().float(), dim=1, eps=_SMALLEST_SUM)
        shares = torch.ones_like(unit[:, 0]) if shares is None else shares.float()
        dim = unit.shape[1]
        # one exchange: sums beside counts
        table = unit.new_zeros((self.num_classes, dim + 1))
        table.index_add_(0, labels, torch.cat([shares[:, None] * unit, (shares > 0).float()[:, None]], dim=1))
        table = combine(table)
        sums, counts = table[:, :dim], table[:, dim].long()
        lengths = sums.norm(dim=1)
        moved = lengths >= _SMALLEST_SUM
        means = sums / lengths.clamp(min=_SMALLEST_SUM)[:, None]
        blended = F.normalize(decay * self.class_means + (1 - decay) * means, dim=1)
        means = torch.where((self.seen > 0)[:, None], blended, means)
        self.class_means.copy_(torch.where(moved[:, None], means, self.class_means))
        self.seen.add_(torch.where(moved, counts, torch.zeros_like(counts)))
