"""``labelkit datasets``: what data sets there are, and what of them is here."""

from __future__ import annotations

from labelkit.cli.command import stage_command
from labelkit.cli.console import print_result
from labelkit.config.datasets import DatasetsConfig


@stage_command(DatasetsConfig)
def datasets(config: DatasetsConfig) -> None:
    """Show the named data sets: what for, from where, and whether they are here and whole; exit 3 if --dataset is not.

    Example: labelkit datasets --data-root data
    """
    from labelkit.stages.datasets import survey_datasets  # numpy loads here, not in --help

    result = survey_datasets(config)
    print_result(result)
    if result.fault is not None:
        raise result.fault
