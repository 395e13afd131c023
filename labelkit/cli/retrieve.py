"""``labelkit retrieve``: the images of a store that look most like a query."""

from __future__ import annotations

from labelkit.cli.command import stage_command
from labelkit.cli.console import print_result
from labelkit.config.retrieve import RetrieveConfig


@stage_command(RetrieveConfig)
def retrieve(config: RetrieveConfig) -> None:
    """Find the images of a store that look most like a query: an image, a folder of them, or rows of a store.

    With --patch or --pixel: the patches of a store (made with embed --dense) that look most like one patch of an image.

    Example: labelkit retrieve --query img.png --index digits.h5 -k 10
    """
    from labelkit.stages.retrieve.images import retrieve_images  # numpy loads here, not in --help

    print_result(retrieve_images(config))
