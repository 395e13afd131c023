"""``labelkit status``: how far is it?"""

from __future__ import annotations

from labelkit.cli.command import stage_command
from labelkit.cli.console import print_result
from labelkit.config.store_commands import StatusConfig


@stage_command(StatusConfig)
def status(config: StatusConfig) -> None:
    """Say how far a store that is embedded or a run that is trained is, and what of it is whole; changes nothing.

    Example: labelkit status --index cub.h5
    """
    from labelkit.stages.status import look_at  # torch loads here, not in --help

    print_result(look_at(config))
