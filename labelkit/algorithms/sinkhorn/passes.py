"""Passes over the scores of a balanced assignment: cluster marginals for given potentials, block by block.

Notation: scores l (n, k), sharpness lam, potentials u (k,), sample weights c (n,) that sum to 1 over all processes,
``M = lam * l``. A pass at u returns ``s_y = sum_i c_i softmax_y(M_i + u)`` and ``sum_i c_i logsumexp_y(M_i + u)``.

Two ways to make one:
    - :class:`KernelPasses` keeps ``E_iy = exp(M_iy + u0_y - max)`` and makes two matrix-vector products of every block
      of rows while it is in the cache; the matrix is read once per pass and no exponential is taken. Where u has moved
      far from u0, it is absorbed into E (B. Schmitzer, "Stabilized Sparse Scaling Algorithms for Entropy Regularized
      Transport Problems", 2019).
    - :class:`LogPasses` takes the exponentials again in every pass and keeps nothing of size n times k, so the scores
      may be a memory map, a data set of a file, or a product of features and weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from labelkit.algorithms.sinkhorn.exponents import (
    ABSORB_RANGE,
    BEARABLE_RANGE,
    BINARY,
    HEADROOM,
    REVERSIBLE_RANGE,
    below,
    needs_double,
    shifted,
)
from labelkit.algorithms.sinkhorn.products import Products, make_products
from labelkit.algorithms.sinkhorn.scores import Matrix, Source
from labelkit.algorithms.sinkhorn.workers import Scratch, Workers

Reduce = Callable[[Tensor, Literal["sum", "max"]], Tensor]
"""Combines a small CPU tensor over all processes, elementwise; every process gets the same answer."""


def combine(values: Tensor, how: Literal["sum", "max"], reduce: Reduce | None) -> Tensor:
    """Combine a small tensor over all processes; as it is where there is one."""
    return values if reduce is None else reduce(values, how)


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


class _Rows(NamedTuple):
    cluster_ids: Tensor
    confidence: Tensor


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
        self._row_weights = None if weights is None else weights.to(source.device, dtype)
        self._num_total = num_total
        self._dtype = dtype
        self._chunk_rows = chunk_rows
        self._reduce = reduce
        self._exact = False
        # of the last pass, per row: the sum of its exponentials, and the exponent that was taken out of them
        self._row_totals = torch.empty(source.num_rows, dtype=dtype, device=source.device)
        self._top = torch.empty(source.num_rows, dtype=torch.float64)

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

    def _products(self, scale: Tensor) -> Products:
        """Products of blocks whose columns are scaled, (k,) float64 on the CPU."""
        return make_products(scale.to(self._row_totals.device, self._dtype), self._row_weights, self._row_totals)

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

    def _new_hard(self) -> _Rows:
        n = self.source.num_rows
        return _Rows(torch.empty(n, dtype=torch.int64), torch.empty(n))

    def _with_cost(self, rows: _Rows, log_probability: float) -> Hard:
        """Add the cost, from the sum of log p over the rows of this process."""
        total = self.combine(torch.tensor([log_probability, self.source.num_rows], dtype=torch.float64))
        return Hard(rows.cluster_ids, rows.confidence, -float(total[0] / total[1]))


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
        self._largest = largest
        self._exact = needs_double(lam * largest)
        self._replace = replace

    def evaluate(self, potentials: Tensor) -> Evaluation:
        """Make one pass at u."""
        products = self._products(torch.ones_like(potentials))

        def work(where: slice, block: Tensor, totals: Tensor, scratch: Scratch) -> None:
            values, self._top[where] = self._shift(block, potentials, scratch)
            products(where, values.exp2_(), totals)

        width = self.source.num_columns
        return self._evaluated(self._workers.over(self.source, self._chunk_rows, work, width=width))

    def finish(self, potentials: Tensor) -> Hard:
        """Assign every row."""
        zero = torch.zeros_like(potentials)
        raw_exact = needs_double(self._largest)
        hard = self._new_hard()

        def work(where: slice, block: Tensor, totals: Tensor, scratch: Scratch) -> None:
            raw, _ = shifted(block, 1.0, zero, self._dtype, scratch, exact=raw_exact, unit=BINARY, name="raw")
            values, _ = self._shift(block, potentials, scratch)
            picked = first_largest(values)
            chosen = raw.gather(1, picked[:, None]).double().sum() / BINARY
            totals[0] += float(chosen - raw.exp2_().sum(dim=1).double().log_().sum())
            row_totals = values.exp2_().sum(dim=1)
            if self._replace:
                torch.div(values, row_totals[:, None], out=block)
            hard.cluster_ids[where], hard.confidence[where] = picked, row_totals.reciprocal()

        total = self._workers.over(self.source, self._chunk_rows, work, width=1)
        return self._with_cost(hard, float(total[0]))

    def _shift(self, block: Tensor, potentials: Tensor, scratch: Scratch) -> tuple[Tensor, Tensor]:
        """Exponents of 2, and what was taken out."""
        return shifted(block, self._lam, potentials, self._dtype, scratch, exact=self._exact, unit=BINARY)

    def _soft(self, potentials: Tensor) -> tuple[Source, Soft]:
        def soft(block: Tensor, scratch: Scratch) -> Tensor:
            values = self._shift(block, potentials, scratch)[0].exp2()
            return values.div_(values.sum(dim=1, keepdim=True))

        return self.source, soft


class KernelPasses(Passes):
    """Matrix-vector products with a stored kernel, built at the first pass and again when u has moved far.

    Args:
        source: scores of this process.
        lam: sharpness.
        largest: largest absolute score.
        row_largest: (n_local,) float64, largest score of each row.
        replace: put the kernel, and in the end the assignments, in the place of the scores, which are a tensor of the
            pass's dtype whose kernel is ``reversible``.
        common: see :class:`Passes`.
    """

    def __init__(
        self, source: Source, lam: float, *, largest: float, row_largest: Tensor, replace: bool, **common: Any
    ) -> None:
        super().__init__(source, lam, **common)
        self._common = common
        self._largest = largest
        self._row_largest = row_largest
        self._exact = needs_double(lam * largest)
        self._replace = replace
        # in place nothing is lost in the kernel, so u may move as far as products bear
        self._limit = BEARABLE_RANGE[self._dtype] if replace else ABSORB_RANGE[self._dtype]
        self._kernel: Matrix | None = None
        self._origin = torch.zeros(source.num_columns, dtype=torch.float64)
        self._raw_logsumexp = torch.empty(source.num_rows, dtype=torch.float64)
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
        products = self._products(scale)

        def work(where: slice, block: Tensor, totals: Tensor, scratch: Scratch) -> None:
            products(where, block, totals)

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
        scale, log_scale = self._scale(potentials)
        inner = scale.to(self._kernel.device, self._dtype)
        hard = self._new_hard()
        best = torch.empty(len(hard.cluster_ids), dtype=self._dtype)

        def work(where: slice, block: Tensor, totals: Tensor, scratch: Scratch) -> None:
            out = block if self._replace else scratch.like(block, self._dtype, "values")
            values = torch.mul(block, inner, out=out)
            picked = first_largest(values)
            sums = torch.sum(values, dim=1, out=self._row_totals[where])
            hard.cluster_ids[where] = picked
            best[where] = values.gather(1, picked[:, None]).squeeze(1)
            if self._replace:
                values.mul_(sums.reciprocal()[:, None])

        self._workers.over(self._kernel, self._chunk_rows, work, width=1)
        ids, most = hard.cluster_ids.numpy(), best.numpy()
        np.divide(most, self._row_totals.cpu().numpy(), out=hard.confidence.numpy(), casting="same_kind")
        raw = np.log(most, dtype=np.float64) + self._top.numpy() - (potentials.numpy() - log_scale)[ids]
        return self._with_cost(hard, float((raw / self._lam - self._raw_logsumexp.numpy()).sum()))

    def _is_far(self, potentials: Tensor) -> bool:
        shift = potentials - self._origin
        return float(shift.max() - shift.min()) > self._limit

    def _scale(self, potentials: Tensor) -> tuple[Tensor, float]:
        """(``exp(u - u0)`` up to a factor that makes its maximum 1, the logarithm of that factor's inverse)."""
        shift = potentials - self._origin
        log_scale = float(shift.max())
        # numpy, as in _evaluated
        return torch.from_numpy(np.exp((shift - log_scale).numpy())), log_scale

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
        products = self._products(scale)
        headroom = HEADROOM[self._dtype]
        plain = not origin.any()
        raw_exact = needs_double(self._largest)

        def work(where: slice, block: Tensor, totals: Tensor, scratch: Scratch) -> None:
            rows = kernel[where]
            largest = self._row_largest[where]
            if first:
                raw = scratch.like(block, self._dtype, "values")
                top = below(block, 1.0, largest, raw, scratch, exact=raw_exact)
                self._raw_logsumexp[where] = raw.exp2_().sum(dim=1).cpu().double().log_() + top
            if plain:
                top = below(block, self._lam, largest, rows, scratch, exact=self._exact, headroom=headroom)
                rows.exp2_()
            else:
                values, top = shifted(
                    block, self._lam, origin, self._dtype, scratch, exact=self._exact, unit=BINARY, headroom=headroom
                )
                torch.exp2(values, out=rows)
            self._top[where] = top
            products(where, rows, totals)

        totals = self._workers.over(self.source, self._chunk_rows, work, width=len(scale))
        return self._evaluated(totals, scale, log_scale)

    def _leave_kernel(self, kernel: Matrix) -> LogPasses:
        """Bring the scores back from a kernel that stands in their place; go on in log form."""

        def work(where: slice, block: Tensor, totals: Tensor, scratch: Scratch) -> None:
            # the raw scores, up to a number per row that no result depends on
            block.log_().div_(self._lam)

        self._workers.over(kernel, self._chunk_rows, work, width=1)
        largest = REVERSIBLE_RANGE[self._dtype] / self._lam
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


def first_largest(values: Tensor) -> Tensor:
    """(m,) int64: where each row is largest, the smallest position of equal ones."""
    if values.device.type == "cpu":
        # several times faster than torch's
        return torch.from_numpy(values.numpy().argmax(axis=1))
    return values.argmax(dim=1)
