"""Mixup: images and labels of a batch, blended in pairs.

Sources: H. Zhang et al., "mixup: Beyond Empirical Risk Minimization" (ICLR 2018); D. Berthelot et al., "MixMatch"
(NeurIPS 2019) for a share of its own for each row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from labelkit.data.batch import Batch
from labelkit.data.sending import send, send_all


@dataclass(frozen=True, slots=True)
class MixedBatch:
    """Images that belong to two labels.

    Attributes:
        images: (b, c, h, w).
        labels: (b,) int64, the first label.
        other_labels: (b,) int64, the second one.
        share: in [0, 1], how much of the first; 1 if nothing was mixed.
    """

    images: Tensor
    labels: Tensor
    other_labels: Tensor
    share: float


def mixup(batch: Batch, alpha: float, generator: np.random.Generator) -> MixedBatch:
    """Blend each image with another one of the batch.

    Args:
        batch: its first view is used.
        alpha: of the Beta distribution that the share is drawn from, once for the batch; 0 mixes nothing.
        generator: all randomness; equal on every process, so that all mix by the same share.
    """
    images, labels = batch.images, batch.labels
    if alpha == 0:
        return MixedBatch(images, labels, labels, 1.0)
    share = float(generator.beta(alpha, alpha))
    partner = send(generator.permutation(len(images)), images.device)
    return MixedBatch(torch.lerp(images[partner], images, share), labels, labels[partner], share)


@dataclass(frozen=True, slots=True)
class RowShares:
    """Who is blended with whom, and how much.

    Attributes:
        shares: (m,) float32 in [0.5, 1], how much of the row itself.
        partners: (m,) int64, a permutation.
    """

    shares: Tensor
    partners: Tensor

    def blend(self, values: Tensor) -> Tensor:
        """Return ``share * value + (1 - share) * value of the partner`` for each of (m, ...) rows."""
        shares = self.shares.reshape(-1, *[1] * (values.ndim - 1)).to(values.dtype)
        return torch.lerp(values[self.partners], values, shares)


def row_shares(count: int, alpha: float, generator: np.random.Generator, device: torch.device) -> RowShares:
    """Draw a share and a partner for each row; every row keeps the larger part of itself (MixMatch, Eq. 8 and 9).

    Args:
        count: rows, m.
        alpha: of the Beta distribution, > 0.
        generator: all randomness.
        device: of the result.
    """
    drawn = generator.beta(alpha, alpha, count)
    shares = np.maximum(drawn, 1 - drawn).astype(np.float32)
    partners = generator.permutation(count)
    return RowShares(*send_all((shares, partners), device))
