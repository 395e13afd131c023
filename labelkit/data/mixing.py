"""Mixup: images and labels of a batch, blended in pairs.

Source: H. Zhang et al., "mixup: Beyond Empirical Risk Minimization" (ICLR 2018).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from labelkit.data.batch import Batch


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
    partner = torch.from_numpy(generator.permutation(len(images))).to(images.device)
    return MixedBatch(torch.lerp(images[partner], images, share), labels, labels[partner], share)
