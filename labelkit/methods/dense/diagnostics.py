"""Numbers that show when dense self-supervision goes wrong: collapse, empty image pairs, unbalanced assignments."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from labelkit.methods.dense.pair_ranking import ranking_terms

# enough to see it, few enough to cost nothing
MAX_VECTORS = 1024
MAX_PAIRS = 8
MAX_ITEMS = 4096
LARGE_RATIO = 100.0
COLLAPSED_COSINE = 0.98
COLLAPSED_ENTROPY = 0.1


@torch.no_grad()
def of_features(projections: Sequence[Tensor], features: Sequence[Tensor]) -> dict[str, Tensor]:
    """Mean cosine of different projections (n, p), and effective rank of features (n, d), of the first part of each.

    The effective rank is the exponential of the entropy of the singular values' shares, 1 to d.
    """
    found: dict[str, Tensor] = {}
    for values in projections:
        n = len(values := values[:MAX_VECTORS].double())
        found["diag/patch_cosine"] = ((values.sum(dim=0).square().sum() - n) / max(n * (n - 1), 1)).float()
    for values in features:
        values = values[:MAX_VECTORS].double()
        spectrum = torch.linalg.svdvals(values - values.mean(dim=0))
        shares = spectrum / spectrum.sum().clamp(min=1e-12)
        found["diag/effective_rank"] = torch.special.entr(shares).sum().exp().float()
    return found


@torch.no_grad()
def of_assignments(assignments: Tensor, logits: Tensor, temperature: float) -> dict[str, Tensor]:
    """Entropy of the mean prediction over its maximum, and how far clusters are from equal shares (0 = equal)."""
    k = logits.shape[1]
    mean = torch.softmax(logits.float() / temperature, dim=1).mean(dim=0)
    shares = assignments.float().sum(dim=0) * (k / max(len(assignments), 1))
    return {
        "diag/assignment_entropy": torch.special.entr(mean).sum() / math.log(k),
        "diag/sinkhorn_spread": shares.max() - shares.min(),
    }


@torch.no_grad()
def of_targets(targets: Tensor, outputs: Tensor, temperature: float) -> dict[str, Tensor]:
    """Entropies over their maximum: of the mean prediction (0: one output takes all), and of targets (1: all alike)."""
    largest = math.log(outputs.shape[1])
    mean = torch.softmax(outputs.float() / temperature, dim=1).mean(dim=0)
    return {
        "diag/assignment_entropy": torch.special.entr(mean).sum() / largest,
        "diag/target_entropy": torch.special.entr(targets.float()).sum(dim=1).mean() / largest,
    }


@torch.no_grad()
def of_ranking(scores: Tensor, targets: Tensor, floor: float, margin: float) -> dict[str, Tensor]:
    """Share of image pairs without any order in their targets; median ratio x of Eq. 12, and share above 100."""
    if not len(scores):
        nothing = scores.new_zeros(())
        return {"diag/ranking_empty": nothing, "diag/ranking_median": nothing, "diag/ranking_large": nothing}
    p, q = scores[:MAX_PAIRS, :MAX_ITEMS], targets[:MAX_PAIRS, :MAX_ITEMS]
    ratios = ranking_terms(p, q, (q - floor).clamp_min(0), margin, gradient=False).ratios
    return {
        "diag/ranking_empty": (targets.amax(dim=1) == targets.amin(dim=1)).float().mean(),
        "diag/ranking_median": ratios.median().float(),
        "diag/ranking_large": (ratios > LARGE_RATIO).float().mean(),
    }


@torch.no_grad()
def of_prototypes(prototypes: Tensor, images: Tensor) -> dict[str, Tensor]:
    """Largest cosine of two prototypes, and how many different images are the nearest of one."""
    vectors = torch.nn.functional.normalize(prototypes.float(), dim=1)
    cosines = (vectors @ vectors.T).fill_diagonal_(-1)
    nearest = (vectors @ torch.nn.functional.normalize(images.float(), dim=1).T).argmax(dim=1)
    return {
        "diag/prototype_cosine": cosines.max(),
        "diag/prototype_images": torch.bincount(nearest, minlength=1).count_nonzero().float(),
    }


def collapse(logs: Mapping[str, Tensor]) -> str | None:
    """Say that features or assignments have collapsed, or ``None``."""
    cosine, entropy = logs.get("diag/patch_cosine"), logs.get("diag/assignment_entropy")
    if cosine is not None and float(cosine) > COLLAPSED_COSINE:
        return f"patches have a mean cosine of {float(cosine):.3f}: the features are collapsing"
    if entropy is not None and float(entropy) < COLLAPSED_ENTROPY:
        return f"assignments have {float(entropy):.3f} of the largest entropy: they are collapsing"
    return None
