r"""Balanced assignment of n samples to k clusters by entropic optimal transport.

Sources: M. Cuturi, "Sinkhorn Distances: Lightspeed Computation of Optimal Transport" (NeurIPS 2013); Y. Asano,
C. Rupprecht and A. Vedaldi, "Self-labelling via Simultaneous Clustering and Representation Learning" (ICLR 2020);
M. Caron et al., "Unsupervised Learning of Visual Features by Contrasting Cluster Assignments" (NeurIPS 2020) for
batches.

With scores l (n, k), sample weights c and prior r, both summing to 1, the plan

.. math:: Q = \arg\min_Q \langle Q, -\log p \rangle + \tfrac{1}{\lambda} KL(Q \| c r^T), \quad
    Q 1_k = c, \; Q^T 1_n = r, \qquad p = \text{softmax}(l)

has the rows :math:`c_i \, \text{softmax}(\lambda l_i + u)`: rows are exact by construction, and all there is to find
are the k potentials u that make the columns sum to r. They are defined up to a constant; ours have maximum 0.

Nothing here keeps the plan. ``passes`` goes over the scores, ``ascent`` moves the potentials. Several processes each
hold some rows and pass ``reduce``; k-sized sums are all they exchange.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from labelkit.algorithms.sinkhorn.ascent import Ascent, Reached
from labelkit.algorithms.sinkhorn.exponents import reversible, shifted
from labelkit.algorithms.sinkhorn.extremes import Extremes, find_extremes
from labelkit.algorithms.sinkhorn.passes import KernelPasses, LogPasses, Passes, Reduce, combine, first_largest
from labelkit.algorithms.sinkhorn.prior import as_float64, make_prior
from labelkit.algorithms.sinkhorn.scores import (
    LinearScores,
    Matrix,
    RowSliceable,
    Source,
    as_source,
    default_chunk_rows,
)
from labelkit.algorithms.sinkhorn.workers import Scratch, Workers

Scores = Tensor | RowSliceable | LinearScores

# Newton's matrix is k x k and costs n k^2 per step.
_NEWTON_MOST_CLUSTERS = 512
# Where lam times the largest range of a row is above this, a problem softer by this factor is solved first: from zeros
# the semi-dual is nearly piecewise linear, and an ascent can stall far from its top.
_STEEP, _SOFTER = 2e3, 8.0
# Kernel of scores that are not in memory: at most this, unless told otherwise.
_KERNEL_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class SinkhornResult:
    """Potentials, and what they lead to.

    Attributes:
        potentials: u, (k,) float64 on the CPU, maximum 0.
        marginals: (k,) float64, the share of the weight that each cluster gets.
        marginal_error: ``sum |marginals - prior|``, in [0, 2].
        num_iterations: passes over the scores that evaluated marginals (two more check them and assign).
        converged: the stopping rule was met within the passes allowed.
        cost: ``-(1/n) sum_i log p_i`` of the hard assignment, p the softmax of the raw scores without ``lam``; in nats.
        cluster_ids: (n_local,) int64, the cluster of largest plan mass per row; ties go to the smallest id.
        confidence: (n_local,) float32, the share of the row's mass in that cluster.
        lam: sharpness that the potentials belong to.
    """

    potentials: Tensor
    marginals: Tensor
    marginal_error: float
    num_iterations: int
    converged: bool
    cost: float
    cluster_ids: Tensor
    confidence: Tensor
    lam: float

    def pseudo_labels(self, scores: Scores, *, chunk_rows: int | None = None) -> Tensor:
        """Cluster of largest plan mass of any scores, also of new samples: ``argmax(lam * l + u)``.

        Args:
            scores: (m, k), as for :func:`solve`.
            chunk_rows: rows per block.

        Returns:
            (m,) int64 on the CPU; ties go to the smallest id.
        """
        source = self._source(scores)
        labels = torch.empty(source.num_rows, dtype=torch.int64)

        def work(where: slice, block: Tensor, totals: Tensor, scratch: Scratch) -> None:
            labels[where] = first_largest(self._logits(block, scratch)).cpu()

        with Workers(source) as workers:
            workers.over(source, chunk_rows or default_chunk_rows(source), work, width=1)
        return labels

    def assignments(self, scores: Scores, rows: Tensor | None = None) -> Tensor:
        """Rows of the plan, each scaled to sum to 1: ``softmax(lam * l + u)``.

        Args:
            scores: (m, k), as for :func:`solve`.
            rows: int64 positions of the rows wanted; None for all.

        Returns:
            (m, k) float32, or float64 if the scores are.
        """
        source = self._source(scores)
        if rows is None:
            rows = torch.arange(source.num_rows)
        block = source.take(rows)
        dtype = torch.float64 if block.dtype == torch.float64 else torch.float32
        return torch.softmax(self._logits(block, Scratch()), dim=1).to(dtype)

    def _source(self, scores: Scores) -> Source:
        source = as_source(scores)
        if source.num_columns != len(self.potentials):
            raise ValueError(f"scores: {source.num_columns} columns where the potentials are {len(self.potentials)}")
        return source

    def _logits(self, block: Tensor, scratch: Scratch) -> Tensor:
        return shifted(block, self.lam, self.potentials, torch.float64, scratch, exact=True)[0]


def solve(
    scores: Scores,
    lam: float,
    *,
    prior: ArrayLike | Tensor | None = None,
    sample_weights: ArrayLike | Tensor | None = None,
    tol: float = 1e-4,
    max_iterations: int = 500,
    solver: Literal["auto", "sinkhorn", "lbfgs", "newton"] = "auto",
    form: Literal["auto", "kernel", "log"] = "auto",
    initial: ArrayLike | Tensor | None = None,
    dtype: torch.dtype = torch.float32,
    chunk_rows: int | None = None,
    memory_bytes: int | None = None,
    overwrite: bool = False,
    prior_strength: float | None = None,
    stop: Literal["marginal", "official"] = "marginal",
    reduce: Reduce | None = None,
    on_pass: Callable[[int, float], None] | None = None,
) -> SinkhornResult:
    """Find the potentials of the balanced assignment, and assign every row.

    Args:
        scores: (n_local, k) float logits of the rows of this process: a tensor or array, which is not changed unless
            ``overwrite``; or a memory map, a data set of a file, or :class:`LinearScores`, read in blocks. No rows at
            all are allowed where another process has some.
        lam: sharpness > 0; the larger, the closer to the hard assignment, and the more passes.
        prior: r, (k,) positive, sums to 1; None for equal shares. See :func:`make_prior`.
        sample_weights: (n_local,) positive; only their ratios over all processes matter. None for equal weights.
        tol: converged where ``sum |marginals - prior|`` is at most this (with ``prior_strength``: where no potential
            moves more; with ``stop="official"``: see there).
        max_iterations: most passes; the best potentials so far are returned.
        solver: ``sinkhorn``: the scaling iteration; ``lbfgs``: quasi-Newton on the semi-dual; ``newton``: with its
            Hessian, for at most 512 clusters; ``auto``: L-BFGS; a steep problem is first solved at smaller ``lam``,
            whose passes count.
        form: ``kernel``: exponentials once, then products with the stored kernel; ``log``: exponentials in every pass,
            nothing of size n x k is kept; ``auto``: kernel if it fits.
        initial: (k,) potentials to start from, such as those of the last solve; None for zeros.
        dtype: float32 or float64, of exponentials and products; sums over blocks and potentials are float64.
        chunk_rows: rows per block; None for what stays in the cache.
        memory_bytes: ``auto`` builds no kernel larger than this; None: for scores in memory one of their size, for
            others 1 GiB.
        overwrite: scores are a tensor or array of ``dtype`` in memory; work in their place and leave the assignments
            there, rows summing to 1.
        prior_strength: weight rho > 0 of a soft prior, ``rho * KL(marginals || prior)`` instead of a constraint (the
            entropic reference is then ``c 1^T / k``); None for the constraint. Scaling iteration only.
        stop: ``official``: the scaling iteration of the published code with its start and its rule,
            ``sum_i |beta_i / beta_i_new - 1| <= tol`` after iterations 1, 11, 21 and so on (with ``initial``: not
            after the first).
        reduce: combines small CPU float64 tensors over processes; None for one process.
        on_pass: called with (passes made, marginal error) after each.

    Raises:
        ValueError: an argument is out of range or has the wrong shape, scores are not finite (the message has the
            row), k < 2, or there are no samples at all.
        TypeError: scores are not floating point.
    """
    source = as_source(scores)
    _check_options(lam, tol, max_iterations, solver, form, dtype, prior_strength, stop, chunk_rows, source.num_columns)
    if overwrite:
        _check_overwrite(source, scores, dtype)
    num_total = _count(source, reduce)
    target = make_prior("uniform" if prior is None else prior, source.num_columns)
    weights = _as_weights(sample_weights, source.num_rows, num_total, reduce)
    start = _as_initial(initial, source.num_columns)
    kernel = _wants_kernel(form, source, dtype, memory_bytes, reduce)
    rows = chunk_rows or default_chunk_rows(source)
    with Workers(source) as workers:
        extremes = find_extremes(source, workers, rows, reduce)
        problem = _Problem(source, target, weights, num_total, extremes, workers, tol, dtype, rows, reduce, on_pass)
        softer_passes = 0
        if (solver, stop, initial, prior_strength) == ("auto", "marginal", None, None):
            start, softer_passes = problem.start(lam, max_iterations, kernel=kernel and not overwrite)
        passes = problem.passes(lam, kernel=kernel, in_place=overwrite, keep_logsumexp=stop == "official")
        ascent = problem.ascent(passes, max_iterations - softer_passes)
        if prior_strength is not None:
            reached = ascent.soft(start, prior_strength * lam)
        elif stop == "official":
            before = None
            if initial is None:
                sums, before = _power_sums(source, lam, workers, rows, num_total, reduce)
                start = target.log() - sums.log()
            reached = ascent.official(start, before)
        else:
            reached = getattr(ascent, "lbfgs" if solver == "auto" else solver)(start)
        return _result(passes, reached, lam, softer_passes)


@dataclass(frozen=True)
class _Problem:
    """What problems of any sharpness share: checked arguments of :func:`solve`, and what its scores range over."""

    source: Source
    prior: Tensor
    weights: Tensor | None
    num_total: float
    extremes: Extremes
    workers: Workers
    tol: float
    dtype: torch.dtype
    chunk_rows: int
    reduce: Reduce | None
    on_pass: Callable[[int, float], None] | None

    def start(self, lam: float, max_passes: int, *, kernel: bool) -> tuple[Tensor, int]:
        """Potentials to start from, those of a softer problem if this one is steep, and the passes made for them."""
        if lam * self.extremes.spread <= _STEEP or max_passes == 1:
            return torch.zeros(self.source.num_columns, dtype=torch.float64), 0
        softer = lam / _SOFTER
        start, made = self.start(softer, max_passes - 1, kernel=kernel)
        passes = self.passes(softer, kernel=kernel)
        found = self.ascent(passes, max_passes - 1 - made).lbfgs(start).potentials
        return _SOFTER * (found - found.max()), made + passes.num_passes

    def passes(
        self, lam: float, *, kernel: bool, in_place: bool = False, keep_logsumexp: bool = False
    ) -> KernelPasses | LogPasses:
        """Passes of a sharpness; in place, a kernel whose logarithm would lose scores gives way to the log form."""
        common: dict[str, Any] = {
            "largest": self.extremes.size,
            "replace": in_place,
            "workers": self.workers,
            "weights": self.weights,
            "num_total": self.num_total,
            "dtype": self.dtype,
            "chunk_rows": self.chunk_rows,
            "reduce": self.reduce,
            "keep_logsumexp": keep_logsumexp,
        }
        if kernel and (not in_place or reversible(lam * self.extremes.spread, self.dtype)):
            return KernelPasses(self.source, lam, row_largest=self.extremes.row_largest, **common)
        return LogPasses(self.source, lam, **common)

    def ascent(self, passes: Passes, max_passes: int) -> Ascent:
        """An ascent to the prior."""
        return Ascent(passes, self.prior, tol=self.tol, max_passes=max_passes, on_pass=self.on_pass)


def _result(passes: Passes, reached: Reached, lam: float, softer_passes: int) -> SinkhornResult:
    hard = passes.finish(reached.potentials)
    return SinkhornResult(
        potentials=reached.potentials - reached.potentials.max(),
        marginals=reached.marginals,
        marginal_error=reached.error,
        num_iterations=softer_passes + passes.num_passes,
        converged=reached.converged,
        cost=hard.cost,
        cluster_ids=hard.cluster_ids,
        confidence=hard.confidence,
        lam=float(lam),
    )


def _wants_kernel(
    form: str, source: Source, dtype: torch.dtype, memory_bytes: int | None, reduce: Reduce | None
) -> bool:
    if form != "auto":
        return form == "kernel"
    needed = float(source.num_rows * source.num_columns * dtype.itemsize)
    # every process must choose alike: what a pass does between its sums may differ, but not how many there are
    largest = float(combine(torch.tensor([needed], dtype=torch.float64), "max", reduce)[0])
    if memory_bytes is None:
        return source.tensor is not None or largest <= _KERNEL_BYTES
    return largest <= memory_bytes


def _power_sums(
    source: Source, lam: float, workers: Workers, rows: int, num_total: float, reduce: Reduce | None
) -> tuple[Tensor, Tensor]:
    """What the published code starts from, ``beta = 1 / n``.

    Returns:
        (k,) means of ``p^lam`` over all samples, the first half step; and (n_local,) float64, ``lam`` times the
        logsumexp of each row of scores, whose ``p^lam`` has the logarithm 0 there.
    """
    normalizers = torch.empty(source.num_rows, dtype=torch.float64)

    def work(where: slice, block: Tensor, totals: Tensor, scratch: Scratch) -> None:
        logs = block.double()
        row = logs.logsumexp(dim=1, keepdim=True)
        normalizers[where] = lam * row.squeeze(1).cpu()
        totals += (logs - row).mul_(lam).exp_().sum(dim=0).cpu()

    sums = combine(workers.over(source, rows, work, width=source.num_columns), "sum", reduce) / num_total
    if not (sums > 0).all():
        raise ValueError(f"lam: {lam} makes a power of the probabilities vanish; the official rule needs a smaller one")
    return sums, normalizers


def _check_options(
    lam: float,
    tol: float,
    max_iterations: int,
    solver: str,
    form: str,
    dtype: torch.dtype,
    prior_strength: float | None,
    stop: str,
    chunk_rows: int | None,
    k: int,
) -> None:
    if not 0 < lam < math.inf:
        raise ValueError(f"lam: {lam} is not positive")
    if not tol > 0:
        raise ValueError(f"tol: {tol} is not positive")
    if max_iterations < 1:
        raise ValueError(f"max_iterations: {max_iterations} is less than 1")
    if solver not in ("auto", "sinkhorn", "lbfgs", "newton"):
        raise ValueError(f"solver: {solver!r} is none of auto, sinkhorn, lbfgs, newton")
    if form not in ("auto", "kernel", "log"):
        raise ValueError(f"form: {form!r} is none of auto, kernel, log")
    if dtype not in (torch.float32, torch.float64):
        raise ValueError(f"dtype: {dtype} is neither float32 nor float64")
    if stop not in ("marginal", "official"):
        raise ValueError(f"stop: {stop!r} is neither marginal nor official")
    if prior_strength is not None and not prior_strength > 0:
        raise ValueError(f"prior_strength: {prior_strength} is not positive")
    if (prior_strength is not None or stop == "official") and solver not in ("auto", "sinkhorn"):
        raise ValueError(f"solver: {solver} cannot be had with a soft prior or the official rule")
    if prior_strength is not None and stop == "official":
        raise ValueError("prior_strength: the official rule knows no soft prior")
    if chunk_rows is not None and chunk_rows < 1:
        raise ValueError(f"chunk_rows: {chunk_rows} is less than 1")
    if solver == "newton" and k > _NEWTON_MOST_CLUSTERS:
        raise ValueError(f"solver: newton takes at most {_NEWTON_MOST_CLUSTERS} clusters, not {k}")


def _check_overwrite(source: Source, given: Scores, dtype: torch.dtype) -> None:
    held = source.tensor if isinstance(source, Matrix) else None
    if held is None or held.dtype != dtype:
        raise ValueError(f"overwrite: scores must be a {dtype} tensor or array in memory")
    if isinstance(given, np.ndarray) and not np.shares_memory(given, held.numpy()):
        raise ValueError("overwrite: the array cannot be written to")


def _count(source: Source, reduce: Reduce | None) -> float:
    """Samples of all processes."""
    k = source.num_columns
    extremes = combine(torch.tensor([k, -k], dtype=torch.float64), "max", reduce)
    if extremes[0] != -extremes[1]:
        raise ValueError(f"scores: {k} columns here, {-int(extremes[1])} to {int(extremes[0])} over all processes")
    if k < 2:
        raise ValueError(f"scores: {k} columns; two clusters at least are needed")
    num_total = float(combine(torch.tensor([source.num_rows], dtype=torch.float64), "sum", reduce)[0])
    if num_total < 1:
        raise ValueError("scores: no rows")
    return num_total


def _as_weights(
    weights: ArrayLike | Tensor | None, n_local: int, num_total: float, reduce: Reduce | None
) -> Tensor | None:
    """Weights of mean 1 over all processes."""
    given = combine(torch.tensor([float(weights is not None)], dtype=torch.float64), "sum", reduce)[0]
    if weights is None:
        if given:
            raise ValueError("sample_weights: None here, given in another process")
        return None
    values = as_float64(weights)
    if values.shape != (n_local,):
        raise ValueError(f"sample_weights: shape {tuple(values.shape)} where {(n_local,)} is needed")
    bad = ~(torch.isfinite(values) & (values > 0))
    if bad.any():
        first = int(bad.nonzero()[0])
        raise ValueError(f"sample_weights: entry {first} is {float(values[first])}; weights must be positive")
    total = float(combine(values.sum()[None], "sum", reduce)[0])
    return values * (num_total / total)


def _as_initial(initial: ArrayLike | Tensor | None, k: int) -> Tensor:
    if initial is None:
        return torch.zeros(k, dtype=torch.float64)
    values = as_float64(initial)
    if values.shape != (k,):
        raise ValueError(f"initial: shape {tuple(values.shape)} where {(k,)} is needed")
    if not torch.isfinite(values).all():
        raise ValueError("initial: NaN or infinite values")
    return values
