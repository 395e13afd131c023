"""Potentials at which the cluster marginals are the prior: scaling iterations, L-BFGS and Newton on the semi-dual.

All of them work on k numbers and see the scores only through ``evaluate(u) -> (s, log_sum)``. The semi-dual
``D(u) = r . u - log_sum(u)`` is concave with gradient ``r - s(u)`` and Hessian ``-(diag(s) - sum c q q^T)``.

Sources: R. Sinkhorn and P. Knopp (1967) and M. Cuturi, "Sinkhorn Distances" (NeurIPS 2013) for the iteration;
J. Nocedal and S. Wright, "Numerical Optimization", Alg. 7.4 for the two-loop recursion; W. Hager and H. Zhang,
"A New Conjugate Gradient Method with Guaranteed Descent" (2005), for the slope test that stands in for the comparison
of values where these are equal to rounding.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from labelkit.algorithms.sinkhorn.passes import Evaluation, Passes

# A marginal of zero would send its potential to infinity; this bounds a step.
_LEAST_MARGINAL = 1e-30
_MEMORY = 20
# auto: iterations before the rate is believed, and the passes it may predict before L-BFGS takes over.
_RATE_AFTER, _PATIENCE = 4, 12
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
        self._log_prior = prior.log()
        self._tol = tol
        self._max_passes = max_passes
        self._on_pass = on_pass
        # progress below rounding does not come: the best point seen is what is returned
        self._best: _Point | None = None

    def sinkhorn(self, potentials: Tensor, *, patience: int | None = None) -> Reached:
        """Repeat ``u <- u + log r - log s``; with ``patience``, stop where more passes than that are in sight."""
        point = self._at(potentials)
        last_error = math.inf
        count = 1
        while point.error > self._tol and self._may_go_on():
            if patience is not None and count > _RATE_AFTER:
                rate = point.error / last_error
                if rate >= 1 or math.log(self._tol / point.error) / math.log(rate) > patience:
                    break
            last_error = point.error
            point = self._at(self._scaled(point))
            count += 1
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

    def auto(self, potentials: Tensor) -> Reached:
        """Scaling as long as it is fast, then L-BFGS."""
        reached = self.sinkhorn(potentials, patience=_PATIENCE)
        if reached.converged or not self._may_go_on():
            return reached
        return self.lbfgs(reached.potentials, known=True)

    def lbfgs(self, potentials: Tensor, *, known: bool = False) -> Reached:
        """L-BFGS in the variables ``u * sqrt(r)``, in which a first step is a scaling step to first order.

        Args:
            potentials: where to start.
            known: this is the best point so far, and needs no pass.
        """
        point = self._best if known and self._best is not None else self._at(potentials)
        root = self._prior.sqrt()
        pairs: deque[tuple[Tensor, Tensor, float]] = deque(maxlen=_MEMORY)
        while point.error > self._tol and self._may_go_on():
            gradient = point.slope / root
            direction = _two_loops(gradient, pairs) / root
            after = self._line_search(point, direction, first=not pairs)
            if after is None:
                if not self._may_go_on():
                    break
                # a scaling step never moves away from the solution
                pairs.clear()
                after = self._at(self._scaled(point))
                point = after
                continue
            step = (after.potentials - point.potentials) * root
            change = (point.slope - after.slope) / root
            curvature = float(step @ change)
            if curvature > 1e-12 * float(change @ change):
                pairs.append((step, change, curvature))
            point = after
        return self._reached()

    def newton(self, potentials: Tensor) -> Reached:
        """Newton's steps with the full Hessian, halved until the semi-dual rises."""
        k = len(self._prior)
        point = self._at(potentials)
        # ones are the null space of the Hessian: u is defined up to a constant
        fill = 1e-9 * torch.eye(k, dtype=torch.float64) + torch.full((k, k), 1 / k**2, dtype=torch.float64)
        while point.error > self._tol and self._may_go_on(2):
            direction = torch.linalg.solve(self._passes.hessian(point.potentials) + fill, point.slope)
            after = self._line_search(point, direction, first=False)
            if after is None:
                if not self._may_go_on():
                    break
                after = self._at(self._scaled(point))
            point = after
        return self._reached()

    def _line_search(self, point: _Point, direction: Tensor, *, first: bool) -> _Point | None:
        """Step along a direction until the value rises enough and the slope falls (weak Wolfe, by bisection)."""
        slope = float(point.slope @ direction)
        if not slope > 0:
            return None
        low, high = 0.0, math.inf
        # potentials in the hundreds happen, but no single step should make most of them at once
        step = min(1.0, (5.0 if first else 50.0) / max(float(direction.abs().max()), 1e-30))
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
        return point.potentials + self._log_prior - point.found.marginals.clamp_min(_LEAST_MARGINAL).log()

    def _may_go_on(self, needed: int = 1) -> bool:
        return self._passes.num_passes + needed <= self._max_passes

    def _reached(self) -> Reached:
        assert self._best is not None
        best = self._best
        return Reached(best.potentials, best.found.marginals, best.error, best.error <= self._tol)


def _two_loops(gradient: Tensor, pairs: deque[tuple[Tensor, Tensor, float]]) -> Tensor:
    """Ascent direction ``H g``, H the inverse Hessian that the pairs (step, change of slope) describe."""
    direction = gradient.clone()
    shares = []
    for step, change, curvature in reversed(pairs):
        share = float(step @ direction) / curvature
        direction -= share * change
        shares.append(share)
    if pairs:
        _, change, curvature = pairs[-1]
        direction *= curvature / float(change @ change)
    for (step, change, curvature), share in zip(pairs, reversed(shares), strict=True):
        direction += (share - float(change @ direction) / curvature) * step
    return direction
