"""``labelkit match``: pairs of images that show the same thing."""

from __future__ import annotations

from labelkit.cli.command import stage_command
from labelkit.cli.console import print_result
from labelkit.config.match import MatchConfig


@stage_command(MatchConfig)
def match(config: MatchConfig) -> None:
    """Find pairs of images that show the same thing: affine SIFT keypoints, and a homography that explains them.

    Example: labelkit match --index init.h5 --num-clusters 100 --out matches.h5
    """
    from labelkit.stages.match.pairs import match_images_of_store  # OpenCV loads here, not in --help

    print_result(match_images_of_store(config))
