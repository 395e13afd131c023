"""CoTAP's losses on soft assignments, patch similarities (``ranking_loss.py``) and object prototypes."""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labelkit.algorithms.precision import promote, without_autocast
from labelkit.algorithms.sinkhorn import Reduce
from labelkit.algorithms.temperature import TemperatureLoss
from labelkit.methods.dense.ranking_loss import cotap_loss

RankingKind = Literal["cotap", "bce"]
_EDGE = 1e-6


class SoftAssignmentLoss(TemperatureLoss):
    r"""Cross-entropy between softmax probabilities and soft target assignments.

    .. math:: L = -\frac{1}{n} \sum_i \sum_k q_{ik} \log \text{softmax}(a_i / \tau)_k

    In nats, at least the mean entropy of q; log k if all logits are equal.

    Args:
        temperature: :math:`\tau > 0`.

    Shape:
        - logits: ``(n, k)`` float of any precision, receives gradients.
        - assignments: ``(n, k)`` float, rows sum to 1, no gradient.
        - returns: ``()`` float32 (float64 is preserved); 0, still differentiable, for n = 0.

    Raises:
        ValueError: the temperature is not positive, or shapes differ.

    Source:
        "Semantic Concentration for Self-Supervised Dense Representations Learning", Eq. 3, 5, as in DINO and Leopart.
    """

    def forward(self, logits: Tensor, assignments: Tensor) -> Tensor:
        """Return the mean loss over rows."""
        if logits.shape != assignments.shape:
            raise ValueError(f"logits {tuple(logits.shape)} and assignments {tuple(assignments.shape)} must match")
        with without_autocast(logits):
            log_p = torch.log_softmax(promote(logits) / self.temperature, dim=-1)
            return -(assignments.detach() * log_p).sum() / max(len(logits), 1)


def batch_assignments(
    scores: Tensor, *, epsilon: float = 0.05, num_iterations: int = 3, reduce: Reduce | None = None
) -> Tensor:
    """Compute balanced soft assignments for a batch with a few log-space Sinkhorn iterations, as in SwAV.

    Clusters are scaled first, from rows of equal mass, and samples last; three iterations do not reach the plan of
    ``algorithms.sinkhorn.solve_assignment``. No gradient.

    Args:
        scores: (b, k) finite float32 or float64, the rows of this process; any number of them.
        epsilon: entropy weight, > 0; smaller values sharpen the assignments.
        num_iterations: at least 1.
        reduce: combines small CPU float64 tensors over processes, whose batch sizes may differ; ``None``: one process.

    Returns:
        (b, k) of the dtype and device of the scores; rows sum to 1.

    Source:
        M. Caron et al., "Unsupervised Learning of Visual Features by Contrasting Cluster Assignments" (NeurIPS 2020).
    """

    def over_processes(values: Tensor, how: Literal["sum", "max"]) -> Tensor:
        # a single process leaves them on the device, since copying to the CPU would synchronize with the GPU
        return values if reduce is None else reduce(values.cpu().double(), how).to(values)

    with torch.no_grad():
        values = scores.detach() / epsilon
        # some devices have no float64
        values = values if values.device.type == "mps" else values.double()
        for _ in range(num_iterations):
            tops = values.amax(dim=0) if len(values) else values.new_full(values.shape[1:], -math.inf)
            tops = over_processes(tops, "max")
            values = values - (tops + over_processes((values - tops).exp().sum(dim=0), "sum").log())
            values = values - values.logsumexp(dim=1, keepdim=True)
        return values.exp().to(scores.dtype)


def patch_similarity(first: Tensor, second: Tensor) -> Tensor:
    """Compute the similarity (cosine + 1) / 2 of every patch of one image to every patch of another (Eq. 2).

    Unit vectors (b, n, d) and (b, m, d) float give (b, n, m) in [0, 1], in at least float32, since in half precision
    most pairs near 1 would be tied.
    """
    with without_autocast(first):
        return 0.5 * (promote(first) @ promote(second).transpose(1, 2)) + 0.5


class DenseRankingLoss(nn.Module):
    r"""Mean ranking loss, or cross-entropy, between patch similarities p and target similarities q.

    - ``cotap``: the ranking loss of :func:`labelkit.methods.dense.ranking_loss.cotap_loss` (Eq. 12);
    - ``bce``: :math:`-q \log p - (1 - q) \log(1 - p)`, mean over entries, p clamped to [1e-6, 1 - 1e-6] (Eq. 8).

    ``cotap`` is 0 if all targets are equal and less than 1.2 for targets up to 1 and the default floor; ``bce`` is
    log 2 for p = 1/2.

    Args:
        kind: ``cotap`` or ``bce``.
        is_finite: see ``cotap_loss``.

    Shape:
        - scores: ``(b, n)`` float, receives gradients.
        - targets: ``(b, n)`` float, no gradient.
        - returns: ``()`` float32 (float64 is preserved); 0, still differentiable, for b = 0.

    Raises:
        ValueError: shapes differ.

    Source:
        "Semantic Concentration for Self-Supervised Dense Representations Learning", Eq. 8 to 12.
    """

    def __init__(self, kind: RankingKind = "cotap", *, is_finite: bool = False) -> None:
        super().__init__()
        self.kind = kind
        self.is_finite = is_finite

    def forward(self, scores: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss over image pairs."""
        if scores.shape != targets.shape:
            raise ValueError(f"scores have shape {tuple(scores.shape)}, but targets have {tuple(targets.shape)}")
        if self.kind == "cotap":
            rows = cotap_loss(scores, targets, is_finite=self.is_finite)
        else:
            with without_autocast(scores):
                p = promote(scores).clamp(_EDGE, 1 - _EDGE)
                q = targets.detach().to(p.dtype)
                rows = -(q * p.log() + (1 - q) * (1 - p).log()).mean(dim=1)
        return rows.sum() / max(len(scores), 1)


class PrototypeEntropyLoss(TemperatureLoss):
    r"""Mean entropy of the softmax of each prototype's cosines with all images, divided by the number of images.

    .. math:: L = -\frac{1}{b m} \sum_{ij} \varphi_{ij} \log \varphi_{ij}, \qquad
        \varphi_{i \cdot} = \text{softmax}_j(u_i \cdot f_j / \tau)

    In nats, between 0 and log(b)/b, which is attained if all images are equal.

    Args:
        temperature: :math:`\tau > 0`.

    Shape:
        - prototypes: ``(m, d)`` float of any norm; normalized here, receives gradients.
        - images: ``(b, d)`` float of any norm; normalized here, no gradient.
        - returns: ``()`` float32 (float64 is preserved); 0, still differentiable, for b = 0.

    Raises:
        ValueError: the temperature is not positive.

    Source:
        "Semantic Concentration for Self-Supervised Dense Representations Learning", Eq. 15 and 16.
    """

    def forward(self, prototypes: Tensor, images: Tensor) -> Tensor:
        """Return the loss for prototypes (m, d) and image features (b, d)."""
        with without_autocast(prototypes):
            vectors = F.normalize(promote(prototypes), dim=1)
            others = F.normalize(images.detach().to(vectors.dtype), dim=1)
            log_phi = torch.log_softmax(vectors @ others.T / self.temperature, dim=1)
            return -(log_phi.exp() * log_phi).sum() / max(log_phi.numel(), 1)
