"""The table that ``labelkit find`` writes."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from labelkit.config.find import FindConfig
from labelkit.store.commit import commit_bytes


def write_table(config: FindConfig, columns: Sequence[str], lines: Sequence[Sequence[object]]) -> None:
    """Write the CSV."""
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(lines)
    commit_bytes(config.out, buffer.getvalue().encode())
