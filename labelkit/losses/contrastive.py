"""Contrastive losses on two views per image, with and without labels.

Source: SimGCD (CVMI-Lab/SimGCD), which follows GCD (sgvaze/generalized-category-discovery).
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from labelkit.algorithms.precision import promote, without_autocast
from labelkit.algorithms.temperature import TemperatureLoss


class InfoNCELoss(TemperatureLoss):
    r"""InfoNCE loss: cross-entropy for identifying the other view of an image among all views of the batch.

    .. math:: L = -\frac{1}{2b} \sum_a \log
        \frac{\exp(z_a \cdot z_{a'} / \tau)}{\sum_{c \ne a} \exp(z_a \cdot z_c / \tau)}

    with unit projections z and :math:`a'` the other view of a. In nats, >= 0 up to rounding, at most
    :math:`\log(2b - 1) + 2/\tau`; equal to log(2b - 1) when all projections are equal.

    Args:
        temperature: :math:`\tau > 0`.

    Shape:
        - projections: ``(2b, d)`` float of any norm; rows 0..b-1 are view 0, rows b..2b-1 view 1
          of the same images; normalized here. Gradients reach all rows.
        - returns: ``()`` float32 (float64 is preserved); 0, still differentiable, if b is 0.

    Raises:
        ValueError: the temperature is not positive, or the number of rows is odd.

    Source:
        SimGCD's ``info_nce_logits``; the sum runs over both views and also over labeled images.
    """

    def forward(self, projections: Tensor) -> Tensor:
        """Compute the loss from projections (2b, d), averaged over all views."""
        if not len(projections):
            return projections.sum()
        with without_autocast(projections):
            similarities = _similarities(projections, self.temperature)  # (2b, 2b)
            num_rows = len(similarities)
            partners = torch.arange(num_rows, device=projections.device).roll(num_rows // 2)
            return F.cross_entropy(similarities.fill_diagonal_(-torch.inf), partners)


class SupConLoss(TemperatureLoss):
    r"""Supervised contrastive loss, which pulls labeled views of a class together and pushes other classes apart.

    .. math:: L = -\frac{1}{|M|} \sum_{a \in M} \frac{1}{|P(a)|} \sum_{p \in P(a)} \log
        \frac{\exp(z_a \cdot z_p / \tau)}{\sum_{c \in M, c \ne a} \exp(z_a \cdot z_c / \tau)}

    with unit projections z, M the rows of labeled images and P(a) the other rows with the label
    of a. In nats, >= 0; equal to log(\|M\| - 1) when all projections are equal.

    Args:
        temperature: :math:`\tau > 0`.

    Shape:
        - projections: ``(2b, d)`` float of any norm; rows as in `InfoNCELoss`. Gradients reach
          labeled rows only.
        - labels: ``(b,)`` int64, -1 = unlabeled.
        - returns: ``()`` float32 (float64 is preserved); 0, still differentiable, if nothing is labeled.

    Raises:
        ValueError: the temperature is not positive, or there are not two rows per label.

    Source:
        SimGCD's ``SupConLoss`` on labeled rows, which are not extracted first: one pass without
        synchronization for any number of labels.
    """

    def forward(self, projections: Tensor, labels: Tensor) -> Tensor:
        """Compute the loss from projections (2b, d) and labels (b,), averaged over labeled views."""
        if len(projections) != 2 * len(labels):
            raise ValueError(f"projections must have 2 rows per label, got {len(projections)} for {len(labels)} labels")
        if not len(labels):
            return projections.sum()
        with without_autocast(projections):
            similarities = _similarities(projections, self.temperature)  # (2b, 2b)
            row_labels = labels.repeat(2)
            labeled = row_labels >= 0
            itself = torch.eye(len(row_labels), dtype=torch.bool, device=labels.device)
            positives = (row_labels == row_labels[:, None]) & labeled & ~itself
            # Rows of unlabeled images are compared with all rows: their value is finite and has weight 0.
            excluded = itself | (labeled[:, None] & ~labeled)
            log_normalizers = similarities.masked_fill(excluded, -torch.inf).logsumexp(dim=1)
            mean_positives = (similarities * positives).sum(dim=1) / positives.sum(dim=1).clamp(min=1)
            losses = (log_normalizers - mean_positives) * labeled
            return losses.sum() / labeled.sum().clamp(min=1)


def _similarities(projections: Tensor, temperature: float) -> Tensor:
    if projections.ndim != 2 or len(projections) % 2:
        raise ValueError(f"projections must have shape (2b, d), got {tuple(projections.shape)}")
    unit = F.normalize(promote(projections), dim=1)
    return unit @ unit.T / temperature
