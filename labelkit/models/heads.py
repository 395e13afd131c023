"""Heads on top of a backbone: linear and cosine classifiers, a projection head, and a weight-normalized layer.

Source: SimGCD (CVMI-Lab/SimGCD:model.py), whose weight-normalized layer with gain 1 is a
plain parameter here.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labelkit.algorithms.precision import promote, without_autocast


class LinearHeads(nn.Module):
    """One or more linear classifiers on the same features; predictions come from the first one.

    Two heads let a consistency loss and a classification loss disagree (``CuriousAI/mean-teacher``).

    Args:
        dim: feature width f, >= 1.
        num_classes: number of classes c, >= 1.
        num_heads: number of heads, >= 1.

    Shape:
        - features: ``(b, f)`` float.
        - returns: ``(b, c)`` float, logits of the first head.
    """

    def __init__(self, dim: int, num_classes: int, num_heads: int = 1) -> None:
        super().__init__()
        self.heads = nn.ModuleList(nn.Linear(dim, num_classes) for _ in range(num_heads))

    def all_logits(self, features: Tensor) -> tuple[Tensor, ...]:
        """Return the logits (b, c) of every head for features (b, f)."""
        return tuple(head(features) for head in self.heads)

    def forward(self, features: Tensor) -> Tensor:
        """Return the logits (b, c) of the first head for features (b, f)."""
        return self.heads[0](features)


class CosineClassifier(nn.Module):
    """Cosine classifier with one learned prototype per class.

    Args:
        dim: feature width f, >= 1.
        num_classes: number of classes c, >= 1.

    Shape:
        - features: ``(b, f)`` float of any length; normalized here.
        - returns: ``(b, c)`` float32 (float64 stays) in [-1, 1], before any temperature;
          gradients reach features and prototypes. A zero feature yields zeros.

    Attributes:
        prototypes: ``(c, f)`` parameter; only its directions matter.
    """

    def __init__(self, dim: int, num_classes: int) -> None:
        super().__init__()
        # The initial values of a plain linear layer, as in SimGCD.
        self.prototypes = nn.Linear(dim, num_classes, bias=False).weight

    def forward(self, features: Tensor) -> Tensor:
        """Return the cosine similarities (b, c) of features to the prototypes."""
        # float32 even under autocast, because a temperature of 0.04 magnifies errors 25 times.
        with without_autocast(features):
            features = F.normalize(promote(features), dim=-1)
            return F.linear(features, F.normalize(self.prototypes.to(features.dtype), dim=-1))


class Projector(nn.Module):
    """Projection head of three linear layers with GELU in between and no normalization.

    Args:
        dim: width of the features, f.
        hidden: width of the two hidden layers.
        out: width of the output, d.

    Shape:
        - features: ``(b, f)`` float.
        - returns: ``(b, d)`` float, not normalized.

    Source:
        SimGCD's head (``DINOHead``): truncated normal weights with standard deviation 0.02, zero biases.
    """

    def __init__(self, dim: int, hidden: int, out: int) -> None:
        super().__init__()
        self.hidden1 = nn.Linear(dim, hidden)
        self.hidden2 = nn.Linear(hidden, hidden)
        self.output = nn.Linear(hidden, out)
        for layer in (self.hidden1, self.hidden2, self.output):
            nn.init.trunc_normal_(layer.weight, std=0.02)
            nn.init.zeros_(layer.bias)

    def forward(self, features: Tensor) -> Tensor:
        """Return the projections (b, d) of features (b, f)."""
        hidden = F.gelu(self.hidden1(features))
        hidden = F.gelu(self.hidden2(hidden))
        return self.output(hidden)


class WeightNormalizedLinear(nn.Module):
    r"""Weight-normalized linear layer without bias, applied to normalized vectors.

    .. math:: a_k = g_k \frac{v_k^\top z}{\|v_k\| \|z\|}

    Args:
        dim: width of the vectors, d.
        num_outputs: number of outputs k.
        learn_lengths: whether to train the lengths g; otherwise they stay 1, and all outputs are cosines.

    Shape:
        - vectors: ``(n, d)`` float of any length; normalized here, and a zero vector yields zeros.
        - returns: ``(n, k)`` float32 (float64 stays); gradients reach the vectors, directions and trained lengths.

    Source:
        The weight-normalized last layer of DINO's head (M. Caron et al., ICCV 2021, App. C), with lengths 1 at first.

    Attributes:
        directions: ``(k, d)`` parameter v.
        lengths: ``(k, 1)`` parameter g; ``None``: all are 1.
    """

    def __init__(self, dim: int, num_outputs: int, *, learn_lengths: bool) -> None:
        super().__init__()
        self.directions = nn.Linear(dim, num_outputs, bias=False).weight
        self.lengths = nn.Parameter(torch.ones(num_outputs, 1)) if learn_lengths else None

    def forward(self, vectors: Tensor) -> Tensor:
        """Return the outputs (n, k) for vectors (n, d)."""
        # float32 even under autocast, because a temperature of 0.04 magnifies errors 25 times
        with without_autocast(vectors):
            unit = F.normalize(promote(vectors), dim=-1)
            rows = F.normalize(self.directions.to(unit.dtype), dim=-1)
            return F.linear(unit, rows if self.lengths is None else self.lengths.to(unit.dtype) * rows)
