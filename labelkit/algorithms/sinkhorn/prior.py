"""Shares of the clusters in a balanced assignment, and hard assignments that meet them exactly."""

from __future__ import annotations

import math
import warnings

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

# The cost matrix of an exact assignment is n x n.
_EXACT_MOST_ROWS = 8000
_SUM_SILENT, _SUM_WARNED = 1e-6, 1e-3


def make_prior(spec: str | ArrayLike | Tensor, k: int) -> Tensor:
    """Prior shares of k clusters.

    Args:
        spec: ``uniform``; ``zipf:a``, shares proportional to ``(y + 1)^-a``; or k positive numbers that sum to 1.
        k: at least 1.

    Returns:
        (k,) float64 that sums to 1.

    Raises:
        ValueError: another word, an exponent that is no number, a wrong length, an entry that is not positive and
            finite, or a sum more than 0.001 from 1. A sum 1e-6 to 0.001 away is scaled with a warning.
    """
    if k < 1:
        raise ValueError(f"k: {k} is less than 1")
    if not isinstance(spec, str):
        return check_prior(spec, k)
    if spec == "uniform":
        return torch.full((k,), 1 / k, dtype=torch.float64)
    word, _, exponent = spec.partition(":")
    try:
        if word != "zipf":
            raise ValueError
        power = float(exponent)
    except ValueError:
        raise ValueError(f"prior: {spec!r} is neither uniform nor zipf:a with a number a") from None
    shares = torch.arange(1, k + 1, dtype=torch.float64).pow(-power)
    if not math.isfinite(power) or not torch.isfinite(shares).all() or (shares <= 0).any():
        raise ValueError(f"prior: {spec!r} has no usable exponent")
    return shares / shares.sum()


def as_float64(values: ArrayLike | Tensor) -> Tensor:
    """A few numbers as a float64 tensor of its own on the CPU; numbers of Python keep all their digits."""
    if isinstance(values, Tensor):
        return values.detach().to("cpu", torch.float64, copy=True)
    return torch.from_numpy(np.array(values, dtype=np.float64))


def order_prior(prior: Tensor, marginals: Tensor) -> Tensor:
    """Give the larger shares to the clusters that have more anyway; equal ones keep the order of the ids.

    Which cluster is which is arbitrary, so an unequal prior would inflate some cluster for nothing. The marginals
    without balancing are those of ``solve(..., max_iterations=1)``.

    Args:
        prior: (k,) shares in any order.
        marginals: (k,) shares without balancing.

    Returns:
        (k,) the same shares, ordered.
    """
    ordered = torch.empty_like(prior)
    ordered[marginals.argsort(descending=True, stable=True)] = prior.sort(descending=True).values
    return ordered


def cluster_sizes(prior: Tensor, n: int) -> Tensor:
    """Whole numbers of samples, (k,) int64 that sum to n: ``n * prior`` by largest remainder, smaller ids first."""
    exact = prior.double() * n
    # a share such as 1/3 times n may fall short of a whole number by rounding
    sizes = (exact + 1e-9).floor()
    order = (exact - sizes).mul(1e9).round().argsort(descending=True, stable=True)
    sizes[order[: n - int(sizes.sum())]] += 1
    return sizes.long()


def balanced_labels(scores: Tensor | ArrayLike, prior: Tensor | None = None) -> Tensor:
    """Hard assignment of largest total score with exact cluster sizes, by linear assignment.

    Args:
        scores: (n, k) finite scores, n at most 8000: the cost matrix is n x n.
        prior: (k,) shares; sizes are :func:`cluster_sizes` of it. None for equal shares.

    Returns:
        (n,) int64.

    Raises:
        ValueError: too many rows, or scores are not finite.
    """
    from scipy.optimize import linear_sum_assignment

    values = np.asarray(scores.cpu() if isinstance(scores, Tensor) else scores, dtype=np.float64)
    n, k = values.shape
    if n > _EXACT_MOST_ROWS:
        raise ValueError(f"scores: {n} rows; an exact balance takes at most {_EXACT_MOST_ROWS}")
    if not np.isfinite(values).all():
        raise ValueError("scores: NaN or infinite values")
    sizes = cluster_sizes(make_prior("uniform", k) if prior is None else prior, n).numpy()
    cluster_of_place = np.repeat(np.arange(k), sizes)
    _, places = linear_sum_assignment(values[:, cluster_of_place], maximize=True)
    return torch.from_numpy(cluster_of_place[places])


def check_prior(prior: ArrayLike | Tensor, k: int) -> Tensor:
    """Shares that can be used, as float64 on the CPU, scaled to sum to 1.

    Raises:
        ValueError: as in :func:`make_prior`.
    """
    values = as_float64(prior)
    if values.shape != (k,):
        raise ValueError(f"prior: shape {tuple(values.shape)} where {(k,)} is needed")
    bad = ~(torch.isfinite(values) & (values > 0))
    if bad.any():
        first = int(bad.nonzero()[0])
        raise ValueError(f"prior: entry {first} is {float(values[first])}; shares must be positive")
    total = float(values.sum())
    if abs(total - 1) > _SUM_WARNED:
        raise ValueError(f"prior: sums to {total:.6g}, not to 1")
    if abs(total - 1) > _SUM_SILENT:
        warnings.warn(f"prior: sums to {total:.8g} and was scaled to 1", stacklevel=3)
    return values / total
