"""The table that ``labelkit find`` writes."""

from __future__ import annotations

from collections.abc import Sequence

from labelkit.config.find import FindConfig
from labelkit.store.commit import commit_bytes
from labelkit.store.csv_table import csv_bytes


def write_table(config: FindConfig, columns: Sequence[str], lines: Sequence[Sequence[object]]) -> None:
    """Write the CSV."""
    commit_bytes(config.out, csv_bytes(columns, lines))
