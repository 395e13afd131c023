"""Passes over the scores of a balanced assignment: cluster marginals for given potentials, block by block.

Notation: scores l (n, k), sharpness lam, potentials u (k,), sample weights c (n,) that sum to 1 over all processes,
``M = lam * l``. A pass at u returns ``s_y = sum_i c_i softmax_y(M_i + u)`` and ``sum_i c_i logsumexp_y(M_i + u)``.

Two ways to make one:
    - :class:`KernelPasses` keeps ``E_iy = exp(M_iy + u0_y - max)`` and makes two matrix-vector products of every block
      of rows while it is in the cache; the matrix is read once per pass and no exponential is taken. When u has moved
      far from u0, it is absorbed into E (B. Schmitzer, "Stabilized Sparse Scaling Algorithms for Entropy Regularized
      Transport Problems", 2019).
    - :class:`LogPasses` takes the exponentials again in every pass and keeps nothing of size n times k, so the scores
      may be a memory map, a data set of a file, or a product of features and weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from labelkit.algorithms.sinkhorn.scores import Matrix, Source
from labelkit.algorithms.sinkhorn.workers import Scratch, Workers

Reduce = Callable[[Tensor, Literal["sum", "max"]], Tensor]
"""Combines a small CPU tensor over all processes, elementwise; every process gets the same answer."""


def combine(values: Tensor, how: Literal["sum", "max"], reduce: Reduce | None) -> Tensor:
    """Combine a small tensor over all processes; as it is where there is one."""
    return values if reduce is None else reduce(values, how)


# Above this |M| float32 is off by more than 3e-5 in the exponent: it is then taken in float64.
_EXACT_EXPONENT = 512.0
# Rows of a block on a GPU, of millions, that are added in float32.
_ADDED_ROWS = 256
# Logarithm of the largest entry of a row of the kernel: large, so that small entries are far from underflow.
_HEADROOM = {torch.float32: 60.0, torch.float64: 300.0}
# Range of u - u0 that products with the kernel bear; in place of the scores more cannot be, else u is absorbed earlier,
# so that what was too small for the kernel stays too small to matter.
_BEARABLE_RANGE = {torch.float32: 80.0, torch.float64: 600.0}
_ABSORB_RANGE = {torch.float32: 60.0, torch.float64: 500.0}
# Range of M within a row that the kernel keeps without loss, so that its logarithm brings the scores back.
_REVERSIBLE_RANGE = {torch.float32: 140.0, torch.float64: 900.0}


def reversible(spread: float, dtype: torch.dtype) -> bool:
    """Tell whether exp keeps exponents that differ by ``spread`` within a row, so that log brings them back."""
    return spread <= _REVERSIBLE_RANGE[dtype]


def shifted(
    block: Tensor,
    lam: float,
    potentials: Tensor,
    dtype: torch.dtype,
    scratch: Scratch,
    *,
    exact: bool,
    headroom: float = 0.0,
    name: str = "values",
) -> tuple[Tensor, Tensor]:
    """Return (``lam * block + u`` less its row maximum plus headroom, that maximum (m,) float64 on the CPU).

    Args:
        block: (m, k) scores.
        lam: factor.
        potentials: u, (k,) float64 on the CPU.
        dtype: of the result.
        scratch: of this thread.
        exact: take the difference in float64; needed where the numbers are large.
        headroom: what the maximum of a row becomes.
        name: of the result in scratch.
    """
    inner = torch.float64 if exact else dtype
    values = scratch.like(block, inner, name + "64" if exact else name)
    if block.dtype != inner:
        block = values.copy_(block)
    torch.add(potentials.to(block.device, inner), block, alpha=lam, out=values)
    top = values.amax(dim=1, keepdim=True)
    # the headroom rides on the maximum: one operation less
    values.sub_(top if not headroom else top - headroom)
    if inner != dtype:
        values = scratch.like(block, dtype, name).copy_(values)
    return values, top.squeeze(1).cpu().double()


def exponential(values: Tensor, out: Tensor) -> Tensor:
    """Exponentials, by the faster library."""
    if values.device.type == "cpu":
        np.exp(values.numpy(), out=out.numpy())
        return out
    return torch.exp(values, out=out)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One pass.

    Attributes:
        marginals: s, (k,) float64 on the CPU, over all processes.
        log_sum: ``sum_i c_i logsumexp_y(M_iy + u_y)``, over all processes.
    """

    marginals: Tensor
    log_sum: float


@dataclass(frozen=True, slots=True)
class Hard:
    """Hard assignment of the rows of this process.

    Attributes:
        cluster_ids: (n_local,) int64, the cluster of largest plan mass; ties go to the smallest id.
        confidence: (n_local,) float32, the share of the row's mass in that cluster.
        cost: ``-(1/n) sum_i log p``, p the softmax of the raw scores at the row's cluster, over all processes.
    """

    cluster_ids: Tensor
    confidence: Tensor
    cost: float


Soft = Callable[[Tensor, Scratch], Tensor]
_BlockHard = tuple[Tensor, Tensor, float]


class Passes:
    """What both forms share: weights, reduction over processes, threads; counts its passes.

    Args:
        source: scores of this process.
        lam: sharpness.
        workers: threads to use.
        weights: (n_local,) float64 weights of mean 1 over all processes; None for ones.
        num_total: samples of all processes.
        dtype: of products and exponentials; sums over blocks are float64.
        chunk_rows: rows per block.
        reduce: combines small tensors over processes; None for one process.
        keep_logsumexp: keep it per row in ``row_logsumexp``, (n_local,) float64.
    """

    def __init__(
        self,
        source: Source,
        lam: float,
        *,
        workers: Workers,
        weights: Tensor | None,
        num_total: float,
        dtype: torch.dtype,
        chunk_rows: int,
        reduce: Reduce | None,
        keep_logsumexp: bool = False,
    ) -> None:
        self.source = source
        self.num_passes = 0
        self.row_logsumexp: Tensor | None = None
        if keep_logsumexp:
            self.row_logsumexp = torch.zeros(source.num_rows, dtype=torch.float64)
        self._lam = lam
        self._workers = workers
        self._weights = weights
        self._num_total = num_total
        self._dtype = dtype
        self._chunk_rows = chunk_rows
        self._reduce = reduce
        self._exact = False
        # of the last pass, per row: the sum of its exponentials, and the exponent that was taken out of them
        self._row_totals = torch.ones(source.num_rows, dtype=dtype, device=source.device)
        self._top = torch.zeros(source.num_rows, dtype=torch.float64)

    def evaluate(self, potentials: Tensor) -> Evaluation:
        """Make one pass at u, (k,) float64 on the CPU."""
        raise NotImplementedError

    def finish(self, potentials: Tensor) -> Hard:
        """Assign every row; for scores that were overwritten, leave the assignments in their place."""
        raise NotImplementedError

    def hessian(self, potentials: Tensor) -> Tensor:
        """``diag(s) - sum_i c_i q_i q_i^T`` with ``q_i = softmax(M_i + u)``: (k, k) float64, over all processes."""
        k = self.source.num_columns
        matrix, soft = self._soft(potentials)

        def work(where: slice, block: Tensor, totals: Tensor, scratch: Scratch) -> None:
            rows = soft(block, scratch).double()
            weighted = rows if self._weights is None else rows * self._weights[where, None].to(rows.device)
            totals[:-k].view(k, k).add_((weighted.T @ rows).cpu())
            totals[-k:] += weighted.sum(dim=0).cpu()

        packed = self._workers.over(matrix, self._chunk_rows, work, width=k * k + k)
        packed = self.combine(packed) / self._num_total
        self.num_passes += 1
        return torch.diag(packed[-k:]) - packed[:-k].view(k, k)

    def combine(self, values: Tensor, how: Literal["sum", "max"] = "sum") -> Tensor:
        """Combine a small tensor over all processes."""
        return combine(values, how, self._reduce)

    def _soft(self, potentials: Tensor) -> tuple[Source, Soft]:
        """A matrix, and how a block of it becomes rows of softmax(M + u)."""
        raise NotImplementedError

    def _add(self, where: slice, exponentials: Tensor, totals: Tensor, scratch: Scratch) -> None:
        """Add what a block gives to the marginals.

        Args:
            where: the rows; their ``_row_totals`` are set.
            exponentials: (m, k), whose products with the scale of u have these totals.
            totals: (k,) of the thread.
            scratch: of the thread.
        """
        rows = self._row_totals[where]
        scale = torch.reciprocal(rows, out=scratch.like(rows, self._dtype, "scale"))
        if self._weights is not None:
            scale *= self._weights[where].to(scale.device, scale.dtype)
        if exponentials.device.type == "cpu":  # a block is as large as a cache
            totals += torch.mv(exponentials.T, scale)
        else:
            totals += weighted_sum(exponentials, scale).cpu()

    def _evaluated(self, totals: Tensor, scale: Tensor | None = None, log_scale: float = 0.0) -> Evaluation:
        # numpy: after an operation on n numbers torch's own threads would wait busily beside the workers
        logsumexp = np.log(self._row_totals.cpu().numpy(), dtype=np.float64)
        logsumexp += self._top.numpy()
        logsumexp += log_scale
        if self.row_logsumexp is not None:
            self.row_logsumexp = torch.from_numpy(logsumexp)
        log_sum = float(logsumexp.sum() if self._weights is None else logsumexp @ self._weights.numpy())
        packed = self.combine(
            torch.cat([totals if scale is None else totals * scale, torch.tensor([log_sum], dtype=torch.float64)])
        )
        packed = packed / self._num_total
        self.num_passes += 1
        return Evaluation(packed[:-1], float(packed[-1]))

    def _assign(self, block_work: Callable[[slice, Tensor, Scratch], _BlockHard], matrix: Source) -> Hard:
        n = self.source.num_rows
        cluster_ids = torch.empty(n, dtype=torch.int64)
        confidence = torch.empty(n)

        def work(where: slice, block: Tensor, totals: Tensor, scratch: Scratch) -> None:
            cluster_ids[where], confidence[where], log_probability = block_work(where, block, scratch)
            totals[0] += log_probability

        total = self._workers.over(matrix, self._chunk_rows, work, width=2)
        total[1] = n
        total = self.combine(total)
        return Hard(cluster_ids, confidence, -float(total[0] / total[1]))


class LogPasses(Passes):
    """Exponentials in every pass; nothing of size n times k is kept.

    Args:
        source: scores of this process.
        lam: sharpness.
        largest: largest absolute score.
        replace: leave the assignments in the place of the scores, a tensor.
        common: see :class:`Passes`.
    """

    def __init__(self, source: Source, lam: float, *, largest: float, replace: bool = False, **common: Any) -> None:
        super().__init__(source, lam, **common)
        self._exact = lam * largest > _EXACT_EXPONENT
        self._replace = replace

    def evaluate(self, potentials: Tensor) -> Evaluation:
        """Make one pass at u."""

        def work(where: slice, block: Tensor, totals: Tensor, scratch: Scratch) -> None:
            values, self._top[where] = self._shift(block, potentials, scratch)
            torch.sum(exponential(values, values), dim=1, out=self._row_totals[where])
            self._add(where, values, totals, scratch)

        width = self.source.num_columns
        return self._evaluated(self._workers.over(self.source, self._chunk_rows, work, width=width))

    def finish(self, potentials: Tensor) -> Hard:
        """Assign every row."""
        zero = torch.zeros_like(potentials)

        def work(where: slice, block: Tensor, scratch: Scratch) -> _BlockHard:
            raw, _ = shifted(block, 1.0, zero, self._dtype, scratch, exact=False, name="raw")
            values, _ = self._shift(block, potentials, scratch)
            picked = first_largest(values)
            chosen = raw.gather(1, picked[:, None]).double().sum()
            log_probability = float(chosen - exponential(raw, raw).sum(dim=1).double().log_().sum())
            row_totals = exponential(values, values).sum(dim=1)
            if self._replace:
                torch.div(values, row_totals[:, None], out=block)
            return picked, row_totals.reciprocal(), log_probability

        return self._assign(work, self.source)

    def _shift(self, block: Tensor, potentials: Tensor, scratch: Scratch) -> tuple[Tensor, Tensor]:
        return shifted(block, self._lam, potentials, self._dtype, scratch, exact=self._exact)

    def _soft(self, potentials: Tensor) -> tuple[Source, Soft]:
        return self.source, lambda block, scratch: torch.softmax(self._shift(block, potentials, scratch)[0], dim=1)


class KernelPasses(Passes):
    """Matrix-vector products with a stored kernel, built at the first pass and again when u has moved far.

    Args:
        source: scores of this process.
        lam: sharpness.
        largest: largest absolute score.
        replace: put the kernel, and in the end the assignments, in the place of the scores, which are a tensor of the
            pass's dtype whose kernel is ``reversible``.
        common: see :class:`Passes`.
    """

    def __init__(self, source: Source, lam: float, *, largest: float, replace: bool, **common: Any) -> None:
        super().__init__(source, lam, **common)
        self._common = common
        self._largest = largest
        self._exact = lam * largest > _EXACT_EXPONENT
        self._replace = replace
        # in place nothing is lost in the kernel, so u may move as far as products bear
        self._limit = _BEARABLE_RANGE[self._dtype] if replace else _ABSORB_RANGE[self._dtype]
        self._kernel: Matrix | None = None
        self._origin = torch.zeros(source.num_columns, dtype=torch.float64)
        self._raw_logsumexp = torch.zeros(source.num_rows, dtype=torch.float64)
        self._log_form: LogPasses | None = None

    def evaluate(self, potentials: Tensor) -> Evaluation:
        """Make one pass at u."""
        if self._log_form is not None:
            return self._in_log_form(self._log_form, potentials)
        if self._kernel is None:
            return self._begin(potentials)
        if self._is_far(potentials):
            if self._replace:
                return self._in_log_form(self._leave_kernel(self._kernel), potentials)
            return self._build(potentials, potentials)
        scale, log_scale = self._scale(potentials)
        inner = scale.to(self._kernel.device, self._dtype)

        def work(where: slice, block: Tensor, totals: Tensor, scratch: Scratch) -> None:
            torch.mv(block, inner, out=self._row_totals[where])
            self._add(where, block, totals, scratch)

        totals = self._workers.over(self._kernel, self._chunk_rows, work, width=len(scale))
        return self._evaluated(totals, scale, log_scale)

    def finish(self, potentials: Tensor) -> Hard:
        """Assign every row."""
        if self._log_form is not None:
            return self._log_form.finish(potentials)
        # the best potentials may be from before the last time that others were absorbed
        if self._is_far(potentials):
            self._build(potentials, potentials)
        assert self._kernel is not None
        inner = self._scale(potentials)[0].to(self._kernel.device, self._dtype)

        def work(where: slice, block: Tensor, scratch: Scratch) -> _BlockHard:
            values = torch.mul(block, inner, out=scratch.like(block, self._dtype, "values"))
            picked = first_largest(values)
            row_totals = torch.mv(block, inner)
            best = values.gather(1, picked[:, None]).squeeze(1)
            log_kernel = block.gather(1, picked[:, None]).squeeze(1).cpu().double().log_()
            raw = (log_kernel + self._top[where] - self._origin[picked.cpu()]) / self._lam
            if self._replace:
                torch.div(values, row_totals[:, None], out=block)
            return picked, best / row_totals, float((raw - self._raw_logsumexp[where]).sum())

        return self._assign(work, self._kernel)

    def _is_far(self, potentials: Tensor) -> bool:
        shift = potentials - self._origin
        return float(shift.max() - shift.min()) > self._limit

    def _scale(self, potentials: Tensor) -> tuple[Tensor, float]:
        """(``exp(u - u0)`` up to a factor that makes its maximum 1, the logarithm of that factor's inverse)."""
        shift = potentials - self._origin
        log_scale = float(shift.max())
        return (shift - log_scale).exp_(), log_scale

    def _begin(self, potentials: Tensor) -> Evaluation:
        if not self._replace:
            return self._build(potentials, potentials)
        if self._is_far(potentials):
            self._log_form = LogPasses(self.source, self._lam, largest=self._largest, replace=True, **self._common)
            return self._in_log_form(self._log_form, potentials)
        return self._build(torch.zeros_like(potentials), potentials)

    def _build(self, origin: Tensor, potentials: Tensor) -> Evaluation:
        """Make the kernel at ``origin`` and, in the same pass, evaluate at ``potentials``."""
        first = self._kernel is None
        if self._kernel is None:
            if self._replace:
                assert isinstance(self.source, Matrix)
                self._kernel = self.source
            else:
                shape = (self.source.num_rows, self.source.num_columns)
                self._kernel = Matrix(torch.empty(shape, dtype=self._dtype, device=self.source.device))
        kernel = self._kernel.tensor
        assert kernel is not None
        self._origin = origin.clone()
        scale, log_scale = self._scale(potentials)
        inner = scale.to(kernel.device, self._dtype)
        zero = torch.zeros_like(origin)
        headroom = _HEADROOM[self._dtype]

        def work(where: slice, block: Tensor, totals: Tensor, scratch: Scratch) -> None:
            if first:
                raw, top = shifted(block, 1.0, zero, self._dtype, scratch, exact=False)
                self._raw_logsumexp[where] = exponential(raw, raw).sum(dim=1).cpu().double().log_() + top
            values, top = shifted(block, self._lam, origin, self._dtype, scratch, exact=self._exact, headroom=headroom)
            self._top[where] = top - headroom
            rows = exponential(values, kernel[where])
            torch.mv(rows, inner, out=self._row_totals[where])
            self._add(where, rows, totals, scratch)

        totals = self._workers.over(self.source, self._chunk_rows, work, width=len(scale))
        return self._evaluated(totals, scale, log_scale)

    def _leave_kernel(self, kernel: Matrix) -> LogPasses:
        """Bring the scores back from a kernel that stands in their place; go on in log form."""

        def work(where: slice, block: Tensor, totals: Tensor, scratch: Scratch) -> None:
            # the raw scores, up to a number per row that no result depends on
            block.log_().div_(self._lam)

        self._workers.over(kernel, self._chunk_rows, work, width=1)
        largest = _REVERSIBLE_RANGE[self._dtype] / self._lam
        self._log_form = LogPasses(self.source, self._lam, largest=largest, replace=True, **self._common)
        return self._log_form

    def _in_log_form(self, passes: LogPasses, potentials: Tensor) -> Evaluation:
        found = passes.evaluate(potentials)
        self.num_passes += 1
        self.row_logsumexp = passes.row_logsumexp
        return found

    def _soft(self, potentials: Tensor) -> tuple[Source, Soft]:
        if self._log_form is not None:
            return self._log_form._soft(potentials)
        assert self._kernel is not None
        inner = self._scale(potentials)[0].to(self._kernel.device, self._dtype)

        def soft(block: Tensor, scratch: Scratch) -> Tensor:
            values = block * inner
            return values.div_(values.sum(dim=1, keepdim=True))

        return self._kernel, soft


def weighted_sum(rows: Tensor, weights: Tensor) -> Tensor:
    """Return the (k,) float64 sum of (m, k) rows by (m,) weights; float32 adds a few hundred of them at most."""
    m, k = rows.shape
    whole = m // _ADDED_ROWS * _ADDED_ROWS
    groups = rows[:whole].reshape(-1, _ADDED_ROWS, k).transpose(1, 2) @ weights[:whole].view(-1, _ADDED_ROWS, 1)
    return groups.double().sum(dim=(0, 2)) + torch.mv(rows[whole:].T, weights[whole:]).double()


def first_largest(values: Tensor) -> Tensor:
    """(m,) int64: where each row is largest, the smallest position of equal ones."""
    if values.device.type == "cpu":
        # several times faster than torch's
        return torch.from_numpy(values.numpy().argmax(axis=1))
    return values.argmax(dim=1)


def check_finite(source: Source, workers: Workers, chunk_rows: int, reduce: Reduce | None) -> tuple[float, float]:
    """Read all scores once; return (largest absolute value, largest range within a row) over all processes.

    Raises:
        ValueError: scores are not finite; names the first such row of this process.
    """
    bad_rows: list[int] = []
    extremes: list[tuple[float, float]] = [(0.0, 0.0)]

    def work(where: slice, block: Tensor, totals: Tensor, scratch: Scratch) -> None:
        low, high = block.amin(dim=1).double(), block.amax(dim=1).double()
        size = max(-float(low.min()), float(high.max()))
        spread = float((high - low).max())
        # not a number and infinity both reach one of the two
        if math.isfinite(size) and math.isfinite(spread):
            extremes.append((size, spread))
        else:
            bad_rows.append(where.start + int((~torch.isfinite(block).all(dim=1)).nonzero()[0]))

    workers.over(source, chunk_rows, work, width=1)
    bad_row = min(bad_rows, default=-1)
    largest, spread = (max(values) for values in zip(*extremes, strict=True))
    found = combine(torch.tensor([float(bad_row), largest, spread], dtype=torch.float64), "max", reduce)
    if bad_row >= 0:
        raise ValueError(f"scores: row {bad_row} holds NaN or infinite values")
    if found[0] >= 0:
        raise ValueError("scores: another process holds NaN or infinite values")
    return float(found[1]), float(found[2])
