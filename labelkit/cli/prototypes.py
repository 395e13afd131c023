"""``labelkit prototypes``: class vectors spread over the sphere."""

from __future__ import annotations

from labelkit.cli.command import stage_command
from labelkit.cli.console import print_result
from labelkit.config.prototypes import PrototypesConfig


@stage_command(PrototypesConfig)
def prototypes(config: PrototypesConfig) -> None:
    """Spread one vector per class over the sphere, write them, and say how well they are spread.

    Example: labelkit prototypes --num-classes 100 --embed-dim 50
    """
    from labelkit.stages.prototypes import make_prototypes  # torch loads here, not in --help

    print_result(make_prototypes(config))
