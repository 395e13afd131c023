"""``labelkit suggest``: which images to label next."""

from __future__ import annotations

from labelkit.cli.command import stage_command
from labelkit.cli.console import print_result
from labelkit.config.labeling import SuggestConfig


@stage_command(SuggestConfig)
def suggest(config: SuggestConfig) -> None:
    """Suggest the images most worth labeling next, as a CSV to fill in.

    Example: labelkit suggest --index photos.h5 -n 20 --out next.csv --sheet next.png
    """
    from labelkit.stages.label.suggest import suggest_images  # scikit-learn loads here, not in --help

    print_result(suggest_images(config))
