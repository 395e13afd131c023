"""``labelkit compare``: methods side by side on one split and one budget."""

from __future__ import annotations

from labelkit.cli.command import stage_command
from labelkit.cli.console import print_result
from labelkit.config.compare import CompareConfig


@stage_command(CompareConfig)
def compare(config: CompareConfig) -> None:
    """Train methods on the same images within the same time and judge their features alike: kNN, k-means, Recall@1.

    Example: labelkit compare --methods flipclass,simgcd --dataset digits --budget 10m --seeds 3 --keep runs/compared
    """
    from labelkit.stages.compare.compare import compare_methods  # torch loads here, not in --help

    print_result(compare_methods(config))
