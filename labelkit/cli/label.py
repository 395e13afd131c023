"""``labelkit label``: a filled-in CSV becomes labels beside the store."""

from __future__ import annotations

from labelkit.cli.command import stage_command
from labelkit.cli.console import print_result
from labelkit.config.labeling import LabelConfig


@stage_command(LabelConfig)
def label(config: LabelConfig) -> None:
    """Bring labels back: add those of a CSV to what is known, as a result that other commands take by --labels.

    Example: labelkit label --index photos.h5 --from next.csv --by Ann
    """
    from labelkit.stages.label.label import label_images  # the store loads here, not in --help

    print_result(label_images(config))
