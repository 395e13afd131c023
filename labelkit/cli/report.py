"""``labelkit report``: everything about a store in one page."""

from __future__ import annotations

from labelkit.cli.command import stage_command
from labelkit.cli.console import print_result
from labelkit.config.report import ReportConfig


@stage_command(ReportConfig)
def report(config: ReportConfig) -> None:
    """Write one HTML file about a store: groups, a map, neighbors, doubtful labels, duplicates, scores, curves.

    It opens from disk in any browser and loads nothing from elsewhere; the images are in it as thumbnails.

    Example: labelkit report --index photos.h5 --out report.html
    """
    from labelkit.stages.report.build import write_report  # NumPy, SciPy and Pillow load here, not in --help

    print_result(write_report(config))
