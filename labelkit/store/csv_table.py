"""Tables as CSV, as commands write and print them; ``export`` alone writes its own, in pieces."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence


def csv_text(columns: Sequence[object], rows: Iterable[Iterable[object]]) -> str:
    """Return a table with a header; lines end with a line feed, and cells are quoted where they must be."""
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return buffer.getvalue()


def csv_bytes(columns: Sequence[object], rows: Iterable[Iterable[object]]) -> bytes:
    """Return the same in UTF-8; bytes of a file name that are no text become backslash escapes."""
    return csv_text(columns, rows).encode("utf-8", "backslashreplace")
