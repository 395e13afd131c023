"""``labelkit show``: pictures of what a run did."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from labelkit.cli.command import stage_command
from labelkit.cli.console import print_result
from labelkit.cli.options import new_group
from labelkit.config.discover_few import ShowDiscoveredConfig
from labelkit.config.show import (
    ShowAssemblyConfig,
    ShowAttentionConfig,
    ShowCurvesConfig,
    ShowPatchesConfig,
    ShowPrototypesConfig,
)


@stage_command(ShowAttentionConfig)
def attention(config: ShowAttentionConfig) -> None:
    """Draw what the class tokens of teacher and student attend to, before and after the teacher's update.

    Of a run of tac-ccl: attention of two views of an image, and how much they agree, before and after training.

    Example: labelkit show attention --checkpoint runs/flipclass-digits --num-images 4 --out maps.png
    """
    from labelkit.stages.show.attention import show_attention  # torch loads here, not in --help

    print_result(show_attention(config))


@stage_command(ShowAssemblyConfig)
def assembly(config: ShowAssemblyConfig) -> None:
    """Draw where the spatial assembly of a network moves the features of a few images, and what stays.

    Example: labelkit show assembly --checkpoint runs/san-digits --num-images 4 --out assembly.png
    """
    from labelkit.stages.show.assembly import show_assembly  # torch loads here, not in --help

    print_result(show_assembly(config))


@stage_command(ShowCurvesConfig)
def curves(config: ShowCurvesConfig) -> None:
    """Draw what runs logged: losses, accuracies, diagnostics; several runs in the same axes.

    Example: labelkit show curves --run runs/flipclass-digits --metrics loss,all_accuracy --out curves.png
    """
    from labelkit.stages.show.curves import show_curves  # matplotlib loads here, not in --help

    print_result(show_curves(config))


@stage_command(ShowDiscoveredConfig)
def discovered(config: ShowDiscoveredConfig) -> None:
    """Draw what was discovered: images of each class, best first, right and wrong if known; or a 2-D map of all.

    Example: labelkit show discovered --index pixels.h5 --result snowball --out sheet.png --map map.png
    """
    from labelkit.stages.show.discovered import show_discovered  # matplotlib loads here, not in --help

    print_result(show_discovered(config))


@stage_command(ShowPatchesConfig)
def patches(config: ShowPatchesConfig) -> None:
    """Draw how similar the patches of a few images are to a chosen one, and their principal components as colors.

    Example: labelkit show patches --index scenes.h5 --rows 3,8,21 --patch 4,2 --out patches.png
    """
    from labelkit.stages.show.patches import show_patches  # matplotlib loads here, not in --help

    print_result(show_patches(config))


@stage_command(ShowPrototypesConfig)
def prototypes(config: ShowPrototypesConfig) -> None:
    """Draw where the object-aware filter of a cotap run finds each of its prototypes in a few images.

    Example: labelkit show prototypes --checkpoint runs/cotap --num-images 4 --out prototypes.png
    """
    from labelkit.stages.show.prototypes import show_prototypes  # torch loads here, not in --help

    print_result(show_prototypes(config))


def build_app(words: Sequence[str] | None) -> typer.Typer:
    """Build ``labelkit show`` as far as the words after it need."""
    return new_group(
        {
            "attention": attention,
            "assembly": assembly,
            "curves": curves,
            "discovered": discovered,
            "patches": patches,
            "prototypes": prototypes,
        },
        words,
    )
