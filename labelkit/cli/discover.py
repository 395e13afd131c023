"""``labelkit discover``: how many classes are there, which images belong together, which are sure?"""

from __future__ import annotations

from collections.abc import Sequence

import typer

from labelkit.cli.command import stage_command
from labelkit.cli.console import print_result
from labelkit.cli.options import new_group
from labelkit.config.discover import DiscoverAnswerConfig, DiscoverCategoriesConfig, DiscoverHeadConfig
from labelkit.config.discover_few import DiscoverLMCSConfig, DiscoverSnowballConfig


@stage_command(DiscoverCategoriesConfig)
def categories(config: DiscoverCategoriesConfig) -> None:
    """Estimate the number of classes and assign every image to one.

    Example: labelkit discover categories --index digits.h5
    """
    from labelkit.stages.discover.categories import discover_categories  # scikit-learn loads here, not in --help

    print_result(discover_categories(config))


@stage_command(DiscoverHeadConfig)
def head(config: DiscoverHeadConfig) -> None:
    """Assign every image to the class that the trained classifier names.

    Example: labelkit discover head --index digits.h5
    """
    from labelkit.stages.discover.categories import discover_head  # scikit-learn loads here, not in --help

    print_result(discover_head(config))


@stage_command(DiscoverAnswerConfig)
def answer(config: DiscoverAnswerConfig) -> None:
    """Answer for every unlabeled image: a known class, a new group, or unsure, with a calibrated confidence.

    Example: labelkit discover answer --index digits.h5 --min-confidence 0.8
    """
    from labelkit.stages.discover.answer import answer_images  # scipy loads here, not in --help

    print_result(answer_images(config))


@stage_command(DiscoverSnowballConfig)
def snowball(config: DiscoverSnowballConfig) -> None:
    """Grow a few labels: the images nearest to the mean of a class get its label.

    Example: labelkit discover snowball --index pixels.h5 --num-labels 20 --rounds 3
    """
    from labelkit.stages.discover.few import discover_snowball  # the store loads here, not in --help

    print_result(discover_snowball(config))


@stage_command(DiscoverLMCSConfig)
def lmcs(config: DiscoverLMCSConfig) -> None:
    """Grow a few labels: of the images near the classes, the most ambiguous get a label.

    Example: labelkit discover lmcs --index pixels.h5 --num-labels 20 --per-class 4
    """
    from labelkit.stages.discover.few import discover_lmcs  # the store loads here, not in --help

    print_result(discover_lmcs(config))


def build_app(words: Sequence[str] | None) -> typer.Typer:
    """Build ``labelkit discover`` as far as the words after it need."""
    return new_group(
        {
            "categories": categories,
            "head": head,
            "answer": answer,
            "snowball": snowball,
            "lmcs": lmcs,
        },
        words,
    )
