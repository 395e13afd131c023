"""``labelkit verify``: is everything still as it was written?"""

from __future__ import annotations

from labelkit.cli.command import stage_command
from labelkit.cli.console import print_result
from labelkit.config.store_commands import VerifyConfig


@stage_command(VerifyConfig)
def verify(config: VerifyConfig) -> None:
    """Compare every block of a store, result, patches, matches or run with its digest; exit 3 if anything is wrong.

    Example: labelkit verify --index cub.h5 --images data/cub
    """
    from labelkit.stages.verify import verify_path  # torch loads here, not in --help

    result = verify_path(config)
    print_result(result)
    if result.fault is not None:
        raise result.fault
