"""``labelkit export``: rows, labels or a result of a store as a file for other programs."""

from __future__ import annotations

from labelkit.cli.command import stage_command
from labelkit.cli.console import print_result
from labelkit.config.exchange import ExportConfig


@stage_command(ExportConfig)
def export_rows(config: ExportConfig) -> None:
    """Write rows, labels or a result of a store for other programs: .npy, .npz, CSV or Parquet.

    Example: labelkit export --index digits.h5 --out digits.csv
    """
    from labelkit.stages.exchange.exporting import export_store  # NumPy and HDF5 load here, not in --help

    print_result(export_store(config))
