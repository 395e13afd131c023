"""Scores that are read in blocks of rows: a tensor, an array, a memory map, a data set of a file, a linear layer.

Blocks of files are read by a thread while the block before is used, and pages of a memory map are given back at once,
so that memory does not grow with the matrix.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from labelkit.algorithms.mapped import map_of, release

# Numbers per block: 3 MB in float32, so that a block is still in the cache for its second product.
_BLOCK_NUMBERS = 3 << 18
_GPU_BLOCK_NUMBERS = 1 << 26
# Bytes read from a file at a time; two such segments are held, one being read while the other is used.
_SEGMENT_BYTES = 1 << 25


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
        elif isinstance(values, np.ndarray) and map_of(values) is None:
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

    def finish_block(self, rows: Tensor) -> Tensor:
        """Turn rows of a segment into rows of the matrix: they are."""
        return rows

    def segments(self, rows: int) -> Iterator[tuple[int, Tensor]]:
        """All rows in order, in as large pieces as may be held, of a multiple of ``rows``: (first row, piece)."""
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
        mapped = map_of(raw)
        values = np.array(raw, dtype=np.asarray(raw).dtype.type, order="C")
        if mapped is not None:
            release(raw, mapped)
        return torch.from_numpy(values)


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

    def segments(self, rows: int) -> Iterator[tuple[int, Tensor]]:
        """Features in order, in as large pieces as may be held; each thread makes scores of its own rows."""
        return self._features.segments(rows)

    def finish_block(self, rows: Tensor) -> Tensor:
        """Turn rows of features into rows of scores."""
        return self._product(rows)

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


def default_chunk_rows(source: Source) -> int:
    """Rows per block, so that a block and its temporary stay in the cache."""
    numbers = _BLOCK_NUMBERS if source.device.type == "cpu" else _GPU_BLOCK_NUMBERS
    return max(1, numbers // max(1, source.num_columns))
