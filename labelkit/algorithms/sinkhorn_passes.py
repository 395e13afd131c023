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

import mmap
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor

Reduce = Callable[[Tensor, Literal["sum", "max"]], Tensor]
"""Combines a small CPU tensor over all processes, elementwise; every process gets the same answer."""

# Numbers per block: 4 MB in float32, so that a block is still in the cache for its second product.
_BLOCK_NUMBERS = 1 << 20
_GPU_BLOCK_NUMBERS = 1 << 26
# Bytes read from a file at a time; two such segments are held, one being read while the other is used.
_SEGMENT_BYTES = 1 << 25
# Above this |M| float32 has lost the digits that the exponential would show: the exponent is then taken in float64.
_EXACT_EXPONENT = 64.0
# Range of u - u0 that the kernel bears before u is absorbed; products then stay far from underflow.
_ABSORB_RANGE = {torch.float32: 60.0, torch.float64: 500.0}
# Range of M + u within a row that exp keeps without loss, so that log brings the scores back.
_REVERSIBLE_RANGE = {torch.float32: 80.0, torch.float64: 600.0}


class RowSliceable(Protocol):
    """Anything with a shape whose rows can be sliced into an array: a memory map, a data set of an HDF5 file."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows and columns."""

    def __getitem__(self, rows: slice, /) -> Any:
        """Return some rows."""


class Matrix:
    """Rows of numbers that are handed out in blocks: a tensor, an array, a memory map or a data set of a file.

    Args:
        values: (n, d) float tensor, array, or anything with ``.shape`` and row slicing.
        name: what an error calls it.

    Raises:
        ValueError: not two-dimensional.
        TypeError: not floating point.
    """

    def __init__(self, values: Tensor | RowSliceable, name: str = "scores") -> None:
        self._tensor: Tensor | None = None
        self._file: RowSliceable | None = None
        if isinstance(values, Tensor):
            self._tensor = values.detach()
        elif isinstance(values, np.ndarray) and _map_of(values) is None:
            usable = values if values.flags.writeable and values.dtype.isnative else np.array(values, values.dtype.type)
            if not np.issubdtype(usable.dtype, np.floating):
                raise TypeError(f"{name}: floating point numbers are needed, not {values.dtype}")
            self._tensor = torch.from_numpy(usable)
        else:
            self._file = values
        shape = tuple(values.shape)
        if len(shape) != 2:
            raise ValueError(f"{name}: (n, k) numbers are needed, not shape {shape}")
        if self._tensor is not None and not self._tensor.is_floating_point():
            raise TypeError(f"{name}: floating point numbers are needed, not {self._tensor.dtype}")
        if self._file is not None and not np.issubdtype(np.asarray(self._file[0:1]).dtype, np.floating):
            raise TypeError(f"{name}: floating point numbers are needed")
        self.num_rows, self.num_columns = int(shape[0]), int(shape[1])

    @property
    def tensor(self) -> Tensor | None:
        """The whole matrix if it is in memory."""
        return self._tensor

    @property
    def device(self) -> torch.device:
        """Where blocks are."""
        return torch.device("cpu") if self._tensor is None else self._tensor.device

    def take(self, rows: Tensor) -> Tensor:
        """Some rows, in any order."""
        if self._tensor is not None:
            return self._tensor[rows.to(self._tensor.device)]
        assert self._file is not None
        return torch.cat([torch.from_numpy(np.array(self._file[row : row + 1])) for row in rows.tolist()])

    def blocks(self, rows: int) -> Iterator[tuple[slice, Tensor]]:
        """All rows in order, ``rows`` at a time, in the type they are stored in; blocks must not be changed."""
        for start, segment in self._segments(rows):
            for first in range(0, len(segment), rows):
                block = segment[first : first + rows]
                yield slice(start + first, start + first + len(block)), block

    def _segments(self, rows: int) -> Iterator[tuple[int, Tensor]]:
        if self._tensor is not None:
            yield 0, self._tensor
            return
        assert self._file is not None
        row_bytes = max(1, self.num_columns * np.asarray(self._file[0:1]).itemsize)
        step = max(rows, _SEGMENT_BYTES // row_bytes // rows * rows)
        starts = range(0, self.num_rows, step)
        with ThreadPoolExecutor(max_workers=1) as pool:
            pending = pool.submit(self._read, 0, step) if starts else None
            for start in starts:
                assert pending is not None
                segment = pending.result()
                if start + step < self.num_rows:
                    pending = pool.submit(self._read, start + step, start + 2 * step)
                yield start, segment

    def _read(self, start: int, stop: int) -> Tensor:
        assert self._file is not None
        raw = self._file[start:stop]
        mapped = _map_of(raw)
        values = np.array(raw, dtype=np.asarray(raw).dtype.type, order="C")
        if mapped is not None:
            _release(raw, mapped)
        return torch.from_numpy(values)


def _map_of(array: Any) -> np.memmap[Any, Any] | None:
    """The memory map that an array is a view of, or None."""
    found = None
    while isinstance(array, np.ndarray):
        if isinstance(array, np.memmap) and isinstance(array.base, mmap.mmap):
            found = array
        array = array.base
    return found


def _release(view: Any, mapped: np.memmap[Any, Any]) -> None:
    """Take the pages of a view out of this process's memory; they stay in the system's cache of the file."""
    file_map = mapped.base
    # a private (copy-on-write) map would lose what was written to it
    if not isinstance(file_map, mmap.mmap) or mapped.mode == "c" or not hasattr(file_map, "madvise"):
        return
    if not view.flags.c_contiguous or view.nbytes == 0:
        return
    offset = view.__array_interface__["data"][0] - mapped.__array_interface__["data"][0]
    # a map begins at a multiple of the allocation granularity, its first number perhaps later
    offset += mapped.offset % mmap.ALLOCATIONGRANULARITY
    start = offset // mmap.PAGESIZE * mmap.PAGESIZE
    length = min(offset + view.nbytes, len(file_map)) - start
    file_map.madvise(mmap.MADV_DONTNEED, start, length)


class LinearScores:
    """Scores ``scale * (features @ weight.T + bias)``, made block by block and never stored whole.

    Args:
        features: (n, d) float tensor, array, memory map, or anything with ``.shape`` and row slicing.
        weight: (k, d) float.
        bias: (k,) float; None for zeros.
        scale: factor of all scores, such as 1 over a temperature.

    Raises:
        ValueError: the dimensions differ, or scale is not positive.
        TypeError: features are not floating point.
    """

    def __init__(
        self, features: Tensor | RowSliceable, weight: Tensor, bias: Tensor | None = None, *, scale: float = 1.0
    ) -> None:
        self._features = Matrix(features, "features")
        if weight.ndim != 2 or weight.shape[1] != self._features.num_columns:
            raise ValueError(
                f"weight: shape {tuple(weight.shape)} does not fit features of {self._features.num_columns} columns"
            )
        if bias is not None and bias.shape != weight.shape[:1]:
            raise ValueError(f"bias: shape {tuple(bias.shape)} where {(len(weight),)} is needed")
        if not 0 < scale < float("inf"):
            raise ValueError(f"scale: {scale} is not positive")
        self._weight = weight.detach()
        self._bias = None if bias is None else bias.detach()
        self._scale = float(scale)

    @property
    def num_rows(self) -> int:
        """Samples of this process."""
        return self._features.num_rows

    @property
    def num_columns(self) -> int:
        """Clusters."""
        return len(self._weight)

    @property
    def device(self) -> torch.device:
        """Where blocks are."""
        return self._features.device

    @property
    def tensor(self) -> None:
        """The matrix is never in memory."""
        return None

    def take(self, rows: Tensor) -> Tensor:
        """Scores of some rows."""
        return self._product(self._features.take(rows))

    def blocks(self, rows: int) -> Iterator[tuple[slice, Tensor]]:
        """All scores in order, ``rows`` at a time."""
        for where, block in self._features.blocks(rows):
            yield where, self._product(block)

    def _product(self, features: Tensor) -> Tensor:
        dtype = torch.float64 if torch.float64 in (features.dtype, self._weight.dtype) else torch.float32
        weight = self._weight.to(features.device, dtype)
        scores = features.to(dtype) @ weight.T
        if self._bias is not None:
            scores += self._bias.to(features.device, dtype)
        return scores if self._scale == 1.0 else scores.mul_(self._scale)


Source = Matrix | LinearScores


def as_source(scores: Tensor | RowSliceable | LinearScores) -> Source:
    """Scores in any of the accepted forms, ready to be read in blocks.

    Raises:
        ValueError: not (n, k).
        TypeError: not floating point.
    """
    return scores if isinstance(scores, LinearScores) else Matrix(scores)


def reversible(spread: float, dtype: torch.dtype) -> bool:
    """Tell whether exp keeps exponents that differ by ``spread`` within a row, so that log brings them back."""
    return spread <= _REVERSIBLE_RANGE[dtype]


def default_chunk_rows(source: Source) -> int:
    """Rows per block, so that a block and its temporary stay in the cache."""
    numbers = _BLOCK_NUMBERS if source.device.type == "cpu" else _GPU_BLOCK_NUMBERS
    return max(1, numbers // max(1, source.num_columns))


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
