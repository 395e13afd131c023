"""Soft balanced assignments of a batch, the targets of SwAV-style training.

Source: M. Caron et al., "Unsupervised Learning of Visual Features by Contrasting Cluster Assignments" (NeurIPS 2020).
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from labelkit.algorithms.sinkhorn.passes import Reduce, combine


def batch_assignments(
    scores: Tensor,
    *,
    epsilon: float = 0.05,
    num_iterations: int = 3,
    log_domain: bool = False,
    reduce: Reduce | None = None,
    is_finite: bool = False,
) -> Tensor:
    """Soft balanced assignments of a batch by a few scaling iterations, as SwAV makes its targets.

    Clusters are scaled first, from rows of equal mass, and samples last; this is not the order of :func:`solve`, and
    three iterations do not reach the same plan. No gradient.

    Args:
        scores: (b, k) float32 or float64, the rows of this process; cosines need ``epsilon >= 0.03`` unless
            ``log_domain``.
        epsilon: > 0, entropy weight; 1 over the sharpness.
        num_iterations: at least 1.
        log_domain: for unbounded scores or small epsilon: logarithms throughout.
        reduce: combines small CPU float64 tensors over processes, whose batches may differ in size; None for one.
        is_finite: with ``log_domain``, the caller knows that all scores are; to look waits for a GPU.

    Returns:
        (b, k) of the dtype and device of the scores; rows sum to 1.

    Raises:
        ValueError: epsilon is not positive, num_iterations < 1, scores are not (b, k), not finite, or half precision.
    """
    if not 0 < epsilon < math.inf:
        raise ValueError(f"epsilon: {epsilon} is not positive")
    if num_iterations < 1:
        raise ValueError(f"num_iterations: {num_iterations} is less than 1")
    if scores.ndim != 2 or scores.shape[1] < 1:
        raise ValueError(f"scores: (b, k) numbers are needed, not shape {tuple(scores.shape)}")
    if scores.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"scores: float32 or float64 is needed, not {scores.dtype}")
    with torch.no_grad():
        logits = scores.detach() / epsilon
        if is_finite and log_domain:
            return _batch_in_log_domain(logits, num_iterations, reduce)
        finite = bool(torch.isfinite(logits).all())
        top = float(logits.max()) if len(logits) and finite else -math.inf
        extremes = combine(torch.tensor([top, 0.0 if finite else 1.0], dtype=torch.float64), "max", reduce)
        if extremes[1] > 0:
            raise ValueError("scores: NaN or infinite values")
        size = float(combine(torch.tensor([len(logits)], dtype=torch.float64), "sum", reduce)[0])
        if log_domain:
            return _batch_in_log_domain(logits, num_iterations, reduce)
        tiny = torch.finfo(scores.dtype).tiny
        k = logits.shape[1]
        plan = (logits - float(extremes[0])).exp_()
        for _ in range(num_iterations):
            totals = _over_processes(plan.sum(dim=0), "sum", reduce)
            plan /= (k * totals).clamp_min_(tiny)
            plan /= (size * plan.sum(dim=1, keepdim=True)).clamp_min_(tiny)
        return plan.mul_(size)


def _over_processes(values: Tensor, how: Literal["sum", "max"], reduce: Reduce | None) -> Tensor:
    """Combine what each process has; a single one keeps it where it is, as a copy to the CPU would wait for a GPU."""
    return values if reduce is None else combine(values.cpu().double(), how, reduce).to(values)


def _batch_in_log_domain(logits: Tensor, num_iterations: int, reduce: Reduce | None) -> Tensor:
    values = logits if logits.device.type == "mps" else logits.double()
    for _ in range(num_iterations):
        tops = values.amax(dim=0) if len(values) else torch.full_like(values.sum(dim=0), -math.inf)
        tops = _over_processes(tops, "max", reduce)
        totals = _over_processes((values - tops).exp().sum(dim=0), "sum", reduce)
        values = values - (tops + totals.log())
        values = values - values.logsumexp(dim=1, keepdim=True)
    return values.exp().to(logits.dtype)
