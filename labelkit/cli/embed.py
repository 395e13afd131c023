"""``labelkit embed``: a data set becomes an embedding store."""

from __future__ import annotations

from labelkit.cli.command import stage_command
from labelkit.cli.console import print_result
from labelkit.config.embed import EmbedConfig


@stage_command(EmbedConfig)
def embed(config: EmbedConfig) -> None:
    """Embed every image of a data set with a trained backbone.

    Example: labelkit embed --dataset digits --checkpoint runs/flipclass-digits --out digits.h5
    """
    from labelkit.stages.embed.images import embed_images  # torch loads here, not in --help

    print_result(embed_images(config))
