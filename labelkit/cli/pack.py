"""``labelkit pack``: a store and its results in one file."""

from __future__ import annotations

from labelkit.cli.command import stage_command
from labelkit.cli.console import print_result
from labelkit.config.store_commands import PackConfig


@stage_command(PackConfig)
def pack(config: PackConfig) -> None:
    """Write one file with a store and all its results, for sending; every command reads it as it does a store.

    Example: labelkit pack --index cub.h5 --out all.h5
    """
    from labelkit.stages.exchange.packing import pack_results  # h5py loads here, not in --help

    print_result(pack_results(config))
