"""Array rows, in memory or read block by block from a memory map, and computations over their blocks.

The block size depends only on the shapes, and rows of a file are selected, scaled and shifted in float32 as they would
be in memory, so results do not depend on where the rows are stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from copy import copy
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.floating[Any]]

# Numbers per temporary block: 8 MB in float64, so that a block stays in the processor cache.
BLOCK_NUMBERS = 1 << 20


class StoredRows:
    """Lazy float32 view of all or some rows of a stored array, such as a memory map.

    Indexing by a slice or an int64 array returns a new array of rows; the whole array is never held in memory.

    Args:
        source: (m, d) float16 or float32, an array or an object that returns one when indexed, such as ``LazyRows``.
        chosen: (n,) int64 rows of the source; ``None`` for all.
        unit: scale each row to unit length; all-zero rows do not change.
        roots: take the square roots first; all numbers must be >= 0.
        in_blocks: whether algorithms should read the rows block by block; otherwise they copy them into memory.

    Attributes:
        shape: (n, d).
        dtype: float32.
        in_blocks: see above.
        map_parts: applies a function to successive parts of the rows, possibly in other processes, and yields its
            results in order; ``None``: rows are processed here.
    """

    dtype = np.dtype(np.float32)

    def __init__(
        self,
        source: Any,
        chosen: NDArray[np.int64] | None = None,
        *,
        unit: bool = False,
        roots: bool = False,
        in_blocks: bool,
    ) -> None:
        self._source = source
        self._chosen = chosen
        self._first = 0  # first row of the view, unless rows are chosen individually
        self._roots = roots
        self._divisors: tuple[Floats, ...] = ()
        self._offset: NDArray[np.float32] | None = None
        self.shape: tuple[int, int] = (len(source) if chosen is None else len(chosen), source.shape[1])
        self.in_blocks = in_blocks
        self.map_parts: Callable[[Callable[[StoredRows], Any], StoredRows], Iterable[Any]] | None = None
        if unit:
            self._divisors = (self.norms(),)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, where: slice | NDArray[np.int64]) -> NDArray[np.float32]:
        rows = np.array(self._source[self._places(where)], dtype=np.float32)
        if self._roots:
            rows = square_roots(rows)
        for divisors in self._divisors:
            np.divide(rows, divisors[where][..., None], out=rows, casting="same_kind")
        if self._offset is not None:
            rows -= self._offset
        return rows

    def norms(self) -> NDArray[np.float32]:
        """Compute the norm (n,) of each row, or 1 for an all-zero row, so that rows can be divided by their norms."""
        lengths = np.empty(len(self), dtype=np.float32)
        for block in row_slices(*self.shape):
            lengths[block] = row_norms(self[block])
        return np.where(lengths > 0, lengths, np.float32(1))

    def _places(self, where: slice | NDArray[np.int64]) -> Any:
        """Return the indices of rows in the source."""
        if self._chosen is not None:
            return self._chosen[where]
        if not isinstance(where, slice):
            return where + self._first
        start, stop, step = where.indices(len(self))
        return slice(self._first + start, self._first + stop, step)

    def divided_by(self, divisors: Floats) -> StoredRows:
        """Return a view with each row divided by its divisor (n,), in the divisor's precision, before any offset."""
        found = copy(self)
        found._divisors = (*self._divisors, divisors)
        return found

    def centered_at(self, offset: NDArray[np.float32]) -> StoredRows:
        """Return a view that subtracts an offset (d,) from each row, instead of any previous offset."""
        found = copy(self)
        found._offset = offset
        return found

    def with_reading_mode(self, *, in_blocks: bool) -> StoredRows:
        """Return a view of the same rows that algorithms read in blocks or, if false, copy to memory."""
        found = copy(self)
        found.in_blocks = in_blocks
        return found

    def subset(self, positions: NDArray[np.int64] | slice) -> StoredRows:
        """Return a view of the rows at the given positions (m,) or in a slice, with the same offset and scale."""
        found = copy(self)
        if isinstance(positions, slice) and self._chosen is None:
            found._first += positions.start
            found.shape = (positions.stop - positions.start, self.shape[1])
        else:
            found._chosen = self._places(positions)
            found.shape = (len(found._chosen), self.shape[1])
        found._divisors = tuple(divisors[positions] for divisors in self._divisors)
        return found

    def to_array(self) -> NDArray[np.float32]:
        """Copy all rows into a new array (n, d)."""
        array = np.empty(self.shape, dtype=np.float32)
        for block in row_slices(*self.shape):
            array[block] = self[block]
        return array


Rows = Floats | StoredRows


def square_roots(values: NDArray[np.floating[Any]]) -> NDArray[np.float32]:
    """Return the square roots of non-negative numbers of any shape, as float32.

    They make features of networks that end in a ReLU easier to compare: Y. Hu, V. Gripon and S. Pateux, "Leveraging the
    Feature Distribution in Transfer-based Few-Shot Learning" (power transform).
    """
    return np.asarray(np.sqrt(np.maximum(values, 0, dtype=np.float32)))


def rows_per_block(numbers_per_row: int) -> int:
    """Return the number of rows, at least 1, that a block can hold."""
    return max(1, BLOCK_NUMBERS // numbers_per_row)


def row_slices(num_rows: int, numbers_per_row: int) -> list[slice]:
    """Return the slices of consecutive row blocks, whose size depends only on the shape, for reproducible results."""
    size = rows_per_block(numbers_per_row)
    return [slice(start, min(start + size, num_rows)) for start in range(0, num_rows, size)]


def iterate_blocks(rows: Rows) -> Iterator[tuple[slice, Floats]]:
    """Yield the slice and the rows of each block in order."""
    for block in row_slices(*rows.shape):
        yield block, rows[block]


def validate_rows(x: ArrayLike | StoredRows, name: str) -> Rows:
    """Check an array and return it as contiguous float32, or float64 if it already is; copy only if needed.

    Rows that are read in blocks are not loaded into memory.

    Raises:
        ValueError: not (n, d) with d >= 1, NaN or infinity.
    """
    rows: Rows
    if isinstance(x, StoredRows):
        rows = x if x.in_blocks else x.to_array()
    else:
        array = np.asarray(x)
        if array.ndim != 2 or array.shape[1] == 0:
            raise ValueError(f"{name} must have shape (n, d) with d >= 1, got {array.shape}")
        kind: type[np.float64] | type[np.float32] = np.float64 if array.dtype == np.float64 else np.float32
        rows = np.asarray(array, dtype=kind, order="C")
    bad = 0
    for _, part in iterate_blocks(rows):
        if not np.isfinite([part.max(), part.min()]).all():  # NaN is both the maximum and the minimum
            bad += int((~np.isfinite(part).all(axis=1)).sum())
    if bad:
        raise ValueError(f"{bad} of {len(rows)} rows of {name} contain NaN or infinity")
    return rows


def to_unit_length(rows: Rows, name: str, *, in_place: bool = False) -> Rows:
    """Scale rows (n, d) to unit norm; ``in_place`` overwrites an array.

    Raises:
        ValueError: a row is zero.
    """
    lengths = np.concatenate([row_norms(part) for _, part in iterate_blocks(rows)] or [np.empty(0)])
    zeros = int((lengths == 0).sum())
    if zeros:
        raise ValueError(f"{zeros} of {len(rows)} rows of {name} have zero norm, and thus no direction")
    divisors: Floats = lengths.astype(rows.dtype)
    if isinstance(rows, StoredRows):
        return rows.divided_by(divisors)
    return np.divide(rows, divisors[:, None], out=rows if in_place else None)


def row_norms(rows: Floats) -> NDArray[np.float64]:
    """Compute row norms (n,), even if the squares would overflow or underflow."""
    largest = np.abs(rows).max(axis=1, initial=0).astype(np.float64)
    scaled = rows / np.where(largest > 0, largest, 1)[:, None]
    return np.asarray(largest * np.linalg.norm(scaled, axis=1))


def column_sums(rows: Rows) -> NDArray[np.float64]:
    """Compute the column sums (d,) in float64."""
    sums = np.zeros(rows.shape[1])
    for _, part in iterate_blocks(rows):
        sums += part.astype(np.float64).sum(axis=0)  # faster than sum(dtype=np.float64)
    return sums


def squared_norms(rows: Rows) -> NDArray[np.float64]:
    """Compute the squared norm (n,) of each row in float64."""
    squares = np.empty(len(rows))
    for block, values in iterate_blocks(rows):
        part = values.astype(np.float64)
        squares[block] = np.einsum("ij,ij->i", part, part)
    return squares
