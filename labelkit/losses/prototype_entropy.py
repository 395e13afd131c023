"""Make each object prototype choose few images of the batch: the entropy of its attention over them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labelkit.algorithms.precision import promote, without_autocast


class PrototypeEntropyLoss(nn.Module):
    r"""Entropy of the softmax over images of the cosines of prototypes and images, over their number.

    .. math:: L = -\frac{1}{b m} \sum_{ij} \varphi_{ij} \log \varphi_{ij}, \qquad
        \varphi_{i \cdot} = \text{softmax}_j(u_i \cdot f_j / \tau)

    In nats, between 0 and log(b)/b, which it is where all images are equal.

    Args:
        temperature: :math:`\tau > 0`.

    Shape:
        - prototypes: ``(m, d)`` float of any length; normalized here, gets gradients.
        - images: ``(b, d)`` float of any length; normalized here, no gradient.
        - returns: ``()`` float32 (float64 stays); 0, still differentiable, for b = 0.

    Raises:
        ValueError: the temperature is not positive.

    Source:
        "Semantic Concentration for Self-Supervised Dense Representations Learning", Eq. 15 and 16.
    """

    def __init__(self, temperature: float = 0.1) -> None:
        super().__init__()
        if not temperature > 0:
            raise ValueError(f"temperature must be above 0, got {temperature}")
        self.temperature = temperature

    def forward(self, prototypes: Tensor, images: Tensor) -> Tensor:
        """Return the loss."""
        with without_autocast(prototypes):
            vectors = F.normalize(promote(prototypes), dim=1)
            others = F.normalize(images.detach().to(vectors.dtype), dim=1)
            log_phi = torch.log_softmax(vectors @ others.T / self.temperature, dim=1)
            return -(log_phi.exp() * log_phi).sum() / max(log_phi.numel(), 1)
