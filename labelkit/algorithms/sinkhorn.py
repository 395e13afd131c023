r"""Balanced assignment of n samples to k clusters with prescribed marginals, by entropic optimal transport.

``methods.dense.losses`` contains the version for batches.

With scores l (n, k) and a prior r that sums to 1, the plan

.. math:: Q = \arg\min_Q \langle Q, -\log p \rangle + \tfrac{1}{\lambda} KL(Q \| \tfrac{1}{n} 1 r^T), \quad
    Q 1_k = \tfrac{1}{n} 1_n, \; Q^T 1_n = r, \qquad p = \text{softmax}(l)

has the rows :math:`\text{softmax}(\lambda l_i + u) / n`: rows are exact by construction, and the only unknowns are
the k potentials u that make the columns sum to r, which maximize the concave semi-dual

.. math:: D(u) = r \cdot u - \tfrac{1}{n} \sum_i \log \sum_y \exp(\lambda l_{iy} + u_y), \qquad \nabla D = r - s(u).

A pass over the scores computes D and the marginals s; the plan is never stored. Several processes can each hold some
of the rows and pass ``reduce``: they exchange only sums of size k.

Sources: M. Cuturi, "Sinkhorn Distances" (NeurIPS 2013); Y. Asano, C. Rupprecht and A. Vedaldi, "Self-labelling via
Simultaneous Clustering and Representation Learning" (ICLR 2020). We use our own solver, since the iterations of the
published code and of POT take several times as many passes, over a matrix that must fit in memory.
"""

import math
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

Reduce = Callable[[Tensor, Literal["sum", "max"]], Tensor]
"""Reduces a small CPU tensor elementwise over all processes; every process receives the same result."""

Scores = Any
"""(n, k) floats with a shape, a dtype and slices of rows: a tensor, an array, a memory map, an HDF5 dataset (all read
in blocks), or :class:`LinearScores`."""

# Numbers per block: 2 MB in float32, so that a block is still in the cache for its second product.
_BLOCK_NUMBERS, _GPU_BLOCK_NUMBERS = 1 << 19, 1 << 24
# Rows summed in float32; their sums are added in float64. Equal rows would lose a digit with ten times as many.
_ADDED_ROWS, _GPU_ADDED_ROWS = 1024, 256
# A larger matrix of exponentials is not stored, but recomputed in each pass.
KERNEL_BYTES = 1 << 30
# Largest and smallest exponent in a row of this matrix (below it, numbers lose digits and products become slow), and
# how far u may move before the exponentials are recomputed.
_TOP = {torch.float32: 60.0, torch.float64: 300.0}
_FLOOR = {torch.float32: -86.0, torch.float64: -700.0}
_FAR = {torch.float32: 60.0, torch.float64: 500.0}
# Above this |lam * l|, float32 is off by more than 3e-5 in the exponent, so float64 is used.
_EXACT_EXPONENT = 512.0
# If lam times the largest range of a row is above this, a problem softer by this factor is solved first: from zeros,
# the semi-dual is nearly piecewise linear, and an ascent can stall far from its maximum.
_STEEP, _SOFTER = 2e3, 8.0
# Lower limit for marginals, which bounds a step: a marginal of zero would send its potential to infinity.
_MIN_SHARE = 1e-30
_PAIRS, _LINE_SEARCH_PASSES, _LONGEST_STEP = 20, 12, 50.0
# L-BFGS uses scaling steps instead of gradients as long as this many passes reduce the error by this factor.
_SLOW_AFTER, _SLOW = 3, 0.5
# Values are compared down to this relative difference; below it, slopes decide.
_VALUE_NOISE = 1e-7
_SUM_SILENT, _SUM_WARNED = 1e-6, 1e-3


class LinearScores:
    """Scores ``features @ weight.T + bias``, computed block by block and never stored as a whole.

    Args:
        features: (n, d), of any type listed under ``Scores``.
        weight: (k, d) float.
        bias: (k,) float; ``None`` for zeros.

    Raises:
        ValueError: the dimensions differ.
        TypeError: features are not floating point.
    """

    def __init__(self, features: Scores, weight: Tensor, bias: Tensor | None = None) -> None:
        _check_matrix(features, "features")
        n, d = features.shape
        if weight.ndim != 2 or weight.shape[1] != d:
            raise ValueError(f"weight must have {d} columns, like features, got shape {tuple(weight.shape)}")
        if bias is not None and bias.shape != weight.shape[:1]:
            raise ValueError(f"bias must have shape {(len(weight),)}, got {tuple(bias.shape)}")
        self.dtype = torch.float64 if 8 in (weight.dtype.itemsize, features.dtype.itemsize) else torch.float32
        self.shape = (n, len(weight))
        self.device = _device(features)
        self._features = features
        self._weight = weight.detach().to(self.device, self.dtype)
        self._bias = None if bias is None else bias.detach().to(self.device, self.dtype)

    def __getitem__(self, rows: slice) -> Tensor:
        """Return the scores of some rows."""
        return torch.nn.functional.linear(_read(self._features, rows).to(self.dtype), self._weight, self._bias)


@dataclass(frozen=True, slots=True)
class SinkhornResult:
    """Potentials of the balanced assignment, with the resulting clusters and marginals.

    Attributes:
        potentials: u, (k,) float64 on the CPU, maximum 0.
        marginals: (k,) float64, the resulting fraction of each cluster.
        marginal_error: ``sum |marginals - prior|``, in [0, 2].
        num_iterations: passes over the scores that evaluated marginals (two more passes check them and assign).
        converged: whether the error is within the tolerance.
        cost: ``-(1/n) sum_i log p_i`` of the hard assignment, p the softmax of the raw scores without ``lam``; in nats.
        cluster_ids: (n_local,) int64, the cluster with the largest plan mass for each row; ties go to the smallest id.
        confidence: (n_local,) float32, the fraction of the row's mass in that cluster.
    """

    potentials: Tensor
    marginals: Tensor
    marginal_error: float
    num_iterations: int
    converged: bool
    cost: float
    cluster_ids: Tensor
    confidence: Tensor


def solve_assignment(
    scores: Scores,
    lam: float,
    *,
    prior: ArrayLike | Tensor | None = None,
    tol: float = 1e-4,
    max_iterations: int = 500,
    initial: ArrayLike | Tensor | None = None,
    dtype: torch.dtype = torch.float32,
    memory_bytes: int = KERNEL_BYTES,
    reduce: Reduce | None = None,
) -> SinkhornResult:
    """Compute the balanced assignment of samples to clusters by entropic optimal transport.

    Args:
        scores: (n_local, k) logits of the rows of this process; n_local may be 0 if another process has rows.
        lam: sharpness > 0; larger values bring the plan closer to the hard assignment, but take more passes.
        prior: r, (k,) positive, sums to 1; ``None`` for uniform. See :func:`build_prior`.
        tol: converged if ``sum |marginals - prior|`` is at most this.
        max_iterations: maximum number of passes, after which the best potentials so far are returned.
        initial: (k,) initial potentials, such as those of the last solve; ``None`` for zeros.
        dtype: float32 or float64, for exponentials and products; sums over blocks and potentials are float64.
        memory_bytes: exponentials are kept between passes if they take at most this much memory.
        reduce: combines small CPU float64 tensors over processes; ``None`` for a single process.

    Raises:
        ValueError: an argument is out of range or has the wrong shape, scores are not finite (the message names the
            row), k < 2, or there are no samples at all.
        TypeError: scores are not floating point.
    """
    _check_matrix(scores, "scores")
    for name, value in (("lam", lam), ("tol", tol), ("max_iterations", max_iterations)):
        if not 0 < value < math.inf:
            raise ValueError(f"{name} must be positive, got {value}")
    if dtype not in (torch.float32, torch.float64):
        raise ValueError(f"dtype must be float32 or float64, got {dtype}")
    k = scores.shape[1]
    potentials = torch.zeros(k, dtype=torch.float64) if initial is None else _as_float64(initial)
    if potentials.shape != (k,) or not torch.isfinite(potentials).all():
        raise ValueError(f"initial must be {(k,)} finite numbers, got {potentials}")
    semi_dual = _SemiDual(scores, build_prior("uniform" if prior is None else prior, k), dtype, memory_bytes, reduce)
    sharpness = [lam]
    while not potentials.any() and sharpness[0] * semi_dual.spread > _STEEP and len(sharpness) < max_iterations:
        sharpness.insert(0, sharpness[0] / _SOFTER)
    for level, here in enumerate(sharpness, start=1):
        semi_dual.sharpen(here, max_passes=max_iterations - len(sharpness) + level)
        best = _maximize(semi_dual, potentials, tol)
        potentials = _SOFTER * (best.potentials - best.potentials.max())
    cluster_ids, confidence, cost = semi_dual.assign(best.potentials)
    return SinkhornResult(
        potentials=best.potentials - best.potentials.max(),
        marginals=best.marginals,
        marginal_error=best.error,
        num_iterations=semi_dual.num_passes,
        converged=best.error <= tol,
        cost=cost,
        cluster_ids=cluster_ids,
        confidence=confidence,
    )


@dataclass(frozen=True, slots=True)
class _Point:
    """Potentials, with the marginals s, the value of the semi-dual, its gradient r - s and the gradient's L1 norm."""

    potentials: Tensor
    marginals: Tensor
    value: float
    slope: Tensor
    error: float


class _SemiDual:
    """Semi-dual for one sharpness; each evaluation is a pass over the scores, or over their exponentials.

    If memory suffices, ``E_iy = exp(lam l_iy + u0_y - max)`` is stored, and a pass multiplies each block by two vectors
    while it is in the cache. When u has moved far from u0, it is absorbed into E (B. Schmitzer, "Stabilized Sparse
    Scaling Algorithms for Entropy Regularized Transport Problems", 2019).
    """

    def __init__(
        self, scores: Scores, prior: Tensor, dtype: torch.dtype, memory_bytes: int, reduce: Reduce | None
    ) -> None:
        self.prior = prior
        self.best: _Point | None = None
        self.num_passes = 0
        self._scores, self._dtype, self._combine = scores, dtype, reduce or (lambda values, how: values)
        self._device = _device(scores)
        self._num_rows, k = scores.shape
        highest, lowest = (int(end) for end in self._combine(torch.tensor([k, -k]).double(), "max"))
        if highest != -lowest:
            raise ValueError(f"scores must have the same number of columns in each process, got {-lowest} to {highest}")
        if k < 2:
            raise ValueError(f"scores must have at least two columns, one per cluster, got {k}")
        self._num_total = int(self._combine(torch.tensor([self._num_rows]).double(), "sum")[0])
        if not self._num_total:
            raise ValueError("scores must have at least one row")
        self._size, self.spread = self._find_score_ranges()
        self._kernel: Tensor | None = None
        if self._num_rows * k * dtype.itemsize <= memory_bytes:
            self._kernel = torch.empty((self._num_rows, k), dtype=dtype, device=self._device)

    def sharpen(self, lam: float, max_passes: int) -> None:
        """Set a new sharpness and the total number of passes, including those already made."""
        self._lam, self.passes_left = lam, max_passes - self.num_passes
        self._origin: Tensor | None = None
        self.best = None

    def evaluate(self, potentials: Tensor) -> _Point:
        """Evaluate marginals and objective at potentials (k,), in float64 on the CPU, in one pass over the scores."""
        shift = potentials - (potentials if self._origin is None else self._origin)
        anew = self._kernel is None or self._origin is None or float(shift.max() - shift.min()) > _FAR[self._dtype]
        if anew:
            self._origin, self._tops, shift = potentials, 0.0, torch.zeros_like(potentials)
        highest = float(shift.max())
        scale = (shift - highest).exp()
        columns = scale.to(self._device, self._dtype)
        totals = torch.zeros(len(scale) + 1, dtype=torch.float64, device=self._device)
        for rows in _blocks(self._scores):
            block = self._exponentials(rows, potentials) if anew or self._kernel is None else self._kernel[rows]
            row_totals = block @ columns
            totals[-1] += row_totals.double().log().sum()
            totals[:-1] += _weighted_sum(block, row_totals.reciprocal())
        own = totals.cpu()
        own[:-1] *= scale
        own[-1] += self._tops + self._num_rows * highest
        found = self._combine(own, "sum") / self._num_total
        self.num_passes += 1
        self.passes_left -= 1
        slope = self.prior - found[:-1]
        error = float(slope.abs().sum())
        if not math.isfinite(error):
            raise ValueError("the cluster marginals of scores are not finite; use float64 or a smaller lam")
        point = _Point(potentials, found[:-1], float(self.prior @ potentials - found[-1]), slope, error)
        if self.best is None or error < self.best.error:
            self.best = point
        return point

    def assign(self, potentials: Tensor) -> tuple[Tensor, Tensor, float]:
        """Assign each sample to the cluster that gets most of its mass; return the clusters, confidences and cost.

        Returns clusters (n,) int64; their fraction of the row, (n,) float32; the cost as in ``SinkhornResult``.
        """
        ids, confidence = torch.empty(self._num_rows, dtype=torch.int64), torch.empty(self._num_rows)
        log_p = torch.zeros(1, dtype=torch.float64)
        for rows in _blocks(self._scores):
            values = self._exponents(rows, potentials)
            # numpy's argmax takes a fraction of the time of torch's
            best = values.argmax(1) if values.is_cuda else torch.from_numpy(values.numpy().argmax(1))
            ids[rows] = best
            confidence[rows] = _sums_of_exponentials(values, values.gather(1, best[:, None])).reciprocal().float().cpu()
            raw = _read(self._scores, rows).to(self._dtype, copy=True)
            chosen, top = raw.gather(1, best[:, None]), raw.amax(dim=1, keepdim=True)
            log_p += (chosen - top).double().sum().cpu() - _sums_of_exponentials(raw, top).double().log().sum().cpu()
        return ids, confidence, -float(self._combine(log_p, "sum")[0]) / self._num_total

    def _exponents(self, rows: slice, potentials: Tensor, out: Tensor | None = None) -> Tensor:
        """Return ``lam * l + u`` for some rows, in float64 if float32 would lose significant digits."""
        dtype = torch.float64 if self._lam * self._size > _EXACT_EXPONENT else self._dtype
        block = _read(self._scores, rows).to(dtype)
        out = out if out is not None and out.dtype == dtype else None
        return torch.add(potentials.to(block.device, dtype), block, alpha=self._lam, out=out)

    def _exponentials(self, rows: slice, potentials: Tensor) -> Tensor:
        """Return E for some rows at u0 = u, and store it if memory suffices."""
        kept = None if self._kernel is None else self._kernel[rows]
        values = self._exponents(rows, potentials, out=kept)
        top = values.amax(dim=1, keepdim=True).sub_(_TOP[self._dtype])
        self._tops += float(top.double().sum())
        block = values.sub_(top).to(self._dtype).clamp_min_(_FLOOR[self._dtype]).exp_()
        if kept is not None and values.dtype != self._dtype:
            kept.copy_(block)
        return block

    def _find_score_ranges(self) -> tuple[float, float]:
        """Return the largest absolute score, and the largest range within a row, over all processes."""
        size = spread = 0.0
        bad_row = -1
        for rows in _blocks(self._scores):
            block = _read(self._scores, rows)
            lows, highs = block.amin(dim=1).double(), block.amax(dim=1).double()
            ranges = highs - lows
            if not torch.isfinite(ranges).all():
                bad_row = rows.start + int((~torch.isfinite(ranges)).nonzero()[0])
                break
            size = max(size, -float(lows.min()), float(highs.max()))
            spread = max(spread, float(ranges.max()))
        found = self._combine(torch.tensor([bad_row, size, spread], dtype=torch.float64), "max")
        if bad_row >= 0:
            raise ValueError(f"row {bad_row} of scores contains NaN or infinity")
        if found[0] >= 0:
            raise ValueError("scores in another process contain NaN or infinity")
        return float(found[1]), float(found[2])


def _maximize(semi_dual: _SemiDual, potentials: Tensor, tol: float) -> _Point:
    """Maximize by L-BFGS in the variables ``u * sqrt(r)``, in which scaling steps and gradients agree to first order.

    At first, the scaling step ``log r - log s`` replaces the gradient ``(r - s) / r``: far from the solution, it is
    closer to linear in u. If marginals nearly vanish, the opposite holds, so the gradient is used from the moment the
    error falls slowly. The solution is the same, since both are 0 there. The best point seen is returned.

    Sources: J. Nocedal and S. Wright, "Numerical Optimization", Alg. 7.4 for the recursion; H. De Sterck and A. Howse,
    "Nonlinearly preconditioned L-BFGS as an acceleration mechanism for alternating least squares" (2018) for using the
    steps of a fixed-point iteration instead of gradients.
    """
    root, log_prior = semi_dual.prior.sqrt(), semi_dual.prior.log()

    def uphill(point: _Point) -> tuple[Tensor, Tensor]:
        scaling = log_prior - point.marginals.clamp_min(_MIN_SHARE).log()
        return scaling * root, point.slope / root

    point = semi_dual.evaluate(potentials)
    pairs: tuple[_Pairs, _Pairs] = (deque(maxlen=_PAIRS), deque(maxlen=_PAIRS))
    errors = [point.error]
    kind = 0
    while point.error > tol and semi_dual.passes_left > 0:
        before = uphill(point)
        if len(errors) > _SLOW_AFTER and errors[-1] > _SLOW * errors[-1 - _SLOW_AFTER]:
            kind = 1
        after = None
        if pairs[kind]:
            after = _line_search(semi_dual, point, _direction(pairs[kind], before[kind]) / root, tol)
        if after is None:
            if semi_dual.passes_left < 1:
                break
            for held in pairs:
                held.clear()
            # a scaling step, an iteration of the published algorithm, never moves away from the solution
            after = semi_dual.evaluate(point.potentials + before[0] / root)
        step = (after.potentials - point.potentials) * root
        for held, old, new in zip(pairs, before, uphill(after), strict=True):
            change = old - new
            curvature = float(step @ change)
            if curvature > 1e-12 * float(change @ change):
                held.append((step, change, curvature))
        point = after
        errors.append(point.error)
    assert semi_dual.best is not None
    return semi_dual.best


def _line_search(semi_dual: _SemiDual, point: _Point, direction: Tensor, tol: float) -> _Point | None:
    """Step along a direction until the value rises and the slope falls enough (weak Wolfe, by bisection).

    If values are equal up to rounding, slopes decide: W. Hager and H. Zhang, "A New Conjugate Gradient Method with
    Guaranteed Descent" (2005).
    """
    slope = float(point.slope @ direction)
    if not slope > 0:
        return None
    low, high = 0.0, math.inf
    step = min(1.0, _LONGEST_STEP / max(float(direction.abs().max()), _MIN_SHARE))
    noise = _VALUE_NOISE * max(1.0, abs(point.value))
    for _ in range(_LINE_SEARCH_PASSES):
        if semi_dual.passes_left < 1:
            return None
        after = semi_dual.evaluate(point.potentials + step * direction)
        if after.error <= tol:
            return after
        new_slope, rise = float(after.slope @ direction), after.value - point.value
        if not (rise >= 1e-4 * step * slope or (rise >= -noise and new_slope >= -0.8 * slope)):
            high = step
        elif new_slope > 0.9 * slope:
            low = step
        else:
            return after
        step = 2 * step if math.isinf(high) else (low + high) / 2
    return None


_Pairs = deque[tuple[Tensor, Tensor, float]]
"""Recent steps, the resulting changes of the (replaced) gradient, and their products: an inverse Hessian estimate."""


def _direction(pairs: _Pairs, gradient: Tensor) -> Tensor:
    """Return the ascent direction ``H g``, H the inverse Hessian of at least one pair."""
    direction = gradient.clone()
    shares = []
    for step, change, curvature in reversed(pairs):
        shares.append(float(step @ direction) / curvature)
        direction -= shares[-1] * change
    _, change, curvature = pairs[-1]
    direction *= curvature / float(change @ change)
    for (step, change, curvature), share in zip(pairs, reversed(shares), strict=True):
        direction += (share - float(change @ direction) / curvature) * step
    return direction


def build_prior(spec: str | ArrayLike | Tensor, k: int) -> Tensor:
    """Build the prior over k clusters: the fraction of the samples in each.

    Args:
        spec: ``uniform``; ``zipf:a``, proportional to ``(y + 1)^-a``; or k positive numbers that sum to 1.
        k: at least 1.

    Returns:
        (k,) float64 that sums to 1.

    Raises:
        ValueError: an unknown name, an exponent that is not a number, a wrong length, an entry that is not positive and
            finite, or a sum more than 0.001 away from 1; one 1e-6 to 0.001 away is normalized with a warning.
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    if not isinstance(spec, str):
        return _checked_prior(_as_float64(spec), k)
    word, _, exponent = spec.partition(":")
    try:
        if word != "zipf" and spec != "uniform":
            raise ValueError
        power = 0.0 if spec == "uniform" else float(exponent)
    except ValueError:
        raise ValueError(f"prior must be 'uniform' or 'zipf:a' with a number a, got {spec!r}") from None
    shares = torch.arange(1, k + 1, dtype=torch.float64).pow(-power)
    if not math.isfinite(power) or not torch.isfinite(shares).all() or (shares <= 0).any():
        raise ValueError(f"the prior's exponent must yield positive, finite proportions, got {spec!r}")
    return shares / shares.sum()


def sort_prior_by_cluster_size(prior: Tensor, marginals: Tensor) -> Tensor:
    """Assign larger prior fractions to larger clusters; ties keep the order of the ids.

    The numbering of clusters is arbitrary, so a non-uniform prior would inflate a cluster for no reason. The marginals
    without balancing are those of ``solve_assignment(..., max_iterations=1)``.

    Args:
        prior: (k,) fractions in any order.
        marginals: (k,) cluster fractions without balancing.

    Returns:
        (k,) the same fractions, reordered.
    """
    ordered = torch.empty_like(prior)
    ordered[marginals.argsort(descending=True, stable=True)] = prior.sort(descending=True).values
    return ordered


def _checked_prior(values: Tensor, k: int) -> Tensor:
    if values.shape != (k,):
        raise ValueError(f"prior must have shape {(k,)}, got {tuple(values.shape)}")
    bad = ~(torch.isfinite(values) & (values > 0))
    if bad.any():
        first = int(bad.nonzero()[0])
        raise ValueError(f"prior must have positive entries, got {float(values[first])} as entry {first}")
    total = float(values.sum())
    if abs(total - 1) > _SUM_WARNED:
        raise ValueError(f"prior must sum to 1, got {total:.6g}")
    if abs(total - 1) > _SUM_SILENT:
        warnings.warn(f"prior sums to {total:.8g} and was normalized to 1", stacklevel=3)
    return values / total


def _as_float64(values: ArrayLike | Tensor) -> Tensor:
    """Copy numbers to a new float64 tensor on the CPU; Python numbers keep all their digits."""
    if isinstance(values, Tensor):
        return values.detach().to("cpu", torch.float64, copy=True)
    return torch.from_numpy(np.array(values, dtype=np.float64))


def _check_matrix(values: Scores, name: str) -> None:
    if len(values.shape) != 2:
        raise ValueError(f"{name} must have shape (n, k), got {tuple(values.shape)}")
    kind = values.dtype
    if not (kind.is_floating_point if isinstance(kind, torch.dtype) else np.issubdtype(kind, np.floating)):
        raise TypeError(f"{name} must have a floating-point dtype, got {kind}")


def _blocks(scores: Scores) -> Iterator[slice]:
    """Yield all rows in order, as many at a time as fit in the processor cache."""
    numbers = max(1, *scores._weight.shape) if isinstance(scores, LinearScores) else max(1, scores.shape[1])
    on_gpu = _device(scores).type == "cuda"
    step = max(1, _GPU_BLOCK_NUMBERS // numbers if on_gpu else min(_ADDED_ROWS, _BLOCK_NUMBERS // numbers))
    for start in range(0, scores.shape[0], step):
        yield slice(start, min(start + step, scores.shape[0]))


def _read(scores: Scores, rows: slice) -> Tensor:
    block = scores[rows]
    if isinstance(block, Tensor):
        return block.detach()
    # torch accepts neither another byte order nor read-only arrays
    return torch.from_numpy(np.require(block, np.asarray(block).dtype.newbyteorder("="), requirements=["C", "W"]))


def _weighted_sum(rows: Tensor, weights: Tensor) -> Tensor:
    """Return the (k,) float64 sum of (m, k) rows weighted by (m,)."""
    if len(rows) <= _ADDED_ROWS:
        return (rows.T @ weights).double()
    whole = len(rows) // _GPU_ADDED_ROWS * _GPU_ADDED_ROWS
    groups = rows[:whole].view(-1, _GPU_ADDED_ROWS, rows.shape[1]).transpose(1, 2)
    sums = groups @ weights[:whole].view(-1, _GPU_ADDED_ROWS, 1)
    return sums.double().sum(dim=(0, 2)) + _weighted_sum(rows[whole:], weights[whole:])


def _device(scores: Scores) -> torch.device:
    return scores.device if isinstance(scores, Tensor | LinearScores) else torch.device("cpu")


def _sums_of_exponentials(values: Tensor, tops: Tensor) -> Tensor:
    """Return the sums (m,) of exp(values - top) by row; overwrites values. Several times as fast as ``logsumexp``."""
    return values.sub_(tops).exp_().sum(dim=1)
