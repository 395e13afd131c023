"""``labelkit diff``: what became of the groups of an earlier run."""

from __future__ import annotations

from labelkit.cli.command import stage_command
from labelkit.cli.console import print_result
from labelkit.config.labeling import DiffConfig


@stage_command(DiffConfig)
def diff(config: DiffConfig) -> None:
    """Compare two groupings: groups kept, split, merged, new or vanished, and images that moved.

    Example: labelkit diff --index new.h5 --result k-means --previous old.h5
    """
    from labelkit.stages.group.diff import diff_groups  # scipy loads here, not in --help

    print_result(diff_groups(config))
