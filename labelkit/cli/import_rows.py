"""``labelkit import``: rows of another program become a store."""

from __future__ import annotations

from labelkit.cli.command import stage_command
from labelkit.cli.console import print_result
from labelkit.config.exchange import ImportConfig


@stage_command(ImportConfig)
def import_rows(config: ImportConfig) -> None:
    """Make a store of embeddings that another program wrote: .npy, .npz, CSV or HDF5; everything is checked.

    Example: labelkit import --source features.npy --ids paths.csv --model dinov2 --out features.h5
    """
    from labelkit.stages.exchange.importing import import_store  # NumPy and HDF5 load here, not in --help

    print_result(import_store(config))
