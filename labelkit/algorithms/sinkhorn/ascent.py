"""Potentials at which the cluster marginals are the prior: scaling iterations, L-BFGS and Newton on the semi-dual.

All of them work on k numbers and see the scores only through ``evaluate(u) -> (s, log_sum)``. The semi-dual
``D(u) = r . u - log_sum(u)`` is concave with gradient ``r - s(u)`` and Hessian ``-(diag(s) - sum c q q^T)``.

Sources: R. Sinkhorn and P. Knopp (1967) and M. Cuturi, "Sinkhorn Distances" (NeurIPS 2013) for the iteration;
J. Nocedal and S. Wright, "Numerical Optimization", Alg. 7.4 for the two-loop recursion; H. De Sterck and A. Howse,
"Nonlinearly preconditioned L-BFGS as an acceleration mechanism for alternating least squares" (2018), for the steps of
a fixed-point iteration in the place of gradients; W. Hager and H. Zhang, "A New Conjugate Gradient Method with
Guaranteed Descent" (2005), for the slope test that stands in for the comparison of values where these are equal to
rounding.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from labelkit.algorithms.sinkhorn.passes import Evaluation, Passes

# A marginal of zero would send its potential to infinity; this bounds a step.
_LEAST_MARGINAL = 1e-30
_MEMORY = 20
# L-BFGS takes steps of the scaling iteration for gradients as long as so many passes reduce the error to this share.
_SLOW_AFTER, _SLOW = 3, 0.5
# official rule: iterations between two tests.
_OFFICIAL_EVERY = 10
_LINE_SEARCH_PASSES = 12
# Values are compared down to this relative difference; beyond, slopes decide.
_VALUE_NOISE = 1e-7


@dataclass(frozen=True, slots=True)
class Reached:
    """Where an ascent ended: the potentials, their marginals, the distance from the prior, and whether it was met."""

    potentials: Tensor
    marginals: Tensor
    error: float
    converged: bool


@dataclass(slots=True)
class _Point:
    potentials: Tensor
    found: Evaluation
    value: float
    slope: Tensor
    error: float


class Ascent:
    """One solve.

    Args:
        passes: makes the passes and counts them.
        prior: r, (k,) float64 that sums to 1.
        tol: largest ``sum |s - r|`` that counts as converged.
        max_passes: most passes.
        on_pass: called with (passes made, error) after each.
    """

    def __init__(
        self,
        passes: Passes,
        prior: Tensor,
        *,
        tol: float,
        max_passes: int,
        on_pass: Callable[[int, float], None] | None = None,
    ) -> None:
        self._passes = passes
        self._prior = prior
        self._log_prior = _log(prior)
        self._tol = tol
        self._max_passes = max_passes
        self._on_pass = on_pass
        # progress below rounding does not come: the best point seen is what is returned
        self._best: _Point | None = None

    def sinkhorn(self, potentials: Tensor) -> Reached:
        """Repeat ``u <- u + log r - log s``."""
        point = self._at(potentials)
        while point.error > self._tol and self._may_go_on():
            point = self._at(self._scaled(point))
        return self._reached()

    def official(self, potentials: Tensor, before: Tensor | None) -> Reached:
        """Scaling until ``sum_i |beta_i / beta_i_new - 1| <= tol``, tested after iterations 1, 11, 21 and so on.

        Args:
            potentials: those of the first iteration.
            before: (n_local,) float64, what stood for the row's logsumexp before it; None: no test after it.
        """
        count = 0
        while True:
            point = self._at(potentials)
            assert self._passes.row_logsumexp is not None
            converged = False
            if count % _OFFICIAL_EVERY == 0 and before is not None:
                # beta is the weight of a row over the exponential of its logsumexp
                change = (self._passes.row_logsumexp - before).expm1().abs().sum()
                converged = float(self._passes.combine(change[None])[0]) <= self._tol
            if converged or not self._may_go_on():
                return Reached(point.potentials, point.found.marginals, point.error, converged)
            before = self._passes.row_logsumexp.clone()
            potentials = self._scaled(point)
            count += 1

    def soft(self, potentials: Tensor, strength: float) -> Reached:
        """Repeat ``u <- tau (u + log r - log s)``, ``tau = strength / (1 + strength)``, until u moves at most ``tol``.

        The fixed point is ``u = strength * log(r / s)``.
        """
        tau = 1.0 if math.isinf(strength) else strength / (1 + strength)
        point = self._at(potentials)
        while True:
            after = tau * self._scaled(point)
            if float((after - point.potentials).abs().max()) <= self._tol:
                return Reached(point.potentials, point.found.marginals, point.error, True)
            if not self._may_go_on():
                return Reached(point.potentials, point.found.marginals, point.error, False)
            point = self._at(after)

    def lbfgs(self, potentials: Tensor) -> Reached:
        """L-BFGS in the variables ``u * sqrt(r)``, in which scaling steps and gradients agree to first order.

        At first the scaling step ``log r - log s`` stands for the gradient ``(r - s) / r``: far from the solution it is
        closer to linear in u. Where marginals nearly vanish the opposite holds, so that gradients take over for good
        once the error falls slowly. The solution is the same: both are 0 there.
        """
        point = self._at(potentials)
        root = torch.from_numpy(np.sqrt(self._prior.numpy()))
        by_scaling, by_gradient = _Pairs(), _Pairs()
        errors = [point.error]
        slow = False
        while point.error > self._tol and self._may_go_on():
            scaling, gradient = self._scaling_step(point) * root, point.slope / root
            slow = slow or (len(errors) > _SLOW_AFTER and errors[-1] > _SLOW * errors[-1 - _SLOW_AFTER])
            pairs, uphill = (by_gradient, gradient) if slow else (by_scaling, scaling)
            after = self._line_search(point, pairs.direction(uphill) / root) if pairs else None
            if after is None:
                if not self._may_go_on():
                    break
                # a scaling step never moves away from the solution
                by_scaling.clear()
                by_gradient.clear()
                after = self._at(self._scaled(point))
            step = (after.potentials - point.potentials) * root
            by_scaling.add(step, scaling - self._scaling_step(after) * root)
            by_gradient.add(step, gradient - after.slope / root)
            point = after
            errors.append(point.error)
        return self._reached()

    def newton(self, potentials: Tensor) -> Reached:
        """Newton's steps with the full Hessian, halved until the semi-dual rises."""
        k = len(self._prior)
        point = self._at(potentials)
        # ones are the null space of the Hessian: u is defined up to a constant
        fill = 1e-9 * torch.eye(k, dtype=torch.float64) + torch.full((k, k), 1 / k**2, dtype=torch.float64)
        while point.error > self._tol and self._may_go_on(2):
            direction = torch.linalg.solve(self._passes.hessian(point.potentials) + fill, point.slope)
            after = self._line_search(point, direction)
            if after is None:
                if not self._may_go_on():
                    break
                after = self._at(self._scaled(point))
            point = after
        return self._reached()

    def _line_search(self, point: _Point, direction: Tensor) -> _Point | None:
        """Step along a direction until the value rises enough and the slope falls (weak Wolfe, by bisection)."""
        slope = float(point.slope @ direction)
        if not slope > 0:
            return None
        low, high = 0.0, math.inf
        # potentials in the hundreds happen, but no single step should make most of them at once
        step = min(1.0, 50.0 / max(float(direction.abs().max()), 1e-30))
        noise = _VALUE_NOISE * max(1.0, abs(point.value))
        for _ in range(_LINE_SEARCH_PASSES):
            if not self._may_go_on():
                return None
            after = self._at(point.potentials + step * direction)
            if after.error <= self._tol:
                return after
            new_slope = float(after.slope @ direction)
            rise = after.value - point.value
            enough = rise >= 1e-4 * step * slope or (rise >= -noise and new_slope >= -0.8 * slope)
            if not enough:
                high = step
            elif new_slope > 0.9 * slope:
                low = step
            else:
                return after
            step = 2 * step if math.isinf(high) else (low + high) / 2
        return None

    def _at(self, potentials: Tensor) -> _Point:
        found = self._passes.evaluate(potentials)
        slope = self._prior - found.marginals
        error = float(slope.abs().sum())
        if not math.isfinite(error):
            raise ValueError("scores: their cluster marginals are not finite; use float64, or a smaller lam")
        point = _Point(potentials, found, float(self._prior @ potentials) - found.log_sum, slope, error)
        if self._best is None or error < self._best.error:
            self._best = point
        if self._on_pass is not None:
            self._on_pass(self._passes.num_passes, error)
        return point

    def _scaled(self, point: _Point) -> Tensor:
        return point.potentials + self._scaling_step(point)

    def _scaling_step(self, point: _Point) -> Tensor:
        return self._log_prior - _log(point.found.marginals.clamp_min(_LEAST_MARGINAL))

    def _may_go_on(self, needed: int = 1) -> bool:
        return self._passes.num_passes + needed <= self._max_passes

    def _reached(self) -> Reached:
        assert self._best is not None
        best = self._best
        return Reached(best.potentials, best.found.marginals, best.error, best.error <= self._tol)


def _log(values: Tensor) -> Tensor:
    # numpy: torch shares even a thousand logarithms between threads, and its own then wait busily beside the workers
    return torch.from_numpy(np.log(values.numpy()))


class _Pairs:
    """The last steps with the changes of what stands for the gradient: an inverse Hessian."""

    def __init__(self) -> None:
        self._held: deque[tuple[Tensor, Tensor, float]] = deque(maxlen=_MEMORY)

    def __len__(self) -> int:
        return len(self._held)

    def clear(self) -> None:
        """Forget them."""
        self._held.clear()

    def add(self, step: Tensor, change: Tensor) -> None:
        """Remember a pair, unless the curvature that it shows is not positive."""
        curvature = float(step @ change)
        if curvature > 1e-12 * float(change @ change):
            self._held.append((step, change, curvature))

    def direction(self, gradient: Tensor) -> Tensor:
        """Ascent direction ``H g``, H the inverse Hessian."""
        direction = gradient.clone()
        shares = []
        for step, change, curvature in reversed(self._held):
            share = float(step @ direction) / curvature
            direction -= share * change
            shares.append(share)
        if self._held:
            _, change, curvature = self._held[-1]
            direction *= curvature / float(change @ change)
        for (step, change, curvature), share in zip(self._held, reversed(shares), strict=True):
            direction += (share - float(change @ direction) / curvature) * step
        return direction
