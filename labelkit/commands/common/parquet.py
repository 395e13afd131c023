"""Write tables as Parquet, by pyarrow, which only those who want this need."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from labelkit.errors import ConfigError

Values = Sequence[str | None] | NDArray[Any]


def check_parquet() -> None:
    """Check that pyarrow, which writes Parquet, is installed.

    Raises:
        ConfigError: pyarrow is not installed.
    """
    try:
        import pyarrow.parquet  # noqa: F401 - to see whether it is there
    except ImportError as error:
        problem = "writing Parquet needs pyarrow, which is not installed"
        raise ConfigError("--out", problem, "Run `pip install pyarrow`, or write .csv or .npz.") from error


def write_parquet(
    file: BinaryIO, columns: Mapping[str, Values], rows: Iterable[NDArray[Any]] | None, width: int
) -> None:
    """Write columns, and optionally embeddings, as a Parquet table.

    Args:
        file: a new file.
        columns: by name, n texts (``None``: null) or numbers.
        rows: (m, width) float32 blocks that together are n rows, for a last column ``embedding`` of lists of one
            length; ``None``: no such column.
        width: values per row.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    arrays = {
        name: pa.array(values) if isinstance(values, np.ndarray) else pa.array(list(values), pa.string())
        for name, values in columns.items()
    }
    table = pa.table(arrays)
    if rows is None:
        pq.write_table(table, file)
        return
    kind = pa.list_(pa.float32(), width)
    with pq.ParquetWriter(file, table.schema.append(pa.field("embedding", kind))) as writer:
        start = 0
        for block in rows:
            flat = pa.array(np.ascontiguousarray(block, dtype=np.float32).reshape(-1))
            part = table.slice(start, len(block))
            writer.write_table(part.append_column("embedding", pa.FixedSizeListArray.from_arrays(flat, width)))
            start += len(block)
