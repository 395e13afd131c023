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

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from labelkit.algorithms.sinkhorn_scores import Source

Reduce = Callable[[Tensor, Literal["sum", "max"]], Tensor]
"""Combines a small CPU tensor over all processes, elementwise; every process gets the same answer."""

# Above this |M| float32 has lost the digits that the exponential would show: the exponent is then taken in float64.
_EXACT_EXPONENT = 64.0
# Range of u - u0 that the kernel bears before u is absorbed; products then stay far from underflow.
_ABSORB_RANGE = {torch.float32: 60.0, torch.float64: 500.0}
# Range of M + u within a row that exp keeps without loss, so that log brings the scores back.
_REVERSIBLE_RANGE = {torch.float32: 80.0, torch.float64: 600.0}


def reversible(spread: float, dtype: torch.dtype) -> bool:
    """Tell whether exp keeps exponents that differ by ``spread`` within a row, so that log brings them back."""
    return spread <= _REVERSIBLE_RANGE[dtype]


def shifted(block: Tensor, lam: float, potentials: Tensor, dtype: torch.dtype, *, exact: bool) -> tuple[Tensor, Tensor]:
    """Return (``lam * block + u`` minus the row maximum, that maximum (m, 1)); the first in ``dtype``, free to change.

    Args:
        block: (m, k) scores.
        lam: factor.
        potentials: u, (k,) float64 on the CPU.
        dtype: of the result.
        exact: take the difference in float64; needed where the numbers are large.
    """
    inner = torch.float64 if exact else dtype
    values = torch.add(potentials.to(block.device, inner), block.to(inner), alpha=lam)
    top = values.amax(dim=1, keepdim=True)
    return values.sub_(top).to(dtype), top


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


class Passes:
    """What both forms share: weights, reduction over processes, checks; counts its passes.

    Args:
        source: scores of this process.
        lam: sharpness.
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
        self._weights = weights
        self._num_total = num_total
        self._dtype = dtype
        self._chunk_rows = chunk_rows
        self._reduce = reduce
        self._exact = False

    def evaluate(self, potentials: Tensor) -> Evaluation:
        """Make one pass at u, (k,) float64 on the CPU.

        Raises:
            ValueError: scores are not finite (found in the first pass).
        """
        raise NotImplementedError

    def finish(self, potentials: Tensor) -> Hard:
        """Assign every row; for scores that were overwritten, leave the assignments in their place."""
        raise NotImplementedError

    def hessian(self, potentials: Tensor) -> Tensor:
        """``diag(s) - sum_i c_i q_i q_i^T`` with ``q_i = softmax(M_i + u)``: (k, k) float64, over all processes."""
        k = self.source.num_columns
        outer = torch.zeros((k, k), dtype=torch.float64)
        sums = torch.zeros(k, dtype=torch.float64)
        for where, values in self._soft_blocks(potentials):
            rows = values.double()
            weighted = rows if self._weights is None else rows * self._weights[where, None].to(rows.device)
            outer += (weighted.T @ rows).cpu()
            sums += weighted.sum(dim=0).cpu()
        packed = self.combine(torch.cat([outer, sums[None]])) / self._num_total
        self.num_passes += 1
        return torch.diag(packed[-1]) - packed[:-1]

    def combine(self, values: Tensor, how: Literal["sum", "max"] = "sum") -> Tensor:
        """Combine a small tensor over all processes."""
        return values if self._reduce is None else self._reduce(values, how)

    def _soft_blocks(self, potentials: Tensor) -> Iterator[tuple[slice, Tensor]]:
        raise NotImplementedError

    def _row_weights(self, where: slice, like: Tensor) -> Tensor | None:
        return None if self._weights is None else self._weights[where].to(like.device, like.dtype)

    def _add_logsumexp(self, where: slice, logsumexp: Tensor) -> float:
        """Note the (m,) float64 logsumexp of a block; return its weighted sum."""
        logsumexp = logsumexp.cpu()
        if self.row_logsumexp is not None:
            self.row_logsumexp[where] = logsumexp
        if self._weights is not None:
            logsumexp = logsumexp * self._weights[where]
        return float(logsumexp.sum())

    def _totals(self, sums: Tensor, log_sum: float) -> Evaluation:
        packed = self.combine(torch.cat([sums, torch.tensor([log_sum], dtype=torch.float64)])) / self._num_total
        self.num_passes += 1
        return Evaluation(packed[:-1], float(packed[-1]))

    def _hard(self, cluster_ids: list[Tensor], confidence: list[Tensor], log_probability: float) -> Hard:
        total = self.combine(torch.tensor([log_probability, self.source.num_rows], dtype=torch.float64))
        return Hard(
            torch.cat(cluster_ids) if cluster_ids else torch.zeros(0, dtype=torch.int64),
            torch.cat(confidence).float() if confidence else torch.zeros(0),
            -float(total[0] / total[1]),
        )


def check_finite(source: Source, chunk_rows: int, reduce: Reduce | None) -> tuple[float, float]:
    """Read all scores once; return (largest absolute value, largest range within a row) over all processes.

    Raises:
        ValueError: scores are not finite; names the first such row of this process.
    """
    largest = spread = 0.0
    bad_row = -1
    for where, block in source.blocks(chunk_rows):
        low, high = torch.aminmax(block, dim=1)
        extent = (high - low).amax().item()
        size = max(abs(low.amin().item()), abs(high.amax().item()))
        # NaN and infinity both reach the extent, or its subtraction made NaN of two infinities
        if not np.isfinite(extent) or not np.isfinite(size):
            wrong = ~torch.isfinite(block).all(dim=1)
            if wrong.any():
                bad_row = where.start + int(wrong.nonzero()[0])
                break
            extent = (high.double() - low.double()).amax().item()
        largest, spread = max(largest, size), max(spread, extent)
    found = torch.tensor([float(bad_row), largest, spread], dtype=torch.float64)
    if reduce is not None:
        found = reduce(found, "max")
    if bad_row >= 0:
        raise ValueError(f"scores: row {bad_row} holds NaN or infinite values")
    if found[0] >= 0:
        raise ValueError("scores: another process holds NaN or infinite values")
    return float(found[1]), float(found[2])


class LogPasses(Passes):
    """Exponentials in every pass; nothing of size n times k is kept."""

    def __init__(self, source: Source, lam: float, *, largest: float, replace: bool = False, **common: Any) -> None:
        super().__init__(source, lam, **common)
        self._exact = lam * largest > _EXACT_EXPONENT
        self._replace = replace

    def evaluate(self, potentials: Tensor) -> Evaluation:
        """Make one pass at u."""
        sums = torch.zeros(self.source.num_columns, dtype=torch.float64)
        log_sum = 0.0
        for where, block in self.source.blocks(self._chunk_rows):
            values, top = self._shift(block, potentials)
            totals = values.exp_().sum(dim=1)
            weights = self._row_weights(where, totals)
            scale = totals.reciprocal() if weights is None else weights / totals
            sums += torch.mv(values.T, scale).cpu()
            log_sum += self._add_logsumexp(where, totals.double().log_() + top.squeeze(1))
        return self._totals(sums, log_sum)

    def finish(self, potentials: Tensor) -> Hard:
        """Assign every row."""
        ids: list[Tensor] = []
        confidence: list[Tensor] = []
        log_probability = 0.0
        zero = torch.zeros_like(potentials)
        for _, block in self.source.blocks(self._chunk_rows):
            raw, _ = shifted(block, 1.0, zero, self._dtype, exact=False)
            values, _ = self._shift(block, potentials)
            picked = values.argmax(dim=1, keepdim=True)
            chosen = raw.gather(1, picked).double().sum()
            log_probability += float(chosen - raw.exp_().sum(dim=1).double().log().sum())
            totals = values.exp_().sum(dim=1)
            ids.append(picked.squeeze(1).cpu())
            confidence.append(totals.reciprocal().cpu())
            if self._replace:
                block.copy_(values.div_(totals[:, None]))
        return self._hard(ids, confidence, log_probability)

    def _shift(self, block: Tensor, potentials: Tensor) -> tuple[Tensor, Tensor]:
        return shifted(block, self._lam, potentials, self._dtype, exact=self._exact)

    def _soft_blocks(self, potentials: Tensor) -> Iterator[tuple[slice, Tensor]]:
        for where, block in self.source.blocks(self._chunk_rows):
            yield where, torch.softmax(self._shift(block, potentials)[0], dim=1)


class KernelPasses(Passes):
    """Matrix-vector products with a stored kernel, built at the first pass and again when u has moved far.

    Args:
        source: scores of this process.
        lam: sharpness.
        largest: largest absolute score.
        spread: largest range of scores within a row.
        replace: put the kernel in the place of the scores, which are a tensor of the pass's dtype.
        common: see :class:`Passes`.
    """

    def __init__(
        self, source: Source, lam: float, *, largest: float, spread: float, replace: bool, **common: Any
    ) -> None:
        super().__init__(source, lam, **common)
        self._exact = lam * largest > _EXACT_EXPONENT
        self._replace = replace
        self._kernel: Tensor | None = None
        self._origin = torch.zeros(source.num_columns, dtype=torch.float64)
        self._limit = _ABSORB_RANGE[self._dtype]
        self._raw_logsumexp = torch.zeros(source.num_rows, dtype=torch.float64)
        self._top = torch.zeros(source.num_rows, dtype=torch.float64)
        self._log_form: LogPasses | None = None
        self._largest = largest
        self._common = common
        if replace:
            # nothing is lost in the kernel, so u may move as far as products bear and scores can be brought back
            self._limit = _REVERSIBLE_RANGE[self._dtype]
            assert spread * lam <= self._limit

    def evaluate(self, potentials: Tensor) -> Evaluation:
        """Make one pass at u."""
        if self._log_form is not None:
            return self._in_log_form(self._log_form, potentials)
        if self._kernel is None:
            return self._begin(potentials)
        shift = potentials - self._origin
        if float(shift.max() - shift.min()) > self._limit:
            if self._replace:
                return self._in_log_form(self._leave_kernel(), potentials)
            return self._build(potentials, potentials)
        log_scale = float(shift.max())
        scale = (shift - log_scale).exp()
        inner = scale.to(self._kernel.device, self._dtype)
        sums = torch.zeros_like(scale)
        log_sum = 0.0
        for where in self._rows():
            block = self._kernel[where]
            totals = torch.mv(block, inner)
            weights = self._row_weights(where, totals)
            sums += torch.mv(block.T, totals.reciprocal() if weights is None else weights / totals).cpu()
            log_sum += self._add_logsumexp(where, totals.cpu().double().log_() + (self._top[where] + log_scale))
        return self._totals(sums * scale, log_sum)

    def finish(self, potentials: Tensor) -> Hard:
        """Assign every row."""
        if self._log_form is not None:
            return self._log_form.finish(potentials)
        kernel = self._kernel
        assert kernel is not None
        shift = potentials - self._origin
        if float(shift.max() - shift.min()) > self._limit:
            self._build(potentials, potentials)
            shift = torch.zeros_like(potentials)
        inner = (shift - shift.max()).exp().to(kernel.device, self._dtype)
        ids: list[Tensor] = []
        confidence: list[Tensor] = []
        log_probability = 0.0
        for where in self._rows():
            block = kernel[where]
            values = block * inner
            best = values.amax(dim=1, keepdim=True)
            picked = values.argmax(dim=1, keepdim=True)
            totals = values.sum(dim=1)
            ids.append(picked.squeeze(1).cpu())
            confidence.append((best.squeeze(1) / totals).cpu())
            log_kernel = block.gather(1, picked).squeeze(1).cpu().double().log_()
            raw = (log_kernel + self._top[where] - self._origin[ids[-1]]) / self._lam
            log_probability += float((raw - self._raw_logsumexp[where]).sum())
            if self._replace:
                torch.div(values, totals[:, None], out=block)
        return self._hard(ids, confidence, log_probability)

    def _begin(self, potentials: Tensor) -> Evaluation:
        if not self._replace:
            return self._build(potentials, potentials)
        if float(potentials.max() - potentials.min()) > self._limit:
            self._log_form = LogPasses(self.source, self._lam, largest=self._largest, replace=True, **self._common)
            return self._in_log_form(self._log_form, potentials)
        return self._build(torch.zeros_like(potentials), potentials)

    def _build(self, origin: Tensor, potentials: Tensor) -> Evaluation:
        """Make the kernel at ``origin`` and, in the same pass, evaluate at ``potentials``."""
        first = self._kernel is None
        if self._kernel is None:
            held = self.source.tensor
            shape = (self.source.num_rows, self.source.num_columns)
            if self._replace:
                assert held is not None
                self._kernel = held
            else:
                self._kernel = torch.empty(shape, dtype=self._dtype, device=self.source.device)
        kernel = self._kernel
        self._origin = origin.clone()
        shift = potentials - origin
        log_scale = float(shift.max())
        scale = (shift - log_scale).exp()
        inner = scale.to(kernel.device, self._dtype)
        zero = torch.zeros_like(origin)
        sums = torch.zeros_like(scale)
        log_sum = 0.0
        for where, block in self.source.blocks(self._chunk_rows):
            if first:
                raw, top = shifted(block, 1.0, zero, self._dtype, exact=False)
                self._raw_logsumexp[where] = (raw.exp_().sum(dim=1).double().log_() + top.squeeze(1)).cpu()
            values, top = shifted(block, self._lam, origin, self._dtype, exact=self._exact)
            self._top[where] = top.squeeze(1).double().cpu()
            torch.exp(values, out=kernel[where])
            totals = torch.mv(kernel[where], inner)
            weights = self._row_weights(where, totals)
            sums += torch.mv(kernel[where].T, totals.reciprocal() if weights is None else weights / totals).cpu()
            log_sum += self._add_logsumexp(where, totals.cpu().double().log_() + (self._top[where] + log_scale))
        return self._totals(sums * scale, log_sum)

    def _leave_kernel(self) -> LogPasses:
        """Bring ``lam * scores`` back from a kernel in the place of the scores; go on in log form."""
        kernel = self._kernel
        assert kernel is not None
        for where in self._rows():
            block = kernel[where]
            # dividing gives the raw scores, up to a number per row that no result depends on
            block.log_().div_(self._lam)
        largest = _REVERSIBLE_RANGE[self._dtype] / self._lam
        self._log_form = LogPasses(self.source, self._lam, largest=largest, replace=True, **self._common)
        self._kernel = None
        return self._log_form

    def _in_log_form(self, passes: LogPasses, potentials: Tensor) -> Evaluation:
        found = passes.evaluate(potentials)
        self.num_passes += 1
        self.row_logsumexp = passes.row_logsumexp
        return found

    def _rows(self) -> Iterator[slice]:
        for start in range(0, self.source.num_rows, self._chunk_rows):
            yield slice(start, min(start + self._chunk_rows, self.source.num_rows))

    def _soft_blocks(self, potentials: Tensor) -> Iterator[tuple[slice, Tensor]]:
        if self._log_form is not None:
            yield from self._log_form._soft_blocks(potentials)
            return
        kernel = self._kernel
        assert kernel is not None
        shift = potentials - self._origin
        inner = (shift - shift.max()).exp().to(kernel.device, self._dtype)
        for where in self._rows():
            values = kernel[where] * inner
            yield where, values.div_(values.sum(dim=1, keepdim=True))
